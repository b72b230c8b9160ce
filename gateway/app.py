"""The composition root: builds the gateway's parts, starts them and stops them.

Start: store, plugins (configured ones, then the caller's), the pipeline, messages of an earlier process that
are not answered yet, channels. Stop: channels, running turns, plugins, providers, store.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from copy import deepcopy
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import structlog

from gateway.access import Access, UserRef
from gateway.access.permissions import Permissions
from gateway.access.program_actions import ProgramPermissions
from gateway.access.questions import Questions
from gateway.commands.access import AccessCommands
from gateway.commands.agent_draft import FOLDER
from gateway.commands.conversation import ConversationCommands
from gateway.commands.model import ModelCommands
from gateway.commands.plan import PlanMode
from gateway.commands.session import Commands
from gateway.commands.task import Tasks
from gateway.commands.usage import SpendingCommands
from gateway.commands.why import WhyCommands
from gateway.confinement.programs import NodeService
from gateway.contract.channel import Address, Channel, InboundMessage, Responder, ServesHttp
from gateway.contract.errors import InvalidStateError, SettingsError
from gateway.contract.messages import Message
from gateway.contract.plugin import Plugin, PluginContext, StatusSegment
from gateway.contract.provider import ProviderConfig
from gateway.contract.services import AgentService, UIService, Unregister
from gateway.conversations.chats import Chats
from gateway.conversations.plugin_questions import PluginQuestions, QuestionUI
from gateway.counters import Counters
from gateway.events.bus import ActivityBus, EventBus, OwnedEvents
from gateway.events.types import AccessRevoked, GatewayReady, ModelChanged
from gateway.extensions.activation import PluginActivator, PluginResolver
from gateway.extensions.backends import ProviderRegistry
from gateway.extensions.contributions import ConsoleUI
from gateway.extensions.deadlines import is_limited, paused
from gateway.extensions.loader import BUILTIN_PLUGINS, enabled_channels, load_channel, load_plugin
from gateway.extensions.process.service import Processes
from gateway.extensions.registry import AgentSources, ChannelRegistry, PluginRegistry
from gateway.extensions.scope import Scope, owned
from gateway.files import OutputReader, ToolOutputs
from gateway.host import Host, RunningGateway
from gateway.models import (
    Agents,
    ConfiguredModels,
    Models,
    check_agents,
    check_channels,
    default_model,
    preload_providers,
)
from gateway.models.credentials import CredentialStore
from gateway.models.providers import LoginWatcher, provider_config
from gateway.pacing import confirming
from gateway.pipeline.intake import Intake
from gateway.plugin_services import GrantQuestions, OpenServices, PluginActions, Resolver
from gateway.plugin_services.live import LivePlugins
from gateway.session import OwnedSessions, Session, Sessions
from gateway.session.log import SessionRow
from gateway.session.redaction import Redactor
from gateway.settings import Settings
from gateway.settings.layers.own_files import own_files
from gateway.settings.secrets import secrets_in
from gateway.skills import SkillLibrary, SkillTools
from gateway.store import Fence, Store
from gateway.store.retention import Retention
from gateway.supervisor import Supervisor, keep_running, run_after, watch_health
from gateway.tables import PluginTables
from gateway.tables.clock import TrustedClock

log = structlog.get_logger("trunkline")

STORE_FAILED = 70
"""Exit status after a failure of the store while the gateway was running."""

Fatal = Callable[[BaseException], None]

_STEP_SECONDS = 10
"""Time limit of one step of stopping; then the next one begins."""


def die(error: BaseException) -> None:
    """End the process at once, because messages that cannot be stored must not be acknowledged."""
    # Not SystemExit: stopping in order would wait for turns that cannot be committed.
    log.critical("the store failed; the gateway exits so that it can be restarted", error=str(error))
    os._exit(STORE_FAILED)


class Gateway:
    """A gateway, composed from settings. ``running`` starts it and, at the end of the block, stops it.

    ``plugins`` are registered after the configured ones, so their hooks run after them.
    ``resolve_plugin`` finds the configured ones by name: None from it leaves one out, and without it all of
    them are left out. A plugin that fails ends the start with SettingsError or PluginActivationError, unless
    its settings say ``optional = true``; one of the caller's raises PluginError.
    """

    fence: Fence | None = None
    nodes: NodeService | None = None
    """Set in a cluster, before the start: ``fence`` lets one node write, ``nodes`` reaches the others."""

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
        self.events = EventBus()
        self.activity = ActivityBus(self.events)
        self.counters = Counters()
        self._agent_registries: list[AgentService] = [AgentSources()]
        """The gateway's own agent registry and those that plugins published; plugins receive the last."""
        self.channels = ChannelRegistry()
        self.providers = ProviderRegistry(self._provider_config)
        self.models = Models(self.providers, ConfiguredModels.of(settings))
        self.profiles = Agents.of(settings, self.models)
        self.processes = Processes(settings.plugins.sandbox, own=own_files(settings, environ or {}))
        """Confined processes; the first one that is needed starts what they need."""
        self.registry = PluginRegistry(self._context, lambda name: self.activator.settings(name), self.events)
        self.activator: PluginActivator = PluginActivator(self.registry, self.providers, settings)
        self.supervisors: list[Supervisor] = []
        self.left_out: dict[str, str] = {}
        """Channels that could not be created, with the reason."""
        self.model = settings.model or ""
        self.ready = False
        self.environ = environ or {}
        self._kept = CredentialStore(settings.data_dir)
        self.logins = LoginWatcher(self._kept, self.providers, self.models, self._credentials_changed)
        self.redactor = Redactor()
        self.skills = SkillLibrary(settings, self.environ.get("HOME"))
        self.outputs = ToolOutputs(settings.data_dir / "tool_outputs", settings.limits.tool_output_bytes)
        self._plugins = plugins
        self._resolve_plugin = resolve_plugin
        self._on_fatal = on_fatal
        self._sessions: Sessions | None = None
        self._questions: Questions | None = None
        self._plugin_questions: PluginQuestions | None = None
        """Set before plugins are activated, which are given the sessions before the other parts exist."""
        self._parts: RunningGateway | None = None
        self._tables: PluginTables | None = None
        self._grants: GrantQuestions
        self._actions: PluginActions
        self._resolver = Resolver(
            *(settings, self.registry, self.processes),
            lambda plugin: partial(self._announce, plugin),
            lambda: self.parts.completions,
            *(self.skills, self.profiles),
        )
        self.live_plugins = LivePlugins(settings, self.activator, self._resolver, self._credentials_changed)
        self._opened = asyncio.Event()
        """Set once announcements and questions of plugins are accepted."""
        self._background: list[asyncio.Task[None]] = []
        self._channel_tasks: dict[str, asyncio.Task[None]] = {}
        self.stop = asyncio.Event()
        self.exit_code = 0
        """The exit status that a plugin requested when it stopped the gateway."""

    @property
    def parts(self) -> RunningGateway:
        """The parts of the running gateway. Raises InvalidStateError before the gateway has started."""
        if self._parts is None:
            raise InvalidStateError("the gateway has not started yet")
        return self._parts

    def shutdown(self, code: int = 0) -> None:
        """Stop the gateway in order. ``trunkline run`` exits with the code of the first call."""
        if not self.stop.is_set():
            self.exit_code = code
            self.stop.set()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Host]:
        """Start the gateway, yield its host, and stop the gateway when the block ends."""
        settings = self.settings
        async with AsyncExitStack() as stack:
            store = await self.open_store()
            stack.push_async_callback(_stop_step, "store", store.close)
            if self.fence is not None:
                confirming.set(store.confirm_owner)
            stack.push_async_callback(_stop_step, "processes", self.processes.close)
            stack.push_async_callback(_stop_step, "providers", self.providers.close)
            # It ends after the plugins, which cancel their tasks. An error of the start is not its own.
            group = self.registry.task_group = await asyncio.TaskGroup().__aenter__()
            stack.push_async_callback(_stop_step, "plugin tasks", lambda: group.__aexit__(None, None, None))
            stack.push_async_callback(_stop_step, "plugins", self.registry.shutdown)
            # After the running turns and before the plugins, so that they get the last event.
            await stack.enter_async_context(self.events)
            sessions = self._sessions = Sessions(
                store, render=self.registry.render, redactor=self.redactor, events=self.events
            )
            access = Access(store, settings.rules, self.channels, events=self.events)
            self.events.subscribe(AccessRevoked, self._end_turns_of)
            await access.load()
            self._questions = questions = Questions(store, access, self.channels, sessions, self.redactor)
            await questions.load()
            self._open_plugin_services(store, sessions, access, questions)
            await self._register_plugins(sessions, access, questions)
            await asyncio.to_thread(self._kept.load)
            self._mask_secrets()
            check_channels(settings, self.profiles)
            check_agents(settings, self.providers, (tool.name for tool in self.registry.get_tools()))
            await self._choose_model()
            access.permissions = self._permissions()
            async with asyncio.TaskGroup() as tasks:
                self._keep(tasks, "store monitor", store.monitor.run())
                self._keep(tasks, "ownership", store.watch_owner())
                self._parts = parts = self._running_parts(tasks, store, sessions, access, questions)
                self._connect_sessions(parts)
                self._keep(tasks, "questions", questions.run())
                self._register_channels(parts)
                await self.recover()
                sessions.post = parts.intake.post
                sessions.on_delete = self._forget
                self._keep(tasks, "recovery", parts.intake.load_sessions())
                self._start_channels(tasks, parts.intake)
                self._start_background(tasks, parts)
                self.ready = True
                self.events.emit(GatewayReady())
                self._opened.set()
                try:
                    yield parts.host
                finally:
                    self.ready = False
                    # Channels end first, so that nothing new is accepted while the running turns end.
                    await self.stop_background()
                    await self._drain(parts)

    def _keep(self, tasks: asyncio.TaskGroup, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Start a task that runs until the gateway stops."""
        self._background.append(tasks.create_task(work, name=name))

    def _start_background(self, tasks: asyncio.TaskGroup, parts: RunningGateway) -> None:
        retention = Retention(parts.store, *self.settings.store.kept_days)
        chores: dict[str, Callable[[], Awaitable[None]]] = {
            "retention": partial(retention.run, TrustedClock(parts.store).now),
            "tool outputs": self.outputs.run,
            "titles": parts.conversations.titles.run,
            "search": parts.conversations.search.run,
            "plugin actions": self._actions.run,
            "plugin indexes": self._resolver.watch,
            "logins": self.logins.run,
            "skills": self.skills.watch,
        }
        for name, work in chores.items():
            self._keep(tasks, name, keep_running(name, work))

    def _open_plugin_services(
        self, store: Store, sessions: Sessions, access: Access, questions: Questions
    ) -> None:
        tables = self._tables = PluginTables(store)
        timeout_ms = self.settings.limits.approval_timeout_ms
        self._grants = GrantQuestions(access, self.channels, sessions, questions, timeout_ms)
        self._actions = PluginActions(store)
        self._resolver.services = OpenServices(store, sessions, tables, self._grants, self._actions)

    async def _forget(self, session: str) -> None:
        """Delete what else is kept of a session that was deleted."""
        await self.outputs.forget(session)
        self.parts.questions.forget_session(session)
        await self.parts.changes.forget(session)

    def _mask_secrets(self) -> None:
        """Redact the secrets of the settings, the environment, logins and plugins from now on."""
        found = (*self.settings.secrets(), *secrets_in(self.environ), *self._kept.secrets())
        self.redactor.replace((*found, *self._resolver.secrets()))

    async def _credentials_changed(self) -> None:
        self._mask_secrets()
        await self._choose_model()

    async def _choose_model(self) -> None:
        before = self.model
        self.model = self.settings.model or await default_model(self.environ, self.providers)
        if before not in ("", self.model):
            self.events.emit(ModelChanged(self.model))

    async def open_store(self) -> Store:
        """Open the store; wait up to ``store.wait_ms`` while it is unavailable. Raises StoreError.

        A node of a cluster does not wait: it holds the token, and another node may reach the database.
        """
        found = self.settings
        seconds = 0 if self.fence is not None else found.store.wait_ms / 1000
        return await Store.open_when_available(
            found.store_url, found.durability, self._on_fatal, seconds, self.stop, self.fence
        )

    async def recover(self) -> None:
        """Finish the reverts of an earlier process, and queue its unanswered messages before new ones."""
        await self.parts.changes.resume()
        await self.parts.intake.recover()

    async def stand_by(self) -> None:
        """Load the code that the model and fallbacks need. Called after the start, which it would delay."""
        names = (self.model, *self.profiles.standby_names())
        await preload_providers(names, self.models, self.providers)

    def health(self) -> dict[str, tuple[bool, str]]:
        """Return for each part whether it works, and if not, why."""
        states = {s.channel.id: s.health() for s in self.supervisors}
        return (
            {"gateway": (self.ready, "" if self.ready else "starting")}
            | ({"store": self.parts.store.monitor.health()} if self.ready else {})
            | {name: (state.ok, state.detail) for name, state in states.items()}
            | {name: (False, reason) for name, reason in self.left_out.items()}
            | {f"plugin {Path(n).stem}": (False, why) for n, why in self.activator.failed.items()}
        )

    def is_ready(self) -> bool:
        """Return whether every part works that is not an optional channel."""
        channels = self.settings.channels
        optional = {name for name, channel in channels.items() if channel.optional}
        return all(ok for part, (ok, _) in self.health().items() if part.partition(".")[0] not in optional)

    def _running_parts(
        self,
        tasks: asyncio.TaskGroup,
        store: Store,
        sessions: Sessions,
        access: Access,
        questions: Questions,
    ) -> RunningGateway:
        return RunningGateway(
            settings=self.settings,
            events=self.events,
            activity=self.activity,
            counters=self.counters,
            registry=self.registry,
            channels=self.channels,
            providers=self.providers,
            models=self.models,
            agents=self.profiles,
            processes=self.processes,
            redactor=self.redactor,
            outputs=self.outputs,
            git=shutil.which("git", path=self.environ.get("PATH")),
            model=lambda: self.model,
            model_of=self._model_for,
            tasks=tasks,
            keep=partial(self._keep, tasks),
            store=store,
            sessions=sessions,
            access=access,
            questions=questions,
            grants=self._grants,
            actions=self._actions,
        )

    @staticmethod
    def _connect_sessions(parts: RunningGateway) -> None:
        """Give sessions their open questions and their waiting messages, now and when one is loaded."""
        questions, dispatcher = parts.questions, parts.dispatcher

        def opened(session: Session) -> None:
            questions.opened(session)
            dispatcher.open(session)

        parts.sessions.on_load = opened
        questions.announcing = dispatcher.announcing
        # Plugins may have loaded some already.
        for session in parts.sessions.live():
            questions.opened(session)

    def _permissions(self) -> Permissions:
        rules = dict(self.settings.permissions)
        default = rules.pop("*", None)
        permissions = Permissions(rules, default if default is None or isinstance(default, str) else "deny")
        tools = {tool.name: tool for tool in self.registry.get_tools()}
        permissions.check(tools, self._tool_to_come)
        return permissions

    def _tool_to_come(self, name: str) -> bool:
        """Return whether an unregistered tool may exist: of a backend, or of a plugin that failed."""
        backend, colon, _ = name.partition(":")
        return (bool(colon) and self.providers.serves(backend)) or self.activator.may_contribute(name)

    async def _register_plugins(self, sessions: Sessions, access: Access, questions: Questions) -> None:
        chats, contributions = Chats(self.channels, sessions, access), self.registry.contributions
        self._plugin_questions = PluginQuestions(
            questions, chats, sessions, contributions, self._until_opened
        )
        own: dict[str, Callable[[], Plugin]] = {
            "commands": lambda: Commands(self.registry, sessions, self.profiles, lambda: self.model),
            "choosing": lambda: ModelCommands(
                sessions, self.models, self.profiles, lambda: self.model, lambda: self.parts.drafts
            ),
            "conversation": lambda: ConversationCommands(sessions, access, lambda: self.parts.conversations),
            "access": lambda: AccessCommands(access),
            "plan_mode": lambda: PlanMode(sessions),
            "tasks": lambda: Tasks(self.profiles),
            "outputs": lambda: OutputReader(self.outputs),
            "skill": lambda: SkillTools(self.skills, self.profiles, self.registry.refresh),
            "why": lambda: WhyCommands(access, lambda: self.parts.why),
            "spending": lambda: SpendingCommands(lambda: self.parts.spending, access.policy, self._model_of),
        }
        await self.activator.activate(tuple(own), lambda name: own[name](), built_in=True)
        await self.enable_plugins()
        self.activator.check()

    async def enable_plugins(self) -> None:
        """Register the built-in plugins, those of the settings and the caller's; load their agents."""
        await self.activator.activate(BUILTIN_PLUGINS, load_plugin, built_in=True)
        if self._resolve_plugin is not None:
            resolve = self._resolve_plugin
            if resolve is load_plugin:
                resolve = self._resolver.load
                await self._resolver.install_missing(self.environ)
            await self.activator.activate(self.settings.plugins.enabled, resolve)
        for plugin in self._plugins:
            await self.registry.register(plugin)
        # Last, because a tool of an MCP server must not take the name of another one.
        servers = self._resolver.server_plugins()
        await self.activator.activate(tuple(servers), lambda name: servers[name], built_in=True)
        await asyncio.to_thread(self.profiles.add_folders, self._agent_folders())

    def _publish_agents(self, registry: AgentService) -> Unregister:
        """Give this registry to plugins that are activated later; agents of earlier ones remain."""
        self._agent_registries.append(registry)
        return partial(self._agent_registries.remove, registry)

    def _agent_folders(self) -> list[Path]:
        of_plugins = [folder for one in self._agent_registries for folder in one.list()]
        return list(dict.fromkeys((*of_plugins, self.settings.data_dir / FOLDER)))

    def check_permissions(self) -> None:
        """Raise SettingsError for a permission rule that matches no tool."""
        self._permissions()

    def _model_of(self, session_id: str) -> str:
        session = self.parts.sessions.get(session_id)
        return (self.profiles.model_of(session.row) if session else None) or self.model

    def _model_for(self, channel: str, row: SessionRow | None) -> str:
        if row is not None:
            return self.profiles.model_of(row) or self.model
        return self.profiles.get(self.profiles.choose(None, channel)).model or self.model

    def _register_channels(self, parts: RunningGateway) -> None:
        """Create the enabled channels. One with wrong settings is left out and reported as unhealthy."""
        for name, account, channel_id in enabled_channels(self.settings):
            if self.channels.get(channel_id) is not None:
                continue  # a plugin registered it
            try:
                self.channels.register(load_channel(parts.host, self.settings, name, account))
            except SettingsError as error:
                log.error("left out a channel with wrong settings", channel=channel_id, error=str(error))
                self.left_out[channel_id] = str(error)
        parts.access.policy.check()

    def _start_channels(self, tasks: asyncio.TaskGroup, intake: Intake) -> None:
        start = partial(self._start_channel, tasks, intake)
        for channel in self.channels.list():
            start(channel)
        self.channels.on_add, self.channels.on_remove = start, self._stop_channel
        self._background.append(tasks.create_task(watch_health(self.supervisors), name="channel health"))

    def _start_channel(self, tasks: asyncio.TaskGroup, intake: Intake, channel: Channel) -> None:
        supervisor = Supervisor(channel, intake.receiver(channel.id), self.events)
        name = f"channel {channel.id}"
        # Of a plugin that was replaced: most platforms allow one connection.
        earlier = [task for task in self._background if task.get_name() == name and not task.done()]
        self.supervisors.append(supervisor)
        task = tasks.create_task(run_after(earlier, supervisor), name=name)
        self._background.append(task)
        self._channel_tasks[channel.id] = task

    def _stop_channel(self, channel: Channel) -> None:
        self.supervisors[:] = [one for one in self.supervisors if one.channel is not channel]
        self._channel_tasks.pop(channel.id).cancel()

    async def stop_background(self) -> None:
        """Cancel the background tasks, channels first. Tasks that do not end in time are cancelled again."""
        self.channels.on_add = self.channels.on_remove = lambda _channel: None
        # Twice, because a library may swallow the first cancellation.
        for _ in range(2):
            for task in self._background:
                task.cancel()
            _, lingering = await asyncio.wait(self._background, timeout=_STEP_SECONDS)
            if not lingering:
                return
            log.error("background tasks did not stop in time", tasks=[task.get_name() for task in lingering])

    async def _drain(self, parts: RunningGateway) -> None:
        """Wait for running turns. Those that do not end in time are answered after the restart.

        Those that wait for a user are not waited for.
        """
        parts.dispatcher.stopping = True
        parts.questions.stop()
        if not await parts.dispatcher.drain(self.settings.limits.drain_seconds):
            log.warning("some turns did not end in time; they will be answered after the restart")
            parts.dispatcher.cancel()
        parts.submission.close()

    def _end_turns_of(self, revoked: AccessRevoked) -> None:
        """Abort the running turns of a user whose access was revoked."""
        user = UserRef(revoked.channel, revoked.user)
        for session in self.parts.sessions.live():
            turn = session.turn
            if (
                turn is not None
                and self.parts.access.policy.user_of(turn.entry.channel, turn.entry.inbound) == user
            ):
                turn.abort()

    def routes(self) -> list[Any]:
        """Return the routes that channels add to the server."""
        return [
            route
            for channel in self.channels.list()
            if isinstance(channel, ServesHttp)
            for route in channel.routes()
        ]

    def _ui_of(self, plugin: str) -> UIService:
        """Return the UI of a plugin; commands that only list plugins can ask no user."""
        if self._questions is None:
            return ConsoleUI()
        return QuestionUI(plugin, self._questions, self.settings.limits.approval_timeout_ms)

    def _context(self, registry: PluginRegistry, plugin: Plugin, scope: Scope) -> PluginContext:
        contributions, name = registry.contributions, plugin.name
        events = OwnedEvents(self.events, name)
        scope.add(events.open)
        scope.on_end(events.end)

        def set_status(segments: Sequence[StatusSegment]) -> None:
            scope.put("status", contributions.set_status, name, segments)

        def publish_agents(published: AgentService) -> None:
            scope.add(self._publish_agents, published)

        questions = None if self._plugin_questions is None else self._plugin_questions.of(name)
        return PluginContext(
            cwd=str(self.settings.data_dir),
            # Read-only copies: a plugin sees neither the keys of model providers nor what others are set to.
            environ=MappingProxyType({n: self.environ[n] for n in plugin.environ if n in self.environ}),
            node="" if self.settings.cluster.url is None else self.settings.cluster.node,
            nodes=self.nodes,
            config=MappingProxyType(deepcopy(dict(self.activator.options(name)))),
            options=partial(self.settings.plugin, self.activator.tables(name)),
            registry=registry,
            get_plugin=registry.get,
            set_status_line=set_status,
            set_panel=lambda text: scope.put("panel", contributions.set_panel, name, text),
            register_message_renderer=partial(scope.add, contributions.add, name, "renderer"),
            register_shortcut=partial(scope.add, contributions.add, name, "shortcut"),
            register_mention_provider=partial(scope.add, contributions.add, name, "mention"),
            ui=self._ui_of(name),
            shutdown=self.shutdown,
            processes=self.processes,
            submit=self._submit,
            announce=None if self._tables is None else partial(self._announce, name),
            questions=None if questions is None else owned(questions, scope, "on_answer"),
            permissions=None if self._questions is None else ProgramPermissions(self._questions.access, name),
            tasks=scope.tasks,
            table=None if self._tables is None else partial(self._tables.open, name),
            audit=None if self._tables is None else partial(self._tables.audit, name),
            providers=owned(self.providers, scope, "register", "add_factory"),
            models=self.models,
            channels=owned(self.channels, scope, "register"),
            sessions=None if self._sessions is None else OwnedSessions(self._sessions, events),
            activity=self.activity.of_plugin(events),
            events=events,
            agents=owned(self._agent_registries[-1], scope, "register_source"),
            set_agents_registry=publish_agents,
        )

    async def _announce(
        self, plugin: str, address: Address | Mapping[str, Any], message: Message | str, key: str
    ) -> None:
        await self._until_opened(plugin, "announce")
        await self.parts.announcements.announce(plugin, address, message, key)

    async def _until_opened(self, plugin: str, verb: str) -> None:
        """Wait until the gateway has started. Raises InvalidStateError in ``activate``."""
        if not self._opened.is_set() and is_limited():
            raise InvalidStateError(
                f"plugin {plugin!r} cannot {verb} while it is activated; {verb} from a task of ctx.tasks"
            )
        await self._opened.wait()

    async def _submit(
        self, message: InboundMessage, responder: Responder | None = None, **options: Any
    ) -> Message | None:
        with paused():
            return await self.parts.submission.submit(message, responder, **options)

    def _provider_config(self, provider_id: str) -> ProviderConfig:
        variables = self.providers.variables(provider_id)
        kept = self._kept.get(provider_id)
        config = provider_config(self.settings, self.environ, provider_id, variables, kept, self._kept)
        return self._resolver.with_tokens(config)


async def _stop_step(part: str, close: Callable[[], Awaitable[None]]) -> None:
    """Run one step of stopping. If it fails or takes too long, the next steps still run."""
    try:
        async with asyncio.timeout(_STEP_SECONDS):
            await close()
    except Exception:
        log.exception("failed to stop a part", part=part)
