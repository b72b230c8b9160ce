"""What can go wrong with a backend, each under a code that does not change."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Literal, Protocol, Self, cast

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
"""ABORTED is somebody's wish and no failure; the eight others are the public set."""

_PASSING: frozenset[Code] = frozenset({"TIMEOUT", "CONCURRENCY_LIMIT"})


class BackendError(ProviderError):
    """A dispatch failed. ``detail`` is what the program itself said about it, for the log.

    It is also one of the core's errors, where the code has an equal: so another provider may stand in.
    """

    def __new__(cls, code: Code, backend: str, message: str, detail: str = "") -> Self:
        """The error of its code."""
        return super().__new__(cast("type[Self]", _BY_CODE.get(code, cls)))

    def __init__(self, code: Code, backend: str, message: str, detail: str = "") -> None:
        super().__init__(f"{backend}: {message}", provider=backend)
        self.code: Code = code
        self.backend = backend
        self.detail = detail
        self.retryable = code in _PASSING

    @property
    def name(self) -> str:
        """The code."""
        return self.code


class _Silent(BackendError, StreamTimeoutError):
    """It said nothing, or took too long."""


class _NotThere(BackendError, ProviderUnavailableError):
    """It cannot be started."""


class _Ended(BackendError, StreamAbortedError):
    """It ended before its answer did."""


class _Busy(BackendError, RateLimitError):
    """It works for others."""


class _Refused(BackendError, ServerFailedError):
    """Its model service, or its store of sessions, said no."""


_BY_CODE: Mapping[Code, type[BackendError]] = {
    "TIMEOUT": _Silent,
    "SPAWN_FAILURE": _NotThere,
    "PROCESS_EXIT": _Ended,
    "CONCURRENCY_LIMIT": _Busy,
    "PROVIDER_ERROR": _Refused,
    "SESSION_ERROR": _Refused,
}


class Picture(Struct, frozen=True):
    """A picture that goes with a prompt; ``data`` is base64."""

    mime_type: str
    data: str


class Said(Struct, frozen=True):
    """More of the answer, or of the reasoning before it."""

    text: str
    reasoning: bool = False


class Called(Struct, frozen=True):
    """The program uses one of its tools."""

    id: str
    tool: str
    arguments: Mapping[str, Any]


class Returned(Struct, frozen=True):
    """A tool of the program is done."""

    id: str
    output: str
    is_error: bool = False


class Spent(Struct, frozen=True):
    """Tokens so far, the cached ones among the input; the last word counts. ``cost`` is US dollars."""

    input: int
    output: int
    cached: int = 0
    cost: float | None = None


WEEK_MS = 7 * 24 * 3600 * 1000


class GitChanges(Struct, frozen=True):
    """What a dispatch changed: git's own summary, the files, and the commits, newest first."""

    stat: str
    files: tuple[str, ...]
    new_commits: tuple[str, ...] = ()


class Context(Struct, frozen=True):
    """What a program is told of the place it works in; empty is unknown."""

    workspace: str = ""
    memory: tuple[str, ...] = ()
    git: str = ""
    instructions: str = ""


class DispatchOptions(Struct, frozen=True, kw_only=True):
    """How to run one dispatch. ``task_id`` is its name, if it is to have a certain one.

    ``earlier`` is the conversation so far, for a backend that has to begin a session. ``answer_id`` names
    the answer that is being made, and ``after`` the one before it: a session that knows another one as the
    last is not resumed; None resumes any. ``begins`` says that nothing of the answer is there yet: if its
    session is, then the gateway has ended in the middle of it. ``ask`` is asked before a tool runs that
    wants permission.
    """

    conversation_id: str
    task_id: str = ""
    model: str = ""
    system_prompt_suffix: str = ""
    timeout_ms: int | None = None
    working_directory: str | None = None
    skip_context: bool = False
    earlier: str = ""
    answer_id: str = ""
    after: str | None = None
    begins: bool = False
    images: tuple[Picture, ...] = ()
    ask: Ask | None = None


class DispatchResult(Struct, frozen=True, kw_only=True):
    """What became of a dispatch. ``error`` is None if and only if it succeeded."""

    task_id: str
    backend: str
    output: str = ""
    duration_ms: int = 0
    error: BackendError | None = None
    session_id: str | None = None
    spent: Spent | None = None
    turns: int | None = None
    git_changes: GitChanges | None = None
    fallback_from: str | None = None
    fallback_index: int | None = None
    fallback_chain_exhausted: bool = False

    @property
    def success(self) -> bool:
        """Return whether it succeeded."""
        return self.error is None


class Started(Struct, frozen=True):
    """A backend begins; ``after`` is the failure of the one before it, if there was one."""

    task_id: str
    backend: str
    after: BackendError | None = None


class Done(Struct, frozen=True):
    """The end, for good or ill. Nothing comes behind it."""

    result: DispatchResult


Progress = Started | Said | Called | Returned | Spent | Done
"""What a dispatch shows while it runs."""

Answer = Awaitable[None] | None


def _nothing(*_: Any) -> None:
    return None


class Callbacks(Struct, frozen=True, kw_only=True):
    """Who wants to hear of a dispatch. Each may be async; one that raises is logged and changes nothing.

    Of ``on_done`` and ``on_error`` exactly one is called, once, and last.
    """

    on_token: Callable[[str, str], Answer] = _nothing
    on_tool_call: Callable[[str, Mapping[str, Any], str], Answer] = _nothing
    on_tool_result: Callable[[str, str, str], Answer] = _nothing
    on_done: Callable[[DispatchResult, str], Answer] = _nothing
    on_error: Callable[[BackendError, str], Answer] = _nothing


class CodingPlugin(Protocol):
    """A backend."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...

    async def initialize(self, config: BackendSettings) -> None:
        """Take settings over; a dispatch that runs keeps those it began with."""
        ...

    async def dispatch(
        self, prompt: str, context: Context, options: DispatchOptions, callbacks: Callbacks
    ) -> DispatchResult:
        """Let the program work on a prompt. Failures are in the result, and told to ``on_error``."""
        ...

    async def is_available(self) -> bool:
        """Whether its program is there and runs."""
        ...

    def get_session(self, conversation_id: str) -> str | None:
        """Return the program's session of a conversation."""
        ...

    async def clear_session(self, conversation_id: str) -> None:
        """Forget it, so that the next dispatch begins afresh."""
        ...

    async def abort(self, task_id: str) -> bool:
        """End a dispatch, running or waiting; its program is gone when this returns. False: none such."""
        ...

    def get_running_task_count(self) -> int:
        """Return the number of running dispatches, without the queued ones."""
        ...

    async def cleanup(self, max_age_ms: int = WEEK_MS) -> int:
        """Forget sessions that were not used for so long, and return how many."""
        ...


log = structlog.get_logger("trunkline.cli_backends")


async def told(progress: AsyncGenerator[Progress, None], callbacks: Callbacks) -> DispatchResult:
    """Follow a dispatch to its end and tell what happens. The last call is the one terminal callback."""
    task_id = backend = ""
    names: dict[str, str] = {}
    async with aclosing(progress):
        try:
            async for event in progress:
                match event:
                    case Started():
                        task_id, backend = event.task_id, event.backend
                    case Said(reasoning=False):
                        await _call(callbacks.on_token, event.text, task_id)
                    case Called():
                        names[event.id] = event.tool
                        await _call(callbacks.on_tool_call, event.tool, event.arguments, task_id)
                    case Returned():
                        tool = names.get(event.id, event.id)
                        await _call(callbacks.on_tool_result, tool, event.output, task_id)
                    case Done(result=result):
                        return await _finish(result, callbacks)
                    case Said() | Spent():
                        pass
        except asyncio.CancelledError:
            await _call(callbacks.on_error, BackendError("ABORTED", backend, "stopped"), task_id)
            raise
    raise TrunklineError("a dispatch ended without an end")


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
        log.exception("a callback of a dispatch failed")
