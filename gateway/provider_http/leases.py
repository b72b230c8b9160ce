"""Leases of API keys: they decide when a call runs and which of a provider's keys it uses.

A provider has a scheduler if it has several keys or limits, or once its backend reports an exhausted limit;
all other calls run without a lease. Sessions take turns, so a session with many calls does not delay others.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Sequence
from math import inf
from types import TracebackType
from typing import assert_never
from zlib import crc32

import msgspec
import structlog
from msgspec import Struct

from gateway.contract.errors import AuthFailedError, ProviderError, RateLimitError
from gateway.contract.messages import (
    ErrorPart,
    FilePart,
    ImagePart,
    Message,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from gateway.contract.provider import ProviderConfig
from gateway.pacing import Clock, Timer
from gateway.provider_http.rate_limits import MINUTE, SlidingWindow, WindowEntry

log = structlog.get_logger("trunkline.keys")

REFUSED_SECONDS = 3600.0
"""Seconds for which a rejected key is used only if all others are rejected too; also the longest hold."""
HOLD_SECONDS = 1.0
"""Seconds to hold one of several keys after a rate limit without a retry time."""

_EPSILON = 0.001
_SIMILAR_LOAD = 4
"""Running calls by which keys may differ and still count as equally loaded."""
_IMAGE_TOKENS = 1000
_BYTES_PER_TOKEN = 4


class CallRequest(Struct, frozen=True):
    """A call that needs a key: its session, its model, and its estimated tokens."""

    session: str
    model: str
    tokens: int = 0
    tried: frozenset[int] = frozenset()
    """Positions of the keys that failed for this call."""

    @property
    def queue(self) -> tuple[str, str]:
        """The queue it waits in: one for each session and model."""
        return self.session, self.model


class KeyState:
    """One API key: its settings, its running calls and windows, and until when it is set aside.

    ``refused`` (the backend rejected the key) and ``held`` (rate limited) map a model, or ``""`` for all
    models, to a time.
    """

    __slots__ = ("concurrency", "config", "held", "position", "refused", "requests", "running", "tokens")

    def __init__(self, position: int, config: ProviderConfig) -> None:
        self.position = position
        self.config = config
        self.running = 0
        self.refused: dict[str, float] = {}
        self.held: dict[str, float] = {}
        self.concurrency = inf if config.concurrency is None else config.concurrency
        self.requests = (
            None if config.requests_per_minute is None else SlidingWindow(config.requests_per_minute)
        )
        self.tokens = None if config.tokens_per_minute is None else SlidingWindow(config.tokens_per_minute)

    def is_refused(self, model: str, now: float) -> bool:
        """Return whether the backend recently rejected the key."""
        return _until(self.refused, model) > now

    def held_until(self, model: str) -> float:
        """Return the end of the hold."""
        return _until(self.held, model)

    def available_at(self, tokens: int, now: float) -> float:
        """Return when its limits admit a call of that size; infinity if another call must end first."""
        if self.running >= self.concurrency:
            return inf
        when = now
        if self.requests is not None:
            when = self.requests.available_at(1, now)
        return when if self.tokens is None else max(when, self.tokens.available_at(tokens, now))


def _until(times: dict[str, float], model: str) -> float:
    return max(times.get(model, 0.0), times.get("", 0.0)) if times else 0.0


class LimitState(Struct, frozen=True):
    """The use of a provider's keys now. Limits are those of all keys together; None for an unlimited one.

    ``refused`` are the positions of keys that the backend rejected, ``held`` the number of keys that wait for
    a rate limit, at most ``held_seconds`` more. ``waiting`` calls are in line for a key, or repeated later.
    """

    keys: int
    refused: tuple[int, ...] = ()
    held: int = 0
    held_seconds: float = 0.0
    running: int = 0
    concurrency: int | None = None
    requests: int = 0
    requests_per_minute: int | None = None
    tokens: int = 0
    tokens_per_minute: int | None = None
    waiting: int = 0


class KeyUse(Struct, frozen=True):
    """The state of one key. It was rejected ``rejected_seconds`` ago, or waits ``held_seconds`` more.

    ``models`` are those that it is set aside for, empty for all models.
    """

    position: int
    running: int = 0
    rejected_seconds: float | None = None
    held_seconds: float = 0.0
    models: tuple[str, ...] = ()


class KeyLease:
    """The right to make one call with one key. ``release`` ends it; further releases do nothing."""

    __slots__ = ("_key", "_scheduler", "_tokens", "request")

    def __init__(
        self, scheduler: KeyScheduler, key: KeyState, request: CallRequest, tokens: WindowEntry | None
    ) -> None:
        self._scheduler: KeyScheduler | None = scheduler
        self._key = key
        self._tokens = tokens
        self.request = request

    @property
    def config(self) -> ProviderConfig:
        """The provider's settings with this key."""
        return self._key.config

    @property
    def position(self) -> int:
        """The key's position in the settings, from 1."""
        return self._key.position

    def record_tokens(self, tokens: int) -> None:
        """Replace the estimate by the tokens that the call took."""
        if self._key.tokens is not None and self._tokens is not None:
            self._key.tokens.correct(self._tokens, tokens)

    def release(self) -> None:
        """End the lease, so that a waiting call can use the key."""
        scheduler, self._scheduler = self._scheduler, None
        if scheduler is not None:
            scheduler.free(self._key)


class LeaseTicket:
    """A queued call. Use it as a context manager: leaving it with an error gives up its place.

    ``seconds`` is the estimated wait, 0 if it is unknown.
    """

    __slots__ = ("_scheduler", "future", "request", "seconds")

    def __init__(self, scheduler: KeyScheduler, request: CallRequest, seconds: float) -> None:
        self._scheduler = scheduler
        self.request = request
        self.seconds = seconds
        self.future: asyncio.Future[KeyLease] = asyncio.get_running_loop().create_future()

    def __enter__(self) -> LeaseTicket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._scheduler.withdraw(self)

    async def wait(self, max_seconds: float) -> KeyLease:
        """Wait for the lease. Raises RateLimitError if it does not come within ``max_seconds``."""
        try:
            if self.seconds > max_seconds:
                raise TimeoutError
            async with asyncio.timeout(max_seconds):
                return await self.future
        except TimeoutError:
            name, wait = self._scheduler.provider, self.seconds
            how_long = f"for {wait:.0f} s" if wait > max_seconds else f"for {max_seconds:.0f} s and more"
            raise RateLimitError(
                f"the limits of {name} leave no room {how_long}, longer than a call may wait",
                provider=name,
                retry_after=wait or None,
            ) from None


class KeyScheduler:
    """The API keys of one provider and the queues of calls that wait for them.

    ``clock`` is the running event loop unless a test passes one.
    """

    def __init__(self, config: ProviderConfig, clock: Clock | None = None) -> None:
        self.provider = config.id
        self._clock = clock
        self._max_wait = config.timeout / 1000
        self._keys = [
            KeyState(position, msgspec.structs.replace(config, api_key=key))
            for position, key in enumerate(config.keys or (None,), 1)
        ]
        self._queues: OrderedDict[tuple[str, str], deque[LeaseTicket]] = OrderedDict()
        self._timer: Timer | None = None
        self._released = asyncio.Event()
        """Set when the holds are ended; then there is another one."""
        self._pausing = 0

    @property
    def configs(self) -> Sequence[ProviderConfig]:
        """The provider's settings with each key; rejected keys come last."""
        now = self._now()
        return [key.config for key in sorted(self._keys, key=lambda key: key.is_refused("", now))]

    @property
    def state(self) -> LimitState:
        """The use of the keys now."""
        now, keys, config = self._now(), self._keys, self._keys[0].config
        held = [until - now for key in keys if (until := max(key.held.values(), default=0.0)) > now]
        limits = (config.concurrency, config.requests_per_minute, config.tokens_per_minute)
        concurrency, requests, tokens = (each and each * len(keys) for each in limits)
        return LimitState(
            keys=len(keys),
            refused=tuple(key.position for key in keys if key.is_refused("", now)),
            held=len(held),
            held_seconds=max(held, default=0.0),
            running=sum(key.running for key in keys),
            concurrency=concurrency,
            requests=sum(key.requests.used(now) for key in keys if key.requests is not None),
            requests_per_minute=requests,
            tokens=sum(key.tokens.used(now) for key in keys if key.tokens is not None),
            tokens_per_minute=tokens,
            waiting=sum(map(len, self._queues.values())) + self._pausing,
        )

    @property
    def uses(self) -> Sequence[KeyUse]:
        """The state of each key now, by position."""
        return [_use_of(key, self._now()) for key in self._keys]

    def acquire(self, request: CallRequest) -> KeyLease | LeaseTicket:
        """Return a lease if one is free now, else a ticket for the queue."""
        now = self._now()
        lease = None if self._queues else self._lease(request, now)
        if lease is not None:
            return lease
        ticket = LeaseTicket(self, request, self._expected_wait(request, now))
        self._queues.setdefault(request.queue, deque()).append(ticket)
        self._admit()
        return ticket.future.result() if ticket.future.done() else ticket

    def next_lease(self, lease: KeyLease, failure: ProviderError) -> KeyLease | LeaseTicket | None:
        """Release the lease of a failed call and lease another key; None if that cannot help.

        Sets the failed key aside. If all keys are held, sets ``failure.retry_after`` to the end of the first
        hold.
        """
        self.record_failure(lease.position, lease.request.model, failure)
        lease.release()
        if len(self._keys) == 1 or not isinstance(failure, AuthFailedError | RateLimitError):
            return None
        request = msgspec.structs.replace(lease.request, tried=lease.request.tried | {lease.position})
        now = self._now()
        if failure.retryable and all(key.held_until(request.model) > now for key in self._keys):
            failure.retry_after = min(key.held_until(request.model) for key in self._keys) - now
            return None
        if len(request.tried) == len(self._keys):
            return None
        log.warning(
            "an API key failed; trying another one",
            provider=self.provider,
            key=lease.position,
            error=failure.name,
        )
        return self.acquire(request)

    def record_failure(self, position: int, model: str, failure: ProviderError) -> None:
        """Set a key aside for one model or for all models, depending on the failure."""
        key, now = self._keys[position - 1], self._now()
        if isinstance(failure, AuthFailedError):
            # 403 denies this model to the key; 401 and 402 reject the key itself.
            key.refused[model if failure.upstream_status == 403 else ""] = now + REFUSED_SECONDS
        elif isinstance(failure, RateLimitError) and not failure.retryable:
            key.refused[""] = now + REFUSED_SECONDS
        elif isinstance(failure, RateLimitError):
            default = HOLD_SECONDS if len(self._keys) > 1 else 0.0
            self.hold(position, model, default if failure.retry_after is None else failure.retry_after)

    def hold(self, position: int, model: str, seconds: float) -> None:
        """Use a key for no call to ``model`` for that long; never shortens a hold."""
        # A provider's only key is not held for longer than a call may wait: every call would fail
        # without asking, although backends sometimes admit calls before the time they named.
        if len(self._keys) == 1 and seconds > self._max_wait:
            return
        held, until = self._keys[position - 1].held, self._now() + min(seconds, REFUSED_SECONDS)
        held[model] = max(held.get(model, 0.0), until)

    def end_holds(self) -> int:
        """Use the keys again that wait for a rate limit of the backend. Returns their number."""
        now = self._now()
        held = [key for key in self._keys if max(key.held.values(), default=0.0) > now]
        for key in held:
            key.held.clear()
        self._released.set()
        self._released = asyncio.Event()
        self._admit()
        return len(held)

    async def pause(self, seconds: float) -> None:
        """Wait after a refused call, at most until the holds are ended."""
        self._pausing += 1
        try:
            async with asyncio.timeout(seconds):
                await self._released.wait()
        except TimeoutError:
            pass
        finally:
            self._pausing -= 1

    def free(self, key: KeyState) -> None:
        """Take back a key from a call that ended."""
        key.running -= 1
        if self._queues:
            self._admit()

    def withdraw(self, ticket: LeaseTicket) -> None:
        """Remove a ticket from its queue, or release the lease that it was just granted."""
        if ticket.future.done() and not ticket.future.cancelled():
            ticket.future.result().release()
            return
        ticket.future.cancel()
        queue = self._queues.get(ticket.request.queue)
        if queue is not None and ticket in queue:
            queue.remove(ticket)
            if not queue:
                del self._queues[ticket.request.queue]
        self._admit()

    def _time(self) -> Clock:
        return self._clock or asyncio.get_running_loop()

    def _now(self) -> float:
        return self._time().time()

    def _lease(self, request: CallRequest, now: float) -> KeyLease | None:
        """Lease a free key: the session's own one, unless the others are much less loaded."""
        keys = self._usable(request, now)
        free = [key for key in keys if self._free_at(key, request, now) <= now + _EPSILON]
        if not free:
            return None
        # Providers cache prompts for each key, so a session stays with one.
        own = crc32(request.session.encode("utf-8", "replace")) % len(self._keys)
        key = min(
            free,
            key=lambda key: (
                key.running // _SIMILAR_LOAD,
                (key.position - own) % len(self._keys),
                key.running,
            ),
        )
        key.running += 1
        if key.requests is not None:
            key.requests.take(1, now)
        tokens = None if key.tokens is None else key.tokens.take(request.tokens, now)
        return KeyLease(self, key, request, tokens)

    def _usable(self, request: CallRequest, now: float) -> list[KeyState]:
        """Return the keys that this call has not tried, without rejected ones unless all are rejected."""
        keys = [key for key in self._keys if key.position not in request.tried]
        return [key for key in keys if not key.is_refused(request.model, now)] or keys

    def _free_at(self, key: KeyState, request: CallRequest, now: float) -> float:
        return max(key.available_at(request.tokens, now), key.held_until(request.model))

    def _expected_wait(self, request: CallRequest, now: float) -> float:
        """Return the estimated seconds until a new request gets a lease; 0 if unknown."""
        keys = self._usable(request, now)
        soonest = min(self._free_at(key, request, now) for key in keys)
        ahead = sum(map(len, self._queues.values()))
        rate = sum(key.config.requests_per_minute or inf for key in keys)
        return 0.0 if soonest == inf else soonest - now + ahead * MINUTE / rate

    def _admit(self) -> None:
        """Grant leases, one queue after the other, while keys are free."""
        now = self._now()
        granted = True
        while granted:
            granted = False
            for name, queue in tuple(self._queues.items()):
                # A cancelled call withdraws its ticket only when its task runs: skip it until then.
                while queue and queue[0].future.done():
                    queue.popleft()
                request = queue[0].request if queue else None
                lease = None if request is None else self._lease(request, now)
                if lease is not None:
                    queue.popleft().future.set_result(lease)
                    self._queues.move_to_end(name)
                    granted = True
                if not queue:
                    del self._queues[name]
                elif lease is None and not self._may_be_passed(queue[0].request, now):
                    self._schedule(now)
                    return
        self._schedule(now)

    def _may_be_passed(self, request: CallRequest, now: float) -> bool:
        """Return whether later requests may go first: this one waits for certain keys or its model only.

        A request that waits for a shared limit blocks the others; else small calls would starve a large one.
        """
        return bool(request.tried) or any(
            key.available_at(request.tokens, now) <= now + _EPSILON for key in self._usable(request, now)
        )

    def _schedule(self, now: float) -> None:
        """Set the timer to the time when the first waiting request can get a lease."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        requests = [queue[0].request for queue in self._queues.values()]
        times = [self._free_at(key, each, now) for each in requests for key in self._usable(each, now)]
        if (soonest := min(times, default=inf)) < inf:
            self._timer = self._time().call_at(max(soonest, now + _EPSILON), self._admit)


def _use_of(key: KeyState, now: float) -> KeyUse:
    refused = {model: until for model, until in key.refused.items() if until > now}
    held = {model: until for model, until in key.held.items() if until > now}
    times = refused or held
    models = () if "" in times else tuple(times)
    if refused:
        first = min(refused.values()) - REFUSED_SECONDS
        return KeyUse(key.position, key.running, rejected_seconds=now - first, models=models)
    return KeyUse(
        key.position, key.running, held_seconds=max(held.values(), default=now) - now, models=models
    )


def scheduler_for(config: ProviderConfig) -> KeyScheduler | None:
    """Make the scheduler of a provider; None if it has one key and no limits."""
    limits = (config.concurrency, config.requests_per_minute, config.tokens_per_minute)
    return KeyScheduler(config) if len(config.keys) > 1 or any(limits) else None


def estimate_request(messages: Sequence[Message], model: str, size: int) -> CallRequest:
    """Make the request for a call with a body of ``size`` bytes, and estimate its tokens."""
    # A backend charges an image by its pixels: counting its base64 as text would be far too much.
    images = [data for message in messages for data in _images(message)]
    size -= sum(map(len, images))
    tokens = max(1, size // _BYTES_PER_TOKEN) + _IMAGE_TOKENS * len(images)
    return CallRequest(messages[-1].session_id if messages else "", model, tokens)


def _images(message: Message) -> list[str]:
    found: list[str] = []
    for part in message.parts:
        match part:
            case ImagePart():
                found.append(part.data)
            case ToolResultPart():
                found += [attachment.data for attachment in part.attachments]
            case TextPart() | ToolCallPart() | ErrorPart() | FilePart():
                pass
            case _:
                assert_never(part)
    return found
