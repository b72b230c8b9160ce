"""The services of the desk, put together: sessions, workspaces, forges, and the watch over pull requests.

In: the context of the plugin and its sessions. Out: a desk, and tasks that end with the plugin: they watch
pull requests, hold the limits of workspaces, and note when a session no longer uses its workspace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import structlog
from msgspec import convert

from gateway import PluginContext, TrunklineError
from gateway.events import BusEvent
from plugins.coding_agents.confinement.profile import Folders
from plugins.coding_agents.errors import CodingAgentError, KeeperLostError, ServiceUnavailableError
from plugins.coding_agents.forges import Forges
from plugins.coding_agents.forges.watch import PullRequestWatch
from plugins.coding_agents.keeper_client import Stream
from plugins.coding_agents.records import SessionRecord
from plugins.coding_agents.session import Session
from plugins.coding_agents.sessions import Sessions
from plugins.coding_agents.settings import CodingAgentSettings
from plugins.coding_agents.tools.desk import Desk
from plugins.coding_agents.tools.services import Services
from plugins.coding_agents.workspaces import WorkspaceHost, WorkspaceRecord, Workspaces

log = structlog.get_logger("trunkline.coding_agents")

SWEEP_SECONDS = 60.0
"""The time between two looks at the sizes and ages of workspaces."""


async def assemble(ctx: PluginContext, settings: CodingAgentSettings, sessions: Sessions) -> Desk:
    """Start the services. Raises ServiceUnavailableError without a running gateway."""
    if ctx.table is None or ctx.tasks is None or ctx.announce is None or ctx.audit is None:
        raise ServiceUnavailableError("coding agents need a running gateway")
    forges = Forges(settings, ctx.environ)
    events = ctx.events
    emit: Callable[[BusEvent], None] = _drop if events is None else events.emit
    found = await _open_workspaces(ctx, settings, sessions, forges, emit)
    watch = PullRequestWatch(
        ctx.table("pull_requests"), forges.forge_for, lambda event: desk.pulls.report(event)
    )
    desk = Desk(
        Services(
            sessions=sessions,
            found=found,
            watch=watch,
            announce=ctx.announce,
            questions=ctx.questions,
            table=ctx.table,
            emit=emit,
        )
    )
    if isinstance(found, Workspaces):
        link = _Link(sessions, found, ctx.tasks)
        sessions.confinement.folders_of = link.folders_of
        sessions.confinement.serve_credentials = link.serve_git
        sessions.observers.append(link.follow)
        for session in sessions.running():
            link.follow(session)
        known = [convert(value, WorkspaceRecord) for _, value in await ctx.table("workspaces").items()]
        work = _keep_workspaces(found, desk, {record.owner for record in known})
        ctx.tasks.create_task(work, name="workspaces of coding agents")
    ctx.tasks.create_task(_watch(watch, forges), name="pull requests of coding agents")
    return desk


async def _open_workspaces(
    ctx: PluginContext,
    settings: CodingAgentSettings,
    sessions: Sessions,
    forges: Forges,
    emit: Callable[[BusEvent], None],
) -> Workspaces | ServiceUnavailableError:
    assert ctx.table is not None
    write_audit = ctx.audit
    assert write_audit is not None

    async def audit(action: str, subject: str, detail: str = "", *, actor: str = "") -> None:
        await write_audit(action, subject, detail, actor=actor)

    async def pause(record: WorkspaceRecord, reason: str) -> None:
        for session in sessions.running():
            if session.record.workspace == record.id:
                with suppress(KeeperLostError):
                    session.pause(paused=bool(reason), confined=settings.sandbox != "off")
                text = f"It is paused: {reason}" if reason else "It continues within its limits."
                await session.tell("notice", text)

    base = await asyncio.to_thread(_absolute, settings.base_dir or Path(ctx.cwd, "coding-workspaces"))
    is_shared = await asyncio.to_thread(_is_below, base, Path(ctx.cwd))
    host = WorkspaceHost(
        table=ctx.table,
        environ=ctx.environ,
        forge_for=forges.forge_for,
        login=forges.login_for,
        audit=audit,
        emit=emit,
        confine=sessions.confinement.wrap,
        pause=pause,
        used=lambda owner: {one.workspace for one in sessions.list(owner) if not one.is_ended},
        node="" if is_shared else ctx.node,
    )
    workspaces = Workspaces(settings, base, host)
    try:
        await workspaces.start()
    except ServiceUnavailableError as error:
        return error
    return workspaces


def _absolute(path: Path) -> Path:
    return path.expanduser().absolute()


def _is_below(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


def _drop(event: BusEvent) -> None:
    """Ignore an event: nothing listens."""


class TaskService(Protocol):
    """The part of the plugin's tasks that is used here."""

    def create_task(self, work: Coroutine[Any, Any, object], *, name: str = "") -> asyncio.Task[None]:
        """Start a task."""
        ...


class _Link:
    """The use of workspaces by sessions."""

    def __init__(self, sessions: Sessions, workspaces: Workspaces, tasks: TaskService) -> None:
        self._sessions = sessions
        self._workspaces = workspaces
        self._tasks = tasks

    async def folders_of(self, session: SessionRecord) -> Folders:
        """Return the folders of git that a session may use besides its files."""
        if not session.workspace:
            return Folders()
        writable, readable = await self._workspaces.git_folders(session.workspace, session.owner)
        return Folders(tuple(writable), tuple(readable))

    async def serve_git(self, session: SessionRecord, stream: Stream) -> None:
        """Answer the git of a session that asks for credentials."""
        if session.workspace:
            await self._workspaces.serve_git(session.workspace, session.owner, stream.read, stream.write)

    def follow(self, session: Session) -> None:
        """Note the end of a session."""
        if session.record.workspace:
            self._tasks.create_task(self._release(session), name=f"workspace of {session.record.id}")

    async def _release(self, session: Session) -> None:
        await session.ended.wait()
        record = session.record
        others = self._sessions.list(record.owner)
        if any(one.workspace == record.workspace and not one.is_ended for one in others):
            return
        try:
            await self._workspaces.use(record.workspace, record.owner, in_use=False)
        except CodingAgentError as error:
            log.debug("workspace not released", workspace=record.workspace, reason=str(error))


async def _watch(watch: PullRequestWatch, forges: Forges) -> None:
    try:
        await watch.run()
    finally:
        await forges.close()


async def _keep_workspaces(workspaces: Workspaces, desk: Desk, owners: Iterable[str]) -> None:
    """Finish what a crash interrupted, then hold the limits every minute."""
    for _, outcome in await workspaces.recover():
        if isinstance(outcome, TrunklineError):
            log.warning("a finalize was not finished", reason=str(outcome))
    for owner in owners:
        for record in workspaces.list(owner):
            if record.pr_number and record.pr_state == "open":
                await desk.pulls.watch(record)
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        try:
            await workspaces.sweep()
        except (TrunklineError, OSError) as error:
            log.warning("workspaces could not be tidied", reason=str(error))
