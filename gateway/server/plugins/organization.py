"""The plugins of a team over REST: the list with its rules, installation by name, and what each one used."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from gateway.app import Gateway
from gateway.contract.errors import InvalidStateError, NotFoundError, PluginError, SettingsError
from gateway.contract.messages import now_ms
from gateway.models.ledger import to_usd
from gateway.plugin_services.actions import ActionTotal
from gateway.plugin_services.organization import (
    Installation,
    InstalledPlugin,
    TeamDirectory,
    TeamPluginList,
)
from gateway.server.plugins.configuration import in_thread
from gateway.server.routes import Call, Nothing, Route

_DAY_MS = 86_400_000
_Team = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$", description="The team: teams.id")]


class TeamPath(Struct, frozen=True, rename="camel"):
    """A team."""

    org_id: _Team


class TeamPluginPath(Struct, frozen=True, rename="camel"):
    """A plugin of a team."""

    org_id: _Team
    id: Annotated[str, Meta(pattern=r"^[a-z@][a-z0-9/@-]{2,130}$", description="The plugin's name")]


class AnalyticsQuery(Struct, frozen=True):
    """A period up to now."""

    days: Annotated[int, Meta(ge=1, le=366, description="Days to count")] = 30


class PluginAnalytics(Struct, frozen=True):
    """The use of a plugin: its actions by kind, and the cost of its own model calls in US dollars.

    Kinds are capabilities, as network, and events of its process, as process.died.
    """

    id: str
    days: int
    actions: list[ActionTotal]
    cost_usd: float


class TeamRoutes:
    """The routes under ``/orgs/{orgId}/plugins``."""

    def __init__(self, gateway: Gateway, plugins: TeamDirectory) -> None:
        self._gateway = gateway
        self._plugins = plugins

    def routes(self) -> list[Route]:
        """Return the routes."""
        all_, failures = "/orgs/{orgId}/plugins", (NotFoundError, InvalidStateError)
        return [
            Route(
                "GET",
                all_,
                "listTeamPlugins",
                "List the plugins with the rules of the team.",
                self._list,
                errors=failures,
            ),
            Route(
                "POST",
                f"{all_}/install",
                "installTeamPlugin",
                "Install a plugin of an index; the running gateway starts it if the settings enable it.",
                self._install,
                errors=failures,
                needs_proof=True,
            ),
            Route(
                "GET",
                f"{all_}/{{id}}/analytics",
                "readPluginAnalytics",
                "Count what a plugin did, by capability, and its cost.",
                self._analytics,
                errors=failures,
            ),
        ]

    async def _list(self, call: Call[TeamPath, Nothing, Nothing, None]) -> TeamPluginList:
        self._plugins.check(call.path.org_id)
        return await in_thread(self._plugins.list)

    async def _install(self, call: Call[TeamPath, Nothing, Nothing, Installation]) -> InstalledPlugin:
        self._plugins.check(call.path.org_id)
        try:
            return await self._plugins.install(call.body)
        except (PluginError, SettingsError) as error:
            raise InvalidStateError(str(error)) from None

    async def _analytics(self, call: Call[TeamPluginPath, AnalyticsQuery, Nothing, None]) -> PluginAnalytics:
        self._plugins.check(call.path.org_id)
        plugin, days = call.path.id, call.query.days
        until = now_ms()
        since = until - days * _DAY_MS
        parts = self._gateway.parts
        actions = await parts.actions.totals(plugin, since)
        rows = await parts.spending.ledger.usage_by("plugin", since, until)
        cost = next((float(to_usd(row.nano_usd or 0)) for row in rows if row.key == plugin), 0.0)
        known = await in_thread(self._plugins.list)
        if not actions and all(each.id != plugin for each in known.plugins):
            raise NotFoundError(f"there is no plugin {plugin!r}")
        return PluginAnalytics(plugin, days, actions, cost)
