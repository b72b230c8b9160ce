"""A confined plugin: hooks, events, tools and commands that are calls of its process.

The process declares what its code handles when it is activated. That must be what the manifest lists: a
handler that is not listed, and a listed one that is missing, are refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec
import structlog
from msgspec import Struct

from gateway.api import RawRequest, RawResponse
from gateway.contract.errors import OverloadedError, PluginError, ToolError, TrunklineError
from gateway.contract.events import BusEvent, ChatMessage, PermissionAsked, ToolStarting
from gateway.contract.messages import Message, now_ms, to_json
from gateway.contract.plugin import (
    AgentEndReason,
    CommandContext,
    Compacting,
    Plugin,
    PluginContext,
    SlashCommand,
    ToolBlock,
    ToolCall,
    TurnContext,
    TurnResult,
    UserInput,
)
from gateway.contract.provider import ChatOptions, ToolDefinition
from gateway.contract.services import TaskService
from gateway.contract.tool import Tool, ToolContext, ToolOutput
from gateway.events.types import FileDeleted, FileModified
from gateway.extensions.admission.capabilities import Grant
from gateway.extensions.admission.config_schema import check_arguments, validator_problem
from gateway.extensions.admission.manifest import ALIASES, Admitted, Schedule
from gateway.extensions.confined import answers
from gateway.extensions.confined.events import DECIDING, Access, kind_of, payload_of
from gateway.extensions.confined.http import HttpRoutes
from gateway.extensions.confined.page import PagePlaces
from gateway.extensions.process.frames import Connection, ProcessEnded, RemoteError, Serve
from gateway.extensions.process.records import Recorded
from gateway.settings import PluginSettings

log = structlog.get_logger("trunkline.plugins")

COMMAND_SECONDS, AUTH_SECONDS, DEACTIVATE_SECONDS = 30.0, 30.0, 2.0
LOGIN_SECONDS = 600.0
"""Time in which a user completes a login in the browser."""
COMPACTING_SECONDS, JOB_SECONDS = 30.0, 600.0
_MARGIN = 0.1
BLOCK = "Block"
"""The name of the error with which a handler blocks."""

_NEEDED: Mapping[str, tuple[str, ...]] = {
    "tool.execute.before": ("tools:block", "tools:decide"),
    "permission.ask": ("tools:decide",),
    "chat.message": ("messages:read", "messages:change"),
    "before_llm_call": ("messages:read", "messages:change"),
    "after_llm_call": ("messages:read", "messages:change"),
    "before_tool_exec": ("tools:block", "tools:decide"),
    "after_tool_exec": ("messages:read", "messages:change"),
    "filter_tools": ("tools:block", "tools:decide"),
    "transform_user_input": ("messages:read", "messages:change"),
}
"""The grants of which a handler needs one."""


class Process(Recorded, Protocol):
    """The process of a plugin; ``call`` raises ProcessEnded at once while it does not run."""

    async def start(self, seconds: float) -> None:
        """Start the process and activate the plugin in it."""
        ...

    async def stop(self, reason: str = "it was stopped") -> None:
        """End the process; ``reason`` says why."""
        ...

    async def call(self, method: str, params: Mapping[str, Any] | Struct, seconds: float) -> Any:
        """Call the process."""
        ...

    def notify(self, method: str, params: Mapping[str, Any] | Struct) -> None:
        """Send an event to the process."""
        ...


@runtime_checkable
class BringsObjects(Protocol):
    """A process that is the gateway's: it returns objects, too."""

    @property
    def objects(self) -> Mapping[str, Any]:
        """Objects other than handlers that the code returned, such as model providers, by key."""
        ...


class Answers(Protocol):
    """The broker: answers the calls of the process, and asks only in sessions in which it works."""

    async def serve(self, method: str, params: Any) -> Any:
        """Answer a call. Raises TrunklineError."""
        ...

    def working_in(self, session: str) -> AbstractContextManager[None]:
        """Let the plugin ask and read in a session during a call."""
        ...

    async def check(self, capability: str, value: str, *arguments: object) -> None:
        """Check and record that the gateway lets the plugin work on its own. Raises TrunklineError."""
        ...


class RunsJobs(Protocol):
    """A plugin that runs its scheduled jobs."""

    def is_ready(self) -> bool:
        """Return whether a job can be run now."""
        ...

    async def run_job(self, name: str, due: int) -> bool:
        """Run a job for a due time (ms). Return False if the plugin's process ended meanwhile."""
        ...


class FollowsJobs(Protocol):
    """Runs jobs when they are due."""

    def follow(
        self, plugin: str, entries: Sequence[Schedule], config: Mapping[str, Any], runner: RunsJobs
    ) -> Coroutine[Any, Any, None]:
        """Return what runs the jobs of a plugin until cancelled. Raises PluginError for a wrong zone."""
        ...


class Parts(Protocol):
    """The parts of a plugin beside its code."""

    commands: tuple[SlashCommand, ...]

    def add(self, tools: Collection[str]) -> None:
        """Offer skills and agents; ``tools`` are those of the plugin, which its agents may use."""
        ...

    def remove(self) -> None:
        """Take them back."""
        ...

    def transform(self, text: str) -> UserInput | None:
        """Replace a prompt command by its text."""
        ...

    def begin(self) -> None:
        """Take note that the running turn calls a model."""
        ...


OnStart = Callable[[Connection], Awaitable[None]]
MakeProcess = Callable[[Serve, OnStart], Process]


class DeclaredTool(Struct, frozen=True):
    """A tool that the plugin's code returned."""

    name: str
    description: str
    schema: dict[str, Any]


class DeclaredCommand(Struct, frozen=True):
    """A command that the plugin's code returned."""

    name: str
    description: str
    admin: bool = False


class Declaration(Struct, frozen=True):
    """All that the plugin's code returned; ``others`` are keys of what cannot cross a process boundary."""

    tools: tuple[DeclaredTool, ...] = ()
    commands: tuple[DeclaredCommand, ...] = ()
    hooks: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    auth: tuple[str, ...] = ()
    schedule: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


class _Report(Struct, frozen=True):
    """An event of the process: progress of a tool call, or a failure of an observing handler."""

    key: str = ""
    text: str = ""
    error: str = ""


class Token(Struct, frozen=True):
    """A token of an auth provider. ``expires_at`` is seconds since the epoch; 0 if it does not expire."""

    token: str
    expires_at: float = 0.0

    def __repr__(self) -> str:
        return f"Token(expires_at={self.expires_at!r})"


class ConfinedPlugin(Plugin):
    """The gateway's side of a plugin with a manifest.

    ``holds`` returns whether a grant was given; ``make_process`` creates the process. ``config`` are its own
    settings, with the defaults of the manifest; without them it gets those of its context. ``jobs`` runs
    those that its manifest schedules. ``tools`` are those of its folder, which are no code of its process.
    ``parts`` are its skills, agents and prompt commands.
    """

    def __init__(
        self,
        admitted: Admitted,
        settings: PluginSettings,
        broker: Answers,
        make_process: MakeProcess,
        holds: Callable[[Grant], bool],
        config: Mapping[str, Any] | None = None,
        jobs: FollowsJobs | None = None,
        tools: Sequence[Tool] = (),
        parts: Parts | None = None,
    ) -> None:
        manifest = admitted.manifest
        self.name, self.version = manifest.name, manifest.version
        self.asks_by_default = admitted.trust == "sandbox"
        self.on_failure = manifest.on_failure
        self.admitted = admitted
        self.made_of = (admitted, settings, config)
        self.declaration = Declaration()
        self._needs = manifest.capabilities
        self._holds = holds
        self._broker = broker
        self._hook_seconds = settings.hook_timeout_ms / 1000
        self._tool_seconds = settings.tool_timeout_ms / 1000
        self._activate_seconds = settings.activate_timeout_ms / 1000
        self.process = make_process(self._serve, self._on_start)
        self._config = config
        self._jobs = jobs
        self._http = HttpRoutes(self.name, partial(self._call, "", seconds=self._tool_seconds))
        self._page = PagePlaces(manifest)
        self._tasks: TaskService | None = None
        self._params: dict[str, Any] = {}
        self._progress: dict[str, Callable[[str], None]] = {}
        self._show_login: Callable[[str], None] | None = None
        self._tools: tuple[Tool, ...] = ()
        self._folder_tools = tuple(tools)
        self._commands: tuple[SlashCommand, ...] = ()
        # As attributes, so that only the hooks of the manifest are called.
        for hook in manifest.hooks:
            setattr(self, hook, getattr(self, f"_{hook}"))
        for event in manifest.events:
            if event in DECIDING:
                setattr(self, DECIDING[event], getattr(self, f"_{DECIDING[event]}"))
        if manifest.tools != ():
            self.tools = lambda: (*self._tools, *self._folder_tools)
        self._parts = parts
        prompts = parts is not None and bool(parts.commands)
        if prompts:
            self.transform_user_input = self._expand_prompt
            self.transform_system_prompt = self._begin_turn
        if manifest.commands != () or prompts:
            self.commands = lambda: (*self._commands, *(parts.commands if parts is not None else ()))

    @property
    def access(self) -> Access:
        """The content that it may see now."""
        return Access(
            self._granted("messages:read", "messages:change"), self._granted("tools:block", "tools:decide")
        )

    # Its life.

    async def activate(self, ctx: PluginContext) -> None:
        """Start the process, and subscribe to the events that the manifest lists."""
        self._check_grants()
        manifest = self.admitted.manifest
        root, worktree = await asyncio.to_thread(_project)
        self._params = {
            "name": self.name,
            "config": dict(ctx.config if self._config is None else self._config),
            "project": {"root": str(root), "worktree": str(worktree)},
            "in_flight": manifest.limits.in_flight,
        }
        self._tasks = ctx.tasks
        self._page.open(ctx)
        await self.process.start(self._activate_seconds)
        for name in manifest.events:
            kind = kind_of(name)
            if kind is not None and name not in DECIDING and ctx.events is not None:
                ctx.events.subscribe(kind, partial(self._observe, self._written(name)))
        if isinstance(self.process, BringsObjects):
            self._adopt(ctx, dict(self.process.objects))
        if manifest.schedule and self._jobs is not None and ctx.tasks is not None:
            following = self._jobs.follow(self.name, manifest.schedule, self._params["config"], self)
            ctx.tasks.create_task(following, name="schedule")
        if self._parts is not None:
            self._parts.add([tool.name for tool in self.tools()])

    def stop_soon(self, reason: str) -> None:
        """Stop the plugin until the next start: it misused what it may do, or must not run any more."""
        log.error("a plugin is stopped", plugin=self.name, reason=reason)
        self._folder_tools = ()
        self._page.close()
        if self._parts is not None:
            self._parts.remove()
        if self._tasks is not None:
            self._tasks.create_task(self.process.stop(reason), name=f"stop {self.name}")

    async def deactivate(self) -> None:
        """Let the plugin end, and end its process."""
        if self._parts is not None:
            self._parts.remove()
        try:
            await self.process.call("deactivate", {}, DEACTIVATE_SECONDS)
        except (ProcessEnded, RemoteError, TimeoutError) as error:
            log.info("a plugin did not end when asked to", plugin=self.name, reason=str(error))
        await self.process.stop()

    async def find_problem(self) -> str:
        """Return why the process does not run; "" if it does."""
        return "" if self.process.state == "running" else f"{self.process.state}: {self.process.reason}"

    async def _on_start(self, connection: Connection) -> None:
        """Activate the plugin in a process that was started, or started again."""
        try:
            answer = await connection.call("activate", self._params, self._activate_seconds)
        except RemoteError as error:
            raise PluginError(f"{error.remote}: {error}") from None
        try:
            declaration = msgspec.convert(answer, Declaration)
        except msgspec.ValidationError as error:
            raise PluginError(f"its declaration cannot be read: {error}") from None
        self._check_declaration(declaration)
        self._http.declare(declaration.routes)
        self.declaration = declaration
        self._tools = tuple(self._tool(each) for each in declaration.tools)
        self._commands = tuple(
            SlashCommand(each.name, each.description, partial(self._run_command, each.name), each.admin)
            for each in declaration.commands
        )

    def _check_grants(self) -> None:
        manifest = self.admitted.manifest
        own = ("schedule", f"routes:{self._needs.routes}")
        for grant in (grant for grant in own if grant in self._needs.grants() and not self._granted(grant)):
            name = grant.partition(":")[0]
            raise PluginError(
                f"{name} needs the capability {grant}, which is not granted; grant it with: "
                f"trunkline plugin approve {self.name} --allow {name}"
            )
        for handler in (*manifest.events, *manifest.hooks):
            needed = _NEEDED.get(_canonical(handler), ())
            declared = [grant for grant in needed if grant in self._needs.grants()]
            if needed and not declared:
                capability, value = needed[0].split(":")
                raise PluginError(
                    f"{handler} needs the capability {capability}; add to plugin.yml: "
                    f"capabilities.{capability}: {value}"
                )
            if needed and not self._granted(*declared):
                raise PluginError(
                    f"{handler} needs the capability {declared[0]}, which is not granted; grant it with: "
                    f"trunkline plugin approve {self.name} --allow '{declared[0]}'"
                )

    def _check_declaration(self, found: Declaration) -> None:
        manifest = self.admitted.manifest
        if found.others and self.admitted.trust != "full":
            keys = ", ".join(found.others)
            raise PluginError(
                f"it returns {keys}, which cannot cross the boundary of its process; it needs "
                f'trust = "full" in [plugins.{self.name}]'
            )
        unknown = [event for event in found.events if kind_of(event) is None]
        if unknown:
            raise PluginError(f"it handles {unknown[0]!r}, which is not an event")
        _compare("events", map(_canonical, manifest.events), map(_canonical, found.events))
        _compare("hooks", manifest.hooks, found.hooks)
        _compare("schedule", [each.name for each in manifest.schedule], found.schedule)
        if bool(found.routes) is not (self._needs.routes != "none"):
            what = "has routes" if found.routes else "has no routes"
            raise PluginError(f"its code {what}, and capabilities.routes in plugin.yml says otherwise")
        if manifest.tools is not None:
            names = [each.name for each in self._folder_tools]
            if twice := next((each.name for each in found.tools if each.name in names), None):
                raise PluginError(f"its code and its folder tools/ both have the tool {twice!r}; rename one")
            _compare("tools", manifest.tools, [*names, *(each.name for each in found.tools)])
        for tool in found.tools:
            if problem := validator_problem(tool.schema):
                raise PluginError(f"the schema of its tool {tool.name!r} {problem}")
        if manifest.commands is not None:
            _compare("commands", manifest.commands, [each.name for each in found.commands])

    def _written(self, event: str) -> str:
        """Return the name that the plugin's code uses for an event: the given one, or an alias."""
        return next((e for e in self.declaration.events if _canonical(e) == _canonical(event)), event)

    def _granted(self, *grants: Grant) -> bool:
        declared = tuple(self._needs.grants())
        return any(grant in declared and self._holds(grant) for grant in grants)

    def _adopt(self, ctx: PluginContext, objects: dict[str, Any]) -> None:
        """Register what a plugin with full trust returned beside handlers. Raises PluginError."""
        self.agent_loop = objects.pop("agent_loop", None)
        assert ctx.providers is not None, "the gateway has the registries that a plugin gets"
        assert ctx.channels is not None, "the gateway has the registries that a plugin gets"
        for provider in objects.pop("providers", ()):
            ctx.providers.register(provider)
        for channel in objects.pop("channels", ()):
            ctx.channels.register(channel)
        for custom_type, renderer in objects.pop("renderers", {}).items():
            ctx.register_message_renderer(custom_type, renderer)
        for shortcut, handler in objects.pop("shortcuts", {}).items():
            ctx.register_shortcut(shortcut, handler)
        if objects:
            known = "agent_loop, providers, channels, renderers, shortcuts"
            raise PluginError(f"it returns {next(iter(objects))!r}; beside handlers there are {known}")

    # Calls of the process.

    async def _serve(self, method: str, params: Any) -> Any:
        """Answer a call of the process, or take an event of it."""
        if method in ("progress", "failed"):
            report = msgspec.convert(params, _Report)
            show = self._progress.get(report.key)
            if method == "failed":
                log.warning("a plugin failed in an event", plugin=self.name, error=report.error[:2000])
            elif show is not None:
                show(report.text)
            return None
        if show_on_page := self._page.calls.get(method):
            return show_on_page(params)
        if method in ("request.body", "answer.piece"):
            return self._http.serve(method, params)
        if method == "notify" and self._show_login is not None:
            self._show_login(str(params["message"]))
        return await self._broker.serve(method, params)

    # Calls of the gateway.

    async def _call(self, session: str, method: str, params: Mapping[str, Any], seconds: float) -> Any:
        # Less than the limit of the hook around it, because a process that misses its own often is ended.
        limit, seconds = seconds, max(seconds - _MARGIN, seconds / 2)
        begun = time.perf_counter()
        try:
            with self._broker.working_in(session):
                return await self.process.call(method, params, seconds)
        except TimeoutError:
            raise TimeoutError(f"no result within {limit:g} s") from None
        finally:
            called = params.get("name") or params["event"]
            self.process.record.add_time(f"{method} {called}", time.perf_counter() - begun)

    async def _hook(self, name: str, ctx: TurnContext, *args: Any) -> Any:
        """Call a hook of the process. Raises PluginError with the text of the plugin's error."""
        shown = {"session": ctx.session, "sender": ctx.sender, "agent": ctx.agent, "role": ctx.role}
        params = {"name": name, "args": [*args, shown]}
        try:
            return await self._call(ctx.session, "hook", params, self._hook_seconds)
        except RemoteError as error:
            raise PluginError(f"{error.remote}: {error}") from error

    async def _decide(self, event: BusEvent, session: str) -> Any:
        """Call the handler of an event that decides."""
        name = event.event_name()
        params = {"event": name, "payload": payload_of(event, name, self.access)}
        return await self._call(session, "event", params, self._hook_seconds)

    def _observe(self, name: str, event: BusEvent) -> None:
        if isinstance(event, FileModified | FileDeleted) and event.by == f"plugin:{self.name}":
            return  # it would be asked to handle what it does when it handles such an event
        payload = payload_of(event, name, self.access)
        try:
            self.process.notify("event", {"event": name, "payload": payload, "observed": True})
        except PluginError as error:
            log.warning("an event was not sent to a plugin", plugin=self.name, kind=name, error=str(error))

    def _blocked(self, error: RemoteError) -> ToolBlock:
        return ToolBlock(f"Error: blocked by the plugin {self.name!r}: {error}")

    async def _tool_execute_before(self, event: ToolStarting, ctx: TurnContext) -> ToolBlock | None:
        try:
            await self._decide(event, ctx.session)
        except RemoteError as error:
            if error.remote == BLOCK:
                return self._blocked(error)
            raise PluginError(f"{error.remote}: {error}") from error
        return None

    async def _permission_ask(self, event: PermissionAsked, ctx: TurnContext) -> bool | None:
        try:
            answer = await self._decide(event, ctx.session)
        except RemoteError as error:
            if error.remote == BLOCK:
                return False
            raise
        return None if answer is None else answers.as_permission(answer)

    async def _chat_message(self, event: ChatMessage, ctx: TurnContext) -> UserInput | None:
        answer = await self._decide(event, ctx.session)
        return None if answer is None else self._changing("chat.message", answers.as_user_input, answer)

    async def _session_compacting(self, compacting: Compacting, ctx: TurnContext) -> Compacting | None:
        name = "session.compacting"
        payload = {
            "event": name,
            "timestamp": now_ms(),
            "session_id": compacting.session,
            "trigger": compacting.trigger,
            "instructions": compacting.instructions,
        }
        params = {"event": name, "payload": payload}
        answer = await self._call(ctx.session, "event", params, COMPACTING_SECONDS)
        return None if answer is None else answers.as_compacting(answer, compacting)

    async def _before_llm_call(
        self, messages: tuple[Message, ...], options: ChatOptions, ctx: TurnContext
    ) -> Sequence[Message] | ChatOptions | None:
        last = self._needs.messages_last
        sent = messages[-last:] if last else messages
        answer = await self._hook("before_llm_call", ctx, sent, answers.options_of(options))
        if isinstance(answer, list):
            self._require_change("before_llm_call")
            if last:
                raise PluginError("messages cannot be replaced by a plugin that gets only the last ones")
        return None if answer is None else answers.as_messages_or_options(answer, options)

    async def _after_llm_call(self, result: TurnResult, ctx: TurnContext) -> TurnResult | None:
        answer = await self._hook("after_llm_call", ctx, result)
        return (
            None
            if answer is None
            else self._changing("after_llm_call", answers.as_turn_result, answer, result)
        )

    async def _before_tool_exec(self, call: ToolCall, ctx: TurnContext) -> ToolCall | ToolBlock | None:
        try:
            answer = await self._hook("before_tool_exec", ctx, call)
        except PluginError as error:
            if isinstance(error.__cause__, RemoteError) and error.__cause__.remote == BLOCK:
                return self._blocked(error.__cause__)
            raise
        return None if answer is None else answers.as_call(answer, call)

    async def _after_tool_exec(self, call: ToolCall, result: str, ctx: TurnContext) -> str | None:
        answer = await self._hook("after_tool_exec", ctx, call, result)
        return None if answer is None else self._changing("after_tool_exec", answers.as_text, answer)

    async def _filter_tools(self, tools: tuple[Tool, ...], ctx: TurnContext) -> Sequence[Tool] | None:
        shown = [
            {"name": t.name, "description": t.definition.description, "read_only": t.read_only} for t in tools
        ]
        answer = await self._hook("filter_tools", ctx, shown)
        return None if answer is None else answers.as_tools(answer, tools)

    async def _transform_system_prompt(self, prompt: str, ctx: TurnContext) -> str | None:
        answer = await self._hook("transform_system_prompt", ctx, prompt)
        return None if answer is None else answers.as_text(answer)

    async def _transform_user_input(self, text: str, ctx: TurnContext) -> UserInput | None:
        answer = await self._hook("transform_user_input", ctx, text)
        if answer is None:
            return None
        return self._changing("transform_user_input", answers.as_user_input, answer)

    async def _begin_turn(self, prompt: str, ctx: TurnContext) -> str | None:
        if self._parts is not None:
            self._parts.begin()
        if "transform_system_prompt" in self.admitted.manifest.hooks:
            return await self._transform_system_prompt(prompt, ctx)
        return None

    async def _expand_prompt(self, text: str, ctx: TurnContext) -> UserInput | None:
        """Replace a prompt command of the plugin; else let its code see the text, if it has that hook."""
        found = None if self._parts is None else self._parts.transform(text)
        if found is None and "transform_user_input" in self.admitted.manifest.hooks:
            return await self._transform_user_input(text, ctx)
        return found

    async def _after_agent_run(self, reason: AgentEndReason, ctx: TurnContext) -> None:
        await self._hook("after_agent_run", ctx, reason)

    def _changing(self, handler: str, convert: Callable[..., Any], answer: Any, *more: Any) -> Any:
        """Convert an answer that changes content of messages."""
        self._require_change(handler)
        return convert(answer, *more)

    def _require_change(self, handler: str) -> None:
        if not self._granted("messages:change"):
            raise PluginError(
                f"{handler} may not change messages; plugin.yml needs capabilities.messages: change, granted"
            )

    # Tools, commands and auth providers.

    def _tool(self, declared: DeclaredTool) -> Tool:
        return Tool(
            definition=ToolDefinition(declared.name, declared.description, declared.schema),
            execute=partial(self._run_tool, declared),
            match_key=lambda given: to_json(dict(sorted(given.items()))).decode(),
        )

    async def _run_tool(
        self, tool: DeclaredTool, args: Mapping[str, Any], context: ToolContext
    ) -> ToolOutput:
        check_arguments(tool.schema, args)
        params = {
            "name": tool.name,
            "args": args,
            "session": context.session,
            "user": context.user,
            "call_id": context.call_id,
            "key": context.key,
        }
        self._progress[context.key] = context.progress
        try:
            answer = await self._call(context.session, "tool", params, self._tool_seconds)
        except RemoteError as error:
            raise ToolError(f"{error.remote}: {error}") from None
        except ProcessEnded as error:
            raise ToolError(f"the plugin {self.name!r} does not run: {error}") from None
        except TimeoutError as error:
            raise ToolError(f"{error} (tool_timeout_ms in [plugins.{self.name}])") from None
        finally:
            self._progress.pop(context.key, None)
        # Content from outside may instruct the model.
        return ToolOutput(
            str(answer["content"]), bool(answer.get("is_error")), untrusted=self._needs.network.enabled
        )

    async def _run_command(self, name: str, args: str, context: CommandContext) -> str | None:
        params = {
            "name": name,
            "args": args,
            "session": context.session,
            "user": context.sender.id,
            "role": context.role,
        }
        try:
            answer = await self._call(context.session, "command", params, COMMAND_SECONDS)
        except RemoteError as error:
            failure = PluginError(f"plugin {self.name!r} failed in /{name}: {error.remote}: {error}")
            failure.shown = f"plugin {self.name!r} failed in /{name}: {error}"
            raise failure from None
        except (ProcessEnded, TimeoutError) as error:
            raise PluginError(f"plugin {self.name!r} failed in /{name}: {error}") from None
        return None if answer is None else str(answer)

    def is_ready(self) -> bool:
        """Return whether the process runs."""
        return self.process.state == "running"

    async def run_job(self, name: str, due: int) -> bool:
        """Run a scheduled job. Return False if the process ended, so that it runs again with the same key."""
        try:
            await self._broker.check("schedule", name, due)
            params = {"name": name, "due": due, "key": f"{name} {due}"}
            await self.process.call("schedule", params, JOB_SECONDS)
        except ProcessEnded as error:
            log.warning("a process ended in a job", plugin=self.name, job=name, reason=str(error))
            return False
        except (TrunklineError, TimeoutError) as error:
            reason = str(error) or f"no end within {JOB_SECONDS:g} s"
            log.warning("a job of a plugin failed", plugin=self.name, job=name, due=due, reason=reason)
        return True

    @property
    def pages(self) -> Sequence[tuple[str, str]]:
        """Method and path of each HTTP route; none without the grant."""
        return self._http.declared if self._granted(f"routes:{self._needs.routes}") else ()

    @property
    def is_public(self) -> bool:
        """Return whether its HTTP routes need no token."""
        return self._granted("routes:public")

    async def answer_http(self, request: RawRequest) -> RawResponse:
        """Answer an HTTP request. Raises TrunklineError."""
        place = f"{request.method} {request.path}"
        await self._broker.check("routes", place, request.user)
        try:
            return await self._http.answer(request)
        except ProcessEnded as error:
            raise OverloadedError(f"the plugin {self.name!r} ended during the request: {error}") from None
        except TimeoutError as error:
            raise PluginError(f"{error} (tool_timeout_ms in [plugins.{self.name}])") from None
        except RemoteError as error:
            raise PluginError(f"{error.remote}: {error}") from None

    async def token(
        self, provider: str, config: Mapping[str, Any], show: Callable[[str], None] | None = None
    ) -> Token:
        """Return a token of an auth provider. Raises PluginError, whose text has no token.

        With ``show`` a user waits for the login, and is shown what the plugin notifies of meanwhile.
        """
        if provider not in self.declaration.auth:
            known = ", ".join(self.declaration.auth) or "none"
            raise PluginError(f"plugin {self.name!r} has no auth provider {provider!r}; it has {known}")
        try:
            params = {"name": provider, "config": {**config, "login": show is not None}}
            self._show_login = show or self._show_login
            seconds = AUTH_SECONDS if show is None else LOGIN_SECONDS
            return msgspec.convert(await self.process.call("auth", params, seconds), Token)
        except RemoteError as error:
            failure = PluginError(f"plugin {self.name!r} got no token: {error.remote}: {error}")
            failure.shown = f"plugin {self.name!r} got no token: {error}"
            raise failure from None
        except TimeoutError:
            raise PluginError(f"plugin {self.name!r} got no token in time") from None
        except msgspec.ValidationError:
            raise PluginError(f"plugin {self.name!r} returned no token with expires_at") from None
        finally:
            if show is not None:
                self._show_login = None


def _project() -> tuple[Path, Path]:
    """Return the working directory, and the root of its git work tree or again itself."""
    root = Path.cwd()
    return root, next((each for each in (root, *root.parents) if (each / ".git").exists()), root)


def _canonical(event: str) -> str:
    return ALIASES.get(event, event)


def _compare(kind: str, in_manifest: Iterable[str], in_code: Iterable[str]) -> None:
    """Raise PluginError unless the code has exactly what the manifest lists."""
    listed, found = set(in_manifest), set(in_code)
    extra, missing = found - listed, listed - found
    if extra:
        raise PluginError(
            f"its code has {sorted(extra)[0]!r}, which {kind} in plugin.yml does not list; add it"
        )
    if missing:
        name = sorted(missing)[0]
        raise PluginError(f"{kind} in plugin.yml lists {name!r}, which its code does not have; remove it")
