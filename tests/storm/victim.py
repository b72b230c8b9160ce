"""The gateway under test, built from its public parts, and the process that it is forked from.

Each gateway is forked from a process that has imported everything already, so that a
restart takes a tenth of a second and a storm has room for many. On its standard input that process takes
``start NAME SECONDS``: the name of the node, and how far its wall clock is ahead. On its standard output it
says ``forked PID``, ``joined PID`` (to a cluster), ``ready PID``, ``drained PID`` (which may be ready again)
and ``gone:STATUS PID``.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import importlib
import json
import os
import random
import selectors
import signal
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from io import FileIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import plugged
from announcer import Announcer
from choices import OWNER as CHOICES
from failpoints import (
    ACCEPTING,
    ANSWERED,
    ASKED,
    BETWEEN,
    DECIDED,
    EDITED,
    EDITING,
    INTENDED,
    KEPT,
    PLACED,
    PRESSED,
    QUESTIONED,
    RENEWED,
    REPLACED,
    RETURNED,
    SUMMARIZED,
    TAKEN,
    TOLD,
    Failpoints,
)
from files import file_for
from inquiries import LEFT, OWNER, RIGHT, Ledger
from model import choice_in, is_notice
from notices import Notebook
from sqlalchemy import Connection

import gateway.access.approvals as approvals_module
import gateway.access.questions.questions as questions_module
import gateway.cluster.node as node_module
import gateway.conversations.announcements as announcements_module
import gateway.extensions.confined.plugin as confined_module
import gateway.extensions.registry as registry_module
import gateway.pipeline.mailbox as dispatcher_module
import gateway.store.writer as writer_module
from gateway import Answer, Plugin, PluginContext, Tool, ToolContext, ToolOutput, ToolResultPart, tool_from
from gateway.access.questions import ADD, SETTLE, Claim, Held, Questions
from gateway.app import Gateway
from gateway.channel import (
    Address,
    InboundMessage,
    OutboundMessage,
    Placed,
    Receipt,
    Reconciles,
    Signal,
    StopRequest,
)
from gateway.cluster.node import Node
from gateway.cluster.token import TokenQueue
from gateway.contract.channel import Deletes
from gateway.contract.errors import ProviderError, SettingsError, StoreError, TrunklineError
from gateway.conversations.branches import Branches
from gateway.logs import set_up_logs
from gateway.pipeline.intake import Intake
from gateway.pipeline.mailbox import Dispatcher
from gateway.pipeline.model_call import ModelCaller
from gateway.pipeline.nested import NestedRunner
from gateway.plugin_services.jobs import Jobs
from gateway.server import Server
from gateway.session import Session
from gateway.session.log import DROP_PARTS, PUT_MESSAGE
from gateway.settings import LogSettings, Settings
from gateway.store import Fence, Inserted, LockedDatabase, Op, Store
from gateway.store import schema as t
from gateway.store.drivers import Driver, driver_of
from gateway.store.inbox import ACCEPT, CLAIM, Backlog, Entry
from gateway.store.inbox import SETTLE as SETTLE_ENTRY
from gateway.store.outbox import INTEND, PUT_ANNOUNCEMENT, Announcement, find_announcement
from gateway.store.steps import DROP_STEPS
from gateway.store.writes import Row, Statement, Write
from gateway.testing.polling_channel import PollingChannel

AHEAD = (
    "gateway.extensions.broker",
    "gateway.plugin_services.confined",
    "plugins.providers",
    "plugins.providers.openai",
    "plugins.tools",
    "psycopg",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite.pysqlite",
    "uvloop",
)
"""Modules that a gateway imports lazily."""

REFUSED, UNAVAILABLE = 3, 75
SUMMARY = '"custom_type":"summary"'
PATIENCE_MS = 5_000
"""Timeout of an approval."""
_STORE_SECONDS = 60.0
"""Seconds that a node waits for the database."""
RENEWS_SECONDS = 3.0
"""Seconds between renewals of the active node's token in a storm."""
LONGEST_WAIT = 8.0
"""Longest pause in seconds before a message is tried again during which the gateway died."""


class TrippedStore(Store):
    """A store with failpoints around its commits."""

    failpoints: Failpoints
    questions: Path
    """The file with the word of each stored question of the model."""

    def __init__(
        self, base: LockedDatabase, on_fatal: Callable[[BaseException], None], fence: Fence | None = None
    ) -> None:
        writer_module.driver_of = self._open_driver
        super().__init__(base, on_fatal, fence)
        self.submit_whole = self.submit
        self.submit, self.write = self.submitted, self.written
        self._notices: set[str] = set()
        """The inbox entries whose notices have to be placed."""

    def _open_driver(self, connection: Connection) -> Driver:
        return TrippedDriver(driver_of(connection), self.failpoints)

    def submitted(self, ops: Sequence[Op]) -> asyncio.Future[Inserted]:
        """Submit, and reach a failpoint when the unit is durable, before its caller continues."""
        if any(write is SETTLE_ENTRY and row[0] in self._notices for write, row in ops):
            self.failpoints.reach(PLACED)
        if any(write is PUT_MESSAGE and SUMMARY in str(row[5]) for write, row in ops):
            self.failpoints.reach(SUMMARIZED)
        self._notices.update(str(row[1]) for write, row in ops if write is INTEND and is_notice(str(row[9])))
        done = self.submit_whole(ops)
        asked = {row[0]: choice_in(str(row[5])) for write, row in ops if write is ADD and row[1] == CHOICES}
        if asked:
            done.add_done_callback(partial(self._note_asked, asked))
        point = _after_commit(ops)
        if point is not None:
            done.add_done_callback(lambda _: self.failpoints.reach(point))
        return done

    def _note_asked(self, asked: Mapping[Any, str], done: asyncio.Future[Inserted]) -> None:
        with self.questions.open("a") as questions:
            questions.writelines(f"{word}\n" for id_, word in asked.items() if id_ in done.result())

    async def written(self, *ops: Op) -> Inserted:
        """Do the same, and wait."""
        return await self.submit(ops)


class TrippedDriver:
    """The driver of the writer, with failpoints between the statements of its transactions."""

    def __init__(self, driver: Driver, failpoints: Failpoints) -> None:
        self.dialect, self.row_errors, self.rollback = driver.dialect, driver.row_errors, driver.rollback
        self._run, self._failpoints = driver.run, failpoints

    def run(self, statements: Sequence[Statement]) -> list[str]:
        """Run the statements, and reach the armed failpoint if it is in this transaction."""
        point = self._failpoints.armed() or ""
        wanted = _IN_COMMITS.get(point, "no such statement")
        found = next((n for n, (text, _) in enumerate(statements) if wanted in text), None)
        if found is None:
            return self._run(statements)
        # Before the commit, or between statements: the settlement comes before the changes of the outbox.
        cut = found if point == BETWEEN else -1
        returned = self._run(statements[:cut])
        self._failpoints.reach(point)
        return [*returned, *self._run(statements[cut:])]


_IN_COMMITS = {
    ACCEPTING: "INSERT INTO inbox",
    "before the final commit": "INSERT INTO messages",
    TOLD: "INSERT INTO announcement",
    EDITING: "INSERT INTO branches",
    "placed and answered, before the commit": "UPDATE outbox",
    BETWEEN: "UPDATE outbox",
}
"""A statement of the transaction that a failpoint is in."""


class HastyStore(TrippedStore):
    """The planted bug: it reports that a message is durable a moment too early."""

    def submitted(self, ops: Sequence[Op]) -> asyncio.Future[Inserted]:
        ids = frozenset(str(row[0]) for write, row in ops if write is ACCEPT)
        if not ids:
            return super().submitted(ops)
        loop = asyncio.get_running_loop()
        early: asyncio.Future[Inserted] = loop.create_future()
        early.set_result(ids)
        loop.call_later(0.05, self.submit_whole, ops)
        return early


class Blind:
    """The planted bug, before a channel's own class: it never looks for a placed message."""

    async def find(self, outbound: OutboundMessage) -> Placed | None:
        return None


class Clinging:
    """The planted bug, before a channel's own class: it deletes none of its messages."""

    async def delete(self, placed: Placed, address: Address) -> None:
        return


class Unwritten(Intake):
    """The planted bug: it applies stops and deletions, and does not store them."""

    async def accept(
        self,
        channel: str,
        messages: Sequence[InboundMessage],
        *rest: Any,
        signals: Sequence[Signal] = (),
        **options: Any,
    ) -> Sequence[Receipt]:
        for given in signals:
            self._apply_signal(channel, given)
        return await super().accept(channel, messages, *rest, **options)

    async def stop(self, session_id: str) -> bool:
        return bool(self._apply_signal("", StopRequest(session_id)))


class Forgetful(Intake):
    """The planted bug: it treats a new revision as a new message."""

    async def accept(
        self, channel: str, messages: Sequence[InboundMessage], *rest: Any, **options: Any
    ) -> Sequence[Receipt]:
        messages = [msgspec.structs.replace(message, revises=None) for message in messages]
        return await super().accept(channel, messages, *rest, **options)


class Loose(Intake):
    """The planted bug: it drops the files of one half of the messages, and doubles those of the other."""

    async def accept(
        self, channel: str, messages: Sequence[InboundMessage], *rest: Any, **options: Any
    ) -> Sequence[Receipt]:
        messages = [
            msgspec.structs.replace(message, parts=message.parts * (2 * (len(message.text) % 2)))
            for message in messages
        ]
        return await super().accept(channel, messages, *rest, **options)


class BlindToFiles:
    """The planted bug, before a channel's own class: it never checks whether a file is already placed."""

    async def find(self, outbound: OutboundMessage) -> Placed | None:
        parts = outbound.message.parts
        if outbound.part and any(isinstance(part, ToolResultPart) and part.attachments for part in parts):
            return None
        return await super().find(outbound)  # type: ignore[misc]


class Mixed(Intake):
    """The planted bug: it confuses the two accounts of Discord."""

    async def accept(
        self, channel: str, messages: Sequence[InboundMessage], *rest: Any, **options: Any
    ) -> Sequence[Receipt]:
        messages = [
            msgspec.structs.replace(message, session=message.session.replace(*_MIXED)) for message in messages
        ]
        return await super().accept(channel, messages, *rest, **options)


_MIXED = ("discord.two:", "discord.one:")


class HeldClaim(Claim):
    """A decision that is followed up only once no failpoint after its acknowledgement is armed.

    Then the kill is certain, either at the acknowledgement or after the timeout of the failpoint, so nothing
    that follows is done before it.
    """

    failpoints: Failpoints
    decided: Path

    def follow(self, committed: asyncio.Future[Inserted]) -> None:
        committed.add_done_callback(self._note)

    def _note(self, committed: asyncio.Future[Inserted]) -> None:
        if not committed.cancelled() and committed.exception() is None:
            with self.decided.open("a") as decided:
                decided.write(f"{self.held.question.id}\n")
        self._hold(committed)

    def _hold(self, committed: asyncio.Future[Inserted]) -> None:
        if self.failpoints.armed() in (DECIDED, PRESSED):
            asyncio.get_running_loop().call_later(0.02, self._hold, committed)
        else:
            self._committed(committed)


class UnkeptClaim(HeldClaim):
    """The planted bug: it keeps a decision in memory only."""

    def __init__(self, questions: Questions, held: Held, answer: Answer, ops: list[Op]) -> None:
        super().__init__(questions, held, answer, [op for op in ops if op[0] is not SETTLE])


class TornBranches(Branches):
    """The planted bug: messages that an edit or a switch replaces are hidden by a separate, later commit."""

    def _hide(self, session: Session, tail: Any) -> list[Op]:
        asyncio.get_running_loop().call_later(0.5, self._store.submit, super()._hide(session, tail))
        return []


class Amnesiac(Dispatcher):
    """The planted bug: it does not queue messages of an earlier process."""

    def resume(self, session_id: str, entries: Sequence[Entry], backlog: Backlog) -> None:
        pass


_SPOILT: Mapping[str | None, tuple[type, type]] = {
    "blind-resend": (Reconciles, Blind),
    "left-standing": (Deletes, Clinging),
    "loose-files": (Reconciles, BlindToFiles),
}
"""Planted bugs of channels: the channels, and the class that is put before their own."""


_INTAKES: Mapping[str | None, type[Intake]] = {
    "both-revisions": Forgetful,
    "loose-files": Loose,
    "mixed-accounts": Mixed,
    "unwritten-signals": Unwritten,
}
"""The planted bugs that are in the intake."""


_BEGUN: set[str] = set()
"""The announcements of this process, for the bug that forgets those of earlier ones."""


def find_begun(connection: Connection, announcement_id: str) -> Announcement | None:
    """The planted bug: the keys of announcements are forgotten with the process."""
    known = announcement_id in _BEGUN
    _BEGUN.add(announcement_id)
    return find_announcement(connection, announcement_id) if known else None


class Victim(Gateway):
    """A gateway with failpoints."""

    failpoints: Failpoints
    planted: str | None = None

    async def open_store(self) -> Store:
        kind = HastyStore if self.planted == "ack-before-commit" else TrippedStore
        kind.failpoints, kind.questions = self.failpoints, Path(self.settings.data_dir) / "questions"
        settings = self.settings
        if self.fence is None:
            return kind.open(settings.store_url, settings.durability, self._on_fatal)
        found = (settings.store_url, settings.durability, self._on_fatal)
        return await kind.open_when_available(*found, _STORE_SECONDS, self.stop, self.fence)

    async def replace(self, name: str, folder: str) -> None:
        """Replace a plugin by a new instance. Raises PluginError."""
        await self.registry.replace(name, self._resolver.load(folder))

    async def recover(self) -> None:
        self.parts.dispatcher.longest_wait = LONGEST_WAIT
        if self.planted in _SPOILT:
            ability, bug = _SPOILT[self.planted]
            for channel in self.channels.list():
                if isinstance(channel, ability):
                    kind = type(channel)
                    channel.__class__ = type(kind.__name__, (bug, kind), {})
        if self.planted in _INTAKES:
            self.parts.intake.__class__ = _INTAKES[self.planted]
        claim = UnkeptClaim if self.planted == "unkept-decisions" else HeldClaim
        claim.failpoints, claim.decided = self.failpoints, Path(self.settings.data_dir) / "decided"
        questions_module.Claim = claim
        self._plant()
        self.failpoints.reach("before recovery")
        if self.planted in ("no-recovery", "no-reload"):
            self.parts.dispatcher.__class__ = Amnesiac
        await super().recover()
        self.failpoints.reach("after recovery")

    def _plant(self) -> None:
        """Plant a bug that is a function or a part of the gateway."""
        match self.planted:
            case "failed-turns":
                ModelCaller.call = _fail_often
            case "asked-anew":
                # The questions of a turn have different keys in each process, so that none is found again.
                call = approvals_module.calling
                approvals_module.calling = SimpleNamespace(get=lambda: f"{call.get()} of {os.getpid()}")
            case "torn-edits":
                self.parts.conversations.branches.__class__ = TornBranches
            case "second-runs":
                NestedRunner._run_id = lambda *_: str(uuid.uuid4())
            case "trusted-clock":
                dispatcher_module.seconds_until_due = lambda entry, now, _longest: (
                    max(0, entry.not_before - now) / 1000
                )
            case "ended-turns":
                registry_module.PluginRegistry._end_when_unused = lambda self, old, _wake: self._end(old)
            case "unblocked":
                confined_module.ConfinedPlugin._tool_execute_before = _let_pass
            case "forgotten-answers":
                Questions.deliver = lambda self: None
            case "forgotten-keys":
                announcements_module.find_announcement = find_begun
            case _:
                pass


_call = ModelCaller.call


async def _fail_often(caller: ModelCaller, *given: Any) -> Any:
    """The planted bug: many turns fail, regardless of the model."""
    if random.random() < 0.3:
        raise ProviderError("the planted bug")
    return await _call(caller, *given)


async def _let_pass(*_: object) -> None:
    """The planted bug: a plugin's block is ignored."""


class ToolPlugin(Plugin):
    """The plugin of the gateway under test: a test channel, and tools with countable effects."""

    name = "storm_tools"

    def __init__(self, line: PollingChannel | None, effects: Path, failpoints: Failpoints) -> None:
        self._line = line
        self._effects = effects
        self._failpoints = failpoints
        self._made = tuple(map(tool_from, (self.note, self.ring, self.hand_over, self.forbidden)))

    async def activate(self, ctx: PluginContext) -> None:
        if self._line is not None and ctx.channels is not None:
            ctx.channels.register(self._line)

    def tools(self) -> Sequence[Tool]:
        return self._made

    async def note(self, word: str, context: ToolContext) -> str:
        """Record a word durably."""
        self._failpoints.reach("between tool intent and tool")
        with self._effects.open("a") as effects:
            effects.write(f"{context.key} {word}\n")
        self._failpoints.reach("after the tool, before its report")
        return f"noted {word}"

    async def ring(self, word: str, context: ToolContext) -> str:
        """Ring the bell for a word; needs an approval."""
        return await self.note(word, context)

    async def hand_over(self, word: str, context: ToolContext) -> ToolOutput:
        """Hand over the file about a word."""
        return ToolOutput(await self.note(word, context), attachments=(file_for(word),))

    async def forbidden(self, word: str) -> str:
        """Run a call that a plugin blocks, if plugins run."""
        with self._effects.with_name("forbidden").open("a") as done:
            done.write(f"{word}\n")
        return f"did {word}"


_ASKING = {OWNER: ASKED, CHOICES: QUESTIONED}
_ANSWERS = (json.dumps([LEFT]), json.dumps([RIGHT]))


def _after_commit(ops: Sequence[Op]) -> str | None:
    writes = {write for write, _ in ops}
    if PUT_ANNOUNCEMENT in writes:
        return KEPT if ACCEPT in writes else RENEWED
    if any(write is INTEND and is_notice(str(row[9])) for write, row in ops):
        return REPLACED if DROP_PARTS in writes else INTENDED
    if added := next((row[1] for write, row in ops if write is ADD and row[1] in _ASKING), None):
        return _ASKING[str(added)]
    if any(write is SETTLE and row[2] in _ANSWERS for write, row in ops):
        return ANSWERED
    if ACCEPT in writes:
        is_edit = any(write.table is t.branches for write in writes)
        return EDITED if is_edit else "accepted, before the ack"
    if INTEND in writes:
        return "before sending the answer"
    if PUT_MESSAGE in writes:
        return _after_message(next(row for write, row in ops if write is PUT_MESSAGE), writes)
    return "after the claim" if CLAIM in writes else None


def _after_message(row: Row, writes: Collection[Write]) -> str | None:
    if SUMMARY in str(row[5]):
        return "after the commit of a summary"
    if str(row[1]).startswith("task-"):
        return RETURNED if DROP_STEPS in writes else None
    return "after the final commit"


def compose(given: Mapping[str, Any], stop: asyncio.Event) -> Victim:
    """Return a gateway for the storm; ``given`` is the content of its start file."""
    failpoints = Failpoints(Path(given["directory"]))
    channels: Mapping[str, Any] = given["channels"]
    settings = Settings.model_validate(
        {
            "data_dir": given["directory"],
            "store": {"url": given["store"]},
            "server": {"port": given["port"]},
            "channels": _tables(channels),
            "cluster": given.get("cluster", {}),
            "providers": {"openai": {"base_url": given["model"], "api_key": "none"}},
            "model": "openai/fake-small",
            # One long answer, or thirty short ones, are more than it may be sent again.
            "models": {"openai/fake-small": {"context_window": 2_550}},
            "max_tokens": 500,
            # No message may become a dead letter because of the kills.
            # All but four queued messages are on disk, and a wrong clock must not turn them into a backlog.
            "limits": {
                "max_attempts": 100,
                "approval_timeout_ms": PATIENCE_MS,
                "session_inbox": 4,
                "sender_backlog": 1_000,  # all clients of the websocket are one sender
                "backlog_minutes": 1_000,
                **given.get("limits", {}),
            },
            "permissions": {"*": "allow", "ring": "ask"},
            "plugins": {
                Announcer.name: {"hook_timeout_ms": plugged.PATIENCE},
                **(plugged.tables(Path(given["directory"])) if given["plugins"] else {}),
            },
        }
    )
    settings = plugged.settle(settings, Path(given["directory"]))
    line = None
    if "line" in channels:
        line = PollingChannel(channels["line"]["url"], lambda channel: victim.parts.host.cursors(channel))
    tools = ToolPlugin(line, Path(given["directory"]) / "effects", failpoints)
    data = Path(given["directory"])
    announcer = Announcer(
        Notebook(data / "notices"), Ledger(data / "inquiries"), lambda: failpoints.reach(TAKEN)
    )
    victim = Victim(settings, plugins=[tools, announcer])
    victim.failpoints, victim.planted, victim.stop = failpoints, given["planted"], stop
    return victim


def _tables(channels: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of the channels: ``telegram.polling`` is an account of ``telegram``."""
    tables: dict[str, Any] = {}
    for channel, options in channels.items():
        name, _, account = channel.partition(".")
        table = tables.setdefault(name, {} if name == "websocket" else {"allow": "*"})
        if account:
            table = table.setdefault("accounts", {}).setdefault(account, {})
        table.update(options)
    return tables


def _spoilt_fence(fence: Fence | None, planted: str | None) -> Fence | None:
    """Return a fence with the planted bug, if that is in fences."""
    if fence is None:
        return None
    match planted:
        case "no-epoch-check":
            return fence._replace(statement=Statement("SELECT 1 WHERE 1 = 0", ()))
        case "hasty-reconcile":
            return fence._replace(settled_at=0.0)
        case "no-row-lock":
            text, lock, rest = fence.statement.text.partition(" FOR SHARE")
            assert lock, "the fence locks the row"
            return fence._replace(statement=Statement(text + rest, fence.statement.values))
        case _:
            return fence


async def _never_lives(_: Node) -> bool:
    """The planted bug: a token from a restarted broker is treated as that of a dead owner."""
    return False


def _plant_in_node(node: Node, planted: str | None) -> None:
    """Plant a bug in the takeover of a node."""
    receive, take = TokenQueue._receive, node._membership.take

    async def acknowledge_early(queue: TokenQueue, message: Any) -> None:
        await message.ack()
        await receive(queue, message)
        queue._message = None

    async def take_again(queue: TokenQueue, message: Any) -> None:
        if queue.held.is_set():
            await take()
        await receive(queue, message)

    match planted:
        case "early-ack":
            TokenQueue._receive = acknowledge_early
        case "hasty-takeover":
            Node._owner_lives = _never_lives
        case "renewed-takeover":
            TokenQueue._receive = take_again
        case _:
            pass


async def live(given: Mapping[str, Any]) -> None:
    """Run one process. A drained node stands by again, and may run another gateway later."""
    set_up_logs(LogSettings(level="warning", format="json"))
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    victim = compose(given, stop)
    async with AsyncExitStack() as stack:
        node = Node(victim.settings, stop) if "cluster" in given else None
        if node is not None:
            node_module._RENEW_SECONDS = RENEWS_SECONDS
            _plant_in_node(node, given["planted"])
            await stack.enter_async_context(node.joined())
            _tell("joined", os.getpid())
        await work(victim, node, given)
        while node is not None and not stop.is_set():
            await node.hand_over()
            _tell("drained", os.getpid())
            await work(compose(given, stop), node, given)


async def work(victim: Victim, node: Node | None, given: Mapping[str, Any]) -> None:
    """Run one gateway until it is stopped; that of a node from its takeover until the node is drained."""
    if node is not None:
        victim.fence = _spoilt_fence(await node.own(), victim.planted)
        if victim.fence is None:
            return
    victim.failpoints.target(os.getpid())
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(victim.running())
        bound = None if node is None else node.stand_aside()
        server = await stack.enter_async_context(Server(victim, bound=bound))
        if node is not None:
            await stack.enter_async_context(node.serving(server.accept))
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        _tell("ready", os.getpid())
        ends = [victim.stop] if node is None else [victim.stop, node.drained]
        waits = [tasks.create_task(event.wait()) for event in ends]
        running: list[asyncio.Task[Any]] = [*waits]
        if given["plugins"]:
            running.append(tasks.create_task(plugged.exchange(victim.replace, Path(given["directory"]))))
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in running:
            task.cancel()


def _tell(what: str, pid: int) -> None:
    os.write(1, f"{what} {pid}\n".encode())


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no process outlives the storm


def _shift_clock(seconds: float) -> None:
    """Shift this process's wall clock ahead (or behind).

    Functions that are defaults of parameters keep the right time: the check of signed webhooks and that of a
    node at its start, which a wrong clock would fail.
    """
    exact, exact_ns, nanoseconds = time.time, time.time_ns, round(seconds * 1e9)
    time.time = lambda: exact() + seconds
    time.time_ns = lambda: exact_ns() + nanoseconds
    Jobs.__init__.__defaults__ = (time.time, *Jobs.__init__.__defaults__[1:])


def _child(given: Mapping[str, Any], ahead: float) -> None:
    status = 1
    try:
        _die_with_parent()
        _shift_clock(ahead)
        sys.setswitchinterval(0.0005)
        importlib.import_module("uvloop").run(live(given))
        status = 0
    except BaseException as error:  # noqa: BLE001 - the child of a fork must end here, whatever happened
        status = _status_after(error)
        if status != UNAVAILABLE:
            traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _status_after(error: BaseException) -> int:
    """Return the exit status that `trunkline run` has after an error; 1 for a defect."""
    leaves = [*_leaves(error)]
    if not all(isinstance(leaf, StoreError | SettingsError) for leaf in leaves):
        return 1
    return (
        UNAVAILABLE if any(leaf.retryable for leaf in leaves if isinstance(leaf, TrunklineError)) else REFUSED
    )


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _leaves(part)
    else:
        yield error


def main(config: str) -> None:
    """Fork gateways on command. Those with one name run one after the other."""
    _die_with_parent()
    given = json.loads(Path(config).read_text())
    kinds = {name.partition(".")[0] for name in given["channels"]} - {"line"}
    own = [f"channels.{kind}.channel" for kind in sorted(kinds)]
    for name in (*AHEAD, *own):
        importlib.import_module(name)
    gc.freeze()
    _tell("warm", os.getpid())
    with selectors.DefaultSelector() as selector:
        commands = FileIO(0, closefd=False)  # unbuffered: what is read ahead would not be selected
        selector.register(commands, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.data is not None:
                    _report_exit(selector, key)
                elif not _fork(selector, given, commands.readline().decode()):
                    return


def _fork(selector: selectors.BaseSelector, given: Mapping[str, Any], line: str) -> bool:
    """Process one command. Returns False for the last one."""
    if not line:
        return False
    _, name, ahead = line.split()
    pid = os.fork()
    if pid == 0:
        _child({**given, **given.get("nodes", {}).get(name, {})}, float(ahead))
    _tell("forked", pid)
    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
    return True


def _report_exit(selector: selectors.BaseSelector, ended: selectors.SelectorKey) -> None:
    """Report the exit of a child process."""
    selector.unregister(ended.fd)
    os.close(ended.fd)
    _, status = os.waitpid(ended.data, 0)
    _tell(f"gone:{os.waitstatus_to_exitcode(status)}", ended.data)


if __name__ == "__main__":
    main(sys.argv[1])
