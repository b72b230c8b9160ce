"""Settings of channels: connection, accounts and access rules."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, WithJsonSchema

from gateway.settings.section import OpenSection

T = TypeVar("T")


def _as_text(value: object) -> object:
    """Convert a numeric platform id to text."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _checked(value: str) -> str:
    if not value or value == "*" or value.startswith("@") or any(c.isspace() for c in value):
        raise ValueError('must hold ids, like "123456789", not names, which can change owner')
    return value


Id = Annotated[
    str,
    BeforeValidator(_as_text),
    AfterValidator(_checked),
    WithJsonSchema({"type": ["string", "integer"]}),
]
"""The id of a user or chat on a platform: never a name, because names can change owner."""

Everyone = Literal["*"]


class ChannelRules(BaseModel):
    """The access rules of a channel. A user needs to be listed or paired."""

    allow: Everyone | tuple[Id, ...] = Field(
        default=(), description="Ids of allowed users; * allows everyone; others have to pair; default none"
    )
    admins: tuple[Id, ...] = Field(default=(), description="User ids with the admin role; default none")


class AccountRules(BaseModel):
    """The access rules of one account; what is left out comes from its channel."""

    allow: Everyone | tuple[Id, ...] | None = Field(default=None, description="Overrides the channel's list")
    admins: tuple[Id, ...] | None = Field(default=None, description="Overrides the channel's list")

    def over(self, rules: ChannelRules) -> ChannelRules:
        """Return the channel's rules, overridden by those of this account."""
        names = ChannelRules.model_fields
        shared = {name: getattr(rules, name) for name in names if name in rules.model_fields_set}
        own = {name: value for name in names if (value := getattr(self, name)) is not None}
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
