"""Whose turn it is to call a provider, and with which of its keys.

Only a provider with several keys or with limits has slots, and one that said it wants a rest; all others are
called without. Sessions take turns, so that one with many calls keeps no other one waiting.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Sequence
from math import inf
from zlib import crc32

import msgspec
import structlog

from gateway.errors import AuthFailedError, ProviderError, RateLimitError
from gateway.pacing import Clock, Timer
from gateway.provider import ProviderConfig
from gateway.wire.allowance import MINUTE, Key
from gateway.wire.waiting import Slot, Waiting, Wish

log = structlog.get_logger("trunkline.keys")

REFUSED_SECONDS = 3600.0
"""For how long a key that was refused is only tried when there is no other; the longest rest of one, too."""
RESTS_SECONDS = 1.0
"""How long one of several keys rests that came too often, when the backend does not say."""

_AT_ONCE = 0.001
_FEW = 4
"""Calls under way by which keys may differ and count as used alike."""


class Slots:
    """The keys of a provider, and who uses them.

    ``clock`` is for tests; it is the running event loop else.
    """

    def __init__(self, config: ProviderConfig, clock: Clock | None = None) -> None:
        self.provider = config.id
        self._clock = clock
        self._longest = config.timeout / 1000
        self._keys = [
            Key(place, with_key(config, key)) for place, key in enumerate(config.keys or (None,), 1)
        ]
        self._queues: OrderedDict[tuple[str, str], deque[Waiting]] = OrderedDict()
        self._timer: Timer | None = None

    @property
    def configs(self) -> Sequence[ProviderConfig]:
        """How the provider is reached with each of its keys, those first that were not refused."""
        now = self._now()
        return [key.config for key in sorted(self._keys, key=lambda key: key.is_refused("", now))]

    def ask(self, wish: Wish) -> Slot | Waiting:
        """A slot if there is one at once, else a place in line."""
        now = self._now()
        slot = None if self._queues else self._taken(wish, now)
        if slot is not None:
            return slot
        waiting = Waiting(self.leave, self.provider, wish, self._expected(wish, now))
        self._queues.setdefault(wish.line, deque()).append(waiting)
        self._admit()
        return waiting.future.result() if waiting.future.done() else waiting

    def instead(self, slot: Slot, failure: ProviderError) -> Slot | Waiting | None:
        """What a call that failed goes on with: another key, or a place in line for one, if that may help.

        The key that failed is set aside. When all of them rest, the failure tells when the first is back.
        """
        self.note(slot.position, slot.wish.model, failure)
        slot.release()
        if len(self._keys) == 1 or not isinstance(failure, AuthFailedError | RateLimitError):
            return None
        wish = msgspec.structs.replace(slot.wish, tried=slot.wish.tried | {slot.position})
        now = self._now()
        if failure.retryable and all(key.held_until(wish.model) > now for key in self._keys):
            failure.retry_after = min(key.held_until(wish.model) for key in self._keys) - now
            return None
        if len(wish.tried) == len(self._keys):
            return None
        log.warning(
            "a key failed; the call goes on with another one",
            provider=self.provider,
            key=slot.position,
            error=failure.name,
        )
        return self.ask(wish)

    def note(self, position: int, model: str, failure: ProviderError) -> None:
        """Set a key aside for what its backend said: for all models, or for one."""
        key, now = self._keys[position - 1], self._now()
        if isinstance(failure, AuthFailedError):
            key.refused[model if failure.upstream_status == 403 else ""] = now + REFUSED_SECONDS
        elif isinstance(failure, RateLimitError) and not failure.retryable:
            key.refused[""] = now + REFUSED_SECONDS
        elif isinstance(failure, RateLimitError):
            usual = RESTS_SECONDS if len(self._keys) > 1 else 0.0
            self.rest(position, model, usual if failure.retry_after is None else failure.retry_after)

    def rest(self, position: int, model: str, seconds: float) -> None:
        """Let a key rest. The only one is tried again if that were longer than a call may wait."""
        if len(self._keys) == 1 and seconds > self._longest:
            return
        held, until = self._keys[position - 1].held, self._now() + min(seconds, REFUSED_SECONDS)
        held[model] = max(held.get(model, 0.0), until)

    def free(self, key: Key) -> None:
        """A call with this key is over."""
        key.in_use -= 1
        if self._queues:
            self._admit()

    def leave(self, waiting: Waiting) -> None:
        """Somebody waits no longer, or gives back what was just given."""
        if waiting.future.done() and not waiting.future.cancelled():
            waiting.future.result().release()
            return
        waiting.future.cancel()
        queue = self._queues.get(waiting.wish.line)
        if queue is not None and waiting in queue:
            queue.remove(waiting)
            if not queue:
                del self._queues[waiting.wish.line]
        self._admit()

    def _time(self) -> Clock:
        return self._clock or asyncio.get_running_loop()

    def _now(self) -> float:
        return self._time().time()

    def _taken(self, wish: Wish, now: float) -> Slot | None:
        """A slot with a key that is free and not refused: the session's own, unless others are used far less.

        What a provider remembers of a conversation it remembers for a key, so a session keeps to one.
        """
        keys = self._usable(wish, now)
        free = [key for key in keys if self._free_at(key, wish, now) <= now + _AT_ONCE]
        if not free:
            return None
        own = crc32(wish.session.encode("utf-8", "replace")) % len(self._keys)
        key = min(
            free, key=lambda key: (key.in_use // _FEW, (key.position - own) % len(self._keys), key.in_use)
        )
        key.in_use += 1
        if key.requests is not None:
            key.requests.take(1, now)
        tokens = None if key.tokens is None else key.tokens.take(wish.tokens, now)
        return Slot(self.free, key, wish, tokens)

    def _usable(self, wish: Wish, now: float) -> list[Key]:
        """The keys that were not tried yet and are not refused; if there are none, the refused ones too."""
        keys = [key for key in self._keys if key.position not in wish.tried]
        return [key for key in keys if not key.is_refused(wish.model, now)] or keys

    def _free_at(self, key: Key, wish: Wish, now: float) -> float:
        return max(key.room_at(wish.tokens, now), key.held_until(wish.model))

    def _expected(self, wish: Wish, now: float) -> float:
        """In how many seconds a new wish has its turn, as far as that can be known."""
        keys = self._usable(wish, now)
        soonest = min(self._free_at(key, wish, now) for key in keys)
        ahead = sum(map(len, self._queues.values()))
        pace = sum(key.config.requests_per_minute or inf for key in keys)
        return 0.0 if soonest == inf else soonest - now + ahead * MINUTE / pace

    def _admit(self) -> None:
        """Give out slots, one session after the other, as long as there are any."""
        now = self._now()
        granted = True
        while granted:
            granted = False
            for line in tuple(self._queues):
                wish = self._first_wish(line)
                if wish is None:
                    continue
                slot = self._taken(wish, now)
                if slot is not None:
                    self._grant(line, slot)
                    granted = True
                elif not (wish.tried or self._only_rests(wish, now)):
                    self._look_again(now)
                    return
        self._look_again(now)

    def _first_wish(self, line: tuple[str, str]) -> Wish | None:
        """The wish of the first who still waits in a line; whoever was cancelled is on the way out."""
        queue = self._queues[line]
        while queue and queue[0].future.done():
            queue.popleft()
        if queue:
            return queue[0].wish
        del self._queues[line]
        return None

    def _only_rests(self, wish: Wish, now: float) -> bool:
        """Whether a wish waits for its model alone, so that others need not stand behind it."""
        return any(key.room_at(wish.tokens, now) <= now + _AT_ONCE for key in self._usable(wish, now))

    def _grant(self, line: tuple[str, str], slot: Slot) -> None:
        queue = self._queues[line]
        queue.popleft().future.set_result(slot)
        if queue:
            self._queues.move_to_end(line)
        else:
            del self._queues[line]

    def _look_again(self, now: float) -> None:
        """See to it that slots are given out when the first of those who wait may go."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wishes = [queue[0].wish for queue in self._queues.values()]
        times = [self._free_at(key, wish, now) for wish in wishes for key in self._usable(wish, now)]
        if (soonest := min(times, default=inf)) < inf:
            self._timer = self._time().call_at(max(soonest, now + _AT_ONCE), self._admit)


def slots_for(config: ProviderConfig) -> Slots | None:
    """The slots of a provider; None if it has one key and no limits."""
    limits = (config.concurrency, config.requests_per_minute, config.tokens_per_minute)
    return Slots(config) if len(config.keys) > 1 or any(limits) else None


def with_key(config: ProviderConfig, key: str | None) -> ProviderConfig:
    """The settings with one of the keys."""
    return msgspec.structs.replace(config, api_key=key)
