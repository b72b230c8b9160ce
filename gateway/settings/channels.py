"""Settings of channels: connection, accounts and access rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from gateway.settings.section import OpenSection, Section


def _as_text(value: object) -> object:
    """Convert a numeric platform id to text."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _checked(value: str) -> str:
    # Ids on Matrix begin with an @ and hold a colon, which no user name does.
    named = value.startswith("@") and ":" not in value
    if not value or value == "*" or named or value.endswith(":") or any(c.isspace() for c in value):
        raise ValueError('must hold ids, like "123456789" or "role:123", not names, which can change owner')
    return value


Id = Annotated[
    str,
    BeforeValidator(_as_text),
    AfterValidator(_checked),
    WithJsonSchema({"type": ["string", "integer"]}),
]
"""The id of a user or chat on a platform: never a name, because names can change owner."""

Everyone = Literal["*"]


Groups = Literal["command", "reply", "mention", "always"]
"""Messages that are answered in rooms with several people; each value includes the one before it.

``command``: commands of the bot. ``reply``: replies to the bot, and messages in threads that it was called
into. ``mention``: mentions of the bot. ``always``: every message.
"""
EnvelopeStyle = Literal["full", "name", "off"]
_GROUPS = (
    "Messages to answer in rooms with several people. command: commands of the bot; reply: also replies to "
    "it and messages in threads that it was called into; mention: also mentions of it; always: every message"
)
_ENVELOPE = (
    "What the model sees of a message in such a room. full: its author, room and time; name: its "
    "author; off: nothing"
)
_CONTEXT = (
    "Most earlier messages, not addressed to the bot, that the model gets with the next addressed one, "
    "per room; 0 to 100, 0 for none"
)
_MOST_CONTEXT = 100


class RoomSettings(Section):
    """Settings of one room, by the chat's id; what is left out comes from its channel."""

    advice = {"admins": "admins are the same in all rooms; list them for the channel"}

    enabled: bool = Field(default=True, description="Take part in this room; default true")
    groups: Groups | None = Field(default=None, description=f"{_GROUPS}; the channel's if unset")
    agent: str | None = Field(default=None, description="Agent for this room; the channel's if unset")
    system_prompt: str | None = Field(
        default=None, description="Text that follows the agent's system prompt in this room; default none"
    )
    tools: tuple[str, ...] | None = Field(
        default=None, description="Names of the only tools in this room, of those of its agent; default all"
    )
    envelope: EnvelopeStyle | None = Field(default=None, description=f"{_ENVELOPE}; the channel's if unset")
    context_messages: int | None = Field(
        default=None, ge=0, le=_MOST_CONTEXT, description=f"{_CONTEXT}; the channel's if unset"
    )
    allow: Everyone | tuple[Id, ...] | None = Field(
        default=None, description="Replaces the channel's list in this room; the channel's if unset"
    )


class RoomsSettings(OpenSection):
    """The rooms of a channel: ``default`` for all others, and a table for each room, by the chat's id."""

    # pydantic types the extra keys by this annotation, although its base class declares another one.
    __pydantic_extra__: dict[str, RoomSettings] = Field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    tables = RoomSettings

    default: Literal["allow", "deny"] = Field(
        default="allow",
        description="allow: take part in every room; deny: only in rooms with their own table; default allow",
    )

    @property
    def named(self) -> Mapping[str, RoomSettings]:
        """The rooms with their own table, by chat id."""
        return self.__pydantic_extra__ or {}

    def over(self, shared: RoomsSettings) -> RoomsSettings:
        """Return the rooms of a channel, overridden by these: the default, and each room as a whole."""
        default = self.default if "default" in self.model_fields_set else shared.default
        return RoomsSettings(default=default, **{**shared.named, **self.named})


SessionStrategy = Literal["chat", "chat_user", "thread"]


class SharedOptions(BaseModel):
    """The options that chat platforms share; those of a channel derive from it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    session_strategy: SessionStrategy = Field(
        default="thread",
        description="Scope of a conversation: chat, chat_user (each user of a chat), or thread (each thread "
        "or topic of a chat); default thread",
    )
    streaming: bool = Field(default=True, description="Show answers while they are generated; default true")
    edits: Literal["rerun", "ignore"] = Field(
        default="rerun",
        description="rerun: answer an edited message again; ignore: ignore edits; default rerun",
    )
    pages: int = Field(
        default=6,
        ge=1,
        le=50,
        description="Most text messages per answer; a longer one is also sent as a file; 1 to 50; default 6",
    )
    tools: bool = Field(default=True, description="Show the used tools in answers; default true")
    pace: float = Field(
        default=1.0,
        gt=0,
        le=1000,
        description="Multiplier of the platform's published rate limits, if yours are higher; over 0, up to "
        "1000; default 1",
    )


class ChannelRules(BaseModel):
    """The access rules of a channel and what it does in rooms. A user needs to be listed or paired."""

    allow: Everyone | tuple[Id, ...] = Field(
        default=(), description="Ids of allowed users; * allows everyone; others have to pair; default none"
    )
    admins: tuple[Id, ...] = Field(default=(), description="User ids with the admin role; default none")
    groups: Groups = Field(default="mention", description=f"{_GROUPS}; default mention")
    envelope: EnvelopeStyle = Field(default="full", description=f"{_ENVELOPE}; default full")
    context_messages: int = Field(default=20, ge=0, le=_MOST_CONTEXT, description=f"{_CONTEXT}; default 20")
    rooms: RoomsSettings = Field(
        default=RoomsSettings(), description="Rooms of this channel: the default, and tables by chat id"
    )

    def ids(self) -> Iterator[tuple[str, str, bool]]:
        """Yield each id in the rules with its key, and whether it is that of a room."""
        lists = {"allow": self.allow, "admins": self.admins}
        for name, room in self.rooms.named.items():
            yield f'rooms."{name}"', name, True
            lists[f'rooms."{name}".allow'] = room.allow or ()
        for key, ids in lists.items():
            yield from ((key, one, False) for one in ids if ids != "*")


class AccountRules(BaseModel):
    """The rules of one account; what is left out comes from its channel."""

    allow: Everyone | tuple[Id, ...] | None = Field(default=None, description="Overrides the channel's list")
    admins: tuple[Id, ...] | None = Field(default=None, description="Overrides the channel's list")
    groups: Groups | None = Field(default=None, description="Overrides the channel's value")
    envelope: EnvelopeStyle | None = Field(default=None, description="Overrides the channel's value")
    context_messages: int | None = Field(
        default=None, ge=0, le=_MOST_CONTEXT, description="Overrides the channel's value"
    )
    rooms: RoomsSettings = Field(
        default=RoomsSettings(), description="Override the channel's rooms, each room as a whole"
    )

    def over(self, rules: ChannelRules) -> ChannelRules:
        """Return the channel's rules, overridden by those of this account."""
        names = ChannelRules.model_fields.keys()
        shared = {name: getattr(rules, name) for name in names if name in rules.model_fields_set}
        own = {name: value for name in names - {"rooms"} if (value := getattr(self, name)) is not None}
        if "rooms" in self.model_fields_set:
            own["rooms"] = self.rooms.over(rules.rooms)
        return ChannelRules(**{**shared, **own})


class AccountSettings(AccountRules, OpenSection):
    """One of several bots on a platform; further keys are the channel's own."""

    enabled: bool = Field(default=True, description="Start this account; default true")
    agent: str | None = Field(default=None, description="Agent for this account; the channel's if unset")


class ChannelSettings(ChannelRules, OpenSection):
    """One connection to a platform; further keys are the channel's own."""

    enabled: bool = Field(default=True, description="Start this channel; default true")
    optional: bool = Field(
        default=False, description="Report ready (/readyz) even if this channel is down; default false"
    )
    agent: str | None = Field(default=None, description="Agent for this channel; main if unset")
    accounts: dict[str, AccountSettings] = Field(
        default={}, description="Several bots on one platform, by name; each inherits the channel's keys"
    )


def table_of(channel_id: str) -> str:
    """Return the name of the table with the settings of a channel, or of an account (``channel.account``)."""
    name, _, account = channel_id.partition(".")
    return f"channels.{name}.accounts.{account}" if account else f"channels.{name}"
