"""A backend that runs a program: its admission queue, its availability, and its dispatches."""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager

import msgspec
import structlog
from msgspec import Struct

from gateway import new_id
from plugins.cli_backends.adapters.cli import Cli
from plugins.cli_backends.adapters.protocol import ProgramRequest, SessionOpened
from plugins.cli_backends.contract import (
    WEEK_MS,
    BackendError,
    Callbacks,
    Code,
    Context,
    DispatchOptions,
    DispatchResult,
    Done,
    Progress,
    Started,
    TextChunk,
    Usage,
    report_progress,
)
from plugins.cli_backends.prompt import fit_context, render_context
from plugins.cli_backends.run import Run, Step
from plugins.cli_backends.settings import BackendSettings
from plugins.cli_backends.state import SessionFile
from plugins.programs.environment import environment_for, find_program
from plugins.programs.process import Launch, OutputLimitError, capture_output

MAX_QUEUED = 10
"""The number of dispatches that may be queued in one conversation."""


class _QueuedTask(Struct, frozen=True, eq=False):
    task_id: str
    turn: asyncio.Future[None]


class Admission:
    """The admission queue of one backend: a limit of conversations, and one dispatch at a time in each."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._queues: dict[str, deque[_QueuedTask]] = {}

    @asynccontextmanager
    async def enter(self, conversation: str, task_id: str, limit: int) -> AsyncGenerator[None]:
        """Wait for the earlier dispatches of the conversation and hold its slot.

        Raises BackendError: CONCURRENCY_LIMIT if ``limit`` other conversations are active or the queue of
        this one is full, ABORTED if the dispatch is aborted in the queue.
        """
        queue = self._queues.get(conversation)
        if queue is None:
            if len(self._queues) >= limit:
                raise BackendError(
                    "CONCURRENCY_LIMIT",
                    self._backend,
                    f"busy with {limit} other conversations; try again",
                )
            self._queues[conversation] = deque()
        else:
            await self._wait(queue, conversation, task_id)
        try:
            yield
        finally:
            self._next(conversation)

    def abort(self, task_id: str) -> bool:
        """Abort a queued dispatch. Return whether there was one."""
        for queue in self._queues.values():
            for task in queue:
                if task.task_id == task_id:
                    return self._refuse(task)
        return False

    async def _wait(self, queue: deque[_QueuedTask], conversation: str, task_id: str) -> None:
        if len(queue) >= MAX_QUEUED:
            raise BackendError(
                "CONCURRENCY_LIMIT",
                self._backend,
                f"{MAX_QUEUED} tasks are already queued in this conversation",
            )
        task = _QueuedTask(task_id, asyncio.get_running_loop().create_future())
        queue.append(task)
        try:
            await task.turn
        except BaseException:
            if task in queue:
                queue.remove(task)
            elif task.turn.done() and not task.turn.cancelled() and not task.turn.exception():
                # It was admitted while it was being cancelled.
                self._next(conversation)
            raise

    def _next(self, conversation: str) -> None:
        """Hand the slot to the next dispatch, or release it."""
        queue = self._queues[conversation]
        while queue:
            task = queue.popleft()
            if not task.turn.done():
                task.turn.set_result(None)
                return
        del self._queues[conversation]

    def _refuse(self, task: _QueuedTask) -> bool:
        if task.turn.done():
            return False
        task.turn.set_exception(BackendError("ABORTED", self._backend, "stopped before it started"))
        return True


GOOD_SECONDS = 60.0
"""Seconds for which a positive result is cached."""
BAD_SECONDS = 5.0
"""Seconds for which a negative result is cached."""


class Availability:
    """The cached result of the check whether a program can be used. Concurrent callers share one check."""

    def __init__(
        self, probe: Callable[[], Awaitable[bool]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._probe = probe
        self._clock = clock
        self._lock = asyncio.Lock()
        self._result = False
        self._until = -1.0

    async def check(self) -> bool:
        """Return the result; repeat the check if the cached one has expired."""
        if self._clock() < self._until:
            return self._result
        async with self._lock:
            if self._clock() >= self._until:
                self._result = await self._probe()
                self._until = self._clock() + (GOOD_SECONDS if self._result else BAD_SECONDS)
            return self._result

    def forget(self) -> None:
        """Discard the cached result, so that the next call repeats the check."""
        self._until = -1.0


log = structlog.get_logger("trunkline.cli_backends")

# Programs on Node need several seconds to start, and more on a busy machine.
PROBE_SECONDS = 30.0
PROBE_TIMED_OUT = f"the program did not report its version within {PROBE_SECONDS:.0f} s"

INTERRUPTED = (
    "(You received this message before, and the gateway stopped while you worked on it. Check what you have "
    "already done, do not repeat it, and continue.)"
)

_KEEP_SESSION: frozenset[Code] = frozenset({"ABORTED", "TIMEOUT", "SPAWN_FAILURE", "CONCURRENCY_LIMIT"})
"""Codes after which the program's session is still usable."""
_VERSION = re.compile(r"\d+\.\d[\w.+-]*")


def no_stored_key() -> str:
    """Return no key."""
    return ""


class SpawnedBackend:
    """A backend that starts its program for every dispatch, with the ten members of ``CodingPlugin``.

    ``environ`` is the gateway's environment, of which the program sees a small part. ``stored_key`` returns
    the key that a login stored for the API of the same vendor, or "".
    """

    def __init__(
        self,
        cli: Cli,
        environ: Mapping[str, str],
        sessions: SessionFile,
        stored_key: Callable[[], str] = no_stored_key,
    ) -> None:
        self.cli = cli
        self.version = ""
        self.unavailable_reason = PROBE_TIMED_OUT
        """The reason of the last negative availability check."""
        self.environ = environ
        self._stored_key = stored_key
        self._sessions = sessions
        self._settings = BackendSettings()
        self._admission = Admission(cli.name)
        self._availability = Availability(self._probe)
        self._running: dict[str, Run] = {}
        self._admitted: set[str] = set()

    @property
    def name(self) -> str:
        """The backend's name, such as ``codex``."""
        return self.cli.name

    async def initialize(self, config: BackendSettings) -> None:
        """Use new settings; a running dispatch keeps the old ones."""
        if config != self._settings:
            self._settings = config
            self._availability.forget()

    async def is_available(self) -> bool:
        """Return whether it is enabled and its program exists and reports its version."""
        return self._settings.enabled and await self._availability.check()

    async def dispatch(
        self, prompt: str, context: Context, options: DispatchOptions, callbacks: Callbacks
    ) -> DispatchResult:
        """Run the program on a prompt. A failure is in the result and is passed to ``on_error``."""
        return await report_progress(self.stream(prompt, context, options), callbacks)

    async def stream(
        self, prompt: str, context: Context, options: DispatchOptions
    ) -> AsyncGenerator[Progress, None]:
        """Run the program on a prompt and yield its progress; the last event is ``Done``.

        Closing the generator ends the program.
        """
        task_id = options.task_id or new_id()
        conversation, begun = options.conversation_id, time.monotonic()
        result = DispatchResult(task_id=task_id, backend=self.name)
        text: list[str] = []
        yield Started(task_id, self.name)
        try:
            async with self._admission.enter(conversation, task_id, self._settings.max_concurrency):
                self._admitted.add(task_id)
                async with aclosing(self._attempts(task_id, prompt, context, options)) as steps:
                    async for step in steps:
                        match step:
                            case SessionOpened():
                                result = msgspec.structs.replace(result, session_id=step.id)
                                await self._sessions.put(self.name, conversation, step.id, options.answer_id)
                                continue
                            case Usage():
                                result = msgspec.structs.replace(result, usage=step)
                                if step.session_cost is not None:
                                    await self._sessions.record_cost(
                                        self.name, conversation, step.session_cost
                                    )
                            case TextChunk(reasoning=False):
                                text.append(step.text)
                            case _:
                                pass
                        yield step
        except BackendError as error:
            if error.code not in _KEEP_SESSION:
                await self._sessions.drop(self.name, conversation)
            log.warning("dispatch failed", backend=self.name, code=error.code, detail=error.detail)
            result = msgspec.structs.replace(result, error=error)
        except Exception as error:
            log.exception("dispatch failed", backend=self.name)
            unknown = BackendError("UNKNOWN", self.name, f"{type(error).__name__}: {error}")
            result = msgspec.structs.replace(result, error=unknown)
        finally:
            self._admitted.discard(task_id)
        took = round((time.monotonic() - begun) * 1000)
        yield Done(msgspec.structs.replace(result, output="".join(text), duration_ms=took))

    def get_session(self, conversation_id: str) -> str | None:
        """Return the program's session of a conversation."""
        return self._sessions.get(self.name, conversation_id)

    async def clear_session(self, conversation_id: str) -> None:
        """Forget the session of a conversation, so that the next dispatch creates a new one."""
        await self._sessions.drop(self.name, conversation_id)

    async def abort(self, task_id: str) -> bool:
        """Abort a running or queued dispatch and wait until its program has ended. Return False if there is
        none.
        """
        if self._admission.abort(task_id):
            return True
        run = self._running.get(task_id)
        if run is None:
            return False
        await run.abort()
        return True

    def get_running_task_count(self) -> int:
        """Return the number of running dispatches, without the queued ones."""
        return len(self._admitted)

    async def cleanup(self, max_age_ms: int = WEEK_MS) -> int:
        """Forget sessions that were not used for ``max_age_ms``. Return their number."""
        return await self._sessions.prune(self.name, max_age_ms)

    async def shutdown(self) -> None:
        """Abort all running dispatches."""
        for task_id in tuple(self._running):
            await self.abort(task_id)

    def launch(self, arguments: list[str], cwd: str, more: Mapping[str, str]) -> Launch:
        """Return how to start the program without its key. Raises BackendError if it does not exist."""
        variables = {n: v for n, v in self._environment().items() if n != self.cli.program.key}
        return self._launch([*arguments, *self._settings.extra_args], cwd, {**variables, **more})

    def has_key(self) -> bool:
        """Return whether the next dispatch has a key."""
        return bool(self._environment().get(self.cli.program.key))

    async def _attempts(
        self, task_id: str, prompt: str, context: Context, options: DispatchOptions
    ) -> AsyncGenerator[Step | SessionOpened, None]:
        """Resume the session, if any; if that fails before any output, create a new one."""
        conversation = options.conversation_id
        session = self._sessions.get(self.name, conversation, options.after)
        if session is None and options.starts_answer:
            session = self._sessions.interrupted(self.name, conversation, options.answer_id)
            prompt = f"{INTERRUPTED}\n\n{prompt}" if session is not None else prompt
        if session is not None:
            shown = False
            request = self._request(prompt, context, options, session)
            try:
                async with aclosing(self._run(task_id, request, options)) as steps:
                    async for step in steps:
                        shown = shown or not isinstance(step, SessionOpened | Usage)
                        yield step
                return
            except BackendError as error:
                if error.code != "SESSION_ERROR" or shown:
                    raise
                log.info("session lost; creating a new one", backend=self.name, session=session)
        async with aclosing(self._run(task_id, self._request(prompt, context, options), options)) as steps:
            async for step in steps:
                yield step

    async def _run(
        self, task_id: str, request: ProgramRequest, options: DispatchOptions
    ) -> AsyncGenerator[Step | SessionOpened, None]:
        settings = self._settings
        seconds = (options.timeout_ms or settings.timeout_ms) / 1000
        stall = settings.stall_timeout_ms / 1000
        home = request.variables.get("HOME", "")
        if found := await asyncio.to_thread(self.cli.find_autorun, request.cwd, home):
            raise BackendError("SPAWN_FAILURE", self.name, f"it would run {found} without approval")
        adapter = self.cli.adapter(request)
        launch = self._launch([*adapter.arguments(), *settings.extra_args], request.cwd, request.variables)
        run = Run(self.cli, adapter, launch, seconds, stall, options.ask, self.secrets())
        self._running[task_id] = run
        try:
            async with aclosing(run.steps()) as steps:
                async for step in steps:
                    yield step
        finally:
            del self._running[task_id]

    def _request(
        self, prompt: str, context: Context, options: DispatchOptions, session: str | None = None
    ) -> ProgramRequest:
        """Return the request. A resumed session knows its folder, instructions and history already."""
        if session is not None:
            context = msgspec.structs.replace(context, workspace="", instructions="")
        context_text = "" if options.skip_context else render_context(fit_context(context))
        history = options.history if session is None else ""
        settings = self._settings
        model = options.model or settings.model
        return ProgramRequest(
            prompt="\n\n".join(filter(None, (context_text, history, prompt))),
            system_prompt="\n\n".join(filter(None, (settings.system_prompt, options.system_prompt_suffix))),
            model=model,
            cwd=options.working_directory or "/",
            session=session,
            session_cost=self._sessions.cost(self.name, options.conversation_id) if session else 0.0,
            variables=self._environment(model),
            images=options.images,
            tools=self._own_tools(options),
        )

    def _own_tools(self, options: DispatchOptions) -> tuple[str, ...] | None:
        """Return the names of the program's own tools among those that it may have, or None for all."""
        if options.tools is None:
            return None
        own = f"{self.cli.name}:"
        return tuple(sorted(name.removeprefix(own) for name in options.tools if name.startswith(own)))

    def _environment(self, model: str = "") -> Mapping[str, str]:
        cli, settings = self.cli, self._settings
        given = {**cli.fixed}
        if settings.api_key is not None:
            given[cli.program.key] = settings.api_key.get_secret_value()
        elif key := self._stored_key():
            given[cli.program.key] = key
        if settings.api_url and cli.program.url:
            given[cli.program.url] = settings.api_url
        given |= {name: value.get_secret_value() for name, value in settings.env.items()}
        variables = environment_for(self.environ, cli.program.variables, given)
        return {**variables, **cli.extra_variables(model, variables)}

    def secrets(self) -> tuple[str, ...]:
        """Return the values that must not appear in errors."""
        variables = self._environment()
        named = (self.cli.program.key, *self._settings.env)
        return tuple(value for name in named if len(value := variables.get(name, "")) >= 8)

    def _launch(self, arguments: list[str], cwd: str, env: Mapping[str, str]) -> Launch:
        binary = self._settings.binary or self.cli.program.binary
        program = find_program(binary, env)
        if program is None:
            raise BackendError(
                "SPAWN_FAILURE",
                self.name,
                f"program {binary!r} not found; install it with `{self.cli.program.install}`",
            )
        return Launch([program, *arguments], env, cwd)

    async def _probe(self) -> bool:
        try:
            launch = self._launch(["--version"], "/", self._environment())
            output = await capture_output(launch, PROBE_SECONDS)
        except (BackendError, OSError, TimeoutError, OutputLimitError) as error:
            reason = str(error).removeprefix(f"{self.name}: ") or repr(error)
            self.unavailable_reason = PROBE_TIMED_OUT if isinstance(error, TimeoutError) else reason
            log.info("backend not available", backend=self.name, reason=self.unavailable_reason)
            return False
        found = _VERSION.search(output.text)
        self.version = found[0] if found else ""
        self.unavailable_reason = f"the program did not report its version: exit status {output.code}"
        return output.code == 0
