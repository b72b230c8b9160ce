"""The application's commands: their rules, and the calls that register them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from channels.discord.fake.calls import (
    MISSING_ACCESS,
    NOT_YOUR_APPLICATION,
    TOO_MANY_CREATES,
    UNKNOWN_COMMAND,
    Answer,
    ApiCall,
    ApiError,
    Handler,
    invalid,
)
from channels.discord.fake.limits import Figures
from channels.discord.fake.state import Command, World
from gateway.testing.fake_platform import Window

CHAT, USER, MESSAGE = 1, 2, 3
_MOST: Final = {CHAT: 100, USER: 15, MESSAGE: 15}
_MOST_TEXT: Final = 8000
_DAY: Final = 86_400.0
_GROUPS: Final = (1, 2)

Body = Mapping[str, Any]


class Commands:
    """Registers commands. What contradicts the rules raises ApiError."""

    def __init__(self, world: World, figures: Figures) -> None:
        self._world = world
        self._figures = figures
        self._created: dict[int | None, Window] = {}

    def of(self, guild: int | None) -> Sequence[Command]:
        """The commands for all guilds (None), or those of one."""
        return [command for command in self._world.commands.values() if command.guild == guild]

    def named(self, name: str, kind: int, guild: int | None) -> Command:
        """The command that a person sees under a name; a guild's own goes first. Raises LookupError."""
        for place in (guild, None) if guild is not None else (None,):
            for command in self.of(place):
                if command.name == name and command.kind == kind and _shown(command, guild):
                    return command
        raise LookupError(f"no command {name!r} of kind {kind} is registered here")

    def get(self, key: int, guild: int | None) -> Command:
        """A command by its id."""
        command = self._world.commands.get(key)
        if command is None or command.guild != guild:
            raise ApiError(UNKNOWN_COMMAND)
        return command

    def put(self, body: Body, guild: int | None) -> tuple[Command, bool]:
        """Register one. A command of the same name and kind is replaced. Second: whether it is new."""
        _check(body, "")
        kind = int(body.get("type") or CHAT)
        same = [c for c in self.of(guild) if c.name == body["name"] and c.kind == kind]
        if not same:
            if sum(command.kind == kind for command in self.of(guild)) >= _MOST[kind]:
                raise _too_many(kind)
            self._count(guild, 1)
        return self._store(body, guild, same[0].id if same else None), not same

    def change(self, command: Command, body: Body) -> Command:
        """Some of a command's fields are new."""
        whole = {**command.body, **body}
        _check(whole, "")
        return self._store(whole, command.guild, command.id)

    def replace(self, bodies: Sequence[Body], guild: int | None) -> Sequence[Command]:
        """Only these stay. Those of a known name keep their id and do not count as new."""
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
        self._count(guild, sum(name not in known for name in names))
        for key in set(known.values()) - {known.get(name) for name in names}:
            del self._world.commands[key]
        pairs = zip(names, bodies, strict=True)
        return [self._store(body, guild, known.get(name)) for name, body in pairs]

    def remove(self, command: Command) -> None:
        """Take a command away."""
        del self._world.commands[command.id]
        self._world.changes.bump()

    def view(self, command: Command) -> dict[str, Any]:
        """A command as the platform writes it."""
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
    """Return whether users see a command in a guild, or (None) in direct messages."""
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
    """Handles calls about commands, for all guilds and for one."""

    def __init__(self, world: World, commands: Commands) -> None:
        self._world = world
        self._commands = commands

    def handlers(self) -> Mapping[str, Handler]:
        """The calls that are handled here."""
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
