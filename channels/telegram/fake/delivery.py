"""Delivery of updates to the bot: a queue that the bot polls, and a webhook."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
from msgspec import Struct

from channels.telegram.fake.calls import Refused, mistaken, schemas
from gateway.testing.fake_platform import Changes, Clock

ASKED_FOR = ("chat_member", "message_reaction", "message_reaction_count")
"""Kinds of updates that a bot receives only if it names them."""

_LONGEST_POLL = 50
_TERMINATED = "Conflict: terminated by {}"
_BY_POLL = "other getUpdates request; make sure that only one bot instance is running"
_WEBHOOK_ACTIVE = (
    "Conflict: can't use getUpdates method while webhook is active; "
    "use deleteWebhook to delete the webhook first"
)


class Update(Struct, frozen=True):
    """An update. A webhook receives those of one ``queue`` in order. It expires at ``until``."""

    id: int
    kind: str
    content: Mapping[str, Any]
    queue: str
    until: float

    @property
    def json(self) -> dict[str, Any]:
        """Return the update as a Bot API object."""
        return {"update_id": self.id, **({self.kind: self.content} if self.kind else self.content)}


class Poll:
    """A ``getUpdates`` call that waits. ``ended`` is the reason why another call ended it."""

    def __init__(self) -> None:
        self.ended = ""


class Updates:
    """Queue of updates. An empty ``allowed`` means all kinds except ``ASKED_FOR``."""

    def __init__(self, clock: Clock, changes: Changes) -> None:
        self._clock = clock
        self._changes = changes
        self._waiting: list[Update] = []
        self._poll: Poll | None = None
        self._next_id = 700_000_001
        self._last_offset = 0
        self._last_poll = 0.0
        self._next_conflict = 0.0
        self.allowed: tuple[str, ...] = ()
        self.webhook = False
        self.reversed = False

    def push(self, kind: str, content: Mapping[str, Any], *, queue: str, seconds: float) -> None:
        """Add an update. Without a ``kind``, the content is the whole update."""
        if kind and not self._wanted(kind):
            return
        self._waiting.append(Update(self._next_id, kind, content, queue, self._clock.now() + seconds))
        self._next_id += 1
        self._changes.bump()

    def jump(self, update_id: int) -> None:
        """Set the next update id, as the platform does after a week without updates."""
        self._next_id = update_id

    def forget(self) -> int:
        """Drop all waiting updates, as the platform does after 24 hours. Returns their number."""
        count = len(self._waiting)
        self._waiting.clear()
        return count

    def confirm(self, update_id: int) -> None:
        """Remove an update that the webhook accepted."""
        self._waiting = [update for update in self._waiting if update.id != update_id]

    @property
    def waiting(self) -> list[Update]:
        """Return the updates that are not confirmed, in order."""
        now = self._clock.now()
        self._waiting = [update for update in self._waiting if update.until > now]
        return list(self._waiting)

    @property
    def polled(self) -> bool:
        """Return whether a poll is waiting."""
        return self._poll is not None

    def allow(self, kinds: Sequence[str] | None) -> None:
        """Set the kinds of updates to deliver; None changes nothing, an empty list means the default."""
        if kinds is not None:
            known = schemas().at("$defs", "Update")["properties"].keys() - {"update_id"}
            self.allowed = tuple(kind for kind in kinds if kind in known)

    def terminate(self, why: str) -> None:
        """End the waiting poll."""
        if self._poll is not None:
            self._poll.ended = _TERMINATED.format(why)
            self._poll = None
            self._changes.bump()

    async def poll(
        self, offset: int = 0, limit: int = 100, wait: int = 0, allowed: Sequence[str] | None = None
    ) -> list[Update]:
        """Handle ``getUpdates``: confirm the updates below ``offset``, and wait for more. Raises Refused
        (409) for a conflict."""
        if self.webhook:
            await self._conflict(_WEBHOOK_ACTIVE)
        self.allow(allowed)
        limit, wait = self._slow_down(offset, max(1, min(100, limit)), max(0, min(_LONGEST_POLL, wait)))
        self._confirm_below(offset)
        if not self.waiting and wait:
            await self._wait(wait)
        batch = self.waiting[:limit]
        if self.reversed:
            self.reversed = False
            batch.reverse()
        return batch

    async def _wait(self, seconds: float) -> None:
        self.terminate(_BY_POLL)
        poll = self._poll = Poll()
        try:
            with contextlib.suppress(TimeoutError):
                async with self._clock.within(seconds):
                    while not self.waiting and not poll.ended:
                        await self._changes.next()
        finally:
            if self._poll is poll:
                self._poll = None
        if poll.ended:
            await self._conflict(poll.ended)

    async def _conflict(self, text: str) -> None:
        """Raise Refused (409). Responses after the first one within three seconds are delayed."""
        now = self._clock.now()
        if now < self._next_conflict:
            await self._clock.sleep(3)
        else:
            self._next_conflict = now + 3
        raise Refused(text, 409)

    def _slow_down(self, offset: int, limit: int, wait: int) -> tuple[int, int]:
        """Delay a caller that repeats the same request. Returns the new limit and wait."""
        now, again = self._clock.now(), offset == self._last_offset
        if again and wait < 3 and now < self._last_poll + 3:
            wait = 3
        if again and now < self._last_poll + 0.5:
            limit = 1
        self._last_offset, self._last_poll = offset, now
        return limit, wait

    def _confirm_below(self, offset: int) -> None:
        """Confirm updates. An offset above the next id confirms nothing, because ids may have restarted."""
        if offset < 0:
            self._waiting = self._waiting[offset:]
        elif offset <= self._next_id:
            self._waiting = [update for update in self._waiting if update.id >= offset]

    def _wanted(self, kind: str) -> bool:
        return kind in self.allowed if self.allowed else kind not in ASKED_FOR


_PORTS = (443, 80, 88, 8443)
_LONGEST_PAUSE = 60
_LONGEST_RETRY_AFTER = 3600
_GONE_SECONDS = 23 * 3600
_TIMEOUT = 30
_SECRET = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")

OnCall = Callable[[bytes, str], Awaitable[None]]
"""Function that makes the call in a webhook response, given its body and content type."""


class Address(Struct, frozen=True, kw_only=True):
    """A webhook address. ``secret`` is sent in a header; ``connections`` limits parallel requests."""

    url: str
    secret: str = ""
    connections: int = 40


class Failure(Struct, frozen=True):
    """Reason and time of the last failed delivery."""

    text: str
    at: int


class Webhook:
    """Webhook that calls the bot while an address is set.

    A failed delivery is repeated at once, then after 2 seconds, 4, up to 60; ``Retry-After`` may ask for
    more. The address is removed if it responds 410 for 23 hours.
    """

    def __init__(self, clock: Clock, changes: Changes, updates: Updates, on_call: OnCall) -> None:
        self._clock = clock
        self._changes = changes
        self._updates = updates
        self._on_call = on_call
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._gone_since: float | None = None
        self.address: Address | None = None
        self.failure: Failure | None = None

    def set(self, address: Address | None) -> None:
        """Set or remove the address. Raises Refused for an address that the platform does not accept."""
        if address is not None:
            _check(address)
        self.address = address
        self.failure = None
        self._gone_since = None
        self._updates.webhook = address is not None
        self._changes.bump()

    async def run(self) -> None:
        """Deliver until cancelled."""
        async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as tasks:
            while True:
                if self.address is not None:
                    self._start(http, tasks, self.address)
                await self._changes.next()

    def _start(self, http: aiohttp.ClientSession, tasks: asyncio.TaskGroup, address: Address) -> None:
        """Start one task for each queue that has updates."""
        for update in self._updates.waiting:
            if update.queue not in self._tasks and len(self._tasks) < address.connections:
                task = tasks.create_task(self._deliver(http, update.queue))
                self._tasks[update.queue] = task
                task.add_done_callback(lambda _, queue=update.queue: self._done(queue))

    def _done(self, queue: str) -> None:
        self._tasks.pop(queue, None)
        self._changes.bump()

    async def _deliver(self, http: aiohttp.ClientSession, queue: str) -> None:
        """Deliver the updates of one queue, in order."""
        while (address := self.address) is not None:
            update = next((one for one in self._updates.waiting if one.queue == queue), None)
            if update is None:
                return
            await self._deliver_update(http, update, address)

    async def _deliver_update(self, http: aiohttp.ClientSession, update: Update, address: Address) -> None:
        """Deliver one update until it is accepted, expires, or the address changes."""
        pause, failures = 1, 0
        while address is self.address and any(one.id == update.id for one in self._updates.waiting):
            failed, retry_after = await self._post(http, update, address)
            if not failed:
                self._updates.confirm(update.id)
                return
            self.failure = Failure(failed, self._clock.date())
            if failures and not retry_after:
                pause = min(_LONGEST_PAUSE, pause * 2)
            failures += 1
            with contextlib.suppress(TimeoutError):
                async with self._clock.within(retry_after or (pause if failures > 1 else 0)):
                    while self.address is address:
                        await self._changes.next()

    async def _post(self, http: aiohttp.ClientSession, update: Update, address: Address) -> tuple[str, int]:
        """Post an update. Returns the error (empty if it was accepted) and the seconds of ``Retry-After``."""
        headers = {"Content-Type": "application/json"}
        if address.secret:
            headers["X-Telegram-Bot-Api-Secret-Token"] = address.secret
        body = msgspec.json.encode(update.json)
        try:
            async with (
                asyncio.timeout(_TIMEOUT),
                http.post(address.url, data=body, headers=headers) as answer,
            ):
                content = await answer.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return f"Connection failed: {error}", 0
        if answer.ok:
            self._gone_since = None
            with contextlib.suppress(Refused):
                await self._on_call(content, answer.content_type)
            return "", 0
        self._gone(answer.status)
        retry_after = answer.headers.get("Retry-After", "")
        said = f"Wrong response from the webhook: {answer.status} {answer.reason}"
        return said, min(_LONGEST_RETRY_AFTER, int(retry_after)) if retry_after.isdigit() else 0

    def _gone(self, status: int) -> None:
        now = self._clock.now()
        if status != 410:
            self._gone_since = None
        elif self._gone_since is None:
            self._gone_since = now
        elif now > self._gone_since + _GONE_SECONDS:
            self.set(None)

    def info(self) -> dict[str, Any]:
        """Return the result of ``getWebhookInfo``."""
        shown: dict[str, Any] = {
            "url": self.address.url if self.address else "",
            "has_custom_certificate": False,
            "pending_update_count": len(self._updates.waiting),
        }
        if self.address is not None:
            shown["max_connections"] = self.address.connections
        if self.failure is not None:
            shown |= {"last_error_date": self.failure.at, "last_error_message": self.failure.text}
        if self._updates.allowed:
            shown["allowed_updates"] = list(self._updates.allowed)
        return shown


def _check(address: Address) -> None:
    """Raise Refused if an address breaks a rule. Addresses of this machine may use HTTP and any port."""
    parts = urlsplit(address.url if "://" in address.url else f"https://{address.url}")
    if not parts.hostname:
        raise mistaken("invalid webhook URL specified")
    if len(address.secret) > 256:
        raise mistaken("secret token is too long")
    if not _SECRET.issuperset(address.secret):
        raise mistaken("secret token contains unallowed characters")
    if _is_here(parts.hostname):
        return
    if parts.scheme != "https":
        raise mistaken("bad webhook: An HTTPS URL must be provided for webhook")
    if (parts.port or 443) not in _PORTS:
        raise mistaken("bad webhook: Webhook can be set up only on ports 80, 88, 443 or 8443")


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
