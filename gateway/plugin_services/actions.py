"""The audit log of confined plugins: every use of a capability, granted or denied, and each start and end.

What an operator decides about a plugin is in it, too, and so are calls of MCP servers.

Noting an action only appends to a queue, because it happens within turns. A background task digests the
arguments and writes what was noted, several times a second. While the database hangs, the queue holds 10,000
actions; a row ``audit.gap`` has the number of further ones of a plugin, which are not in the log.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections import Counter, deque
from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

import msgspec
import structlog
from msgspec import Meta, Struct
from sqlalchemy import Connection, func, select

from gateway.contract.messages import new_id, now_ms
from gateway.store import Op, Store
from gateway.store import schema as t
from gateway.store.writes import Write

log = structlog.get_logger("trunkline.plugins")

ADD_ACTION = Write(
    "insert",
    92,
    t.plugin_action,
    "id at plugin version content action value arguments allowed risk microseconds",
)

FORGET_GRANTS = Write("delete", 98, t.plugin_grant, "plugin", "plugin")
FORGET_JOBS = Write("delete", 99, t.plugin_job, "plugin", "plugin")
FORGET_ENTRIES = Write("delete", 100, t.plugin_entry, "plugin", "plugin")

_GRANT = "plugin.grant"
_MOST_WAITING = 10_000
_SECONDS = 0.25
_BATCH = 500
_LONGEST_VALUE = 300
_RISKS = {
    "docker": 100,
    "exec": 100,
    "filesystem.delete": 90,
    "filesystem.write": 90,
    "messages": 75,
    "network": 75,
    "filesystem.read": 75,
    "llm": 75,
    "mcp.call": 75,
    "secrets": 75,
    "send": 75,
}
_LOW_RISK = 50


class Action(Struct, frozen=True):
    """An action of a plugin. ``content`` is the hash of its files, ``arguments`` a digest.

    ``at`` is milliseconds, ``risk`` 50 (low), 75, 90 or 100 (critical).
    """

    id: str
    at: int
    plugin: str
    version: str
    content: str
    action: str
    value: str
    arguments: str
    allowed: bool
    risk: int
    microseconds: int


class ActionTotal(Struct, frozen=True):
    """Uses of one capability, or other actions of one kind: how many were allowed and denied; their time."""

    action: str
    allowed: int
    denied: int
    microseconds: int


_Text = Annotated[str, Meta(max_length=2_000)]


class Decision(Struct, frozen=True):
    """An operator's decision about a plugin, and the grants that it was given with that.

    ``content`` is the hash of its files, ``source`` where they are from. With ``purge`` what it stored is
    deleted.
    """

    plugin: Annotated[str, Meta(min_length=1, max_length=200)]
    action: Literal["install", "update", "approve", "uninstall"]
    by: _Text
    version: _Text = ""
    content: _Text = ""
    source: _Text = ""
    grants: Annotated[tuple[_Text, ...], Meta(max_length=1_000)] = ()
    purge: bool = False


class _Noted(NamedTuple):
    """An action that is not written yet. Ids grow in the order of the actions."""

    id: str
    at: int
    plugin: tuple[str, str, str]
    action: str
    value: str
    arguments: object
    allowed: bool
    microseconds: int


class PluginActions:
    """The audit log. ``run`` writes; what was noted before a crash and not written is lost."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # A process adds its own ending, so that two never make the same id in one millisecond.
        self._process = new_id()[-8:]
        self._numbers = itertools.count()
        self._waiting: deque[_Noted] = deque()
        self._missed: Counter[tuple[str, str, str]] = Counter()
        """Actions that found the queue full, by plugin."""
        self._noted = asyncio.Event()
        self._flushing = asyncio.Lock()

    def record(
        self,
        plugin: tuple[str, str, str],
        action: str,
        value: str,
        arguments: object = (),
        *,
        allowed: bool = True,
        microseconds: int = 0,
    ) -> None:
        """Note an action, to be written soon."""
        if len(self._waiting) >= _MOST_WAITING:
            self._missed[plugin] += 1
            return
        at = now_ms()
        row_id = f"{at:013x}{next(self._numbers) & 0xFFFFFF:06x}{self._process}"
        self._waiting.append(_Noted(row_id, at, plugin, action, value, arguments, allowed, microseconds))
        self._noted.set()

    async def decide(self, decision: Decision) -> None:
        """Write a decision. A removed plugin loses what admins granted, and purged all that it stored."""
        about = (decision.plugin, decision.version, decision.content)
        text = f"{decision.source} by {decision.by}".strip()
        self.record(about, f"plugin.{decision.action}", text)
        for grant in decision.grants:
            self.record(about, _GRANT, f"{grant} by {decision.by}")
        await self.flush()
        if decision.action == "uninstall":
            forgets = (FORGET_GRANTS, FORGET_JOBS, FORGET_ENTRIES) if decision.purge else (FORGET_GRANTS,)
            await self._store.write(*((forget, (decision.plugin,)) for forget in forgets))

    async def run(self) -> None:
        """Write what is noted until cancelled, and the rest then."""
        try:
            while True:
                await self._noted.wait()
                self._noted.clear()
                await self.flush()
                await asyncio.sleep(_SECONDS)
        finally:
            await asyncio.shield(self.flush())

    async def flush(self) -> None:
        """Write all that is noted. It is in the store when this returns."""
        async with self._flushing:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
                missed, self._missed = self._missed, Counter()
                for plugin, number in missed.items():
                    log.warning(
                        "actions of a plugin are not in its audit log", plugin=plugin[0], actions=number
                    )
                    self.record(plugin, "audit.gap", f"{number} actions")
                await self._store.write(*await asyncio.to_thread(_rows, batch))

    async def totals(self, plugin: str, since: int) -> list[ActionTotal]:
        """Return the number of actions of a plugin since a time in ms, by their kind."""
        await self.flush()
        return await self._store.read(lambda c: total_actions(c, plugin, since))

    async def latest(self, plugin: str, after: str = "", limit: int = 100) -> list[Action]:
        """Return the newest actions of a plugin after the one with this id, oldest first."""
        return await self._store.read(lambda c: read_actions(c, plugin, after, limit))


def grant_op(plugin: str, capability: str, answer: str, by: str) -> Op:
    """Return the write for what an admin answered in a chat; it is committed together with the answer."""
    at, allowed = now_ms(), answer in ("once", "always")
    row_id = f"{at:013x}ffffff{new_id()[-8:]}"
    return _row(
        _Noted(row_id, at, (plugin, "", ""), _GRANT, f"{capability} {answer} by {by}", (), allowed, 0)
    )


def total_actions(connection: Connection, plugin: str, since: int) -> list[ActionTotal]:
    """Count the actions of a plugin since a time in ms, by their kind."""
    a = t.plugin_action.c
    query = (
        select(a.action, func.count(), func.sum(a.allowed), func.sum(a.microseconds))
        .where(a.plugin == plugin, a.at >= since)
        .group_by(a.action)
        .order_by(a.action)
    )
    return [
        ActionTotal(action, int(allowed), count - int(allowed), int(spent))
        for action, count, allowed, spent in connection.execute(query)
    ]


def read_actions(connection: Connection, plugin: str, after: str = "", limit: int = 100) -> list[Action]:
    """Read the newest actions of a plugin after the one with this id, oldest first."""
    a = t.plugin_action.c
    query = select(t.plugin_action).where(a.plugin == plugin, a.id > after).order_by(a.id.desc()).limit(limit)
    found = [
        Action(
            row.id,
            row.at,
            row.plugin,
            row.version,
            row.content,
            row.action,
            row.value,
            row.arguments,
            bool(row.allowed),
            row.risk,
            row.microseconds,
        )
        for row in connection.execute(query)
    ]
    return found[::-1]


def _rows(noted: Sequence[_Noted]) -> list[Op]:
    return [_row(one) for one in noted]


def _row(noted: _Noted) -> Op:
    try:
        text = msgspec.json.encode(noted.arguments, enc_hook=repr, order="deterministic")
    except (TypeError, ValueError):
        # JSON has no form for some, such as the name of a file that is not UTF-8.
        text = ascii(noted.arguments).encode()
    digest = hashlib.sha256(text).hexdigest()
    # The risk of a grant is that of the capability.
    kind = noted.value.split()[0].partition(":")[0] if noted.action == _GRANT else noted.action
    risk = _RISKS.get(kind, _LOW_RISK)
    value, allowed = noted.value[:_LONGEST_VALUE], int(noted.allowed)
    start = (noted.id, noted.at, *noted.plugin, noted.action, value)
    return ADD_ACTION, (*start, digest, allowed, risk, noted.microseconds)
