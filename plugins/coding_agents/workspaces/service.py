"""The workspaces of all users: made, looked up, read, finalized and removed.

In: requests of users, models and HTTP clients, each with the id of its user. Out: durable records, and
files in worktrees. Another user's workspace does not exist for a request. ``recover`` finishes or removes
what a crash interrupted.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from weakref import WeakValueDictionary

import msgspec
import structlog

from gateway import TrunklineError, now_ms
from gateway.events import BusEvent
from plugins.coding_agents.errors import (
    CodingAgentError,
    DiskQuotaError,
    FinalizeError,
    InvalidRefError,
    MissingParentError,
    ServiceUnavailableError,
    WorkspaceNotFoundError,
)
from plugins.coding_agents.forges.contract import Forge
from plugins.coding_agents.settings import CodingAgentSettings
from plugins.coding_agents.workspaces import cleanup, setup
from plugins.coding_agents.workspaces.checkouts import Changes, Checkout, Confine, unconfined
from plugins.coding_agents.workspaces.credentials import HELPER, Audit, Credentials, Login
from plugins.coding_agents.workspaces.finalize import Finalizer, FinalizeResult
from plugins.coding_agents.workspaces.records import (
    Checkpoint,
    CleanedUp,
    CredentialGranted,
    CredentialRevoked,
    Failed,
    FinalizeStarted,
    Finalizing,
    Grant,
    Places,
    Provisioning,
    PullCreated,
    PullState,
    Ready,
    Rights,
    Strategy,
    Table,
    WorkspaceRecord,
    WorktreeAdded,
    WorktreeRemoved,
)
from plugins.coding_agents.workspaces.repositories import Mirrors, Remote
from plugins.coding_agents.workspaces.sources import Source, branch_for, check_base, check_branch, find_source
from plugins.programs.environment import find_program
from plugins.programs.git import Git, GitError

log = structlog.get_logger("trunkline.coding_agents.workspaces")

MOST_CHECKPOINTS = 200
"""Checkpoints that a record names; older ones remain as refs."""
ABANDONED_MS = 900_000
"""A workspace that nothing makes any more is not usable after this time."""
UNUSED_MS = 120_000
"""A workspace that no session of its user names is free after this time, in which a session has begun."""
ORPHAN_MS = 86_400_000
"""A folder without a record may be of a workspace that is newer than a restored database."""


class WorkspaceHost(msgspec.Struct, frozen=True, kw_only=True):
    """The services that workspaces use, of the gateway and of other parts of the plugin.

    ``table`` opens a durable table. ``forge_for`` and ``login`` are those of the forges. ``confine`` confines
    programs as the agents are. ``pause`` is called with the reason when a workspace is over a limit, and with
    "" when it no longer is. ``used`` returns the workspaces in which sessions of a user work. ``node`` is the
    name of this node if the files are on its machine alone.
    """

    table: Callable[[str], Table]
    environ: Mapping[str, str]
    forge_for: Callable[[str], Forge]
    login: Login
    audit: Audit
    emit: Callable[[BusEvent], None] = lambda _event: None
    confine: Confine = unconfined
    pause: Callable[[WorkspaceRecord, str], Awaitable[None]] | None = None
    used: Callable[[str], Collection[str]] | None = None
    node: str = ""


class Workspaces:
    """All workspaces. Call ``start`` before anything else, and ``sweep`` every minute."""

    def __init__(
        self,
        settings: CodingAgentSettings,
        base: Path,
        host: WorkspaceHost,
        *,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._all = settings
        self._settings = settings.workspaces
        self._host = host
        self._clock = clock
        self._table = host.table("workspaces")
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._room = asyncio.Lock()
        self._records: dict[str, WorkspaceRecord] = {}
        self._away: Sequence[WorkspaceRecord] = ()
        """Workspaces with files on the machine of another node, which alone uses and removes them."""
        self._orphans: dict[Path, int] = {}
        """Folders without a record, and when this process first saw them (ms)."""
        self.places = Places(base)
        self.credentials = Credentials(
            host.table("grants"),
            host.login,
            host.audit,
            may_push=self._settings.agent_may_push,
            clock=clock,
        )
        self.credentials.on_change = self._report_grant

    async def start(self) -> None:
        """Read the records and find git. Raises ServiceUnavailableError if git is not installed."""
        program = find_program("git", self._host.environ)
        if program is None:
            raise ServiceUnavailableError("workspaces need git, which is not installed")
        await asyncio.to_thread(self.places.prepare)
        self._git = Git(program, self._host.environ, self.places.home)
        self._remote = Remote(self._git, self._host.environ, self._host.login)
        self._mirrors = Mirrors(
            self._git,
            self._remote,
            self.places,
            self._settings.max_total_bytes,
            is_partial=self._all.sandbox == "off",
        )
        found = [msgspec.convert(value, WorkspaceRecord) for _, value in await self._table.items()]
        self._records = {record.id: record for record in found if not self._is_away(record)}
        self._away = [record for record in found if self._is_away(record)]

    async def provision(
        self,
        owner: str,
        repository: str,
        *,
        branch: str = "",
        base: str = "",
        strategy: Strategy = "worktree",
        parent: str = "",
        task: str = "",
        key: str = "",
    ) -> WorkspaceRecord:
        """Make a workspace: a worktree on its own branch, with its files.

        ``branch`` may be one that exists at the host; without it the name is made of ``task``. ``parent`` is
        a workspace of the same user, whose repository and base are used. The same ``key`` returns the same
        workspace, also after a crash. Raises the named errors.
        """
        async with self._lock(f"{owner} {key or secrets.token_hex(8)}"):
            known = next((r for r in self.list(owner) if key and r.key == key), None)
            if known is None:
                known = await self._draft(owner, repository, branch, base, strategy, parent, task, key)
            async with self._lock(known.id):
                known = self._records.get(known.id, known)
                return known if known.status not in ("provisioning", "error") else await self._make(known)

    async def _draft(
        self,
        owner: str,
        repository: str,
        branch: str,
        base: str,
        strategy: Strategy,
        parent: str,
        task: str,
        key: str,
    ) -> WorkspaceRecord:
        """Check a request and store the record of its workspace, which is not yet made."""
        above = self._parent(owner, parent) if parent else None
        if above is not None:
            repository, base = repository or above.url, base or above.base
        source = find_source(repository, self._all)
        if above is not None and source.name != above.repository:
            raise MissingParentError(
                f"the workspace {parent} belongs to {above.repository}, not to {source.name}"
            )
        home = self.places.home
        name = await check_branch(self._git, home, branch) if branch else branch_for(task, self._clock())
        now = self._clock()
        record = WorkspaceRecord(
            id=f"ws-{now}-{secrets.token_hex(4)}",
            owner=owner,
            url=source.url,
            repository=source.name,
            branch=name,
            base=await check_base(self._git, home, base) if base else "",
            status="provisioning",
            created_at=now,
            last_used=now,
            strategy=strategy,
            key=key,
            parent=parent,
            node=self._host.node,
            host=socket.gethostname() if self._host.node else "",
        )
        async with self._room:
            cleanup.check_room(self._settings, await self._measure_needed())
            await self._store(record)
        return record

    def list(self, owner: str) -> Sequence[WorkspaceRecord]:
        """Return the workspaces of a user, newest first."""
        return sorted(
            (record for record in self._records.values() if record.owner == owner),
            key=lambda record: record.created_at,
            reverse=True,
        )

    def get(self, workspace: str, owner: str) -> WorkspaceRecord:
        """Return a workspace of a user, by its id or the last part of it. Raises WorkspaceNotFoundError.

        Raises ServiceUnavailableError for one whose files are on another machine.
        """
        record = self._find(workspace, owner)
        if record in self._away:
            raise ServiceUnavailableError(
                f"the workspace {record.short_id} is on the machine of node {record.node}, and can be used "
                "when that node is active"
            )
        return record

    def _find(self, workspace: str, owner: str) -> WorkspaceRecord:
        known = (*self.list(owner), *(r for r in self._away if r.owner == owner))
        found = [r for r in known if workspace in (r.id, r.short_id)]
        if len(found) != 1:
            raise WorkspaceNotFoundError(f"you have no workspace {workspace[:80]!r}")
        return found[0]

    def _is_away(self, record: WorkspaceRecord) -> bool:
        own = self._host.node
        return bool(own) and record.node not in ("", own) and record.host != socket.gethostname()

    def checkout(self, record: WorkspaceRecord) -> Checkout:
        """Return the files of a workspace."""
        mirror = self._mirrors.path(record.url) if record.strategy == "worktree" else None
        return Checkout(self._git, self.places, record.id, record.branch, mirror, self._host.confine)

    def source(self, record: WorkspaceRecord) -> Source:
        """Return the repository of a workspace, if the settings still allow it."""
        return find_source(record.url, self._all)

    async def git_folders(self, workspace: str, owner: str) -> tuple[Sequence[Path], Sequence[Path]]:
        """Return what an agent in a workspace may write and may read: files, git's folders and its helper."""
        checkout = self.checkout(self.get(workspace, owner))
        return checkout.writable, (*checkout.readable, HELPER)

    async def use(self, workspace: str, owner: str, *, in_use: bool) -> WorkspaceRecord:
        """Note that a session begins or ends to work in a workspace."""
        async with self._lock(self.get(workspace, owner).id):
            record = self.get(workspace, owner)
            if record.status not in ("ready", "in_use", "finalizing"):
                raise ServiceUnavailableError(f"the workspace {record.short_id} is {record.status}")
            return await self._change(record, status="in_use" if in_use else "ready", last_used=self._clock())

    async def changes(self, workspace: str, owner: str) -> Changes:
        """Return all changes of a workspace since its branch began. Raises DiskQuotaError and others."""
        async with self._lock(self.get(workspace, owner).id):
            record = await self._usable(workspace, owner)
            checkout = self.checkout(record)
            try:
                head = await checkout.head()
                tree = await checkout.snapshot(head)
                before = await checkout.fork_point(record.base, record.base_commit, head)
                return await checkout.changes(before, tree)
            except GitError as error:
                raise ServiceUnavailableError(f"the changes cannot be read: {error}") from error

    async def checkpoint(self, workspace: str, owner: str, label: str = "") -> Checkpoint:
        """Keep the present files under ``refs/trunkline/<id>/<n>``; the same files are kept once."""
        async with self._lock(self.get(workspace, owner).id):
            return await self._checkpoint(await self._usable(workspace, owner), label)

    async def undo(self, workspace: str, owner: str, number: int = 0) -> Checkpoint:
        """Restore the files of a checkpoint, the latest one that differs if no number is given.

        The present files are kept as a checkpoint first. Returns the restored one. Raises InvalidRefError.
        """
        async with self._lock(self.get(workspace, owner).id):
            record = await self._usable(workspace, owner)
            known = record.checkpoints
            present = await self._checkpoint(record, "before undo")
            fitting = [c for c in known if (c.number == number if number else c.tree != present.tree)]
            if not fitting:
                raise InvalidRefError(
                    f"the workspace {record.short_id} has no checkpoint {number or 'to restore'}"
                )
            try:
                await self.checkout(record).restore(present.tree, fitting[-1].tree)
            except GitError as error:
                raise ServiceUnavailableError(f"the files cannot be restored: {error}") from error
            return fitting[-1]

    async def finalize(
        self,
        workspace: str,
        owner: str,
        *,
        message: str = "",
        title: str = "",
        body: str = "",
        base: str = "",
        draft: bool = False,
        pr: bool = True,
        push: bool = True,
        by: tuple[str, str] = ("", ""),
    ) -> FinalizeResult:
        """Commit all changes, push the branch and open a pull request. Nothing to commit is a success.

        Without ``pr`` no pull request is opened; without ``push`` the commit stays in the workspace. ``by``
        is name and mail address of the user. A request that a crash interrupted is continued with its own
        texts instead of these. Raises FinalizeError, which names the step.
        """
        base = await check_branch(self._git, self.places.home, base) if base else ""
        async with self._lock(self.get(workspace, owner).id):
            record = await self._usable(workspace, owner)
            request = record.finalizing or Finalizing(
                message=message.strip() or title.strip() or f"Changes of {record.branch}",
                title=title.strip(),
                body=body,
                base=base,
                draft=draft,
                pr=pr,
                push=push,
                at=self._clock(),
                by_name=by[0],
                by_email=by[1],
            )
            return await self._finalize(record, request)

    async def remove(self, workspace: str, owner: str, *, force: bool = False) -> None:
        """Remove a workspace. Without ``force`` one with work that is nowhere else is refused.

        Raises ServiceUnavailableError then, or while a session uses it.
        """
        async with self._lock(self.get(workspace, owner).id):
            record = self.get(workspace, owner)
            if record.status == "in_use" and not force:
                raise ServiceUnavailableError(
                    f"a session works in the workspace {record.short_id}; stop it first"
                )
            if not force and await self._has_work(record):
                raise ServiceUnavailableError(
                    f"the workspace {record.short_id} has changes or commits that are not pushed; finalize "
                    "it, or remove it with force"
                )
            await self._remove(record, "its user removed it")

    async def serve_git(
        self,
        workspace: str,
        owner: str,
        read: Callable[[int], Awaitable[bytes]],
        write: Callable[[bytes], Awaitable[None]],
    ) -> None:
        """Answer one question of an agent's git for credentials, on a connection through its keeper.

        An agent gets a grant by asking: to read, or to push too if the settings let it.
        """
        record = self._find(workspace, owner)
        source = self.source(record)
        rights: Rights = "write" if self._settings.agent_may_push else "read"
        known = await self.credentials.grants(record.id)
        is_live = any(grant.is_within(self._clock()) for grant in known)
        if not is_live and self._host.login(source.url, rights):
            await self.credentials.grant(record, source, rights)
        await self.credentials.serve(record, source, read, write)

    async def note_pull(self, workspace: str, state: PullState) -> None:
        """Note the state of the pull request of a workspace, as the forge reports it."""
        async with self._lock(workspace):
            record = self._records.get(workspace)
            if record is not None and record.pr_state != state:
                ended = self._clock() if state in ("merged", "closed") else 0
                await self._change(record, pr_state=state, pr_ended_at=ended)

    async def recover(self) -> Sequence[tuple[WorkspaceRecord, FinalizeResult | TrunklineError]]:
        """Finish what a crash interrupted: make or continue it. Return the outcome of each finalize.

        A workspace that was being made for a request with a key is made when that request is repeated.
        """
        outcomes: list[tuple[WorkspaceRecord, FinalizeResult | TrunklineError]] = []
        for known in list(self._records.values()):
            async with self._lock(known.id):
                record = self._records.get(known.id, known)
                if record.status == "provisioning" and not record.key:
                    await self._remove(record, "the gateway ended while it was made")
                elif record.finalizing is not None:
                    try:
                        outcomes.append((record, await self._finalize(record, record.finalizing)))
                    except CodingAgentError as error:
                        outcomes.append((record, error))
        return outcomes

    async def measure(self) -> cleanup.Usage:
        """Measure all folders."""
        return await asyncio.to_thread(cleanup.measure, self.places, list(self._records))

    async def sweep(self) -> None:
        """Hold the limits, and remove what is no longer needed. Call it every minute."""
        usage = await self._measure_needed()
        for known in list(self._records.values()):
            lock = self._lock(known.id)
            if lock.locked():
                continue  # The next sweep looks at it: a push or a preparation may take minutes.
            async with lock:
                record = self._records.get(known.id)
                if record is not None:
                    record = await self._settle(record)
                    await self._hold_limit(record, cleanup.find_excess(self._settings, usage, record.id))
                    await self._expire(self._records.get(known.id, record))
        now = self._clock()
        await self._drop_mirrors(now - self._settings.idle_ms)
        known = [record.id for record in (*self._records.values(), *self._away)]
        orphans = await asyncio.to_thread(cleanup.find_orphans, self.places, known)
        for folder in orphans:
            if folder not in self._orphans:
                log.warning("a folder belongs to no workspace and is removed in 24 hours", folder=str(folder))
        self._orphans = {folder: self._orphans.get(folder, now) for folder in orphans}
        await self._remove_folders(each for each, seen in self._orphans.items() if now - seen >= ORPHAN_MS)

    async def _measure_needed(self) -> cleanup.Usage:
        """Measure all folders; over the limit, after the removal of the mirrors that no workspace uses."""
        usage = await self.measure()
        if usage.total < self._settings.max_total_bytes:
            return usage
        await self._drop_mirrors()
        return await self.measure()

    async def _drop_mirrors(self, oldest: float = math.inf) -> None:
        """Remove mirrors that no workspace uses and that were last fetched before a time (ms)."""
        used = [self._mirrors.path(record.url) for record in (*self._records.values(), *self._away)]
        being_made = [path.with_suffix(".new") for path in used]
        await self._remove_folders(
            await asyncio.to_thread(cleanup.find_unused_mirrors, self.places, (*used, *being_made), oldest)
        )

    async def _remove_folders(self, folders: Iterable[Path]) -> None:
        for folder in folders:
            log.warning("unused folder removed", folder=str(folder))
            await asyncio.to_thread(cleanup.remove_folder, self.places, folder)

    async def _settle(self, record: WorkspaceRecord) -> WorkspaceRecord:
        """Free a workspace whose finalize was cancelled, or whose session has ended or never began.

        Mark one that was never made.
        """
        used, idle = self._host.used, self._clock() - record.last_used
        if record.status == "in_use" and used and idle > UNUSED_MS and record.id not in used(record.owner):
            return await self._change(record, status="ready")
        if record.status == "finalizing":
            return await self._change(record, status="ready", finalizing=None)
        if record.status == "provisioning" and self._clock() - record.created_at > ABANDONED_MS:
            return await self._change(record, status="error", error="it was not made to the end")
        return record

    async def _hold_limit(self, record: WorkspaceRecord, reason: str) -> None:
        if bool(reason) != bool(record.paused):
            record = await self._change(record, paused=reason)
            if self._host.pause is not None:
                await self._host.pause(record, reason)

    async def _expire(self, record: WorkspaceRecord) -> None:
        reason = cleanup.find_expiry(self._settings, record, self._clock())
        if not reason:
            return
        try:
            if not await self._has_work(record):
                await self._remove(record, reason)
        except (CodingAgentError, GitError) as error:
            # Kept: what cannot be read may be work.
            log.warning("workspace not removed", workspace=record.id, reason=str(error))

    async def _make(self, record: WorkspaceRecord) -> WorkspaceRecord:
        """Make the files of a workspace from the beginning."""
        self._host.emit(Provisioning(record.id, record.owner, record.repository))
        await self._delete_files(record)
        try:
            record = await self._fill(record)
        except (TrunklineError, GitError, OSError) as error:
            await self._delete_files(record)
            await self._table.delete(record.id)
            del self._records[record.id]
            self._host.emit(Failed(record.id, record.owner, str(error)))
            if isinstance(error, TrunklineError):
                raise
            raise ServiceUnavailableError(f"the workspace cannot be made: {error}") from error
        self._host.emit(WorktreeAdded(record.id, record.owner, record.branch))
        self._host.emit(Ready(record.id, record.owner, record.branch))
        return record

    async def _fill(self, record: WorkspaceRecord) -> WorkspaceRecord:
        source = self.source(record)
        mirror = await self._mirrors.fetch(source)
        base = record.base or await self._mirrors.default_branch(mirror)
        commit = await self._mirrors.commit(mirror, record.branch) or await self._mirrors.commit(mirror, base)
        if not commit:
            raise InvalidRefError(f"the repository {source.name} has no branch {base!r}")
        checkout, prepared = self.checkout(record), self._settings.setup.get(source.name)
        refs = await self._mirrors.refs(mirror)
        if record.strategy == "clone":
            await checkout.fetch_all(source, self._remote)
            refs = ()
        exclude = (*self._settings.exclude, *(f"/{name}" for name in (prepared.files if prepared else ())))
        config, partial = self._config(record), self._mirrors.is_partial
        await checkout.create(source, commit, refs, self._remote, config, exclude, is_partial=partial)
        result = None
        if prepared is not None:
            await asyncio.to_thread(setup.copy_files, prepared.files, checkout.tree)
            result = await setup.run_command(prepared, checkout, self._host.environ, self._host.confine)
        size = sum([await asyncio.to_thread(cleanup.folder_bytes, f) for f in self.places.folders(record.id)])
        if size > self._settings.max_bytes:
            raise DiskQuotaError(
                f"{source.name} takes {size:,} bytes, and a workspace may take {self._settings.max_bytes:,} "
                "(max_bytes)"
            )
        return await self._change(record, status="ready", base=base, base_commit=commit, setup=result)

    def _config(self, record: WorkspaceRecord) -> str:
        """Return settings for the agent's git: who it is, and where its branch belongs."""
        name, email, branch = (
            text.replace("\\", "\\\\").replace('"', '\\"')
            for text in (self._settings.author_name, self._settings.author_email, record.branch)
        )
        return (
            f'[user]\n\tname = "{name}"\n\temail = "{email}"\n'
            f'[branch "{branch}"]\n\tremote = origin\n\tmerge = "refs/heads/{branch}"\n'
        )

    async def _usable(self, workspace: str, owner: str) -> WorkspaceRecord:
        record = self.get(workspace, owner)
        if record.status in ("provisioning", "cleaned_up", "error"):
            raise ServiceUnavailableError(f"the workspace {record.short_id} is {record.status}")
        size = await asyncio.to_thread(cleanup.folder_bytes, self.places.tree(record.id))
        if size > self._settings.max_bytes:
            raise DiskQuotaError(
                f"the workspace {record.short_id} takes {size:,} bytes of {self._settings.max_bytes:,} "
                "(max_bytes); let the agent remove files"
            )
        return await self._change(record, last_used=self._clock())

    async def _checkpoint(self, record: WorkspaceRecord, label: str) -> Checkpoint:
        checkout = self.checkout(record)
        try:
            head = await checkout.head()
            tree = await checkout.snapshot(head)
            if record.checkpoints and record.checkpoints[-1].tree == tree:
                return record.checkpoints[-1]
            number = record.checkpoints[-1].number + 1 if record.checkpoints else 1
            now = self._clock()
            author = (self._settings.author_name, self._settings.author_email)
            commit = await checkout.commit(tree, head, label or f"Checkpoint {number}", author, now)
            await checkout.keep(f"refs/trunkline/{record.id}/{number}", commit)
        except GitError as error:
            raise ServiceUnavailableError(f"the files cannot be kept: {error}") from error
        made = Checkpoint(number, commit, tree, now, label[:200])
        await self._change(record, checkpoints=(*record.checkpoints, made)[-MOST_CHECKPOINTS:])
        return made

    async def _finalize(self, record: WorkspaceRecord, request: Finalizing) -> FinalizeResult:
        self._host.emit(FinalizeStarted(record.id, record.owner, record.branch))
        known = record.pr_number
        finalizer = Finalizer(
            self.checkout(record),
            self.source(record),
            self._remote,
            self._host.forge_for,
            self._settings,
            self._store,
        )
        try:
            record, result = await finalizer.run(record, request)
        except (CodingAgentError, GitError) as error:
            failed = error if isinstance(error, FinalizeError) else FinalizeError(str(error), step="push")
            # The next request has its own texts; the steps that are done are found again.
            await self._change(self._records[record.id], status="ready", finalizing=None)
            self._host.emit(Failed(record.id, record.owner, f"{failed.step}: {failed}"))
            raise failed from error
        if result.pr_number and result.pr_number != known:
            self._host.emit(PullCreated(record.id, record.owner, result.pr_url))
        self._host.emit(Ready(record.id, record.owner, record.branch))
        return result

    async def _has_work(self, record: WorkspaceRecord) -> bool:
        """Return whether a workspace has changes or commits that its host does not have."""
        if record.status in ("provisioning", "error") or not await asyncio.to_thread(
            self.places.tree(record.id).exists
        ):
            return False
        try:
            return await self.checkout(record).unpushed(record.base_commit, record.commit)
        except GitError as error:
            raise ServiceUnavailableError(
                f"it cannot be seen whether there is unpushed work: {error}"
            ) from error

    async def _remove(self, record: WorkspaceRecord, reason: str) -> None:
        await self._delete_files(record)
        await self.credentials.revoke(record.id, reason)
        await self._table.delete(record.id)
        del self._records[record.id]
        self._host.emit(WorktreeRemoved(record.id, record.owner, record.branch))
        self._host.emit(CleanedUp(record.id, record.owner, reason))

    async def _delete_files(self, record: WorkspaceRecord) -> None:
        for folder in self.places.folders(record.id):
            await asyncio.to_thread(cleanup.remove_folder, self.places, folder)

    def _parent(self, owner: str, parent: str) -> WorkspaceRecord:
        try:
            return self.get(parent, owner)
        except WorkspaceNotFoundError:
            raise MissingParentError(
                f"you have no workspace {parent[:80]!r} to make a worktree beside"
            ) from None

    def _lock(self, workspace: str) -> asyncio.Lock:
        return self._locks.setdefault(workspace, asyncio.Lock())

    async def _store(self, record: WorkspaceRecord) -> None:
        await self._table.put(record.id, msgspec.to_builtins(record))
        self._records[record.id] = record

    async def _change(self, record: WorkspaceRecord, **changes: object) -> WorkspaceRecord:
        changed = msgspec.structs.replace(record, **changes)
        if changed != record:
            await self._store(changed)
        return changed

    def _report_grant(self, grant: Grant, revoked: str) -> None:
        record = self._records.get(grant.workspace)
        owner = "" if record is None else record.owner
        if revoked:
            self._host.emit(CredentialRevoked(grant.workspace, owner, revoked))
        else:
            seconds = (grant.expires_at - grant.issued_at) // 1_000
            detail = f"{grant.rights} {grant.host}/{grant.path} for {seconds} s"
            self._host.emit(CredentialGranted(grant.workspace, owner, detail))
