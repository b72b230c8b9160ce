"""The observer: it polls the gateway once a second, and sends the changes to readers.

All readers share the result of one poll: a change is built once and encoded once for each kind of reader, so
the cost does not grow with their number. Without readers nothing is encoded or read from the store.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeVar

import msgspec
import structlog
from msgspec import Struct
from msgspec.structs import replace

from gateway.access.questions import Held
from gateway.app import Gateway
from gateway.contract.channel import Health
from gateway.contract.errors import CATCHABLE, StoreError, is_cancellation_requested
from gateway.contract.messages import now_ms
from gateway.contract.services import Unregister
from gateway.events.types import TurnFinished
from gateway.models import to_usd
from gateway.server.now.history import HealthHistory, Trends
from gateway.server.now.needs import Needs, StoredReader, StoredState, asked_of, headline_of
from gateway.server.now.providers import ProviderWatch
from gateway.server.now.shapes import (
    Asked,
    ChannelNow,
    CircuitChanges,
    Figure,
    HealthChanges,
    Need,
    NowSnapshot,
    ProviderNow,
    Queues,
    RunningRow,
    Spend,
    SpendChanges,
    TurnChanges,
)
from gateway.server.now.turns import MOST_ROWS, RunningTurns

T = TypeVar("T")

log = structlog.get_logger("trunkline.now")

_LOOK_SECONDS = 1.0
_READ_SECONDS = 5.0
_FIGURES_LOOKS = 5
"""Looks between two events with the figures."""
_KEPT_LOOKS, _KEPT_BYTES = 300, 512 * 1024
"""Looks, and their bytes, that are kept for readers that come back."""
_IDLE_LOOKS = 60
"""Looks without a reader after which changes are not collected any more."""
_DAY_MS = 86_400_000
_NOT_CHANNELS = ("gateway", "store")


class Frames(Struct, frozen=True):
    """The changes of one look as server-sent events: whole, and without text of messages.

    ``reduced`` is None if no reader of it was there.
    """

    whole: bytes
    reduced: bytes | None


class _States(Struct, frozen=True):
    """State of the gateway at one look, to be compared with the next."""

    channels: Mapping[str, ChannelNow] = {}
    needs: list[Need] = []
    providers: Mapping[str, ProviderNow] = {}
    queues: Queues | None = None
    asked: Asked | None = None
    spend: Spend | None = None
    figures: list[Figure] = []


class Audience(Protocol):
    """The readers of the changes."""

    def __len__(self) -> int: ...

    @property
    def has_reduced(self) -> bool:
        """Return whether a reader may not read messages."""
        ...

    def send(self, frames: Frames) -> None:
        """Send changes to all readers; empty ones if nothing changed."""
        ...


class Observer:
    """Observer of a running gateway. ``run`` looks until it is cancelled."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        now = now_ms()
        self._health = HealthHistory()
        self._trends = Trends(gateway.counters, self._nano_usd, now)
        self._turns = RunningTurns()
        self.providers = ProviderWatch(gateway)
        self._needs = Needs()
        self._reader = StoredReader(gateway)
        self._stored = StoredState()
        self._stored_at = -_READ_SECONDS
        self._reading = asyncio.Lock()
        self._boot = secrets.token_hex(6)
        self._n = 0
        self._kept = deque[tuple[int, Frames]]()
        self._kept_bytes = 0
        self._complete_from = 0
        """The first look after which no change was lost."""
        self._idle = _IDLE_LOOKS
        self._sent: _States | None = None
        self._rows: dict[str, RunningRow] = {}
        self._spent_before = 0
        self._unsubscribe: Unregister | None = None
        self.audience: Audience | None = None

    @property
    def _nano_usd(self) -> int:
        return self._gateway.parts.spending.ledger.nano_usd.total()

    async def run(self) -> None:
        """Look once a second, and read the store while there are readers, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._forever(_LOOK_SECONDS, self._look))
            tasks.create_task(self._forever(_READ_SECONDS, self._read_for_readers))

    async def snapshot(self) -> NowSnapshot:
        """Return the state now, from which a stream can continue. Raises StoreError."""
        self.activate()
        if asyncio.get_running_loop().time() - self._stored_at >= _READ_SECONDS:
            await self._read()
        self._observe(now_ms())
        return self._snapshot()

    def cursor(self) -> str:
        """Return the id of the latest look."""
        return f"{self._boot}-{self._n}"

    def since(self, cursor: str) -> list[Frames] | None:
        """Return the changes since a look; None if it is too old or of another process."""
        boot, _, number = cursor.partition("-")
        if boot != self._boot or not number.isdecimal():
            return None
        after = int(number)
        if not self._complete_from <= after <= self._n:
            return None
        return [frames for n, frames in self._kept if n > after]

    def activate(self) -> None:
        """Collect changes from now on; called when a reader comes."""
        if not self._is_active:
            # Another number: after an earlier one changes may be missing.
            self._n += 1
            self._complete_from = self._n
            self._rows = {row.id: row for row in self._turns.rows().rows}
            self._sent = self._states()
            self._unsubscribe = self._gateway.events.subscribe(TurnFinished, self._turns.finished)
        self._idle = 0

    def close(self) -> None:
        """End the subscription of the events."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    @property
    def _is_active(self) -> bool:
        return self._idle < _IDLE_LOOKS

    async def _forever(self, seconds: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            try:
                await work()
            except StoreError as error:
                log.warning("cannot read the state of the store", reason=str(error))
            except CATCHABLE as error:
                if is_cancellation_requested(error):
                    raise
                log.exception("cannot observe the gateway")
            await asyncio.sleep(seconds)

    async def _read_for_readers(self) -> None:
        if self._is_active:
            await self._read()

    async def _read(self) -> None:
        async with self._reading:
            # Each time, because it contains the reservations of running calls, which cost less in the end.
            counted, now = self._nano_usd, now_ms()
            spent = await self._gateway.parts.spending.ledger.spent(now - now % _DAY_MS, None, ())
            self._spent_before = spent - counted
            self._stored = await self._reader.read()
            self._stored_at = asyncio.get_running_loop().time()

    async def _look(self) -> None:
        self._observe(now_ms())
        audience = self.audience
        if audience is not None and len(audience):
            self._idle = 0
        elif self._is_active:
            self._idle += 1
            if not self._is_active:
                self._rest()
        if self._is_active:
            frames = self._changes()
            self._keep(frames)
            if audience is not None:
                audience.send(frames)

    def _rest(self) -> None:
        self.close()
        self._kept.clear()
        self._kept_bytes = 0
        self._complete_from = self._n + 1
        self._rows, self._sent = {}, None

    def _observe(self, now: int) -> None:
        """Look at everything in memory."""
        states = {
            name: Health(ok=ok, detail=detail)
            for name, (ok, detail) in self._gateway.health().items()
            if name not in _NOT_CHANNELS and not name.startswith("plugin ")
        }
        self._health.observe(states, now)
        self._turns.look(self._gateway.parts.dispatcher.mailboxes(), self._asked, now)
        self._trends.observe(self._nano_usd, len(self._turns), now)
        self.providers.look(now)

    @property
    def _asked(self) -> list[Held]:
        return self._gateway.parts.questions.all_open()

    def _needs_now(self, channels: list[ChannelNow]) -> list[Need]:
        return self._needs.find(
            self._asked,
            channels,
            self.providers.rejected(),
            self._gateway.health(),
            self._stored,
            now_ms(),
        )

    def _snapshot(self) -> NowSnapshot:
        gateway, channels = self._gateway, self._health.states()
        needs = self._needs_now(channels)
        return NowSnapshot(
            id=self.cursor(),
            at=now_ms(),
            version=gateway.parts.host.version,
            uptime=round(gateway.counters.uptime),
            headline=headline_of(needs),
            needs=needs,
            figures=self._trends.figures(self._nano_usd, len(self._turns)),
            running=self._turns.rows(),
            activity=list(self._turns.activity),
            channels=channels,
            providers=self.providers.states(),
            queues=self._queues(),
            asked=asked_of(self._asked, self._stored),
            spend=self._spend(),
        )

    def _spend(self) -> Spend:
        return Spend(float(to_usd(max(0, self._spent_before + self._nano_usd))))

    def _queues(self) -> Queues:
        parts, now, stored = self._gateway.parts, now_ms(), self._stored
        waiting = [len(one.entries) + one.stored.total() for one in parts.dispatcher.mailboxes()]
        return Queues(
            conversations=sum(count > 0 for count in waiting),
            longest=max(waiting, default=0),
            messages=parts.dispatcher.waiting,
            most_messages=self._gateway.settings.limits.global_inbox,
            stored=parts.dispatcher.stored.total(),
            oldest_message=_seconds_since(stored.oldest_message, now),
            calls=self.providers.calls_in_line,
            sending=stored.sending,
            oldest_sending=_seconds_since(stored.oldest_sending, now),
            dead_letters=stored.dead_letters,
            writer_age=round(parts.store.monitor.age, 1),
        )

    def _states(self) -> _States:
        channels = self._health.states()
        return _States(
            channels={channel.id: channel for channel in channels},
            needs=self._needs_now(channels),
            providers={provider.id: provider for provider in self.providers.states()},
            queues=self._queues(),
            asked=asked_of(self._asked, self._stored),
            spend=self._spend(),
            figures=self._trends.figures(self._nano_usd, len(self._turns)),
        )

    def _changes(self) -> Frames:
        """Return the events of what changed since the last call."""
        self._n += 1
        now, sent = self._states(), self._sent or _States()
        whole: list[tuple[str, Struct]] = []
        turns = self._turn_changes()
        if turns is not None:
            whole.append(("turn", turns))
        channels = _changed(now.channels, sent.channels)
        if channels or now.needs != sent.needs:
            whole.append(("health", HealthChanges(headline_of(now.needs), now.needs, channels)))
        if providers := _changed(now.providers, sent.providers):
            whole.append(("circuit", CircuitChanges(providers)))
        if now.queues != sent.queues and now.queues is not None:
            whole.append(("queue", now.queues))
        if now.asked != sent.asked and now.asked is not None:
            whole.append(("question", now.asked))
        if self._n % _FIGURES_LOOKS:
            now = replace(now, spend=sent.spend, figures=sent.figures)
        elif now.spend is not None and (now.spend, now.figures) != (sent.spend, sent.figures):
            whole.append(("spend", SpendChanges(now.spend.today_usd, now.figures)))
        self._sent = now
        cursor = self.cursor()
        encoded = [sse(name, cursor, change) for name, change in whole]
        if self.audience is None or not self.audience.has_reduced:
            return Frames(b"".join(encoded), None)
        reduced = [
            sse(name, cursor, change.without_text())
            if isinstance(change, TurnChanges | HealthChanges)
            else same
            for (name, change), same in zip(whole, encoded, strict=True)
        ]
        return Frames(b"".join(encoded), b"".join(reduced))

    def _turn_changes(self) -> TurnChanges | None:
        running = self._turns.rows()
        rows = {row.id: row for row in running.rows}
        changed = [row for name, row in rows.items() if self._rows.get(name) is not row]
        gone = [name for name in self._rows if name not in rows]
        self._rows = rows
        ended = self._turns.take_ended()
        if not (changed or gone or ended):
            return None
        return TurnChanges(running.total, changed[:MOST_ROWS], gone, ended)

    def _keep(self, frames: Frames) -> None:
        if frames.whole:
            self._kept.append((self._n, frames))
            self._kept_bytes += _size(frames)
        while self._kept and (len(self._kept) > _KEPT_LOOKS or self._kept_bytes > _KEPT_BYTES):
            self._complete_from, old = self._kept.popleft()
            self._kept_bytes -= _size(old)


def _size(frames: Frames) -> int:
    return len(frames.whole) + len(frames.reduced or b"")


def sse(name: str, cursor: str, value: Struct) -> bytes:
    """Return a server-sent event. JSON contains no line breaks."""
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (cursor.encode(), name.encode(), msgspec.json.encode(value))


def _changed(now: Mapping[str, T], before: Mapping[str, T]) -> list[T]:
    """Return the values of a mapping that differ from those before."""
    return [value for name, value in now.items() if before.get(name) != value]


def _seconds_since(at: int | None, now: int) -> int:
    return 0 if at is None else max(0, now - at) // 1000
