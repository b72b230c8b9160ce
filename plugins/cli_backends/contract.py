"""The contract of all backends: its ten members, what goes in and out of them, their errors and callbacks."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Literal, Protocol, Self, assert_never, cast

import structlog
from msgspec import Struct

from gateway import ProviderError, TrunklineError
from gateway.provider_http import (
    Ask,
    ProviderUnavailableError,
    RateLimitError,
    ServerFailedError,
    StreamAbortedError,
    StreamTimeoutError,
)
from plugins.cli_backends.settings import BackendSettings

log = structlog.get_logger("trunkline.cli_backends")

WEEK_MS = 7 * 24 * 3600 * 1000

Code = Literal[
    "TIMEOUT",
    "SPAWN_FAILURE",
    "PROCESS_EXIT",
    "BUFFER_OVERFLOW",
    "CONCURRENCY_LIMIT",
    "PROVIDER_ERROR",
    "SESSION_ERROR",
    "UNKNOWN",
    "ABORTED",
]
"""The codes of all failures, which never change. ABORTED means that the user stopped the dispatch."""

_RETRYABLE: frozenset[Code] = frozenset({"TIMEOUT", "CONCURRENCY_LIMIT"})


class BackendError(ProviderError):
    """A dispatch failed. ``detail`` is the program's own error output, for the log.

    For a code that has an equivalent among the core's errors, the error is also an instance of that class, so
    a chain of providers falls back as it does for any other provider.
    """

    def __new__(cls, code: Code, backend: str, message: str, detail: str = "") -> Self:
        """Create an instance of the class that belongs to the code."""
        return super().__new__(cast("type[Self]", _CLASSES.get(code, cls)))

    def __init__(self, code: Code, backend: str, message: str, detail: str = "") -> None:
        super().__init__(f"{backend}: {message}", provider=backend)
        self.code: Code = code
        self.backend = backend
        self.detail = detail
        self.retryable = code in _RETRYABLE

    @property
    def name(self) -> str:
        """The code."""
        return self.code


class _TimedOutError(BackendError, StreamTimeoutError):
    """The program sent nothing for too long, or ran for too long."""


class _UnavailableError(BackendError, ProviderUnavailableError):
    """The program cannot be started."""


class _InterruptedError(BackendError, StreamAbortedError):
    """The program ended before its answer did."""


class _BusyError(BackendError, RateLimitError):
    """The program works for as many conversations as it may."""


class _RefusedError(BackendError, ServerFailedError):
    """The program's model service, or its session store, reported an error."""


_CLASSES: Mapping[Code, type[BackendError]] = {
    "TIMEOUT": _TimedOutError,
    "SPAWN_FAILURE": _UnavailableError,
    "PROCESS_EXIT": _InterruptedError,
    "CONCURRENCY_LIMIT": _BusyError,
    "PROVIDER_ERROR": _RefusedError,
    "SESSION_ERROR": _RefusedError,
}


class Image(Struct, frozen=True):
    """An image in a prompt; ``data`` is base64."""

    mime_type: str
    data: str


class TextChunk(Struct, frozen=True):
    """A piece of the answer, or of the reasoning before it."""

    text: str
    reasoning: bool = False


class ToolCall(Struct, frozen=True):
    """A call of one of the program's own tools."""

    id: str
    tool: str
    arguments: Mapping[str, Any]


class ToolResult(Struct, frozen=True):
    """The result of a tool call."""

    id: str
    output: str
    is_error: bool = False


class Usage(Struct, frozen=True):
    """The tokens of the dispatch so far; ``cached`` is a part of ``input``. ``cost`` is in US dollars.

    ``session_cost`` is the cost of the program's whole session, if it reports that.
    """

    input: int
    output: int
    cached: int = 0
    cost: float | None = None
    session_cost: float | None = None


class GitChanges(Struct, frozen=True):
    """The changes of a dispatch: git's summary, the changed files, and the new commits, newest first.

    Files are relative to ``root``, the folder of the repository; ``deleted`` are the deleted ones.
    """

    stat: str
    files: tuple[str, ...]
    new_commits: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    root: str = ""


class Context(Struct, frozen=True):
    """The context that goes with a prompt; a field is empty if its content is not known."""

    workspace: str = ""
    memory: tuple[str, ...] = ()
    git: str = ""
    instructions: str = ""


class DispatchOptions(Struct, frozen=True, kw_only=True):
    """The options of one dispatch. An empty ``task_id`` means that the backend chooses one.

    ``history`` is the conversation as text, for a backend that has to create a session. ``answer_id`` is the
    id of the current answer, ``after`` of the one before it: a session whose last answer is another one is
    not resumed; None resumes any session. ``starts_answer`` means that the answer is still empty: if a
    session for this answer exists nevertheless, the gateway stopped in the middle of it. ``ask`` is called
    before each tool that needs permission. ``tools`` are those that the program may have, ``BACKEND:TOOL``;
    None allows all.
    """

    conversation_id: str
    task_id: str = ""
    model: str = ""
    system_prompt_suffix: str = ""
    timeout_ms: int | None = None
    working_directory: str | None = None
    skip_context: bool = False
    history: str = ""
    answer_id: str = ""
    after: str | None = None
    starts_answer: bool = False
    images: tuple[Image, ...] = ()
    ask: Ask | None = None
    tools: frozenset[str] | None = None


class DispatchResult(Struct, frozen=True, kw_only=True):
    """The result of a dispatch. ``error`` is None if and only if it succeeded."""

    task_id: str
    backend: str
    output: str = ""
    duration_ms: int = 0
    error: BackendError | None = None
    session_id: str | None = None
    usage: Usage | None = None
    turns: int | None = None
    git_changes: GitChanges | None = None
    fallback_from: str | None = None
    fallback_index: int | None = None
    fallback_chain_exhausted: bool = False

    @property
    def success(self) -> bool:
        """Return whether the dispatch succeeded."""
        return self.error is None


class Started(Struct, frozen=True):
    """The start of a backend. ``after`` is the error of the backend that failed before it, if any."""

    task_id: str
    backend: str
    after: BackendError | None = None


class Done(Struct, frozen=True):
    """The last event of a dispatch, after success and after failure."""

    result: DispatchResult


Progress = Started | TextChunk | ToolCall | ToolResult | Usage | Done
"""An event of a running dispatch."""

CallbackResult = Awaitable[None] | None


def _ignore(*_: Any) -> None:
    return None


class Callbacks(Struct, frozen=True, kw_only=True):
    """The callbacks of a dispatch. Each may be async; an exception in one is logged and changes nothing.

    Exactly one of ``on_done`` and ``on_error`` is called, once, as the last one.
    """

    on_token: Callable[[str, str], CallbackResult] = _ignore
    on_tool_call: Callable[[str, Mapping[str, Any], str], CallbackResult] = _ignore
    on_tool_result: Callable[[str, str, str], CallbackResult] = _ignore
    on_done: Callable[[DispatchResult, str], CallbackResult] = _ignore
    on_error: Callable[[BackendError, str], CallbackResult] = _ignore


class CodingPlugin(Protocol):
    """The members of a backend."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...

    async def initialize(self, config: BackendSettings) -> None:
        """Use new settings; a running dispatch keeps the old ones."""
        ...

    async def dispatch(
        self, prompt: str, context: Context, options: DispatchOptions, callbacks: Callbacks
    ) -> DispatchResult:
        """Run the program on a prompt. A failure is in the result and is passed to ``on_error``."""
        ...

    async def is_available(self) -> bool:
        """Return whether the program exists and runs."""
        ...

    def get_session(self, conversation_id: str) -> str | None:
        """Return the program's session of a conversation."""
        ...

    async def clear_session(self, conversation_id: str) -> None:
        """Forget the session of a conversation, so that the next dispatch creates a new one."""
        ...

    async def abort(self, task_id: str) -> bool:
        """Abort a running or queued dispatch and wait until its program has ended. Return False if there is
        none.
        """
        ...

    def get_running_task_count(self) -> int:
        """Return the number of running dispatches, without the queued ones."""
        ...

    async def cleanup(self, max_age_ms: int = WEEK_MS) -> int:
        """Forget sessions that were not used for ``max_age_ms``. Return their number."""
        ...


async def report_progress(progress: AsyncGenerator[Progress, None], callbacks: Callbacks) -> DispatchResult:
    """Follow a dispatch to its end and call the callbacks. Return its result."""
    task_id = backend = ""
    names: dict[str, str] = {}
    async with aclosing(progress):
        try:
            async for event in progress:
                match event:
                    case Started():
                        task_id, backend = event.task_id, event.backend
                    case TextChunk(reasoning=False):
                        await _call(callbacks.on_token, event.text, task_id)
                    case ToolCall():
                        names[event.id] = event.tool
                        await _call(callbacks.on_tool_call, event.tool, event.arguments, task_id)
                    case ToolResult():
                        tool = names.get(event.id, event.id)
                        await _call(callbacks.on_tool_result, tool, event.output, task_id)
                    case Done(result=result):
                        return await _finish(result, callbacks)
                    case TextChunk() | Usage():
                        pass
                    case _:
                        assert_never(event)
        except asyncio.CancelledError:
            await _call(callbacks.on_error, BackendError("ABORTED", backend, "stopped"), task_id)
            raise
    raise TrunklineError("backend exited without a final event")


async def _finish(result: DispatchResult, callbacks: Callbacks) -> DispatchResult:
    if result.error is None:
        await _call(callbacks.on_done, result, result.task_id)
    else:
        await _call(callbacks.on_error, result.error, result.task_id)
    return result


async def _call(callback: Callable[..., Any], *arguments: Any) -> None:
    try:
        answer = callback(*arguments)
        if inspect.isawaitable(answer):
            await answer
    except Exception:
        log.exception("dispatch callback failed")
