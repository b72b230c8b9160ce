"""Admission of dispatches: a limit on conversations, and one dispatch at a time in each, in order."""

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
from plugins.cli_backends.adapters.protocol import Order, Session
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
    Said,
    Spent,
    Started,
    told,
)
from plugins.cli_backends.environment import environment_for, program_at
from plugins.cli_backends.process import FloodError, Launch, captured
from plugins.cli_backends.prompt import fitted, rendered
from plugins.cli_backends.run import Run, Shown
from plugins.cli_backends.settings import BackendSettings
from plugins.cli_backends.state import SessionFile

MAX_QUEUED = 10
"""Dispatches of one conversation that may wait behind the one that runs."""


class _Waiting(Struct, frozen=True, eq=False):
    task_id: str
    turn: asyncio.Future[None]


class Admission:
    """The admission queue of one backend."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._queues: dict[str, deque[_Waiting]] = {}

    @property
    def inside(self) -> int:
        """The number of conversations with a running dispatch."""
        return len(self._queues)

    @asynccontextmanager
    async def enter(self, conversation: str, task_id: str, most: int) -> AsyncGenerator[None]:
        """Wait behind earlier dispatches of the same conversation, and be alone in it.

        Raises BackendError: CONCURRENCY_LIMIT if ``most`` conversations are served already or too many
        wait in this one, ABORTED if it is aborted while it waits.
        """
        queue = self._queues.get(conversation)
        if queue is None:
            if len(self._queues) >= most:
                raise BackendError(
                    "CONCURRENCY_LIMIT", self._backend, f"busy with {most} other conversations; try again"
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
            for waiting in queue:
                if waiting.task_id == task_id:
                    return self._refuse(waiting)
        return False

    def abort_conversation(self, conversation: str) -> int:
        """Abort all queued dispatches of a conversation. Return their number."""
        return sum(self._refuse(waiting) for waiting in tuple(self._queues.get(conversation, ())))

    async def _wait(self, queue: deque[_Waiting], conversation: str, task_id: str) -> None:
        if len(queue) >= MAX_QUEUED:
            raise BackendError("CONCURRENCY_LIMIT", self._backend, f"{MAX_QUEUED} tasks wait here already")
        waiting = _Waiting(task_id, asyncio.get_running_loop().create_future())
        queue.append(waiting)
        try:
            await waiting.turn
        except BaseException:
            if waiting in queue:
                queue.remove(waiting)
            elif waiting.turn.done() and not waiting.turn.cancelled() and not waiting.turn.exception():
                # It was given the place in the moment in which it gave up.
                self._next(conversation)
            raise

    def _next(self, conversation: str) -> None:
        """Hand the place to the next one, or give it back."""
        queue = self._queues[conversation]
        while queue:
            waiting = queue.popleft()
            if not waiting.turn.done():
                waiting.turn.set_result(None)
                return
        del self._queues[conversation]

    def _refuse(self, waiting: _Waiting) -> bool:
        if waiting.turn.done():
            return False
        waiting.turn.set_exception(BackendError("ABORTED", self._backend, "stopped before it began"))
        return True


GOOD_SECONDS = 60.0
"""Seconds for which a positive result is cached."""
BAD_SECONDS = 5.0
"""Seconds for which a negative result is cached."""


class Availability:
    """The cached result for one program. Concurrent callers share one check."""

    def __init__(
        self, probe: Callable[[], Awaitable[bool]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._probe = probe
        self._clock = clock
        self._asking = asyncio.Lock()
        self._answer = False
        self._until = -1.0

    async def check(self) -> bool:
        """Return the result; repeat the check if the cached one has expired."""
        if self._clock() < self._until:
            return self._answer
        async with self._asking:
            if self._clock() >= self._until:
                self._answer = await self._probe()
                self._until = self._clock() + (GOOD_SECONDS if self._answer else BAD_SECONDS)
            return self._answer

    def forget(self) -> None:
        """Discard the cached result, so that the next call repeats the check."""
        self._until = -1.0


log = structlog.get_logger("trunkline.cli_backends")

PROBE_SECONDS = 10.0
SLOW = f"its program did not tell its version within {PROBE_SECONDS:.0f} s"

INTERRUPTED = (
    "(This was said before, and the gateway ended while you worked on it. Look at what you have done "
    "already, do not do it again, and go on.)"
)

_KEEP_SESSION: frozenset[Code] = frozenset({"ABORTED", "TIMEOUT", "SPAWN_FAILURE", "CONCURRENCY_LIMIT"})
"""After these the program's session is as good as before."""
_VERSION = re.compile(r"\d+\.\d[\w.+-]*")


def no_key() -> str:
    """Return no key: the program has a login of its own."""
    return ""


class SpawnedBackend:
    """One program, run anew for every dispatch; it has the ten members of ``CodingPlugin``.

    ``environ`` is the gateway's environment, of which the program sees little. ``kept_key`` returns the key
    that a login kept for the API of the same vendor, or nothing.
    """

    def __init__(
        self,
        cli: Cli,
        environ: Mapping[str, str],
        sessions: SessionFile,
        kept_key: Callable[[], str] = no_key,
    ) -> None:
        self.cli = cli
        self.version = ""
        self.lack = SLOW
        """Why it was not available when it was last asked."""
        self.environ = environ
        self._kept_key = kept_key
        self._sessions = sessions
        self._settings = BackendSettings()
        self._admission = Admission(cli.name)
        self._availability = Availability(self._probe)
        self._running: dict[str, Run] = {}
        self._conversations: dict[str, str] = {}

    @property
    def name(self) -> str:
        """The backend's name, such as ``codex``."""
        return self.cli.name

    async def initialize(self, config: BackendSettings) -> None:
        """Take settings over; a dispatch that runs keeps those it began with."""
        if config != self._settings:
            self._settings = config
            self._availability.forget()

    async def is_available(self) -> bool:
        """Return whether it is enabled and its program exists and reports its version."""
        return self._settings.enabled and await self._availability.check()

    async def dispatch(
        self, prompt: str, context: Context, options: DispatchOptions, callbacks: Callbacks
    ) -> DispatchResult:
        """Let the program work on a prompt. Failures are in the result, and told to ``on_error``."""
        return await told(self.stream(prompt, context, options), callbacks)

    async def stream(
        self, prompt: str, context: Context, options: DispatchOptions
    ) -> AsyncGenerator[Progress, None]:
        """The same as ``dispatch``, step by step; the last step is ``Done``. Closing it ends the program."""
        task_id = options.task_id or new_id()
        conversation, begun = options.conversation_id, time.monotonic()
        result = DispatchResult(task_id=task_id, backend=self.name)
        said: list[str] = []
        yield Started(task_id, self.name)
        try:
            async with self._admission.enter(conversation, task_id, self._settings.max_concurrency):
                self._conversations[task_id] = conversation
                async with aclosing(self._attempts(task_id, prompt, context, options)) as steps:
                    async for step in steps:
                        match step:
                            case Session():
                                result = msgspec.structs.replace(result, session_id=step.id)
                                await self._sessions.put(self.name, conversation, step.id, options.answer_id)
                                continue
                            case Spent():
                                result = msgspec.structs.replace(result, spent=step)
                            case Said(reasoning=False):
                                said.append(step.text)
                            case _:
                                pass
                        yield step
        except BackendError as error:
            if error.code not in _KEEP_SESSION:
                await self._sessions.drop(self.name, conversation)
            log.warning("a dispatch failed", backend=self.name, code=error.code, detail=error.detail)
            result = msgspec.structs.replace(result, error=error)
        except Exception as error:
            log.exception("a dispatch failed", backend=self.name)
            unknown = BackendError("UNKNOWN", self.name, f"{type(error).__name__}: {error}")
            result = msgspec.structs.replace(result, error=unknown)
        finally:
            self._conversations.pop(task_id, None)
        took = round((time.monotonic() - begun) * 1000)
        yield Done(msgspec.structs.replace(result, output="".join(said), duration_ms=took))

    def get_session(self, conversation_id: str) -> str | None:
        """Return the program's session of a conversation."""
        return self._sessions.get(self.name, conversation_id)

    async def clear_session(self, conversation_id: str) -> None:
        """Forget it, so that the next dispatch begins afresh."""
        await self._sessions.drop(self.name, conversation_id)

    async def abort(self, task_id: str) -> bool:
        """End a dispatch, running or waiting; its program is gone when this returns. False: none such."""
        if self._admission.abort(task_id):
            return True
        run = self._running.get(task_id)
        if run is None:
            return False
        await run.abort()
        return True

    async def abort_conversation(self, conversation_id: str) -> int:
        """End all that runs or waits in a conversation. Returns how many."""
        count = self._admission.abort_conversation(conversation_id)
        mine = [task for task, conversation in self._conversations.items() if conversation == conversation_id]
        return count + sum([await self.abort(task) for task in mine])

    def get_running_task_count(self) -> int:
        """Return the number of running dispatches, without the queued ones."""
        return len(self._conversations)

    async def cleanup(self, max_age_ms: int = WEEK_MS) -> int:
        """Forget sessions that were not used for so long, and return how many."""
        return await self._sessions.prune(self.name, max_age_ms)

    async def shutdown(self) -> None:
        """End all running dispatches."""
        for task_id in tuple(self._running):
            await self.abort(task_id)

    def launch(self, arguments: list[str], cwd: str, more: Mapping[str, str]) -> Launch:
        """Return how to start the program without its key. Raises BackendError if it is not there."""
        variables = {n: v for n, v in self._environment().items() if n != self.cli.key}
        return self._launch([*arguments, *self._settings.extra_args], cwd, {**variables, **more})

    def has_key(self) -> bool:
        """Return whether its next dispatch has a key."""
        return bool(self._environment().get(self.cli.key))

    async def _attempts(
        self, task_id: str, prompt: str, context: Context, options: DispatchOptions
    ) -> AsyncGenerator[Shown | Session, None]:
        """Resume the session if there is one; where that fails before anything was shown, begin another."""
        conversation = options.conversation_id
        session = self._sessions.get(self.name, conversation, options.after)
        if session is None and options.begins:
            session = self._sessions.interrupted(self.name, conversation, options.answer_id)
            prompt = f"{INTERRUPTED}\n\n{prompt}" if session is not None else prompt
        if session is not None:
            shown = False
            order = self._order(prompt, context, options, session)
            try:
                async with aclosing(self._run(task_id, order, options)) as steps:
                    async for step in steps:
                        shown = shown or not isinstance(step, Session | Spent)
                        yield step
                return
            except BackendError as error:
                if error.code != "SESSION_ERROR" or shown:
                    raise
                log.info("a session is lost; another one begins", backend=self.name, session=session)
        async with aclosing(self._run(task_id, self._order(prompt, context, options), options)) as steps:
            async for step in steps:
                yield step

    async def _run(
        self, task_id: str, order: Order, options: DispatchOptions
    ) -> AsyncGenerator[Shown | Session, None]:
        settings = self._settings
        seconds = (options.timeout_ms or settings.timeout_ms) / 1000
        stall = settings.stall_timeout_ms / 1000
        home = order.variables.get("HOME", "")
        if found := await asyncio.to_thread(self.cli.objection, order.cwd, home):
            raise BackendError("SPAWN_FAILURE", self.name, f"it would run {found} without asking anybody")
        talk = self.cli.talk(order)
        launch = self._launch([*talk.arguments(), *settings.extra_args], order.cwd, order.variables)
        run = Run(self.cli, talk, launch, seconds, stall, options.ask, self.secrets())
        self._running[task_id] = run
        try:
            async with aclosing(run.steps()) as steps:
                async for step in steps:
                    yield step
        finally:
            del self._running[task_id]

    def _order(
        self, prompt: str, context: Context, options: DispatchOptions, session: str | None = None
    ) -> Order:
        """A resumed session knows its folder, its instructions and what was said; the rest changes."""
        if session is not None:
            context = msgspec.structs.replace(context, workspace="", instructions="")
        surroundings = "" if options.skip_context else rendered(fitted(context))
        earlier = options.earlier if session is None else ""
        settings = self._settings
        model = options.model or settings.model
        return Order(
            prompt="\n\n".join(filter(None, (surroundings, earlier, prompt))),
            system_prompt="\n\n".join(filter(None, (settings.system_prompt, options.system_prompt_suffix))),
            model=model,
            cwd=options.working_directory or "/",
            session=session,
            variables=self._environment(model),
            images=options.images,
        )

    def _environment(self, model: str = "") -> Mapping[str, str]:
        cli, settings = self.cli, self._settings
        given = {**cli.fixed}
        if settings.api_key is not None:
            given[cli.key] = settings.api_key.get_secret_value()
        elif key := self._kept_key():
            given[cli.key] = key
        if settings.api_url and cli.url:
            given[cli.url] = settings.api_url
        given |= {name: value.get_secret_value() for name, value in settings.env.items()}
        whole = environment_for(self.environ, cli.variables, given)
        return {**whole, **cli.adjusted(model, whole)}

    def secrets(self) -> tuple[str, ...]:
        """Return what must not show in an error."""
        variables = self._environment()
        named = (self.cli.key, *self._settings.env)
        return tuple(value for name in named if len(value := variables.get(name, "")) >= 8)

    def _launch(self, arguments: list[str], cwd: str, env: Mapping[str, str]) -> Launch:
        binary = self._settings.binary or self.cli.binary
        program = program_at(binary, env)
        if program is None:
            raise BackendError(
                "SPAWN_FAILURE",
                self.name,
                f"there is no program {binary!r}; install it with `{self.cli.install}`",
            )
        return Launch([program, *arguments], env, cwd)

    async def _probe(self) -> bool:
        try:
            launch = self._launch(["--version"], "/", self._environment())
            output = await captured(launch, PROBE_SECONDS)
        except (BackendError, OSError, TimeoutError, FloodError) as error:
            reason = str(error).removeprefix(f"{self.name}: ") or repr(error)
            self.lack = SLOW if isinstance(error, TimeoutError) else reason
            log.info("a backend is not available", backend=self.name, reason=self.lack)
            return False
        found = _VERSION.search(output.text)
        self.version = found[0] if found else ""
        self.lack = f"its program cannot tell its version: it ended with {output.code}"
        return output.code == 0
