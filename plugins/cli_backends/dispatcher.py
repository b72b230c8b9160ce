"""A dispatch from beginning to end, in eight steps, with other backends behind the one that was meant.

1 which backend is active, 2 is it available, 3 if not which of those behind it, 4 what surrounds it, 5 its
program, 6 what it says, 7 how it ended, 8 what git says has changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
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
    told,
)
from plugins.cli_backends.environment import environment_for
from plugins.cli_backends.git import GitError, Repository, Snapshot
from plugins.cli_backends.prompt import gathered
from plugins.cli_backends.settings import CliSettings, SettingsSource
from plugins.cli_backends.state import Memory

log = structlog.get_logger("trunkline.cli_backends")

AVAILABLE_SECONDS = 5.0
_CLEANUP_MS = 3_600_000

_FINAL: frozenset[Code] = frozenset({"ABORTED", "BUFFER_OVERFLOW"})
"""After these nobody else is tried."""


class Surroundings(msgspec.Struct, frozen=True):
    """What is known before a program starts, the same for all that may be tried."""

    context: Context
    repository: Repository | None
    before: Snapshot | None


class Dispatcher:
    """Chooses a backend for every dispatch and sees it through.

    ``patience`` is how many seconds one may take to say whether it is there, while another stands behind it.
    """

    def __init__(
        self,
        backends: Iterable[SpawnedBackend],
        source: SettingsSource,
        memory: Memory,
        workspace: Path,
        environ: Mapping[str, str],
        patience: float = AVAILABLE_SECONDS,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self.backends = {backend.name: backend for backend in backends}
        self._source = source
        self._memory = memory
        self._workspace = workspace
        self._environ = environ
        self._patience = patience
        self._clock = clock
        self._cleaned_at: int | None = None

    async def dispatch(
        self, prompt: str, options: DispatchOptions, callbacks: Callbacks, backend: str | None = None
    ) -> DispatchResult:
        """Let the active backend, or the one named, work on a prompt."""
        return await told(self.stream(prompt, options, backend), callbacks)

    async def stream(
        self, prompt: str, options: DispatchOptions, backend: str | None = None
    ) -> AsyncGenerator[Progress, None]:
        """The same, step by step; the last step is ``Done``. A backend that is named has none behind it."""
        options = msgspec.structs.replace(options, task_id=options.task_id or new_id())
        settings = await self._load()
        log.debug("dispatch", step="load", task=options.task_id)
        try:
            chain = self._chain(settings, backend)
        except BackendError as error:
            yield Done(DispatchResult(task_id=options.task_id, backend=error.backend, error=error))
            return
        folder = await asyncio.to_thread(self._folder, settings, options)
        options = msgspec.structs.replace(options, working_directory=folder)
        async with aclosing(self._tried(prompt, options, chain, settings)) as steps:
            async for step in steps:
                yield step

    async def refreshed(self) -> CliSettings:
        """The settings as they are now; the backends know them too."""
        return await self._load()

    async def _load(self) -> CliSettings:
        settings = await self._source.refresh()
        for name, backend in self.backends.items():
            await backend.initialize(settings.of(name))
        await self._clean()
        return settings

    async def _clean(self) -> None:
        """Remove expired sessions, at most once an hour. Only dispatches add any, so no timer is needed."""
        now = self._clock()
        if self._cleaned_at is None or abs(now - self._cleaned_at) >= _CLEANUP_MS:
            self._cleaned_at = now
            for backend in self.backends.values():
                await backend.cleanup()

    def _chain(self, settings: CliSettings, named: str | None) -> list[SpawnedBackend]:
        """The backends to try, in order. Raises BackendError if the first of them cannot be meant."""
        first = named or settings.active_plugin
        if first not in self.backends:
            known = ", ".join(self.backends)
            raise BackendError("UNKNOWN", first, f"there is no such backend; there are {known}")
        if not settings.of(first).enabled:
            raise BackendError("UNKNOWN", first, "this backend is switched off in the settings")
        fallback = settings.plugin_dispatch.fallback
        behind = () if named or not fallback.enabled else settings.fallback_plugins
        names = dict.fromkeys(
            (first, *(name for name in behind if name in self.backends and settings.of(name).enabled))
        )
        return [self.backends[name] for name in names]

    async def _tried(
        self, prompt: str, options: DispatchOptions, chain: list[SpawnedBackend], settings: CliSettings
    ) -> AsyncGenerator[Progress, None]:
        on_error = settings.plugin_dispatch.fallback.on_dispatch_error
        surroundings: Surroundings | None = None
        failed: BackendError | None = None
        result: DispatchResult | None = None
        try:
            for index, backend in enumerate(chain):
                patience = self._patience if backend is not chain[-1] else None
                if not await self._available(backend, patience):
                    failed = failed or BackendError("SPAWN_FAILURE", backend.name, backend.lack)
                    continue
                surroundings = surroundings or await self._surroundings(options)
                async with aclosing(backend.stream(prompt, surroundings.context, options)) as steps:
                    async for step in steps:
                        match step:
                            case Started():
                                log.debug("dispatch", step="spawn", task=options.task_id)
                                yield msgspec.structs.replace(step, after=failed)
                            case Done():
                                result = self._placed(step.result, chain, index)
                            case _:
                                yield step
                log.debug("dispatch", step="end", task=options.task_id)
                if result is None or result.error is None:
                    break
                failed = result.error
                if not on_error or failed.code in _FINAL:
                    break
            yield Done(await self._final(result, failed, chain, options, surroundings))
        finally:
            if surroundings is not None and surroundings.repository is not None:
                await asyncio.to_thread(surroundings.repository.close)

    async def _available(self, backend: SpawnedBackend, patience: float | None) -> bool:
        log.debug("dispatch", step="available", backend=backend.name)
        try:
            async with asyncio.timeout(patience):
                return await backend.is_available()
        except TimeoutError:
            return False

    async def _surroundings(self, options: DispatchOptions) -> Surroundings:
        log.debug("dispatch", step="context", task=options.task_id)
        folder = options.working_directory or "/"
        env = environment_for(self._environ, (), {})
        repository = await Repository.at(folder, env)
        before: Snapshot | None = None
        if repository is not None:
            try:
                before = await repository.snapshot()
            except GitError as error:
                log.info("changes will not be seen", folder=folder, reason=str(error))
        memory = self._memory.of(options.conversation_id)
        context = Context() if options.skip_context else await gathered(folder, memory, repository)
        return Surroundings(context, repository, before)

    def _placed(self, result: DispatchResult, chain: list[SpawnedBackend], index: int) -> DispatchResult:
        if not index:
            return result
        return msgspec.structs.replace(result, fallback_from=chain[0].name, fallback_index=index - 1)

    async def _final(
        self,
        result: DispatchResult | None,
        failed: BackendError | None,
        chain: list[SpawnedBackend],
        options: DispatchOptions,
        surroundings: Surroundings | None,
    ) -> DispatchResult:
        if result is None:
            result = DispatchResult(task_id=options.task_id, backend=chain[0].name, error=failed)
        if result.error is not None:
            return msgspec.structs.replace(result, fallback_chain_exhausted=len(chain) > 1)
        log.debug("dispatch", step="changes", task=options.task_id)
        return msgspec.structs.replace(result, git_changes=await self._changes(surroundings))

    async def _changes(self, surroundings: Surroundings | None) -> GitChanges | None:
        if surroundings is None or surroundings.repository is None or surroundings.before is None:
            return None
        try:
            return await surroundings.repository.changes(surroundings.before)
        except GitError as error:
            log.info("changes are not known", reason=str(error))
            return None

    def _folder(self, settings: CliSettings, options: DispatchOptions) -> str:
        named = options.working_directory or settings.working_directory
        if named is None:
            self._workspace.mkdir(mode=0o700, parents=True, exist_ok=True)
            return str(self._workspace)
        home = self._environ.get("HOME", "~")
        return str(Path(named.replace("~", home, 1) if named.startswith("~/") else named).absolute())
