"""Interactions: what people do with the bot's commands and buttons, and how far the bot has answered."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from channels.discord.fake.commands import CHAT, MESSAGE, USER
from channels.discord.fake.components import BUTTON
from channels.discord.fake.events import Event, Tell
from channels.discord.fake.figures import Figures
from channels.discord.fake.guild_views import GuildViews
from channels.discord.fake.nouns import Channel, Command, Interaction, Json, Message, User
from channels.discord.fake.views import Views
from channels.discord.fake.world import World

Given = Mapping[str, Any]
"""What a person fills in: options by name."""

_CHANNEL_FIELDS = (
    "id name type last_message_id last_pin_timestamp parent_id guild_id flags rate_limit_per_user topic "
    "position nsfw thread_metadata recipients"
)


class Interactions:
    """Begins interactions, and tells the bot of them."""

    def __init__(self, world: World, views: Views, guilds: GuildViews, figures: Figures, tell: Tell) -> None:
        self._world = world
        self._views = views
        self._guilds = guilds
        self._figures = figures
        self._tell = tell

    def type(self, command: Command, names: Sequence[str], options: Given, user: User, room: Channel) -> int:
        """A person types a command, its name split at the spaces. Raises LookupError for wrong options."""
        data = {**self._data(command), "type": CHAT}
        resolved: dict[str, dict[str, Any]] = {}
        if given := self._options(command.body, names[1:], options, room, resolved):
            data["options"] = given
        if resolved:
            data["resolved"] = resolved
        return self._begin(2, data, user, room, command=" ".join(names))

    def pick(self, command: Command, user: User, room: Channel, target: User | Message) -> int:
        """A person picks a command from the menu of a person or a message."""
        data = {**self._data(command), "type": command.kind, "target_id": str(target.id)}
        if isinstance(target, User):
            assert command.kind == USER
            data["resolved"] = self._people(target, room)
            return self._begin(2, data, user, room, command=command.name, target_user=target.id)
        assert command.kind == MESSAGE
        data["resolved"] = {"messages": {str(target.id): self._views.message(target)}}
        return self._begin(2, data, user, room, command=command.name, target_message=target.id)

    def press(self, component: Json, values: Sequence[str], user: User, message: Message) -> int:
        """A person presses a button, or chooses from a menu."""
        kind: int = component["type"]
        data: dict[str, Any] = {
            "custom_id": component["custom_id"],
            "component_type": kind,
            "id": component["id"],
        }
        if kind != BUTTON:
            data["values"] = list(values)
        room = self._world.channels[message.channel]
        return self._begin(3, data, user, room, pressed=message.id)

    def failed(self, interaction: Interaction) -> bool:
        """Whether the person reads that the application did not respond."""
        late = self._world.clock.now() > interaction.made + self._figures.first_response
        return interaction.state == "waiting" and late

    def live(self, interaction: Interaction) -> bool:
        """Whether the interaction's token still works."""
        return self._world.clock.now() <= interaction.made + self._figures.token_life

    def _begin(self, kind: int, data: dict[str, Any], user: User, room: Channel, **about: Any) -> int:
        interaction = Interaction(
            id=self._world.ids.new(),
            token=secrets.token_urlsafe(48),
            kind=kind,
            user=user.id,
            channel=room.id,
            guild=room.guild,
            made=self._world.clock.now(),
            **about,
        )
        self._world.interactions[interaction.id] = interaction
        self._world.changes.bump()
        told = self._told(interaction, data, user, room)
        self._tell(Event(name="INTERACTION_CREATE", data=told, guild=room.guild))
        return interaction.id

    def _told(self, interaction: Interaction, data: Json, user: User, room: Channel) -> dict[str, Any]:
        view = self._views.channel(room)
        channel = {key: view[key] for key in _CHANNEL_FIELDS.split() if key in view}
        told: dict[str, Any] = {
            "id": str(interaction.id),
            "application_id": str(self._world.bot.id),
            "type": interaction.kind,
            "data": data,
            "channel_id": str(room.id),
            "channel": channel,
            "token": interaction.token,
            "version": 1,
            "app_permissions": str(self._world.bot_permissions(room)),
            "locale": "en-US",
            "entitlements": [],
            "authorizing_integration_owners": {"0": str(room.guild or 0)},
            "context": 1 if room.guild is None else 0,
            "attachment_size_limit": self._figures.file_bytes,
        }
        if room.guild is None:
            told["user"] = self._views.user(user)
        else:
            guild = self._world.guilds[room.guild]
            member = self._views.member(guild, user)
            told |= {
                "guild_id": str(guild.id),
                "guild": self._guilds.partial(guild),
                "guild_locale": "en-US",
                "member": {**member, "permissions": str(guild.roles[0].permissions)},
            }
            channel["permissions"] = str(guild.roles[0].permissions)
        if interaction.pressed is not None:
            told["message"] = self._views.message(self._world.messages[room.id][interaction.pressed])
        return told

    def _data(self, command: Command) -> dict[str, Any]:
        data: dict[str, Any] = {"id": str(command.id), "name": command.name}
        return data if command.guild is None else {**data, "guild_id": str(command.guild)}

    def _options(
        self,
        node: Json,
        names: Sequence[str],
        given: Given,
        room: Channel,
        resolved: dict[str, dict[str, Any]],
    ) -> list[dict[str, Any]]:
        known = {option["name"]: option for option in node.get("options") or ()}
        if names:
            inner = known[names[0]]
            options = self._options(inner, names[1:], given, room, resolved)
            return [{"name": names[0], "type": inner["type"], "options": options}]
        for name, option in known.items():
            if option.get("required") and name not in given:
                raise LookupError(f"the option {name!r} is required")
        return [self._option(known[name], value, room, resolved) for name, value in given.items()]

    def _option(
        self, option: Json, value: Any, room: Channel, resolved: dict[str, dict[str, Any]]
    ) -> dict[str, Any]:
        values = [choice["value"] for choice in option.get("choices") or ()]
        if values and value not in values:
            raise LookupError(f"{value!r} is none of the choices of {option['name']!r}")
        if isinstance(value, User):
            for kind, found in self._people(value, room).items():
                resolved.setdefault(kind, {}).update(found)
            value = str(value.id)
        return {"name": option["name"], "type": option["type"], "value": value}

    def _people(self, user: User, room: Channel) -> dict[str, dict[str, Any]]:
        found = {"users": {str(user.id): self._views.user(user)}}
        if room.guild is not None:
            guild = self._world.guilds[room.guild]
            member = self._views.member(guild, user, whole=False)
            partial = {key: value for key, value in member.items() if key not in ("mute", "deaf")}
            found["members"] = {str(user.id): {**partial, "permissions": str(guild.roles[0].permissions)}}
        return found

    def settle(self, interaction: Interaction, **changes: Any) -> Interaction:
        """The bot answered, or deferred its answer."""
        interaction = replace(interaction, **changes)
        self._world.interactions[interaction.id] = interaction
        self._world.changes.bump()
        return interaction
