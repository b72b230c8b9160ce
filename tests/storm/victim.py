"""The gateway that gets killed, put together through its public parts, and the process it is forked from.

Every life is a process of its own. They are forked from one that has imported everything already, so that a
restart takes a tenth of a second and a storm has room for many. On its standard input that process takes
``start``; on its standard output it says ``forked PID``, ``ready PID`` and ``gone PID``.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from failpoints import Failpoints
from sqlalchemy import Connection, event

from gateway import (
    Address,
    InboundMessage,
    OutboundMessage,
    Placed,
    Plugin,
    PluginContext,
    Receipt,
    Reconciles,
    StoreError,
    Tool,
    ToolContext,
    tool_from,
)
from gateway.app import Gateway
from gateway.channel import Deletes
from gateway.inbox import ACCEPT, CLAIM
from gateway.intake import Intake
from gateway.logs import set_up_logs
from gateway.outbox import INTEND
from gateway.server import Server
from gateway.session.log import PUT_MESSAGE
from gateway.settings import LogSettings, Settings
from gateway.store import Exclusive, Inserted, Op, Store
from gateway.testing.line import Line

AHEAD = (
    "plugins.providers",
    "plugins.providers.openai",
    "plugins.tools",
    "psycopg",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite.pysqlite",
    "genai_prices",
    "uvloop",
)
"""What a gateway imports when it first needs it."""

REFUSED = 3
PATIENCE_MS = 5_000
"""How long a tool waits for a person's word."""
LONGEST_WAIT = 8.0
"""Seconds that a message waits which the gateway died with many times, as all of them do in a storm."""


class TrippedStore(Store):
    """A store with failpoints around its commits."""

    failpoints: Failpoints

    def __init__(self, base: Exclusive, on_fatal: Callable[[BaseException], None]) -> None:
        super().__init__(base, on_fatal)
        self.submit_whole = self.submit
        self.submit, self.write = self.submitted, self.written
        event.listen(self.engine, "before_cursor_execute", self._before_statement)
        event.listen(self.engine, "commit", self._before_commit)

    def submitted(self, ops: Sequence[Op]) -> asyncio.Future[Inserted]:
        """Submit, and be at a failpoint when that is durable, before anyone learns of it."""
        done = self.submit_whole(ops)
        point = _after_commit(ops)
        if point is not None:
            done.add_done_callback(lambda _: self.failpoints.reach(point))
        return done

    async def written(self, *ops: Op) -> Inserted:
        """The same, awaited."""
        return await self.submit(ops)

    def _before_statement(
        self, connection: Connection, _cursor: Any, statement: str, _given: Any, _context: Any, _many: bool
    ) -> None:
        if "UPDATE outbox" in statement:  # the message's settlement was written before
            self.failpoints.reach("placed, between two changes of the commit")
        connection.info.setdefault("statements", []).append(statement)

    def _before_commit(self, connection: Connection) -> None:
        statements: list[str] = connection.info.pop("statements", [])
        for beginning, point in (
            ("INSERT INTO inbox", "before the accept commit"),
            ("INSERT INTO messages", "before the final commit"),
            ("UPDATE outbox", "placed and answered, before the commit"),
        ):
            if any(beginning in statement for statement in statements):
                self.failpoints.reach(point)


class HastyStore(TrippedStore):
    """The planted bug: it says that a message is durable a moment before it is."""

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
    """The planted bug, before a channel's own class: it never looks whether its message stands already."""

    async def find(self, outbound: OutboundMessage) -> Placed | None:
        return None


class Clinging:
    """The planted bug, before a channel's own class: it takes nothing away that it placed."""

    async def delete(self, placed: Placed, address: Address) -> None:
        return


class Forgetful(Intake):
    """The planted bug: it takes a new wording of a message for one more message."""

    async def accept(
        self,
        channel: str,
        messages: Sequence[InboundMessage],
        extra: Sequence[Op] = (),
        *,
        fresh: bool = False,
    ) -> Sequence[Receipt]:
        messages = [msgspec.structs.replace(message, revises=None) for message in messages]
        return await super().accept(channel, messages, extra, fresh=fresh)


_SPOILT: Mapping[str | None, tuple[type, type]] = {
    "blind-resend": (Reconciles, Blind),
    "left-standing": (Deletes, Clinging),
}
"""Which channels have a planted bug, and what is put before their own class."""


class Victim(Gateway):
    """A gateway with failpoints in it."""

    failpoints: Failpoints
    planted: str | None = None

    def open_store(self) -> Store:
        kind = HastyStore if self.planted == "ack-before-commit" else TrippedStore
        kind.failpoints = self.failpoints
        return kind.open(self.settings.store_url, self.settings.durability, self._on_fatal)

    async def recover(self) -> None:
        self.dispatcher.longest_wait = LONGEST_WAIT
        if self.planted in _SPOILT:
            ability, bug = _SPOILT[self.planted]
            for channel in self.channels.list():
                if isinstance(channel, ability):
                    kind = type(channel)
                    channel.__class__ = type(kind.__name__, (bug, kind), {})
        if self.planted == "both-wordings":
            self.intake.__class__ = Forgetful
        self.failpoints.reach("before recovery")
        if self.planted != "no-recovery":
            await super().recover()
        self.failpoints.reach("after recovery")


class Pier(Plugin):
    """The victim's plugin: a channel of the gateway's tests, and tools whose effects can be counted."""

    name = "pier"

    def __init__(self, line: Line | None, effects: Path, failpoints: Failpoints) -> None:
        self._line = line
        self._effects = effects
        self._failpoints = failpoints
        self._made = tuple(map(tool_from, (self.note, self.ring)))

    async def activate(self, ctx: PluginContext) -> None:
        if self._line is not None and ctx.channels is not None:
            ctx.channels.register(self._line)

    def tools(self) -> Sequence[Tool]:
        return self._made

    async def note(self, word: str, context: ToolContext) -> str:
        """Write a word down, for good."""
        self._failpoints.reach("between tool intent and tool")
        with self._effects.open("a") as effects:
            effects.write(f"{context.key} {word}\n")
        self._failpoints.reach("after the tool, before its report")
        return f"noted {word}"

    async def ring(self, word: str, context: ToolContext) -> str:
        """Ring the bell for a word, if a person allows it."""
        return await self.note(word, context)


def _after_commit(ops: Sequence[Op]) -> str | None:
    writes = {write for write, _ in ops}
    if ACCEPT in writes:
        return "accepted, before the ack"
    if INTEND in writes:
        return "before sending the answer"
    if PUT_MESSAGE in writes:
        return "after the final commit"
    if CLAIM in writes:
        return "after the claim"
    return None


def compose(given: Mapping[str, Any]) -> Victim:
    """A gateway as the storm wants it; ``given`` is the file it is started with."""
    failpoints = Failpoints(Path(given["directory"]))
    channels: Mapping[str, Any] = given["channels"]
    settings = Settings.model_validate(
        {
            "data_dir": given["directory"],
            "store": {"url": given["store"]},
            "server": {"port": given["port"]},
            "channels": _tables(channels),
            "providers": {"openai": {"base_url": given["model"], "api_key": "none"}},
            "model": "openai/fake-small",
            # A storm kills more often than any message could be blamed for.
            "limits": {"max_attempts": 100, "approval_timeout_ms": PATIENCE_MS, **given.get("limits", {})},
            "permissions": {"ring": "ask"},
        }
    )
    line = None
    if "line" in channels:
        line = Line(channels["line"]["url"], lambda channel: victim.host.cursors(channel))
    pier = Pier(line, Path(given["directory"]) / "effects", failpoints)
    victim = Victim(settings, plugins=[pier])
    victim.failpoints, victim.planted = failpoints, given["planted"]
    return victim


def _tables(channels: Mapping[str, Any]) -> dict[str, Any]:
    """The channels as settings have them: ``telegram.polling`` is an account of ``telegram``."""
    tables: dict[str, Any] = {}
    for channel, options in channels.items():
        name, _, account = channel.partition(".")
        table = tables.setdefault(name, {} if name == "websocket" else {"allow": "*"})
        if account:
            table = table.setdefault("accounts", {}).setdefault(account, {})
        table.update(options)
    return tables


async def live(given: Mapping[str, Any]) -> None:
    """One life."""
    set_up_logs(LogSettings(level="warning", format="json"))
    victim = compose(given)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, victim.stop.set)
    async with victim.running(), Server(victim):
        _tell("ready", os.getpid())
        await victim.stop.wait()


def _tell(what: str, pid: int) -> None:
    os.write(1, f"{what} {pid}\n".encode())


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a storm leaves nobody behind


def _child(given: Mapping[str, Any]) -> None:
    status = 1
    try:
        _die_with_parent()
        sys.setswitchinterval(0.0005)
        importlib.import_module("uvloop").run(live(given))
        status = 0
    except StoreError:
        status = REFUSED
    except BaseException:  # noqa: BLE001 - the child of a fork must end here, whatever happened
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def main(config: str) -> None:
    """Fork a gateway whenever told to, one after the other."""
    _die_with_parent()
    given = json.loads(Path(config).read_text())
    kinds = {name.partition(".")[0] for name in given["channels"]} - {"line"}
    own = [f"channels.{kind}.channel" for kind in sorted(kinds)]
    for name in (*AHEAD, *own):
        importlib.import_module(name)
    gc.freeze()
    _tell("warm", os.getpid())
    for line in sys.stdin:
        if line.strip() != "start":
            break
        pid = os.fork()
        if pid == 0:
            _child(given)
        _tell("forked", pid)
        _, status = os.waitpid(pid, 0)
        _tell(f"gone:{os.waitstatus_to_exitcode(status)}", pid)


if __name__ == "__main__":
    main(sys.argv[1])
