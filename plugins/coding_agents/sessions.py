"""All sessions: started once for each request, found by their users, and attached again after a restart.

In: requests of chats, tools and HTTP clients. Out: sessions and their records. A record is stored before its
program starts, so a session is neither lost nor started twice. ``chat``, ``tools`` and ``api`` use it; it is
not imported before there is a session.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import shutil
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog
from msgspec import Struct, convert, structs, to_builtins

from gateway import PluginContext, TrunklineError, now_ms
from gateway.api import Figure
from gateway.events import BusEvent
from plugins.coding_agents import events, machine
from plugins.coding_agents.adapters import find_adapter, preflight
from plugins.coding_agents.adapters.contract import LAST, Adapter, AgentRequest
from plugins.coding_agents.confinement.profile import Confinement
from plugins.coding_agents.errors import (
    CodingAgentError,
    KeeperLostError,
    NotInstalledError,
    ServiceUnavailableError,
    SessionLimitError,
    SessionNotFoundError,
    WorkdirError,
)
from plugins.coding_agents.keeper.wire import boot_id
from plugins.coding_agents.keeper_client import (
    SIBLING_SOCKET,
    KeeperError,
    KeeperLaunch,
    KeeperSilentError,
    Stream,
    connect_through,
    start_keeper,
)
from plugins.coding_agents.machine import MachineState, configured_rules
from plugins.coding_agents.records import AskedQuestion, Choice, SessionRecord
from plugins.coding_agents.session import AWAY_MS, Session, SessionParts, log_event, restored
from plugins.coding_agents.settings import CodingAgentSettings
from plugins.coding_agents.side_channel import (
    Intake,
    hook_command,
    secret_of,
    variables,
    write_secret,
)
from plugins.coding_agents.workspaces.credentials import helper_environment
from plugins.programs.environment import environment_for, find_program
from plugins.programs.process import kill_marked

log = structlog.get_logger("trunkline.coding_agents")

REAP_SECONDS = 30.0
"""The time between two looks for idle sessions."""
KEPT_MS = 7 * 86_400_000
"""The time for which ended sessions stay in lists."""
_VERSION_SECONDS = 30
_MOST_ENDED = 200
_STORE_MS = 60_000
_SILENT_SECONDS = 1.0
"""A recovery waits this long for one keeper; the plugin's activation, which waits for all, has 5 s."""
_FOLDER_VARIABLES = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
"""Folders of the gateway's own user: a program has its own home."""
_FIGURES: Mapping[str, tuple[str, Sequence[str]]] = {
    "questions_total": ("Questions of programs", ("agent", "answer")),
    "stalls_total": ("Screens that did not change", ()),
    "busy_seconds_total": ("Seconds in which programs worked", ("agent",)),
}
_LOCALE = frozenset(("LANG", "LC_ALL", "LC_CTYPE"))
_MEMORY = Path("/proc/meminfo")


class SpawnRequest(Struct, frozen=True, kw_only=True):
    """A session to start. ``owner`` is the id of its user (``owner_of``), ``address`` that of its chat.

    ``session`` is the chat's session. The same ``key`` of a user starts one session. Without ``workdir`` and
    ``workspace`` the session gets its own empty folder. ``resumes`` is a session to continue.
    """

    agent: str
    owner: str
    task: str = ""
    workdir: str = ""
    workspace: str = ""
    model: str = ""
    address: Mapping[str, Any] = {}
    session: str = ""
    key: str = ""
    resumes: str = ""


class Sessions:
    """All sessions of the gateway. ``load`` reads them; ``recover`` attaches those that run."""

    def __init__(
        self, ctx: PluginContext, settings: CodingAgentSettings, clock: Callable[[], int] = now_ms
    ) -> None:
        if ctx.table is None or ctx.tasks is None:
            raise ServiceUnavailableError("coding agents need a running gateway")
        self.settings = settings
        self.clock = clock
        self.workdir_of: Callable[[str, str], Awaitable[str]] | None = None
        """Returns the folder of a workspace of a user."""
        self.observers: list[Callable[[Session], None]] = []
        """Called with each session that begins or is attached again."""
        self.note_answer: Callable[[SessionRecord, AskedQuestion, Choice], Awaitable[None]] | None = None
        """Records a typed answer of the user to a question."""
        self.counts: Counter[tuple[str, ...]] = Counter()
        """Metrics: their name and the values of their labels."""
        self.attach_seconds = 0.0
        data = Path(ctx.cwd).absolute()
        self._data = data / "coding-agents"
        self.confinement = Confinement(
            ctx.processes, settings, ctx.environ, ctx.tasks, data=data, own=self._data
        )
        self.confinement.serve_hook = self._serve_hook
        self._intakes: dict[str, Intake] = {}
        self._table = ctx.table("sessions")
        self._tasks = ctx.tasks
        self._environ = ctx.environ
        self._node, self._nodes, self._boot = ctx.node, ctx.nodes, boot_id()
        self._bus = ctx.events
        self._records: dict[str, SessionRecord] = {}
        self._running: dict[str, Session] = {}
        self._reaching: dict[str, Session] = {}
        """Sessions on machines of other nodes that were not attached yet."""
        self._versions: dict[tuple[str, int], str] = {}
        self._busy_since: dict[str, int] = {}
        self._spawning = asyncio.Lock()
        self._parts = SessionParts(self._save, self._tasks.create_task, clock, asyncio.Lock())

    async def load(self) -> None:
        """Read all records, and attach the sessions that run; those on other machines follow."""
        for _, plain in await self._table.items():
            record = convert(plain, SessionRecord)
            self._records[record.id] = record
        begun = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for record in tuple(self._records.values()):
                if record.is_ended:
                    continue
                if not self._is_elsewhere(record):
                    group.create_task(self._recover(record))
                elif self._nodes is not None:
                    self._tasks.create_task(self._reach(record), name=f"reaching {record.id}")
        self.attach_seconds = time.monotonic() - begun
        self._tasks.create_task(self._tidy(), name="tidying sessions")

    def list(self, owner: str) -> list[SessionRecord]:
        """Return the sessions of a user, the oldest first."""
        own = (self._current(record) for record in self._records.values() if record.owner == owner)
        return sorted(own, key=lambda record: (record.created_at, record.id))

    def running(self) -> list[Session]:
        """Return the sessions of all users whose programs run."""
        return list(self._running.values())

    def get(self, session_id: str, owner: str) -> SessionRecord:
        """Return a session of a user, by its id or short id. Raises SessionNotFoundError."""
        found = [one for one in self.list(owner) if session_id in (one.id, one.short_id)]
        if not found:
            raise SessionNotFoundError(f"there is no session {session_id[:80]!r} of yours")
        return found[-1]

    def is_away(self, record: SessionRecord) -> bool:
        """Return whether a session runs on the machine of another node, and no node there can be reached."""
        running = self._running.get(record.id)
        is_attached = running is not None and running.is_attached
        return self._is_elsewhere(record) and not record.is_ended and not is_attached

    def session(self, session_id: str, owner: str) -> Session:
        """Return a session of a user with its screen.

        Raises SessionNotFoundError, and ServiceUnavailableError for one that is away.
        """
        record = self.get(session_id, owner)
        if self.is_away(record):
            raise ServiceUnavailableError(
                f"session {record.short_id} runs on the machine of node {record.node}, and goes on there; it "
                "can be used when a node of that machine is back. To give it up, stop it at once (kill)"
            )
        return self._running.get(record.id) or self._make(record)

    def find(self, session_id: str) -> Session | None:
        """Return a running session of any user by its id; its caller has checked who asks."""
        return self._running.get(session_id)

    def record(self, session_id: str) -> SessionRecord | None:
        """Return the record of a session of any user; its caller has checked who asks."""
        return self._records.get(session_id)

    def unannounced(self) -> list[Session]:
        """Return ended sessions whose chats lack notices, or still show their questions."""
        ended = (one for one in self._records.values() if one.is_ended)
        return [self._make(one) for one in ended if one.notices or one.outdated]

    async def spawn(self, request: SpawnRequest) -> SessionRecord:
        """Start a session. It is durable before its program starts; a ``key`` starts one.

        Raises UnknownAgentError, NotInstalledError, WorkdirError, FolderTrustError, SessionLimitError,
        SandboxUnavailableError and KeeperError.
        """
        async with self._spawning:
            if (known := self._known(request)) is not None:
                return known
            adapter = find_adapter(request.agent)
            self._program(adapter)
            self._check_limits(request.owner)
            record = await self._new_record(request, adapter)
            session = self._make(record)
            await self._save(record)
            self._running[record.id] = session
        # In its own task: a caller that is cancelled must not leave a session half started.
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        started.add_done_callback(lambda done: done.exception())
        self._tasks.create_task(self._start_for(session, started), name=f"starting {record.id}")
        await asyncio.shield(started)
        return session.record

    async def send(
        self, session_id: str, owner: str, *, text: str = "", keys: Sequence[str] = (), key: str = ""
    ) -> SessionRecord:
        """Type a text or keys in a session; once for each ``key``. Returns once it is durable."""
        session = self.session(session_id, owner)
        if keys:
            await session.send_keys(keys, key)
        else:
            asked = session.record.question
            choice = await session.send_text(text, key)
            if choice is not None and asked is not None and self.note_answer is not None:
                await self.note_answer(session.record, asked, choice)
        return session.record

    async def stop(self, session_id: str, owner: str, *, force: bool = False) -> SessionRecord:
        """End the program of a session.

        With ``force`` one that is away is given up; its node ends it when it works again.
        """
        record = self.get(session_id, owner)
        if force and self.is_away(record):
            reason = f"it was given up while it ran on node {record.node}"
            if (running := self._running.get(record.id)) is not None:
                await running.lose(reason)
                return running.record
            session = self._reaching.get(record.id) or self._make(record)
            await self._lose(session, reason)
            return session.record
        session = self.session(session_id, owner)
        await session.stop(force=force)
        return session.record

    async def resume(self, session_id: str, owner: str, key: str = "") -> SessionRecord:
        """Continue the program's session of an ended session in a new one, unless one does already."""
        old = self.get(session_id, owner)
        if not old.is_ended:
            return old
        if found := [one for one in self.list(owner) if one.resumes == old.id and not one.is_ended]:
            return found[-1]
        self._check_folder(old)
        return await self.spawn(
            SpawnRequest(
                agent=old.agent,
                owner=owner,
                workdir=old.workdir,
                workspace=old.workspace,
                model=old.model,
                address=old.address,
                session=old.session,
                key=key or f"resume {old.id}",
                resumes=old.id,
            )
        )

    async def reap(self) -> None:
        """Stop sessions that are idle, or wait for a user for too long; store when others were active."""
        now = self.clock()
        for session in self.running():
            record = session.record
            if record.is_ended or record.status == "stopping" or self.is_away(record):
                continue
            if record.blocked_at:
                await self._reap_blocked(session, now)
            elif now - record.last_activity >= self.settings.idle_timeout_ms:
                await session.stop(reason="idle")
            elif record.last_activity - self._records[record.id].last_activity >= _STORE_MS:
                await session.change()

    def figures(self) -> list[Figure]:
        """Return the metrics."""
        states = Counter((one.record.agent, one.record.status) for one in self.running())
        found = [
            Figure("sessions", "Sessions that run", count, labels={"agent": agent, "status": status})
            for (agent, status), count in states.items()
        ]
        found.append(
            Figure("attach_seconds", "Seconds until all sessions were attached", self.attach_seconds)
        )
        for (name, *labels), count in self.counts.items():
            described, keys = _FIGURES[name]
            value = count / 1000 if name == "busy_seconds_total" else count
            found.append(Figure(name, described, value, "counter", dict(zip(keys, labels, strict=True))))
        return found

    async def close(self) -> None:
        """Detach from all programs, which keep running."""
        for session in self.running():
            await session.detach()

    async def _reap_blocked(self, session: Session, now: int) -> None:
        waited = now - session.record.blocked_at
        if waited >= self.settings.blocked_timeout_ms:
            await session.stop(reason="blocked")
        elif waited >= self.settings.idle_timeout_ms and not session.record.warned:
            await session.change(warned=True)
            minutes = round((self.settings.blocked_timeout_ms - waited) / 60_000)
            await session.tell("blocked", f"It still waits for you, and is stopped in {minutes} minutes.")

    def _is_elsewhere(self, record: SessionRecord) -> bool:
        """Return whether a session was started on another machine, or before the last boot of this one."""
        # Without a cluster there is no other node, also not for sessions of an earlier one.
        own = "" if self._nodes is not None else self._node
        return bool(self._node) and record.node not in ("", own) and record.boot_id != self._boot

    def _is_of_other(self, record: SessionRecord) -> bool:
        """Return whether another node on another machine started a session, and cleans up after it."""
        return self._is_elsewhere(record) and record.node != self._node

    def _check_folder(self, record: SessionRecord) -> None:
        """Raise ServiceUnavailableError for a folder on another machine: here the path may be another one."""
        is_shared = Path(record.workdir).resolve().is_relative_to(self._data.parent.resolve())
        if self._is_of_other(record) and record.host != socket.gethostname() and not is_shared:
            raise ServiceUnavailableError(
                f"{record.workdir} is on the machine of node {record.node}; resume the session there while "
                "that node is active"
            )

    def _current(self, record: SessionRecord) -> SessionRecord:
        if self.is_away(record):
            return structs.replace(record, error=f"unavailable: it runs on node {record.node}")
        running = self._running.get(record.id)
        return record if running is None else running.record

    def _known(self, request: SpawnRequest) -> SessionRecord | None:
        if not request.key:
            return None
        own = self.list(request.owner)
        return next((record for record in own if record.spawn_key == request.key), None)

    def _check_limits(self, owner: str) -> None:
        running = [session.record for session in self.running() if not session.record.is_ended]
        if len(running) >= self.settings.max_sessions:
            own = [f"{one.short_id} ({one.agent})" for one in running if one.owner == owner]
            others = len(running) - len(own)
            named = [*own, *([f"{others} of other users"] if others else [])]
            raise SessionLimitError(
                f"{len(running)} sessions run, and max_sessions is {self.settings.max_sessions}: "
                f"{', '.join(named)}; stop one first"
            )
        free = free_memory_mb()
        if free is not None and free < self.settings.min_free_memory_mb:
            raise SessionLimitError(
                f"{free} MB of memory are free, and min_free_memory_mb is "
                f"{self.settings.min_free_memory_mb}; stop a session or other programs first"
            )

    def _program(self, adapter: Adapter) -> str:
        binary = self.settings.of(adapter.name).binary or adapter.binary
        program = find_program(binary, self._environ)
        if program is None or (adapter.program and find_program(adapter.program, self._environ) is None):
            raise NotInstalledError(
                f"{adapter.title} is not installed: there is no program {adapter.program or binary!r}; "
                f"install it with: {adapter.install}"
            )
        return program

    async def _version(self, adapter: Adapter) -> str:
        """Return the version of a program; it is asked once for each file."""
        program = self._program(adapter)
        if adapter.program:  # the other one is a shell that runs it
            program = find_program(adapter.program, self._environ) or program
        changed = (await asyncio.to_thread(Path(program).stat)).st_mtime_ns
        if not self._versions.get((program, changed)):
            # On a busy machine some need long; without a version no rule would answer their questions.
            found = await preflight.program_version(program, self._environ, seconds=_VERSION_SECONDS)
            self._versions[program, changed] = found
        return self._versions[program, changed]

    async def _new_record(self, request: SpawnRequest, adapter: Adapter) -> SessionRecord:
        now = self.clock()
        session_id = f"pty-{now}-{secrets.token_hex(4)}"
        owner = hashlib.sha256(request.owner.encode()).hexdigest()[:16]
        old = self._records.get(request.resumes)
        workdir = await self._workdir(request, session_id)
        if not self.settings.of(adapter.name).trust_folder:
            await asyncio.to_thread(preflight.check_folder, adapter, workdir)
        return SessionRecord(
            id=session_id,
            agent=adapter.name,
            status="pending",
            owner=request.owner,
            workdir=workdir,
            created_at=now,
            last_activity=now,
            key=secrets.token_hex(32),
            address=dict(request.address),
            session=request.session,
            task=await asyncio.to_thread(preflight.with_instructions, adapter, request.task, workdir),
            model=request.model or self.settings.of(adapter.name).model,
            workspace=request.workspace,
            spawn_key=request.key,
            home=str(self._data / "homes" / owner / adapter.name),
            program_session=_program_session(adapter, old),
            resumes=request.resumes,
            version=await self._version(adapter),
            node=self._node,
            host=socket.gethostname(),
            boot_id=self._boot,
        )

    async def _workdir(self, request: SpawnRequest, session_id: str) -> str:
        """Return the real path of the folder to work in. Raises WorkdirError."""
        if request.workspace and self.workdir_of is not None:
            return await self.workdir_of(request.workspace, request.owner)
        if not request.workdir:
            scratch = self._data / "scratch" / session_id
            await asyncio.to_thread(scratch.mkdir, 0o700, parents=True, exist_ok=True)
            return str(scratch)
        roots = (*self.settings.allowed_roots, self._data / "scratch")
        return await asyncio.to_thread(_checked_workdir, request.workdir, roots)

    def _make(self, record: SessionRecord) -> Session:
        adapter = find_adapter(record.agent)
        own = self.settings.of(adapter.name)
        fresh = MachineState(
            task=record.task,
            rules=configured_rules(
                adapter.auto_responses,
                [rule.model_dump(exclude_unset=True) for rule in own.rules],
                skip_adapter=not own.shipped_rules,
            ),
            stall_ms=machine.STALL_MS if self.settings.stall_model else machine.STALL_WITHOUT_MODEL_MS,
            known=preflight.is_known(adapter, record.version),
        )
        folder = self._data / "sessions" / record.id
        session = Session(record, adapter, folder, self._parts, restored(record, fresh))
        if self._nodes is not None and self._is_elsewhere(record):
            session.connect = connect_through(self._nodes, record)
        return session

    async def _start_for(self, session: Session, started: asyncio.Future[None]) -> None:
        try:
            await self._start(session)
        except CodingAgentError as error:
            await self._fail(session, str(error))
            started.set_exception(error)
        except OSError as error:
            failure = ServiceUnavailableError(f"the session could not be started: {error}")
            await self._fail(session, str(failure))
            started.set_exception(failure)
        else:
            started.set_result(None)

    async def _start(self, session: Session) -> None:
        """Start the keeper of a session with its program, and attach."""
        record, adapter = session.record, session.adapter
        program, home = self._program(adapter), Path(record.home)
        own = self.settings.of(adapter.name)
        confined = await self.confinement.confine(record, adapter, program, home)
        session.on_stream = confined.on_stream
        known = {name: value for name, value in self._environ.items() if name not in confined.withheld}
        given = {name: value.get_secret_value() for name, value in own.env.items()}
        environ = {name: value for name, value in {**known, **given}.items() if name in adapter.variables}
        request = AgentRequest(
            workdir=record.workdir,
            home=record.home,
            session_id=record.program_session,
            version=record.version,
            model=record.model,
            args=own.args,
            environ=environ | {name: confined.env[name] for name in environ if name in confined.env},
            key=confined.key or given.get(adapter.key, ""),
            base_url=confined.base_url or given.get(adapter.url, ""),
            preset=own.preset,
            resume=(record.program_session or LAST) if record.resumes else "",
            hook=hook_command(),
        )
        launch = adapter.launch(request)
        await asyncio.to_thread(home.mkdir, 0o700, parents=True, exist_ok=True)
        await asyncio.to_thread(preflight.prepare_home, home, launch)
        await asyncio.to_thread(write_secret, session.folder, record.key)
        env = _variables(session, known, {**given, **launch.env, **confined.env})
        if confined.notice and not record.told:
            # Durable before the program runs: a session that is only attached after a crash has it, too.
            await session.tell("notice", confined.notice)
        await start_keeper(
            KeeperLaunch(
                folder=session.folder,
                argv=(*confined.prefix, program, *launch.argv),
                env=env,
                cwd=record.workdir,
                key=bytes.fromhex(record.key),
                mark=record.id,
                orphan_ms=self.settings.orphan_ms,
            )
        )
        await session.attach()
        self._begin(session)
        self._emit(session, events.SessionStarted)

    async def _serve_hook(self, record: SessionRecord, words: Sequence[str], stream: Stream) -> None:
        """Answer a report of a program's hook."""
        session = self.find(record.id)
        if session is None:
            return
        if record.id not in self._intakes:
            self._intakes[record.id] = Intake(session.adapter, secret_of(record.key), session.report)
        await self._intakes[record.id].serve(words, stream)

    def _begin(self, session: Session) -> None:
        """Run an attached session, and notify its observers."""
        self._running[session.record.id] = session
        session.subscribe(lambda event: self._heard(session, event))
        if self.settings.debug:
            session.subscribe(lambda event: log_event(session, event))
        for observer in self.observers:
            observer(session)
        self._tasks.create_task(self._run(session), name=f"session {session.record.id}")
        self._emit(session, events.KeeperAttached)

    async def _run(self, session: Session) -> None:
        if session.record.status == "stopping":
            self._tasks.create_task(session.end_program(), name=f"stopping {session.record.id}")
        await session.run()
        self._running.pop(session.record.id, None)
        self._intakes.pop(session.record.id, None)
        await asyncio.to_thread(self._remove, session)

    def _remove(self, session: Session) -> None:
        """Remove what an ended session leaves: processes, sockets and output."""
        if session.record.status == "lost" and self._is_of_other(session.record):
            return  # Processes may be left there.
        kill_marked(session.record.id)
        shutil.rmtree(session.folder, ignore_errors=True)

    async def _recover(self, record: SessionRecord) -> None:
        """Attach a session of an earlier process, start one that was not started, or note its loss."""
        session = self._make(record)
        self._running[record.id] = session
        try:
            session.on_stream = self.confinement.streams(record, session.adapter)
            await session.attach(_SILENT_SECONDS)
        except KeeperSilentError as error:
            # Its program may be at work: it is not ended for a machine that is too busy to answer.
            log.warning("a keeper does not answer yet", session=record.id, reason=str(error))
            self._tasks.create_task(self._recover_later(record), name=f"attaching {record.id}")
        except (KeeperError, KeeperLostError, CodingAgentError) as error:
            await self._recover_lost(session, str(error))
        else:
            self._begin(session)

    async def _recover_later(self, record: SessionRecord) -> None:
        await asyncio.sleep(_SILENT_SECONDS)
        await self._recover(self._records[record.id])

    async def _reach(self, record: SessionRecord) -> None:
        """Attach a session on the machine of another node, as soon as a node there can be reached."""
        session = self._reaching[record.id] = self._make(record)
        log.info("a session runs on another machine", session=record.id, node=record.node)
        while not session.ended.is_set():
            try:
                session.on_stream = self.confinement.streams(record, session.adapter)
                await session.attach()
            except KeeperSilentError as error:
                log.debug("a session cannot be reached yet", session=record.id, reason=str(error))
                await asyncio.sleep(AWAY_MS / 1000)
            except (KeeperError, KeeperLostError, CodingAgentError) as error:
                await self._recover_lost(session, str(error))
            else:
                if session.ended.is_set():
                    await session.detach()  # it was given up meanwhile
                else:
                    self._begin(session)
                break
        self._reaching.pop(record.id, None)

    async def _recover_lost(self, session: Session, reason: str) -> None:
        record = session.record
        await asyncio.to_thread(kill_marked, record.id)
        if record.status == "pending" and record.node in ("", self._node):
            session.connect = None
            try:
                await self._start(session)
            except CodingAgentError as error:
                await self._fail(session, str(error))
            return
        if record.boot_id and self._boot != record.boot_id and session.connect is None:
            reason = "the machine was started again"
        await self._lose(session, reason)
        self._running.pop(record.id, None)
        await asyncio.to_thread(self._remove, session)

    async def _lose(self, session: Session, reason: str) -> None:
        await session.lose(reason)
        for observer in self.observers:
            observer(session)
        self._emit(session, events.KeeperLost, reason=reason)

    async def _fail(self, session: Session, reason: str) -> None:
        """Note that a session could not be started."""
        session.ended.set()
        await session.change(status="error", error=reason, ended_at=self.clock(), notices=())
        self._running.pop(session.record.id, None)
        await asyncio.to_thread(self._remove, session)

    async def _save(self, record: SessionRecord) -> None:
        self._records[record.id] = record
        await self._table.put(record.id, to_builtins(record))

    async def _tidy(self) -> None:
        """Remove what no session owns, then look for idle sessions again and again."""
        await asyncio.to_thread(self._remove_orphans, {session.record.id for session in self.running()})
        while True:
            await self._forget_old()
            await asyncio.sleep(REAP_SECONDS)
            try:
                await self.reap()
            except TrunklineError as error:
                log.warning("idle sessions could not be stopped", reason=str(error))

    def _remove_orphans(self, running: set[str]) -> None:
        for folder in (self._data / "sessions").glob("pty-*"):
            if folder.name not in running and not self._is_needed(folder.name):
                kill_marked(folder.name)
                shutil.rmtree(folder, ignore_errors=True)

    def _is_needed(self, session_id: str) -> bool:
        """Return whether a session runs, or may on another machine, which ends it and removes its folder."""
        record = self._records.get(session_id)
        return record is not None and (not record.is_ended or self._is_of_other(record))

    async def _forget_old(self) -> None:
        ended = sorted(
            (record for record in self._records.values() if record.is_ended),
            key=lambda record: record.ended_at,
        )
        horizon = self.clock() - KEPT_MS
        for record in ended[: max(0, len(ended) - _MOST_ENDED)] + [
            record for record in ended[-_MOST_ENDED:] if record.ended_at < horizon
        ]:
            await self._table.delete(record.id)
            self._records.pop(record.id, None)

    def _heard(self, session: Session, event: machine.Event | None) -> None:
        """Count an event of a session, and publish it on the gateway's bus."""
        record = session.record
        match event:
            case machine.StatusChanged():
                self._count_busy(session, event)
                self._emit(
                    session,
                    events.SessionStatusChanged,
                    status=event.new,
                    public_status=record.public_status,
                )
                if event.new in ("error", "lost"):
                    self._emit(session, events.SessionFailed, error=record.error)
            case machine.Ready():
                self._emit(session, events.SessionReady)
            case machine.Exited() if record.status == "stopped":
                self._emit(
                    session,
                    events.SessionStopped,
                    reason=record.stop_reason or "exit",
                    exit_status=event.exit_status,
                )
            case machine.Question(question=asked):
                self._emit(
                    session,
                    events.BlockingPrompt,
                    type=asked.type,
                    prompt=asked.prompt,
                    tool=asked.tool,
                    detail=asked.detail,
                    auto_responded=event.answering,
                )
            case machine.LoginRequired(login=login):
                self._emit(session, events.LoginRequired, instructions=login.instructions, url=login.url)
                self._emit(
                    session,
                    events.AuthRequired,
                    method=login.method,
                    instructions=login.instructions,
                    url=login.url,
                    device_code=login.device_code,
                    prompt_snippet=login.snippet,
                )
            case machine.Stalled():
                self.counts["stalls_total",] += 1
                self._emit(session, events.StallDetected, recent_output=event.text, ms=event.silent_ms)
            case machine.TaskDone():
                self._emit(session, events.TaskComplete, output=event.output)
            case machine.ToolRunning():
                self._emit(session, events.ToolRunning, activity=event.activity)
            case _:
                pass

    def _count_busy(self, session: Session, event: machine.StatusChanged) -> None:
        now, record = self.clock(), session.record
        if event.new == "busy":
            self._busy_since[record.id] = now
        elif (since := self._busy_since.pop(record.id, None)) is not None:
            self.counts["busy_seconds_total", record.agent] += max(0, now - since)

    def _emit(self, session: Session, kind: type[BusEvent], **fields: Any) -> None:
        record = session.record
        if self._bus is None or not self._bus.wants(kind, record.session):
            return
        known = {"session": record.session, "id": record.id, "agent": record.agent}
        own = {name: value for name, value in known.items() if name in kind.__struct_fields__}
        self._bus.emit(kind(**own, **fields))


def owner_of(channel: str, user: str, *, is_owner: bool = False) -> str:
    """Return the id of a user: with its channel, or ``owner`` for the holder of the gateway's token."""
    return "owner" if is_owner or not channel else f"{channel}:{user}"


def _variables(session: Session, known: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a program: usual ones of the gateway, those of its session, and given ones."""
    record = session.record
    shared = {name: value for name, value in known.items() if name not in _FOLDER_VARIABLES}
    own = {
        "HOME": record.home,
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
        "TRUNKLINE_SESSION": record.id,
        **variables(session.folder),
        # Services often have no locale; a shell then drops the letters that are not ASCII.
        **({} if _LOCALE & shared.keys() else {"LANG": "C.UTF-8"}),
        **(helper_environment(str(session.folder / SIBLING_SOCKET)) if record.workspace else {}),
    }
    env = environment_for(shared, session.adapter.variables, {**own, **given})
    env.pop("NO_COLOR", None)
    return env


def free_memory_mb() -> int | None:
    """Return the memory that new programs can use, in MB; None if the system does not say."""
    try:
        lines = _MEMORY.read_text().splitlines()
    except OSError:
        return None
    found = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    return None if found is None else int(found) // 1024


def _checked_workdir(given: str, roots: Sequence[Path]) -> str:
    path = Path(given).expanduser()
    real = path.resolve()
    allowed = [root.expanduser().resolve() for root in roots]
    if not path.is_absolute() or not any(real == root or root in real.parents for root in allowed):
        raise WorkdirError(
            f"{given!r} is not below a folder of allowed_roots; name another one, or let the operator add it"
        )
    if not real.is_dir():
        raise WorkdirError(f"there is no folder {given!r}")
    return str(real)


def _program_session(adapter: Adapter, old: SessionRecord | None) -> str:
    """Return the id of the program's own session, "" if the program chooses it."""
    if old is not None:
        return old.program_session
    return _uuid() if adapter.takes_session_id else ""


def _uuid() -> str:
    digits = secrets.token_hex(16)
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"
