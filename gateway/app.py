"""The composition root: what the gateway is made of, and the order it starts and stops in.

Start: store, registries, plugins (configured ones, then the caller's), sessions, channels, server, and
last what was accepted before and not answered. Stop: server, channels, sessions, plugins, providers, store.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import structlog

from gateway.access import Access, Who
from gateway.access.commands import AccessCommands
from gateway.agent import Agent, Generation
from gateway.approvals import Approvals
from gateway.asking import Asking
from gateway.auth import Auth
from gateway.backends import ProviderRegistry
from gateway.bus import ActivityBus
from gateway.channel import InboundMessage, Responder, ServesHttp
from gateway.choosing import Choosing
from gateway.commands import Commands
from gateway.deadletters import DeadLetters
from gateway.dispatcher import Dispatcher
from gateway.enabling import Enabling, PluginResolver
from gateway.errors import InvalidStateError, SettingsError
from gateway.figures import Figures
from gateway.host import Host, HostLimits
from gateway.inbox import Inbox
from gateway.intake import Bounds, Intake
from gateway.live import Live
from gateway.loader import BUILTIN_PLUGINS, load_channel, load_plugin
from gateway.messages import Message
from gateway.outbox import Outbox
from gateway.permissions import Permissions
from gateway.plugin import Plugin, PluginContext
from gateway.provider import ProviderConfig
from gateway.registry import AgentSources, ChannelRegistry, PluginRegistry
from gateway.retention import Retention
from gateway.routing import Agents, Known, Models, check_agents, check_channels, first_model, stand_by
from gateway.routing.keys import KeptKeys
from gateway.routing.logins import Logins
from gateway.routing.reaching import provider_config
from gateway.runner import Runner
from gateway.session import Sessions
from gateway.settings import Settings
from gateway.spending import Spending
from gateway.spending.commands import SpendingCommands
from gateway.steps import Steps
from gateway.store import Store
from gateway.submission import Submission
from gateway.supervisor import Supervisor
from gateway.toolbox import Toolbox
from gateway.ui import ConsoleUI
from gateway.version import VERSION

log = structlog.get_logger("trunkline")

Fatal = Callable[[BaseException], None]

_STEP_SECONDS = 10
"""How long one step of stopping may take before the next one follows."""


def die(error: BaseException) -> None:
    """End the process at once: the store failed, and what cannot be stored must not be acknowledged."""
    log.critical("the store failed; the gateway ends so that it can be started again", error=str(error))
    os._exit(70)


class Gateway:
    """A gateway, put together from settings. ``running`` starts it and, at the end, stops it.

    ``plugins`` are registered after the configured ones, so their hooks compose after them.
    ``resolve_plugin`` finds the configured ones by name: None from it leaves one out, and without it all of
    them are left out. A configured plugin that fails is left out too; one of the caller's raises PluginError.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        environ: Mapping[str, str] | None = None,
        plugins: Sequence[Plugin] = (),
        resolve_plugin: PluginResolver | None = load_plugin,
        on_fatal: Fatal = die,
    ) -> None:
        self.settings = settings
        self.activity = ActivityBus()
        self.figures = Figures()
        self.agents = AgentSources()
        self.channels = ChannelRegistry()
        self.providers = ProviderRegistry(self._provider_config)
        self.models = Models(self.providers, Known.of(settings))
        self.profiles = Agents.of(settings, self.models)
        self.registry = PluginRegistry(self._context)
        self.enabling = Enabling(self.registry, self.providers, settings.plugins)
        self.supervisors: list[Supervisor] = []
        self.left_out: dict[str, str] = {}
        """Channels that could not be made, and why."""
        self.model = settings.model or ""
        self.ready = False
        self._environ = environ or {}
        self._kept = KeptKeys(settings.data_dir)
        self._plugins = plugins
        self._resolve_plugin = resolve_plugin
        self._on_fatal = on_fatal
        self._sessions: Sessions | None = None
        self._background: list[asyncio.Task[None]] = []
        self._submission: Submission | None = None
        self.stop = asyncio.Event()
        self.exit_code = 0
        """The exit status a plugin asked for when it stopped the gateway."""

    @property
    def sessions(self) -> Sessions:
        """The sessions. Raises InvalidStateError before the gateway has started."""
        if self._sessions is None:
            raise InvalidStateError("sessions are not yet initialised")
        return self._sessions

    def shutdown(self, code: int = 0) -> None:
        """Ask the gateway to end in good order; ``trunkline run`` exits with the code that came first."""
        if not self.stop.is_set():
            self.exit_code = code
            self.stop.set()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Host]:
        """Start; hand out the host; stop when the block ends."""
        settings = self.settings
        async with AsyncExitStack() as stack:
            self.store = self.open_store()
            stack.push_async_callback(_end, "store", self.store.close)
            stack.push_async_callback(_end, "providers", self.providers.close)
            stack.push_async_callback(_end, "plugins", self.registry.shutdown)
            self._sessions = Sessions(self.store, settings.history_window, render=self.registry.render)
            self.access = Access(self.store, settings.rules, self.channels)
            self.access.revoked.add(self._end_turns_of)
            await self.access.load()
            await self._register_plugins()
            await asyncio.to_thread(self._kept.load)
            check_channels(settings, self.profiles)
            check_agents(settings, self.providers, (tool.name for tool in self.registry.get_tools()))
            await self._choose_model()
            async with asyncio.TaskGroup() as tasks:
                host = self._assemble(tasks)
                self._register_channels()
                await self.recover()
                self._start_channels(tasks)
                retention = Retention(self.store, settings.store.keep_days)
                self._background.append(tasks.create_task(retention.run(), name="retention"))
                logins = Logins(self._kept, self.providers, self.models, self._choose_model)
                self._background.append(tasks.create_task(logins.run(), name="logins"))
                self.ready = True
                try:
                    yield host
                finally:
                    self.ready = False
                    await self.stop_background()
                    await self._drain()

    async def _choose_model(self) -> None:
        self.model = self.settings.model or await first_model(self._environ, self.providers)

    def open_store(self) -> Store:
        """The store that the gateway writes to."""
        return Store.open(self.settings.store_url, self.settings.durability, self._on_fatal)

    async def recover(self) -> None:
        """Take up what was accepted and not answered, before any channel can bring more."""
        await self.intake.recover()

    async def stand_by(self) -> None:
        """Load what fallbacks need; for when the gateway has started, as nobody waits for that."""
        await stand_by(self.profiles.chains(), self.models, self.providers)

    def health(self) -> dict[str, tuple[bool, str]]:
        """The state of each part: whether it works, and if not, why."""
        states = {s.channel.id: s.health() for s in self.supervisors}
        return (
            {"gateway": (self.ready, "" if self.ready else "starting")}
            | {name: (state.ok, state.detail) for name, state in states.items()}
            | {name: (False, reason) for name, reason in self.left_out.items()}
        )

    def _assemble(self, tasks: asyncio.TaskGroup) -> Host:
        settings, limits = self.settings, self.settings.limits
        self.approvals = Approvals(self.channels, limits.approval_timeout_ms)
        models, steps = self.models, Steps(self.store)
        outbox, inbox = Outbox(self.store, self.channels), Inbox(self.store)
        permissions, longest = self._permissions(), limits.tool_output_bytes
        toolbox = Toolbox(self.registry, permissions, self.approvals, self.activity, longest)
        self.spending = Spending.of(settings, self.store, models, self.access, self.approvals)
        agent = Agent(
            self.registry,
            models,
            self.profiles,
            toolbox,
            steps,
            Asking(self.registry, self.profiles, toolbox, self.spending),
            self.activity,
            Generation(lambda: self.model, limits.max_llm_calls, settings.steer),
        )
        runner = Runner(
            self.store,
            inbox,
            self.registry,
            self.access,
            agent,
            steps,
            outbox,
            Live(tasks),
            self.figures,
            str(settings.data_dir),
        )
        self.dispatcher = Dispatcher(tasks, runner, self.store, limits.max_attempts)
        self.intake = self._intake(inbox)
        self._submission = Submission(self.intake, inbox, self.sessions)
        self.dead_letters = DeadLetters(self.store, self.intake.take_up)
        token = settings.server.token
        self.host = Host(
            intake=self.intake,
            submission=self._submission,
            inbox=inbox,
            sessions=self.sessions,
            registry=self.registry,
            approvals=self.approvals,
            access=self.access,
            auth=Auth(token.get_secret_value() if token else None),
            limits=HostLimits(limits.frame_bytes, limits.frames_per_second, limits.websocket_queue),
            figures=self.figures,
            model=lambda: self.model,
            version=VERSION,
        )
        return self.host

    def _intake(self, inbox: Inbox) -> Intake:
        limits = self.settings.limits
        return Intake(
            self.store,
            inbox,
            self.sessions,
            self.dispatcher,
            self.access,
            Bounds(limits.session_inbox, limits.global_inbox, limits.backlog_minutes),
            self.figures,
            self.approvals.overhear,
        )

    def _permissions(self) -> Permissions:
        rules = dict(self.settings.permissions)
        default = rules.pop("*", "allow")
        permissions = Permissions(rules, default if isinstance(default, str) else "deny")
        permissions.check({tool.name: tool for tool in self.registry.get_tools()})
        return permissions

    async def _register_plugins(self) -> None:
        own: dict[str, Callable[[], Plugin]] = {
            "commands": lambda: Commands(self.registry, self.sessions, self.profiles, lambda: self.model),
            "choosing": lambda: Choosing(self.sessions, self.models, self.profiles, lambda: self.model),
            "access": lambda: AccessCommands(self.access),
            "spending": self._spending_commands,
        }
        await self.enabling.enable(tuple(own), lambda name: own[name]())
        await self.enable_plugins()

    async def enable_plugins(self) -> None:
        """Register the built-in plugins, those of the settings and the caller's; take in their agents."""
        await self.enabling.enable(BUILTIN_PLUGINS, load_plugin)
        if self._resolve_plugin is not None:
            await self.enabling.enable(self.settings.plugins.enabled, self._resolve_plugin)
        for plugin in self._plugins:
            await self.registry.register(plugin)
        await asyncio.to_thread(self.profiles.take_in, self.agents.list())

    def _spending_commands(self) -> Plugin:
        return SpendingCommands(lambda: self.spending, self.access.door, self._model_of)

    def _model_of(self, session_id: str) -> str:
        session = self.sessions.get(session_id)
        return (self.profiles.model_of(session.row) if session else None) or self.model

    def _register_channels(self) -> None:
        """Make the channels that are enabled; one whose settings are wrong is left out, and says so."""
        for name, channel in self.settings.channels.items():
            for account in self.settings.accounts(name) if channel.enabled else ():
                channel_id = name if account is None else f"{name}.{account}"
                if self.channels.get(channel_id) is not None:
                    continue  # a plugin brought it
                try:
                    self.channels.register(load_channel(self.host, self.settings, name, account))
                except SettingsError as error:
                    log.error("a channel was left out", channel=channel_id, error=str(error))
                    self.left_out[channel_id] = str(error)
        self.access.door.check()

    def _start_channels(self, tasks: asyncio.TaskGroup) -> None:
        for channel in self.channels.list():
            supervisor = Supervisor(channel, self.intake.receiver(channel.id))
            self.supervisors.append(supervisor)
            self._background.append(tasks.create_task(supervisor.run(), name=f"channel {channel.id}"))

    async def stop_background(self) -> None:
        """Cancel what runs beside the sessions, channels first; what lingers is cancelled again."""
        for _ in range(2):
            for task in self._background:
                task.cancel()
            _, lingering = await asyncio.wait(self._background, timeout=_STEP_SECONDS)
            if not lingering:
                return
            log.error("these did not stop in time", tasks=[task.get_name() for task in lingering])

    async def _drain(self) -> None:
        """Let running turns end; those that do not in time are answered after the restart."""
        if not await self.dispatcher.drain(self.settings.limits.drain_seconds):
            log.warning("some turns did not end in time; they are answered after the restart")
            self.dispatcher.cancel()
        if self._submission is not None:
            self._submission.close()

    def _end_turns_of(self, who: Who) -> None:
        """Whoever is let out gets no further word, not even of the answer that is being made."""
        for session in self.sessions.live():
            turn = session.turn
            if turn is not None and self.access.door.who(turn.entry.channel, turn.entry.inbound) == who:
                turn.abort()

    def routes(self) -> list[Any]:
        """The routes that channels add to the server."""
        return [
            route
            for channel in self.channels.list()
            if isinstance(channel, ServesHttp)
            for route in channel.routes()
        ]

    def _context(self, registry: PluginRegistry, plugin: Plugin) -> PluginContext:
        contributions, name = registry.contributions, plugin.name
        return PluginContext(
            cwd=str(self.settings.data_dir),
            environ=self._environ,
            config=self.enabling.options(name),
            registry=registry,
            get_plugin=registry.get,
            set_status_line=lambda segments: contributions.set_status(name, segments),
            register_message_renderer=lambda key, value: contributions.add(name, "renderer", key, value),
            register_shortcut=lambda key, value: contributions.add(name, "shortcut", key, value),
            register_mention_provider=lambda key, value: contributions.add(name, "mention", key, value),
            ui=ConsoleUI(),
            shutdown=self.shutdown,
            submit=self._submit,
            providers=self.providers,
            models=self.models,
            channels=self.channels,
            sessions=self._sessions,
            activity=self.activity,
            agents=self.agents,
        )

    async def _submit(
        self, message: InboundMessage, responder: Responder | None = None, *, exclusive: bool = False
    ) -> Message | None:
        if self._submission is None:
            raise InvalidStateError("sessions are not yet initialised")
        return await self._submission.submit(message, responder, exclusive=exclusive)

    def _provider_config(self, provider_id: str) -> ProviderConfig:
        variables = self.providers.variables(provider_id)
        kept = self._kept.get(provider_id)
        return provider_config(self.settings, self._environ, provider_id, variables, kept, self._kept)


async def _end(part: str, close: Callable[[], Awaitable[None]]) -> None:
    """One step of stopping: if it fails or takes too long, the next ones still follow."""
    try:
        async with asyncio.timeout(_STEP_SECONDS):
            await close()
    except Exception:
        log.exception("stopping a part failed", part=part)
