"""Tables that also take keys of others' choosing: those of channels and of plugins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ConfigDict, Field, JsonValue

from gateway.settings.rules import AccountRules, ChannelRules
from gateway.settings.section import Section


class OpenSection(Section):
    """A table that also takes keys of others' choosing, which may be secret and so never show in its repr."""

    model_config = ConfigDict(extra="allow")

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        yield from ((name, getattr(self, name)) for name in type(self).model_fields)
        yield from ((name, ...) for name in self.__pydantic_extra__ or {})


class ConnectionSettings(OpenSection):
    """What a channel and its accounts have in common: keys of the channel's own."""

    @property
    def options(self) -> Mapping[str, Any]:
        """The channel's own settings, as written."""
        return dict(self.__pydantic_extra__ or {})


class AccountSettings(AccountRules, ConnectionSettings):
    """One of several bots on a platform; keys beyond these are the channel's own."""

    enabled: bool = Field(default=True, description="Whether the gateway starts this account")
    agent: str | None = Field(default=None, description="Agent that answers here, in place of the channel's")


class ChannelSettings(ChannelRules, ConnectionSettings):
    """One connection to a platform; keys beyond these are the channel's own."""

    enabled: bool = Field(default=True, description="Whether the gateway starts this channel")
    agent: str | None = Field(default=None, description="Agent that answers here; main when not given")
    accounts: dict[str, AccountSettings] = Field(
        default={}, description="Several bots on one platform, by name; each adds to the keys beside it"
    )


_PLUGIN_WITH_SETTINGS: dict[str, JsonValue] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "config": {"type": "object"}},
    "required": ["name"],
    "additionalProperties": False,
}
"""How files may also list a plugin; ``entries.apart`` makes a name and a table of it."""


class PluginsSettings(OpenSection):
    """Which plugins run; each may have a table of its own, ``[plugins.<name>]``."""

    # The library's own way to give a type to further keys, which its own annotation does not foresee.
    __pydantic_extra__: dict[str, dict[str, Any]] = Field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    enabled: tuple[str, ...] = Field(
        default=(),
        description="Plugins to load besides the built-in ones, in this order",
        json_schema_extra={"items": {"anyOf": [{"type": "string"}, _PLUGIN_WITH_SETTINGS]}},
    )
    disabled: tuple[str, ...] = Field(default=(), description="Plugins to leave out, built-in ones too")

    def options(self, name: str) -> Mapping[str, Any]:
        """A plugin's own settings, as written; empty when there are none."""
        return dict((self.__pydantic_extra__ or {}).get(name, {}))
