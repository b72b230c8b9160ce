"""What every backend can do, whoever makes it: ten members, and what goes in and out of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct

from gateway.provider_http import Ask
from plugins.cli_backends.failures import BackendError
from plugins.cli_backends.settings import BackendSettings
from plugins.cli_backends.talk import Called, Picture, Returned, Said, Spent

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
