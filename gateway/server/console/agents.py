"""Agents for the console: what each one is, where it is defined, who uses it and what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct
from sqlalchemy import Connection, func, or_, select

from gateway.app import Gateway
from gateway.contract.channel import SenderRole
from gateway.contract.messages import now_ms
from gateway.contract.tool import Tool
from gateway.models import MAIN, Agents
from gateway.models.agents import Profile
from gateway.models.ledger import PLACES, UsageRow, in_chat, to_usd
from gateway.server.console.setting_values import SettingInfo, SettingReading, SettingValues
from gateway.server.plugins.configuration import in_thread
from gateway.server.routes import PlainCall, Route
from gateway.settings import Settings
from gateway.settings.agents import SUFFIX
from gateway.store import schema as t

_DAY_MS = 86_400_000
_PROMPT = "system_prompt"
_MOST_CONDITIONS = 50
"""Rooms that a query names; of more rooms all conversations are read."""
_OWN = ("description", "mode", "response_format", "tools", "provider")
"""Keys that an agent does not inherit from the settings outside of its table."""
_ORDER = (
    *("description", "model", "provider", "fallback", "fallback_triggers", "mode", "tools", "skills"),
    *(
        "temperature",
        "max_tokens",
        "effort",
        "stop_sequences",
        "response_format",
        "small_model",
        "compaction",
    ),
)


class ConsoleAgent(Struct, frozen=True):
    """An agent. ``origin`` says where it is defined, ``place`` the file or the plugin.

    - settings: a table of the settings file, or the keys outside of tables for ``main``
    - file: an agent file beside a settings file, read at the start
    - folder: an agent file of a folder, whose new files are read with each /agent, and changed ones at the
      start
    - plugin: a plugin with a manifest, read when the plugin is replaced
    - built-in: the gateway's own; a table of that name in the settings replaces it as a whole

    ``model`` is the one in effect, ``fallback`` what is asked after it. ``tools`` null allows all.
    ``conversations`` is how many it answers now, ``usd`` the cost of the last 30 days; calls without a known
    price (``unpriced``) do not count in it. ``prompt`` is its system prompt. ``can_change`` says whether the
    console changes its settings.
    """

    name: str
    description: str
    model: str
    fallback: list[str]
    tools: list[str] | None
    mode: Literal["build", "plan"]
    origin: Literal["settings", "file", "folder", "plugin", "built-in"]
    place: str
    conversations: int
    calls: int
    usd: float
    unpriced: int
    settings: list[SettingInfo]
    prompt: SettingInfo | None
    can_change: bool


RuleKind = Literal["allow", "ask", "deny", "patterns"]


class ToolRule(Struct, frozen=True):
    """A tool with the rule of the permissions for users and for admins.

    ``patterns``: it depends on the call. ``changes_nothing``: an agent in the mode plan may use it.
    """

    name: str
    user: RuleKind
    admin: RuleKind
    changes_nothing: bool


class ConsoleAgents(Struct, frozen=True):
    """The agents, ``main`` first, and the tools that there are now. ``file`` is the settings file.

    ``can_add`` says whether the console makes agents there.
    """

    file: str
    can_add: bool
    agents: list[ConsoleAgent]
    tools: list[ToolRule]


class AgentRoutes:
    """The route of the screen Agents."""

    def __init__(self, gateway: Gateway, values: SettingValues) -> None:
        self._gateway = gateway
        self._values = values

    def routes(self) -> list[Route]:
        """Return the route."""
        return [
            Route(
                "GET",
                "/api/console/agents",
                "listConsoleAgents",
                "List the agents with their settings, where these come from, use and cost.",
                self._list,
                role="viewer",
                hides=("file", "agents.prompt", "agents.place", "agents.settings.source"),
            )
        ]

    async def _list(self, _call: PlainCall) -> ConsoleAgents:
        gateway = self._gateway
        now = now_ms()
        spent = await gateway.parts.spending.ledger.usage_by("agent", now - 30 * _DAY_MS, now + 1)
        costs = {row.key: row for row in spent}
        used = await gateway.parts.store.read(lambda c: _used(c, gateway.profiles, gateway.settings))
        profiles = sorted(gateway.profiles.all.values(), key=lambda one: (one.name != MAIN, one.name))

        def read() -> list[ConsoleAgent]:
            reading = self._values.read()
            return [self._agent(reading, one, used[one.name], costs.get(one.name)) for one in profiles]

        file = gateway.settings.file
        can_add = gateway.settings.origin.reread is not None and file.suffix == ".toml"
        return ConsoleAgents(str(file), can_add, await in_thread(read), self._tools())

    def _tools(self) -> list[ToolRule]:
        plugins, permissions = self._gateway.registry.current, self._gateway.parts.access.permissions

        def kind(tool: Tool, role: SenderRole, built_in: bool) -> RuleKind:
            asks = plugins.asks_by_default(tool)
            rule = permissions.rule_of(tool, role, built_in=built_in, ask_by_default=asks)
            return rule if isinstance(rule, str) else "patterns"

        found: list[ToolRule] = []
        for tool in sorted(self._gateway.registry.get_tools(), key=lambda one: one.name):
            own = plugins.is_built_in(tool)
            found.append(
                ToolRule(tool.name, kind(tool, "user", own), kind(tool, "admin", own), own and tool.read_only)
            )
        return found

    def _agent(
        self, reading: SettingReading, profile: Profile, conversations: int, cost: UsageRow | None
    ) -> ConsoleAgent:
        name, file = profile.name, reading.now.file
        origin, place = _origin(reading.now, self._gateway.profiles, name)
        is_own = origin in ("settings", "file")
        can_change = origin == "settings" and reading.can_change and file.suffix == ".toml"
        return ConsoleAgent(
            name=name,
            description=profile.description,
            model=profile.model or self._gateway.model,
            fallback=[*profile.fallback.chain],
            tools=None if profile.tools is None else sorted(profile.tools),
            mode=profile.mode,
            origin=origin,
            place=place,
            conversations=conversations,
            calls=cost.calls if cost else 0,
            usd=float(to_usd(cost.nano_usd or 0)) if cost else 0.0,
            unpriced=cost.unpriced if cost else 0,
            settings=[_setting(reading, name, key) for key in _keys(name)] if is_own else [],
            prompt=_setting(reading, name, _PROMPT) if is_own else None,
            can_change=can_change,
        )


def _keys(name: str) -> Sequence[str]:
    return [key for key in _ORDER if name != MAIN or key in Settings.model_fields]


def _setting(reading: SettingReading, name: str, key: str) -> SettingInfo:
    if name == MAIN:
        return reading.one((key,))
    inherited = () if key in _OWN or key not in Settings.model_fields else ((key,),)
    return reading.one(("agents", name, key), *inherited)


def _origin(
    settings: Settings, agents: Agents, name: str
) -> tuple[Literal["settings", "file", "folder", "plugin", "built-in"], str]:
    """Return where an agent is defined, and the exact file or plugin."""
    written = [entry for entry in settings.entries if entry.path[:2] == ("agents", name)]
    places = [(Path(entry.place.rpartition(":")[0]), entry.base) for entry in written]
    for shown, base in places:
        if shown.suffix == SUFFIX:
            return "file", str((base / shown.name).absolute())
    if name == MAIN or name in settings.agents:
        return "settings", str(places[0][0] if places else settings.file)
    if (plugin := agents.plugin_of(name)) is not None:
        return "plugin", plugin
    if name in agents.files:
        return "folder", str(agents.files[name].absolute())
    return "built-in", ""


def _used(connection: Connection, agents: Agents, settings: Settings) -> Counter[str]:
    """Return how many conversations each agent answers, as users or the settings chose it."""
    m = t.sessions.c
    chosen = select(m.agent, m.channel, func.count()).where(m.root.is_(None)).group_by(m.agent, m.channel)
    found: Counter[str] = Counter()
    for agent, channel, count in connection.execute(chosen):
        found[agents.choose(agent, channel)] += count
    # Conversations of rooms with their own agent were counted for that of their channel.
    rooms = _rooms_with_agents(settings)
    if rooms:
        places = select(m.agent, m.channel, m.address).where(m.root.is_(None))
        if len(rooms) <= _MOST_CONDITIONS:
            places = places.where(or_(*map(in_chat, sorted(rooms))))
        for agent, channel, written in connection.execute(places):
            chat = PLACES.decode(written).chat
            if chat in rooms:
                found[agents.choose(agent, channel)] -= 1
                found[agents.choose(agent, channel, chat)] += 1
    return found


def _rooms_with_agents(settings: Settings) -> set[str]:
    """Return the chats with their own agent, of any channel."""
    return {
        chat
        for channel in settings.channels.values()
        for table in (channel, *channel.accounts.values())
        for chat, room in table.rooms.named.items()
        if room.agent
    }
