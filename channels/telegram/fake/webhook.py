"""Delivery to the bot's own address: one update of a room after the other, again and again until it is
taken."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
from msgspec import Struct

from channels.telegram.fake.clock import Clock
from channels.telegram.fake.refusal import Refused, mistaken
from channels.telegram.fake.updates import Update, Updates

_PORTS = (443, 80, 88, 8443)
_LONGEST_PAUSE = 60
_LONGEST_WISH = 3600
_GONE_SECONDS = 23 * 3600
_PATIENCE = 30
_SECRET = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")

OnCall = Callable[[bytes, str], Awaitable[None]]
"""Makes the call that an answer may carry: its body, and its content type."""


class Address(Struct, frozen=True, kw_only=True):
    """Where updates go. ``secret`` comes with each in a header; ``connections`` are made at once at most."""

    url: str
    secret: str = ""
    connections: int = 40


class Failure(Struct, frozen=True):
    """Why the last delivery did not work, and when."""

    text: str
    at: int


class Webhook:
    """Delivers for as long as an address is set.

    What is not taken comes again at once, then after 2 seconds, 4, up to 60; an address may wish for longer.
    One that answers 410 for 23 hours is given up.
    """

    def __init__(self, clock: Clock, updates: Updates, on_call: OnCall) -> None:
        self._clock = clock
        self._updates = updates
        self._on_call = on_call
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._gone_since: float | None = None
        self.address: Address | None = None
        self.failure: Failure | None = None

    def set(self, address: Address | None) -> None:
        """Deliver there from now on, or nowhere. Raises Refused for an address that no updates are sent
        to."""
        if address is not None:
            _check(address)
        self.address = address
        self.failure = None
        self._gone_since = None
        self._updates.webhook = address is not None
        self._clock.beat()

    async def run(self) -> None:
        """Deliver until cancelled."""
        async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as tasks:
            while True:
                if self.address is not None:
                    self._start(http, tasks, self.address)
                await self._clock.changed()

    def _start(self, http: aiohttp.ClientSession, tasks: asyncio.TaskGroup, address: Address) -> None:
        """One task for each room that something waits for."""
        for update in self._updates.waiting:
            if update.queue not in self._tasks and len(self._tasks) < address.connections:
                task = tasks.create_task(self._deliver(http, update.queue))
                self._tasks[update.queue] = task
                task.add_done_callback(lambda _, queue=update.queue: self._done(queue))

    def _done(self, queue: str) -> None:
        self._tasks.pop(queue, None)
        self._clock.beat()

    async def _deliver(self, http: aiohttp.ClientSession, queue: str) -> None:
        """All that waits for one room, in order."""
        while (address := self.address) is not None:
            update = next((one for one in self._updates.waiting if one.queue == queue), None)
            if update is None:
                return
            await self._insist(http, update, address)

    async def _insist(self, http: aiohttp.ClientSession, update: Update, address: Address) -> None:
        """One update, until it is taken, too old, or to be taken elsewhere."""
        pause, failures = 1, 0
        while address is self.address and any(one.id == update.id for one in self._updates.waiting):
            failed, wish = await self._post(http, update, address)
            if not failed:
                self._updates.confirm(update.id)
                return
            self.failure = Failure(failed, self._clock.date())
            if failures and not wish:
                pause = min(_LONGEST_PAUSE, pause * 2)
            failures += 1
            wait = self._clock.now() + (wish or (pause if failures > 1 else 0))
            await self._clock.sleep_until(wait, unless=lambda: self.address is not address)

    async def _post(self, http: aiohttp.ClientSession, update: Update, address: Address) -> tuple[str, int]:
        """Why it was not taken ("" if it was), and the seconds that the address wants to be left alone."""
        headers = {"Content-Type": "application/json"}
        if address.secret:
            headers["X-Telegram-Bot-Api-Secret-Token"] = address.secret
        body = msgspec.json.encode(update.json)
        try:
            async with (
                asyncio.timeout(_PATIENCE),
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
        wish = answer.headers.get("Retry-After", "")
        said = f"Wrong response from the webhook: {answer.status} {answer.reason}"
        return said, min(_LONGEST_WISH, int(wish)) if wish.isdigit() else 0

    def _gone(self, status: int) -> None:
        now = self._clock.now()
        if status != 410:
            self._gone_since = None
        elif self._gone_since is None:
            self._gone_since = now
        elif now > self._gone_since + _GONE_SECONDS:
            self.set(None)

    def info(self) -> dict[str, Any]:
        """What ``getWebhookInfo`` answers."""
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
    """The rules for addresses. This machine's own need no TLS and no special port."""
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
