"""The routes of the operator's screens and commands. The server imports them with the first request."""

from __future__ import annotations

from threading import Lock

from gateway.app import Gateway
from gateway.plugin_services.configuration import PluginConfigs
from gateway.server.console.access import ConsoleAccess
from gateway.server.console.agents import AgentRoutes
from gateway.server.console.rooms import RoomRoutes
from gateway.server.console.sessions import ConsoleSessions
from gateway.server.console.setting_values import SettingValues
from gateway.server.console.settings import SettingsRoutes
from gateway.server.now import Observer
from gateway.server.operator.audit import AuditRoutes
from gateway.server.operator.dead_letters import DeadLetterRoutes
from gateway.server.operator.nodes import NodeRoutes
from gateway.server.operator.questions import QuestionRoutes
from gateway.server.plugins.states import PluginStateRoutes
from gateway.server.providers import ProviderKeys, ProviderRoutes
from gateway.server.routes import Route
from gateway.server.sessions.why import WhyRoutes
from gateway.settings.layers.changing import SettingsFile
from gateway.tables.audit import AuditLog


def operator_routes(
    gateway: Gateway, logins: ConsoleSessions, observer: Observer, configs: PluginConfigs, changing: Lock
) -> list[Route]:
    """Return the routes as the API description has them. ``changing`` is the lock of the settings file."""
    parts, live, reader_of = gateway.parts, gateway.live_plugins, logins.reader_of
    file = SettingsFile(gateway.settings, changing)
    keys = ProviderKeys(gateway, file)
    values = SettingValues(gateway.settings, live, keys)
    tools, session_of = gateway.registry.get_tools, parts.sessions.get
    return [
        *WhyRoutes(parts.why, parts.replays).routes(),
        *QuestionRoutes(parts.questions, tools, session_of, parts.store, reader_of).routes(),
        *AuditRoutes(AuditLog(parts.store), reader_of).routes(),
        *DeadLetterRoutes(parts.dead_letters, parts.replays, parts.why).routes(),
        *NodeRoutes(gateway.settings, parts.store).routes(),
        *ConsoleAccess(logins, parts.host.auth).routes(),
        *SettingsRoutes(parts.store, live, keys, values, file).routes(),
        *AgentRoutes(gateway, values).routes(),
        *RoomRoutes(parts.access, parts.store, gateway.channels, gateway.profiles, values).routes(),
        *ProviderRoutes(gateway, observer, keys).routes(),
        *PluginStateRoutes(gateway, configs).routes(),
    ]
