"""A dispatch from start to end, in eight steps, with fallback to other backends.

1 choose the active backend, 2 check its availability, 3 if it is not available, take the next one, 4 collect
the context, 5 start its program, 6 pass its events on, 7 report its end, 8 report the changes that git sees.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from pathlib import Path

import msgspec
import structlog

from gateway import new_id, now_ms
from plugins.cli_backends.backend import SpawnedBackend
from plugins.cli_backends.contract import (
    BackendError,
    Callbacks,
    Code,
    Context,
    DispatchOptions,
    DispatchResult,
    Done,
    GitChanges,
    Progress,
    Started,
    report_progress,
)
from plugins.cli_backends.git import Repository, Snapshot
from plugins.cli_backends.prompt import gather_context
from plugins.cli_backends.settings import CliSettings, SettingsSource
from plugins.cli_backends.state import Memory
from plugins.programs.environment import environment_for
from plugins.programs.git import GIT_SECONDS, GitError

log = structlog.get_logger("trunkline.cli_backends")

AVAILABLE_SECONDS = 5.0
_CLEANUP_MS = 3_600_000

_FINAL: frozenset[Code] = frozenset({"ABORTED", "BUFFER_OVERFLOW"})
"""Codes after which no other backend is tried."""


ReportChanges = Callable[[DispatchOptions, str, GitChanges], None]
"""Takes the changes of a dispatch, with the name of its backend."""


def _ignore(options: DispatchOptions, backend: str, changes: GitChanges) -> None:
    """Do nothing with changes."""


class WorkspaceState(msgspec.Struct, frozen=True):
    """The state of the workspace before a dispatch, shared by all backends that are tried."""

    context: Context
    repository: Repository | None
    before: Snapshot | None


class Dispatcher:
    """The path of every dispatch: the choice of a backend, its run and its fallbacks.

    ``check_seconds`` is the time limit of an availability check if there is another backend to try.
    ``report_changes`` also gets the changes of a dispatch that failed or was aborted.
    """

    def __init__(
        self,
        backends: Iterable[SpawnedBackend],
        source: SettingsSource,
        memory: Memory,
        workspace: Path,
        environ: Mapping[str, str],
        check_seconds: float = AVAILABLE_SECONDS,
        clock: Callable[[], int] = now_ms,
        report_changes: ReportChanges = _ignore,
    ) -> None:
        self.backends = {backend.name: backend for backend in backends}
        self._source = source
        self._memory = memory
        self._workspace = workspace
        self._environ = environ
        self._check_seconds = check_seconds
        self._clock = clock
        self._report_changes = report_changes
        self._cleaned_at: int | None = None

    async def dispatch(
        self, prompt: str, options: DispatchOptions, callbacks: Callbacks, backend: str | None = None
    ) -> DispatchResult:
        """Run the active backend, or the named one, on a prompt."""
        return await report_progress(self.stream(prompt, options, backend), callbacks)

    async def stream(
        self, prompt: str, options: DispatchOptions, backend: str | None = None
    ) -> AsyncGenerator[Progress, None]:
        """Run a dispatch and yield its progress, ``Done`` last. A named backend has no fallback."""
        options = msgspec.structs.replace(options, task_id=options.task_id or new_id())
        settings = await self.refresh_settings()
        log.debug("dispatch", step="load", task=options.task_id)
        try:
            chain = self._chain(settings, backend)
        except BackendError as error:
            yield Done(DispatchResult(task_id=options.task_id, backend=error.backend, error=error))
            return
        folder = await asyncio.to_thread(self._folder, settings, options)
        options = msgspec.structs.replace(options, working_directory=folder)
        async with aclosing(self._try_backends(prompt, options, chain, settings)) as steps:
            async for step in steps:
                yield step

    async def refresh_settings(self) -> CliSettings:
        """Read the settings, pass them to the backends, and return them."""
        settings = await self._source.refresh()
        for name, backend in self.backends.items():
            await backend.initialize(settings.of(name))
        await self._forget_old_sessions()
        return settings

    async def _forget_old_sessions(self) -> None:
        """Forget expired sessions, at most once an hour. Only dispatches add any, so no timer is needed."""
        now = self._clock()
        if self._cleaned_at is None or abs(now - self._cleaned_at) >= _CLEANUP_MS:
            self._cleaned_at = now
            for backend in self.backends.values():
                await backend.cleanup()

    def _chain(self, settings: CliSettings, named: str | None) -> list[SpawnedBackend]:
        """Return the backends to try, in order. Raises BackendError if the first is unknown or disabled."""
        first = named or settings.active_plugin
        if first not in self.backends:
            known = ", ".join(self.backends)
            raise BackendError("UNKNOWN", first, f"unknown backend; choose from {known}")
        if not settings.of(first).enabled:
            raise BackendError("UNKNOWN", first, "disabled in the settings")
        fallback = settings.plugin_dispatch.fallback
        others = () if named or not fallback.enabled else settings.fallback_plugins
        names = dict.fromkeys(
            (first, *(name for name in others if name in self.backends and settings.of(name).enabled))
        )
        return [self.backends[name] for name in names]

    async def _try_backends(
        self, prompt: str, options: DispatchOptions, chain: list[SpawnedBackend], settings: CliSettings
    ) -> AsyncGenerator[Progress, None]:
        on_error = settings.plugin_dispatch.fallback.on_dispatch_error
        workspace: WorkspaceState | None = None
        failed: BackendError | None = None
        result: DispatchResult | None = None
        used, reported = chain[0], False
        try:
            for index, backend in enumerate(chain):
                seconds = self._check_seconds if backend is not chain[-1] else None
                if not await self._is_available(backend, seconds):
                    failed = failed or BackendError("SPAWN_FAILURE", backend.name, backend.unavailable_reason)
                    continue
                workspace, used = workspace or await self._read_workspace(options), backend
                async with aclosing(backend.stream(prompt, workspace.context, options)) as steps:
                    async for step in steps:
                        match step:
                            case Started():
                                log.debug("dispatch", step="spawn", task=options.task_id)
                                yield msgspec.structs.replace(step, after=failed)
                            case Done():
                                result = self._with_fallback(step.result, chain, index)
                            case _:
                                yield step
                log.debug("dispatch", step="end", task=options.task_id)
                if result is None or result.error is None:
                    break
                failed = result.error
                if not on_error or failed.code in _FINAL:
                    break
            changes = await self._changes(workspace, options, used.name)
            reported = True
            yield Done(self._complete(result, failed, chain, options, changes))
        finally:
            if workspace is not None and workspace.repository is not None:
                try:
                    if not reported:  # an aborted program has changed files, too
                        with suppress(TimeoutError):
                            async with asyncio.timeout(GIT_SECONDS):
                                await self._changes(workspace, options, used.name)
                finally:
                    await asyncio.to_thread(workspace.repository.close)

    async def _is_available(self, backend: SpawnedBackend, seconds: float | None) -> bool:
        log.debug("dispatch", step="available", backend=backend.name)
        try:
            async with asyncio.timeout(seconds):
                return await backend.is_available()
        except TimeoutError:
            return False

    async def _read_workspace(self, options: DispatchOptions) -> WorkspaceState:
        log.debug("dispatch", step="context", task=options.task_id)
        folder = options.working_directory or "/"
        env = environment_for(self._environ, (), {})
        repository = await Repository.at(folder, env)
        before: Snapshot | None = None
        if repository is not None:
            try:
                before = await repository.snapshot()
            except GitError as error:
                log.info("git changes will not be reported", folder=folder, reason=str(error))
        memory = self._memory.facts(options.conversation_id)
        context = Context() if options.skip_context else await gather_context(folder, memory, repository)
        return WorkspaceState(context, repository, before)

    def _with_fallback(
        self, result: DispatchResult, chain: list[SpawnedBackend], index: int
    ) -> DispatchResult:
        if not index:
            return result
        return msgspec.structs.replace(result, fallback_from=chain[0].name, fallback_index=index - 1)

    def _complete(
        self,
        result: DispatchResult | None,
        failed: BackendError | None,
        chain: list[SpawnedBackend],
        options: DispatchOptions,
        changes: GitChanges | None,
    ) -> DispatchResult:
        if result is None:
            result = DispatchResult(task_id=options.task_id, backend=chain[0].name, error=failed)
        if result.error is not None:
            return msgspec.structs.replace(result, fallback_chain_exhausted=len(chain) > 1)
        return msgspec.structs.replace(result, git_changes=changes)

    async def _changes(
        self, workspace: WorkspaceState | None, options: DispatchOptions, backend: str
    ) -> GitChanges | None:
        """Report what changed in the repository since the beginning, and return it."""
        log.debug("dispatch", step="changes", task=options.task_id)
        if workspace is None or workspace.repository is None or workspace.before is None:
            return None
        try:
            changes = await workspace.repository.changes(workspace.before)
        except GitError as error:
            log.info("git changes unknown", reason=str(error))
            return None
        if changes is not None:
            self._report_changes(options, backend, changes)
        return changes

    def _folder(self, settings: CliSettings, options: DispatchOptions) -> str:
        path = options.working_directory or settings.working_directory
        if path is None:
            self._workspace.mkdir(mode=0o700, parents=True, exist_ok=True)
            return str(self._workspace)
        home = self._environ.get("HOME", "~")
        return str(Path(path.replace("~", home, 1) if path.startswith("~/") else path).absolute())
