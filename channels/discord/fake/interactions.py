"""Commands and interactions of the fake: their registration, their use by users, and the bot's responses."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import aiohttp
import msgspec
from msgspec.structs import replace

from channels.discord.fake.calls import (
    ALREADY_ACKNOWLEDGED,
    EXPIRED_TOKEN,
    MISSING_ACCESS,
    NOT_YOUR_APPLICATION,
    TOO_MANY_CREATES,
    UNKNOWN_COMMAND,
    UNKNOWN_INTERACTION,
    UNKNOWN_MESSAGE,
    UNKNOWN_WEBHOOK,
    Answer,
    ApiCall,
    ApiError,
    Handler,
    check_call,
    invalid,
    unmodelled,
)
from channels.discord.fake.chats import Chats
from channels.discord.fake.gateway import Event, Publish
from channels.discord.fake.limits import Figures
from channels.discord.fake.messages import BUTTON, Draft, Drafts
from channels.discord.fake.payloads import GuildViews, Views
from channels.discord.fake.state import (
    COMMAND,
    CONTEXT_COMMAND,
    DEFAULT,
    EPHEMERAL,
    LOADING,
    REPLY,
    Channel,
    Command,
    Interaction,
    Json,
    Message,
    Reference,
    User,
    World,
)
from gateway.testing.fake_platform import FakeServer, Window

CHAT, USER, MESSAGE = 1, 2, 3
_MOST: Final = {CHAT: 100, USER: 15, MESSAGE: 15}
_MOST_TEXT: Final = 8000
_MOST_CHOICE: Final = 100
_DAY: Final = 86_400.0
_GROUPS: Final = (1, 2)
_COMPLETED: Final = (3, 4, 10)
"""Types of options that a bot can complete: text, integers and numbers."""

Body = Mapping[str, Any]


class Commands:
    """Registered commands. The methods that the bot uses raise ApiError.

    ``refused`` are names that Discord does not accept, besides those that its rules forbid.
    """

    def __init__(self, world: World, figures: Figures) -> None:
        self.refused: set[str] = set()
        self._world = world
        self._figures = figures
        self._created: dict[int | None, Window] = {}

    def of(self, guild: int | None) -> Sequence[Command]:
        """Return the commands of a guild, or the global ones (None)."""
        return [command for command in self._world.commands.values() if command.guild == guild]

    def named(self, name: str, kind: int, guild: int | None) -> Command:
        """Return the command that a user sees; one of the guild comes first. Raises LookupError."""
        for place in (guild, None) if guild is not None else (None,):
            for command in self.of(place):
                if command.name == name and command.kind == kind and _shown(command, guild):
                    return command
        raise LookupError(f"no command {name!r} of kind {kind} is registered here")

    def get(self, key: int, guild: int | None) -> Command:
        """Return a command by its id."""
        command = self._world.commands.get(key)
        if command is None or command.guild != guild:
            raise ApiError(UNKNOWN_COMMAND)
        return command

    def put(self, body: Body, guild: int | None) -> tuple[Command, bool]:
        """Register a command; one with the same name and type is replaced. Also returns whether it is new."""
        _check(body, "")
        kind = int(body.get("type") or CHAT)
        same = [c for c in self.of(guild) if c.name == body["name"] and c.kind == kind]
        if not same:
            if sum(command.kind == kind for command in self.of(guild)) >= _MOST[kind]:
                raise _too_many(kind)
            self._count(guild, 1)
        return self._store(body, guild, same[0].id if same else None), not same

    def change(self, command: Command, body: Body) -> Command:
        """Change fields of a command."""
        whole = {**command.body, **body}
        _check(whole, "")
        return self._store(whole, command.guild, command.id)

    def replace(self, bodies: Sequence[Body], guild: int | None) -> Sequence[Command]:
        """Replace all commands of a guild, or the global ones. Known names keep their ids and are not new."""
        known = {(command.name, command.kind): command.id for command in self.of(guild)}
        names = [(body["name"], int(body.get("type") or CHAT)) for body in bodies]
        for index, name in enumerate(names):
            if name in names[:index]:
                message = "Application command names must be unique"
                raise invalid(f"{index}.name", "APPLICATION_COMMANDS_DUPLICATE_NAME", message)
        for kind, most in _MOST.items():
            if sum(found == kind for _, found in names) > most:
                raise _too_many(kind)
        for index, body in enumerate(bodies):
            _check(body, f"{index}.")
            if body["name"] in self.refused:
                raise invalid(f"{index}.name", "APPLICATION_COMMAND_INVALID_NAME", "Command name is invalid")
        self._count(guild, sum(name not in known for name in names))
        for key in set(known.values()) - {known.get(name) for name in names}:
            del self._world.commands[key]
        pairs = zip(names, bodies, strict=True)
        return [self._store(body, guild, known.get(name)) for name, body in pairs]

    def remove(self, command: Command) -> None:
        """Remove a command."""
        del self._world.commands[command.id]
        self._world.changes.bump()

    def view(self, command: Command) -> dict[str, Any]:
        """Return Discord's JSON object of a command."""
        body = command.body
        view: dict[str, Any] = {
            "id": str(command.id),
            "application_id": str(self._world.bot.id),
            "version": str(command.version),
            "type": command.kind,
            "name": command.name,
            "name_localizations": body.get("name_localizations"),
            "description": body.get("description") or "",
            "description_localizations": body.get("description_localizations"),
            "default_member_permissions": body.get("default_member_permissions"),
            "nsfw": bool(body.get("nsfw")),
        }
        if body.get("options"):
            view["options"] = body["options"]
        if command.guild is not None:
            return {**view, "guild_id": str(command.guild)}
        return {
            **view,
            "dm_permission": body.get("dm_permission", True),
            "contexts": body.get("contexts"),
            "integration_types": body.get("integration_types") or [0],
        }

    def _store(self, body: Body, guild: int | None, key: int | None) -> Command:
        version = self._world.ids.new()
        command = Command(
            id=key or self._world.ids.new(),
            kind=int(body.get("type") or CHAT),
            name=body["name"],
            guild=guild,
            version=version,
            body={name: value for name, value in body.items() if name != "id"},
        )
        self._world.commands[command.id] = command
        self._world.changes.bump()
        return command

    def _count(self, guild: int | None, created: int) -> None:
        window = Window(self._world.clock, self._figures.command_creates, _DAY)
        window = self._created.setdefault(guild, window)
        if window.used + created > window.most:
            raise ApiError(TOO_MANY_CREATES)
        window.count(created)


def _shown(command: Command, guild: int | None) -> bool:
    """Return whether users see a command in a guild, or in direct messages (None)."""
    if command.guild is not None:
        return True
    contexts = command.body.get("contexts")
    if contexts is not None:
        return (1 if guild is None else 0) in contexts
    return guild is not None or command.body.get("dm_permission") is not False


def _check(body: Body, path: str) -> None:
    kind, name = int(body.get("type") or CHAT), body["name"]
    if kind == CHAT:
        _check_name(name, f"{path}name")
        if not body.get("description"):
            raise invalid(f"{path}description", "BASE_TYPE_REQUIRED", "This field is required")
        _check_options(body.get("options") or (), f"{path}options")
    elif body.get("description"):
        message = "Context menu commands cannot have description"
        raise invalid(f"{path}description", "APPLICATION_COMMAND_CONTEXT_MENU_DESCRIPTION_INVALID", message)
    if _size(body) > _MOST_TEXT:
        message = f"Command exceeds maximum size ({_MOST_TEXT})"
        raise invalid(path.rstrip(".") or "name", "APPLICATION_COMMAND_TOO_LARGE", message)


def _check_name(name: str, path: str) -> None:
    fine = all(c.isalnum() or c in "-_'" for c in name) and name == name.lower()
    if not fine:
        raise invalid(path, "APPLICATION_COMMAND_INVALID_NAME", "Command name is invalid")


def _check_options(options: Sequence[Body], path: str) -> None:
    names: set[str] = set()
    optional = False
    for index, option in enumerate(options):
        at = f"{path}.{index}"
        _check_name(option["name"], f"{at}.name")
        if not option.get("description"):
            raise invalid(f"{at}.description", "BASE_TYPE_REQUIRED", "This field is required")
        if option["name"] in names:
            message = "Option name already exists"
            raise invalid(f"{at}.name", "APPLICATION_COMMAND_OPTIONS_NAME_ALREADY_EXISTS", message)
        names.add(option["name"])
        if option["type"] in _GROUPS:
            _check_options(option.get("options") or (), f"{at}.options")
        elif option.get("autocomplete") and (option.get("choices") or option["type"] not in _COMPLETED):
            message = "Autocomplete is for options of text or numbers without choices"
            raise invalid(f"{at}.autocomplete", "APPLICATION_COMMAND_OPTIONS_AUTOCOMPLETE_INVALID", message)
        elif option.get("required") and optional:
            message = "Required options must be placed before non-required options"
            raise invalid(at, "APPLICATION_COMMAND_OPTIONS_REQUIRED_INVALID", message)
        optional = optional or not option.get("required")


def _size(body: Body) -> int:
    size = len(body["name"]) + len(body.get("description") or "")
    for option in body.get("options") or ():
        size += _size(option)
    for choice in body.get("choices") or ():
        size += len(choice["name"]) + len(str(choice["value"]))
    return size


def _too_many(kind: int) -> ApiError:
    return ApiError(
        (400, 30032, f"Maximum number of application commands reached ({_MOST[kind]})"), "too many commands"
    )


class CommandRoutes:
    """Handlers of the calls about commands, global ones and those of a guild."""

    def __init__(self, world: World, commands: Commands) -> None:
        self._world = world
        self._commands = commands

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers of these calls, by name."""
        found: dict[str, Handler] = {}
        for prefix in ("/applications/{application_id}", "/applications/{application_id}/guilds/{guild_id}"):
            found |= {
                f"GET {prefix}/commands": self._list,
                f"PUT {prefix}/commands": self._replace,
                f"POST {prefix}/commands": self._create,
                f"GET {prefix}/commands/{{command_id}}": self._get,
                f"PATCH {prefix}/commands/{{command_id}}": self._change,
                f"DELETE {prefix}/commands/{{command_id}}": self._delete,
            }
        return found

    def _list(self, call: ApiCall) -> Answer:
        found = self._commands.of(self._place(call))
        return Answer(200, [self._commands.view(command) for command in found])

    def _replace(self, call: ApiCall) -> Answer:
        stored = self._commands.replace(call.body or [], self._place(call))
        return Answer(200, [self._commands.view(command) for command in stored])

    def _create(self, call: ApiCall) -> Answer:
        command, new = self._commands.put(call.body, self._place(call))
        return Answer(201 if new else 200, self._commands.view(command))

    def _get(self, call: ApiCall) -> Answer:
        command = self._commands.get(call.id("command_id"), self._place(call))
        return Answer(200, self._commands.view(command))

    def _change(self, call: ApiCall) -> Answer:
        command = self._commands.get(call.id("command_id"), self._place(call))
        return Answer(200, self._commands.view(self._commands.change(command, call.body or {})))

    def _delete(self, call: ApiCall) -> Answer:
        self._commands.remove(self._commands.get(call.id("command_id"), self._place(call)))
        return Answer()

    def _place(self, call: ApiCall) -> int | None:
        if call.id("application_id") != self._world.bot.id:
            raise ApiError(NOT_YOUR_APPLICATION)
        if "guild_id" not in call.path:
            return None
        guild = call.id("guild_id")
        if guild not in self._world.guilds:
            raise ApiError(MISSING_ACCESS)
        return guild


Given = Mapping[str, Any]
"""Values of a command's options, by name."""

_CHANNEL_FIELDS = (
    "id name type last_message_id last_pin_timestamp parent_id guild_id flags rate_limit_per_user topic "
    "position nsfw thread_metadata recipients"
)


class Interactions:
    """Interactions that users start, each with its event."""

    def __init__(
        self, world: World, views: Views, guilds: GuildViews, figures: Figures, publish: Publish
    ) -> None:
        self._world = world
        self._views = views
        self._guilds = guilds
        self._figures = figures
        self._publish = publish

    def type(self, command: Command, names: Sequence[str], options: Given, user: User, chat: Channel) -> int:
        """Run a slash command. ``names`` is its name, split. Raises LookupError for wrong options."""
        data = {**self._data(command), "type": CHAT}
        resolved: dict[str, dict[str, Any]] = {}
        if given := self._options(command.body, names[1:], options, chat, resolved):
            data["options"] = given
        if resolved:
            data["resolved"] = resolved
        return self._begin(2, data, user, chat, command=" ".join(names))

    def complete(self, command: Command, option: str, typed: str, user: User, chat: Channel) -> int:
        """Type the value of an option. Raises LookupError for one without completion."""
        found = next(one for one in command.body.get("options") or () if one["name"] == option)
        if not found.get("autocomplete"):
            raise LookupError(f"the option {option!r} of {command.name!r} has no completion")
        given = {"name": option, "type": found["type"], "value": typed, "focused": True}
        data = {**self._data(command), "type": CHAT, "options": [given]}
        return self._begin(_TYPED, data, user, chat, command=command.name)

    def pick(self, command: Command, user: User, chat: Channel, target: User | Message) -> int:
        """Run a command from the context menu of a user or a message."""
        data = {**self._data(command), "type": command.kind, "target_id": str(target.id)}
        if isinstance(target, User):
            assert command.kind == USER
            data["resolved"] = self._people(target, chat)
            return self._begin(2, data, user, chat, command=command.name, target_user=target.id)
        assert command.kind == MESSAGE
        data["resolved"] = {"messages": {str(target.id): self._views.message(target)}}
        return self._begin(2, data, user, chat, command=command.name, target_message=target.id)

    def press(self, component: Json, values: Sequence[str], user: User, message: Message) -> int:
        """Press a button, or choose from a select menu."""
        kind: int = component["type"]
        data: dict[str, Any] = {
            "custom_id": component["custom_id"],
            "component_type": kind,
            "id": component["id"],
        }
        if kind != BUTTON:
            data["values"] = list(values)
        chat = self._world.channels[message.channel]
        return self._begin(3, data, user, chat, pressed=message.id)

    def failed(self, interaction: Interaction) -> bool:
        """Return whether the user sees "The application did not respond"."""
        late = self._world.clock.now() > interaction.made + self._figures.first_response
        return interaction.state == "waiting" and late

    def live(self, interaction: Interaction) -> bool:
        """Return whether the interaction's token is still valid."""
        return self._world.clock.now() <= interaction.made + self._figures.token_life

    def _begin(self, kind: int, data: dict[str, Any], user: User, chat: Channel, **about: Any) -> int:
        interaction = Interaction(
            id=self._world.ids.new(),
            token=secrets.token_urlsafe(48),
            kind=kind,
            user=user.id,
            channel=chat.id,
            guild=chat.guild,
            made=self._world.clock.now(),
            **about,
        )
        self._world.interactions[interaction.id] = interaction
        self._world.changes.bump()
        payload = self._payload(interaction, data, user, chat)
        self._publish(Event(name="INTERACTION_CREATE", data=payload, guild=chat.guild))
        return interaction.id

    def _payload(self, interaction: Interaction, data: Json, user: User, chat: Channel) -> dict[str, Any]:
        view = self._views.channel(chat)
        channel = {key: view[key] for key in _CHANNEL_FIELDS.split() if key in view}
        payload: dict[str, Any] = {
            "id": str(interaction.id),
            "application_id": str(self._world.bot.id),
            "type": interaction.kind,
            "data": data,
            "channel_id": str(chat.id),
            "channel": channel,
            "token": interaction.token,
            "version": 1,
            "app_permissions": str(self._world.bot_permissions(chat)),
            "locale": "en-US",
            "entitlements": [],
            "authorizing_integration_owners": {"0": str(chat.guild or 0)},
            "context": 1 if chat.guild is None else 0,
            "attachment_size_limit": self._figures.file_bytes,
        }
        if chat.guild is None:
            payload["user"] = self._views.user(user)
        else:
            guild = self._world.guilds[chat.guild]
            member = self._views.member(guild, user)
            payload |= {
                "guild_id": str(guild.id),
                "guild": self._guilds.partial(guild),
                "guild_locale": "en-US",
                "member": {**member, "permissions": str(guild.roles[0].permissions)},
            }
            channel["permissions"] = str(guild.roles[0].permissions)
        if interaction.pressed is not None:
            payload["message"] = self._views.message(self._world.messages[chat.id][interaction.pressed])
        return payload

    def _data(self, command: Command) -> dict[str, Any]:
        data: dict[str, Any] = {"id": str(command.id), "name": command.name}
        return data if command.guild is None else {**data, "guild_id": str(command.guild)}

    def _options(
        self,
        node: Json,
        names: Sequence[str],
        given: Given,
        chat: Channel,
        resolved: dict[str, dict[str, Any]],
    ) -> list[dict[str, Any]]:
        known = {option["name"]: option for option in node.get("options") or ()}
        if names:
            inner = known[names[0]]
            options = self._options(inner, names[1:], given, chat, resolved)
            return [{"name": names[0], "type": inner["type"], "options": options}]
        for name, option in known.items():
            if option.get("required") and name not in given:
                raise LookupError(f"the option {name!r} is required")
        return [self._option(known[name], value, chat, resolved) for name, value in given.items()]

    def _option(
        self, option: Json, value: Any, chat: Channel, resolved: dict[str, dict[str, Any]]
    ) -> dict[str, Any]:
        values = [choice["value"] for choice in option.get("choices") or ()]
        if values and value not in values:
            raise LookupError(f"{value!r} is none of the choices of {option['name']!r}")
        if isinstance(value, User):
            for kind, found in self._people(value, chat).items():
                resolved.setdefault(kind, {}).update(found)
            value = str(value.id)
        return {"name": option["name"], "type": option["type"], "value": value}

    def _people(self, user: User, chat: Channel) -> dict[str, dict[str, Any]]:
        found = {"users": {str(user.id): self._views.user(user)}}
        if chat.guild is not None:
            guild = self._world.guilds[chat.guild]
            member = self._views.member(guild, user, whole=False)
            partial = {key: value for key, value in member.items() if key not in ("mute", "deaf")}
            found["members"] = {str(user.id): {**partial, "permissions": str(guild.roles[0].permissions)}}
        return found

    def settle(self, interaction: Interaction, **changes: Any) -> Interaction:
        """Change the state of an interaction."""
        interaction = replace(interaction, **changes)
        self._world.interactions[interaction.id] = interaction
        self._world.changes.bump()
        return interaction


CALLBACK: Final = "POST /interactions/{interaction_id}/{interaction_token}/callback"
_HOOK: Final = "/webhooks/{webhook_id}/{webhook_token}"
_PRESSED, _TYPED = 3, 4
_MESSAGE, _DEFER, _DEFER_UPDATE, _UPDATE, _CHOICES = 4, 5, 6, 7, 8


class ResponseRoutes:
    """Handlers of the calls that respond to interactions."""

    def __init__(
        self, world: World, chats: Chats, views: Views, drafts: Drafts, interactions: Interactions
    ) -> None:
        self._world = world
        self._chats = chats
        self._views = views
        self._drafts = drafts
        self._interactions = interactions

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers of these calls, by name."""
        found: dict[str, Handler] = {
            CALLBACK: self._respond,
            f"POST {_HOOK}": self._follow_up,
        }
        for which in ("@original", "{message_id}"):
            found |= {
                f"GET {_HOOK}/messages/{which}": self._get,
                f"PATCH {_HOOK}/messages/{which}": self._edit,
                f"DELETE {_HOOK}/messages/{which}": self._delete,
            }
        return found

    def _respond(self, call: ApiCall) -> Answer:
        interaction = self._world.interactions.get(call.id("interaction_id"))
        if interaction is None or interaction.token != call.path["interaction_token"]:
            raise ApiError(UNKNOWN_INTERACTION)
        if interaction.state != "waiting":
            raise ApiError(ALREADY_ACKNOWLEDGED)
        if self._interactions.failed(interaction):
            raise ApiError(UNKNOWN_INTERACTION)
        kind = int(call.body["type"])
        body: Mapping[str, Any] = call.body.get("data") or {}
        if (kind == _CHOICES) is not (interaction.kind == _TYPED):
            raise invalid("type", "BASE_TYPE_CHOICES", "This response does not fit the interaction.")
        if kind == _CHOICES:
            interaction, problem = self._offer(interaction, body), None
        elif kind in (_DEFER_UPDATE, _UPDATE):
            interaction, problem = self._update(interaction, kind, call, body)
        elif kind in (_MESSAGE, _DEFER):
            interaction, problem = self._reply(interaction, kind, call, body)
        else:
            raise unmodelled(f"interaction response of type {kind}")
        if call.query.get("with_response", "").lower() not in ("true", "1"):
            return Answer(204, None, problem)
        return Answer(200, self._payload(interaction, kind), problem)

    def _offer(self, interaction: Interaction, body: Mapping[str, Any]) -> Interaction:
        choices = tuple((choice["name"], choice["value"]) for choice in body.get("choices") or ())
        for index, (_, value) in enumerate(choices):
            if not 1 <= len(value) <= _MOST_CHOICE:
                message = f"Must be between 1 and {_MOST_CHOICE} in length."
                raise invalid(f"data.choices.{index}.value", "BASE_TYPE_BAD_LENGTH", message)
        return self._interactions.settle(interaction, state="answered", choices=choices)

    def _update(
        self, interaction: Interaction, kind: int, call: ApiCall, body: Mapping[str, Any]
    ) -> tuple[Interaction, str | None]:
        if interaction.kind != _PRESSED:
            message = f"Value must be one of {{{_MESSAGE}, {_DEFER}, 9, 10, 12}}."
            raise invalid("type", "BASE_TYPE_CHOICES", message)
        pressed = self._world.messages[interaction.channel].get(interaction.pressed or 0)
        if pressed is None:
            raise ApiError(UNKNOWN_MESSAGE)
        if kind == _DEFER_UPDATE:
            settled = self._interactions.settle(interaction, state="deferred update", response=pressed.id)
            return settled, None
        draft = self._drafts.edit(body, call.files, pressed)
        self._chats.change(_with(pressed, draft))
        return self._interactions.settle(interaction, state="answered", response=pressed.id), draft.problem

    def _reply(
        self, interaction: Interaction, kind: int, call: ApiCall, body: Mapping[str, Any]
    ) -> tuple[Interaction, str | None]:
        message = self._begun(interaction, first=True)
        if kind == _DEFER:
            flags = LOADING | (int(body.get("flags") or 0) & EPHEMERAL)
            message = self._post(replace(message, flags=flags), interaction)
            return self._interactions.settle(interaction, state="deferred", response=message.id), None
        draft = self._drafts.new(body, call.files, self._chat(interaction), interaction=True)
        message = self._post(replace(_with(message, draft), tts=bool(body.get("tts"))), interaction)
        return self._interactions.settle(interaction, state="answered", response=message.id), draft.problem

    def _payload(self, interaction: Interaction, kind: int) -> dict[str, Any]:
        response = self._world.messages[interaction.channel].get(interaction.response or 0)
        about: dict[str, Any] = {"id": str(interaction.id), "type": interaction.kind}
        if response is not None:
            about |= {
                "response_message_id": str(response.id),
                "response_message_loading": response.loading,
                "response_message_ephemeral": response.ephemeral,
                "channel_id": str(response.channel),
            }
            if interaction.guild is not None:
                about["guild_id"] = str(interaction.guild)
            if kind in (_MESSAGE, _UPDATE):
                resource = {"type": kind, "message": self._views.message(response)}
                return {"interaction": about, "resource": resource}
        return {"interaction": about}

    def _follow_up(self, call: ApiCall) -> Answer:
        interaction = self._interaction(call)
        response = self._world.messages[interaction.channel].get(interaction.response or 0)
        if interaction.state == "deferred" and response is not None and response.loading:
            return self._changed(call, interaction, response)
        draft = self._drafts.new(call.body or {}, call.files, self._chat(interaction), interaction=True)
        message = _with(self._begun(interaction, first=False), draft)
        message = self._post(replace(message, tts=bool(call.body.get("tts"))), interaction)
        self._interactions.settle(interaction, followups=(*interaction.followups, message.id))
        return Answer(200, self._views.message(message), draft.problem)

    def _get(self, call: ApiCall) -> Answer:
        _, message = self._found(call)
        return Answer(200, self._views.message(message))

    def _edit(self, call: ApiCall) -> Answer:
        return self._changed(call, *self._found(call))

    def _delete(self, call: ApiCall) -> Answer:
        _, message = self._found(call)
        self._chats.remove(message)
        return Answer()

    def _changed(self, call: ApiCall, interaction: Interaction, message: Message) -> Answer:
        draft = self._drafts.edit(call.body or {}, call.files, message)
        kept = message.flags & EPHEMERAL
        changed = replace(_with(message, draft), flags=(draft.flags & ~(LOADING | EPHEMERAL)) | kept)
        message = self._chats.change(changed, edited=not message.loading)
        if interaction.state == "deferred":
            self._interactions.settle(interaction, state="answered")
        return Answer(200, self._views.message(message), draft.problem)

    def _found(self, call: ApiCall) -> tuple[Interaction, Message]:
        interaction = self._interaction(call)
        if "message_id" in call.path:
            key = call.id("message_id")
            if key not in (interaction.response, *interaction.followups):
                raise ApiError(UNKNOWN_MESSAGE)
        else:
            key = interaction.response or 0
        message = self._world.messages[interaction.channel].get(key)
        if message is None:
            raise ApiError(UNKNOWN_MESSAGE)
        return interaction, message

    def _interaction(self, call: ApiCall) -> Interaction:
        """Return the interaction of the token in the path; before the first response it is unknown."""
        token = call.path["webhook_token"]
        for interaction in self._world.interactions.values():
            if interaction.token == token and call.id("webhook_id") == self._world.bot.id:
                if interaction.state == "waiting":
                    raise ApiError(UNKNOWN_WEBHOOK)
                if not self._interactions.live(interaction):
                    raise ApiError(EXPIRED_TOKEN)
                return interaction
        raise ApiError(UNKNOWN_WEBHOOK)

    def _chat(self, interaction: Interaction) -> Channel:
        return self._world.channels[interaction.channel]

    def _begun(self, interaction: Interaction, *, first: bool) -> Message:
        """Return an empty message that responds to an interaction."""
        kind = DEFAULT
        reference = None
        if interaction.kind == _PRESSED:
            kind = REPLY
            reference = Reference(interaction.pressed, interaction.channel, interaction.guild)
        elif first:
            aimed = interaction.target_user or interaction.target_message
            kind = CONTEXT_COMMAND if aimed else COMMAND
            if interaction.target_message is not None:
                reference = Reference(interaction.target_message, interaction.channel, interaction.guild)
        elif interaction.response is not None:
            kind = REPLY
            reference = Reference(interaction.response, interaction.channel, interaction.guild)
        return Message(
            id=self._world.ids.new(),
            channel=interaction.channel,
            author=self._world.bot.id,
            at=self._world.clock.now(),
            kind=kind,
            hook=True,
            reference=reference,
            origin=self._views.interaction_origin(interaction),
        )

    def _post(self, message: Message, interaction: Interaction) -> Message:
        reader = interaction.user if message.ephemeral else None
        return self._chats.post(replace(message, reader=reader))


def _with(message: Message, draft: Draft) -> Message:
    return replace(
        message,
        content=draft.content,
        embeds=draft.embeds,
        components=draft.components,
        attachments=draft.attachments,
        flags=draft.flags,
        mentions=draft.mentions,
    )


_SIGNATURE, _STAMP = "X-Signature-Ed25519", "X-Signature-Timestamp"


class Endpoint:
    """Sender of interactions to ``url``, the endpoint of the application, signed with the application's key.

    ``seed`` makes the key. ``respond`` applies a response.
    """

    def __init__(
        self, fake: FakeServer, figures: Figures, seed: str, respond: Callable[[ApiCall], Answer]
    ) -> None:
        self.url = ""
        self._fake = fake
        self._figures = figures
        self._seed = hashlib.sha256(seed.encode()).digest()
        self._respond = respond
        self._http: aiohttp.ClientSession | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._running: set[asyncio.Task[None]] = set()

    @property
    def public_key(self) -> str:
        """Return the public key of the application; zeros if the library for signatures is not installed."""
        installed = importlib.util.find_spec("cryptography") is not None
        return self._key().public_key().public_bytes_raw().hex() if installed else "0" * 64

    async def start(self, stack: AsyncExitStack) -> None:
        """Open the client; ``stack`` closes it and cancels what still waits for a response."""
        self._http = await stack.enter_async_context(
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        )
        self._tasks = await stack.enter_async_context(asyncio.TaskGroup())
        stack.callback(lambda: [task.cancel() for task in self._running])

    async def check(self, url: str) -> None:
        """Check a URL. Raises ValueError if it does not pass Discord's checks.

        It has to answer a ping, and refuse one with a wrong signature.
        """
        ping = b'{"id": "1", "type": 1, "application_id": "1", "token": "t", "version": 1}'
        stranger = hashlib.sha256(b"another application").digest()
        status, answer = await self.send(url, ping, self.headers(ping))
        wrong, _ = await self.send(url, ping, self.headers(ping, key=stranger))
        self._fake.record("PING", {"url": url, "wrong": wrong}, status=status, answer=answer)
        if status != 200 or answer != {"type": 1} or wrong != 401:
            raise ValueError("interactions_endpoint_url: the specified URL could not be verified")

    def post(self, payload: dict[str, Any]) -> None:
        """Post an interaction; its response is applied later."""
        assert self._tasks is not None
        task = self._tasks.create_task(self._deliver(payload))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def headers(self, body: bytes, *, skew: float = 0, key: bytes | None = None) -> dict[str, str]:
        """Return the headers that sign a body, ``skew`` seconds off the time, also with another key."""
        stamp = str(int(self._fake.clock.now() + skew))
        signature = self._key(key).sign(stamp.encode() + body).hex()
        return {"Content-Type": "application/json", _SIGNATURE: signature, _STAMP: stamp}

    async def send(self, url: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, Any]:
        """Post a body. Returns the status, and the decoded body of the response, None if it is not JSON."""
        assert self._http is not None
        async with self._http.post(url, data=body, headers=headers, allow_redirects=False) as response:
            content = await response.read()
        try:
            return response.status, msgspec.json.decode(content)
        except msgspec.DecodeError:
            return response.status, None

    async def _deliver(self, payload: dict[str, Any]) -> None:
        body = msgspec.json.encode(payload)
        status, answer = 0, None
        try:
            async with self._fake.clock.within(self._figures.first_response):
                status, answer = await self.send(self.url, body, self.headers(body))
        except (TimeoutError, aiohttp.ClientError):
            pass  # the user reads that the application did not respond
        await asyncio.sleep(self._figures.reading)
        problem = None
        if status == 200:
            gaps = {"interaction_id": payload["id"], "interaction_token": payload["token"]}
            call = ApiCall(name=CALLBACK, path=gaps, body=answer)
            try:
                problem = check_call(call)
                self._respond(call)
            except ApiError as error:
                problem = error.problem or str(error)
        self._fake.record("INTERACTION", {"id": payload["id"]}, problem, status=status, answer=answer)

    def _key(self, seed: bytes | None = None) -> Any:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(seed or self._seed)
