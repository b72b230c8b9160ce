"""The plugins with a manifest, and their configuration, over REST. No answer has a secret."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Literal, TypeVar

from msgspec import Meta, Struct

from gateway.contract.errors import (
    InvalidRequestError,
    InvalidStateError,
    NotFoundError,
    PluginError,
    SettingsError,
)
from gateway.plugin_services.configuration import ConfigChange, PluginConfig, PluginConfigs, PluginSummary
from gateway.plugin_services.live import Change, Outcome
from gateway.server.routes import Call, Nothing, PlainCall, Route
from gateway.store import Store
from gateway.tables.audit import recorded

T = TypeVar("T")


class PluginPath(Struct, frozen=True):
    """A plugin with a manifest, by its name; the / of "@scope/name" is sent as %2F."""

    name: Annotated[str, Meta(pattern=r"^[a-z@][a-z0-9/@-]{2,130}$", description="The plugin's name")]


class PluginList(Struct, frozen=True):
    """The plugins with a manifest: those that are enabled, and all others that are found."""

    plugins: list[PluginSummary]


class ChangedConfig(Struct, frozen=True):
    """The configuration after a change, and what the running gateway did with it.

    ``failed``: the change is in the settings file, but the plugin did not start with it, for the reason in
    ``problem``, and continues with the earlier one.
    """

    config: PluginConfig
    outcome: Outcome | Literal["failed"]
    problem: str


class ConfigRoutes:
    """The routes ``/api/plugins`` and ``/api/plugins/{name}/config``. ``apply`` changes a running plugin."""

    def __init__(
        self, configs: PluginConfigs, apply: Callable[[str], Awaitable[Change]], store: Store
    ) -> None:
        self._configs = configs
        self._apply = apply
        self._store = store

    def routes(self) -> list[Route]:
        """Return the routes."""
        one, failures = "/api/plugins/{name}/config", (NotFoundError, InvalidStateError)
        return [
            Route(
                "GET",
                "/api/plugins",
                "listPlugins",
                "List the plugins with a manifest.",
                self._list,
                errors=(InvalidStateError,),
            ),
            Route(
                "GET",
                one,
                "readPluginConfig",
                "Read the configuration of a plugin, without secrets.",
                self._read,
                errors=failures,
            ),
            Route(
                "PATCH",
                one,
                "changePluginConfig",
                "Change the configuration of a plugin in the settings file, and of the running plugin.",
                self._change,
                errors=failures,
                needs_proof=True,
            ),
        ]

    async def _list(self, _call: PlainCall) -> PluginList:
        return PluginList(await in_thread(self._configs.list))

    async def _read(self, call: Call[PluginPath, Nothing, Nothing, None]) -> PluginConfig:
        return await in_thread(lambda: self._configs.read(call.path.name))

    async def _change(self, call: Call[PluginPath, Nothing, Nothing, ConfigChange]) -> ChangedConfig:
        # Literal: a page must not have the gateway read a variable or a file of its choice.
        name, change = call.path.name, call.body
        # Only names: a value may be secret even if the manifest does not say so.
        keys = ", ".join(sorted({*change.values, *change.secrets}))
        async with recorded(self._store, call.identity.account, "plugins.settings", name, keys):
            config = await in_thread(lambda: self._configs.change(name, change, literal=True))
        try:
            return ChangedConfig(config, (await self._apply(config.name)).outcome, "")
        except (PluginError, SettingsError) as error:
            return ChangedConfig(config, "failed", str(error))


async def in_thread(work: Callable[[], T]) -> T:
    """Do work on files. Raises InvalidStateError for files that cannot be used as they are."""
    try:
        return await asyncio.to_thread(work)
    except InvalidRequestError:
        raise
    except (PluginError, SettingsError) as error:
        raise InvalidStateError(str(error)) from None
