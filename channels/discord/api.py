"""Discord's REST API by way of discord.py, in the gateway's terms: done, not done, or nobody knows.

discord.py keeps the addresses in its classes, for the whole process, and waits and repeats by itself. Here
each bot has its own address, and whoever calls is told at once how long to wait: only the caller knows
whether what it wanted to say is still worth waiting for.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NoReturn, cast

import aiohttp
import discord
from discord.http import HTTPClient, Ratelimit, Route

from channels.discord.files import Upload, form_of
from gateway import Limit, Pacer, PlacementDeferred, PlacementRefused, PlacementUncertain

_TIMEOUT = aiohttp.ClientTimeout(total=15)
_UPLOAD_TIMEOUT = aiohttp.ClientTimeout(total=120)
_LONGEST_ASKED = 3600.0
_NO_TOKEN = 60.0
_RETRIES = 6

_ALL, _SPARE = "all", "spare"
_LIMITS = {_ALL: Limit(50, 1.03), _SPARE: Limit(20, 1.03)}
"""Discord takes 50 calls a second of a bot. What can be left out leaves room for the answers."""

ARCHIVED, THREAD_EXISTS, NO_HISTORY = 50083, 160004, 160002
VOICE_STAYS, NO_VOICE = 50162, frozenset({50013, 50159, 50160, 50161, 50173})
"""What a call may be refused for that can be helped."""


class Later(Exception):
    """The call was not made, or refused: it may be made again in ``seconds``."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"wait {seconds:.2f} s")
        self.seconds = seconds


class Broken(Exception):
    """The platform failed on its side; the call may have been applied."""


class Refused(Exception):
    """The platform said no. ``code`` is its own number for why."""

    def __init__(self, status: int, code: int, text: str) -> None:
        super().__init__(f"{status} {text} ({code})")
        self.status = status
        self.code = code


class Bucket(Ratelimit):
    """Counts the calls of one kind; says how long to wait instead of waiting."""

    async def acquire(self) -> None:
        """Take a place. Raises Later when the window is used up."""
        while True:
            now = self._loop.time()
            self._last_request = now
            if self.is_expired():
                self.reset()
            if self.remaining > 0:
                break
            if self.expires is not None:
                raise Later(self.expires - now)
            # Nothing is known of this bucket yet: the first answer tells.
            future: asyncio.Future[Any] = self._loop.create_future()
            self._pending_requests.append(future)
            await future
        self.remaining -= 1
        self.outgoing += 1

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.outgoing -= 1
        if kind is not None:  # no answer told what is left: if it was less, the next one says so
            self.remaining = min(self.limit, self.remaining + 1)
        if self.expires is None:
            self.remaining = max(self.remaining, self.limit - self.outgoing)
        self._wake(len(self._pending_requests))


class Rest(HTTPClient):
    """discord.py's client for one bot at its own address."""

    def __init__(self, base: str, pacer: Pacer) -> None:
        super().__init__(asyncio.get_running_loop())
        self._base = base
        self._pacer = pacer
        self._held: dict[str, float] = {}

    def get_ratelimit(self, key: str) -> Ratelimit:
        """The bucket of a key."""
        if key not in self._buckets:
            self._buckets[key] = Bucket(None)
            self._try_clear_expired_ratelimits()
        return self._buckets[key]

    async def request(self, route: Route, *, spare: bool = False, **kwargs: Any) -> Any:
        """One call, made once, at its turn among all calls. What is to ``spare`` waits for none.

        Raises Later, Broken, what discord.py raises, and what aiohttp raises.
        """
        route.url = self._base + route.url.removeprefix(Route.BASE)
        free = route.path.startswith("/interactions/")
        if not free:
            await self._turn(spare=spare)
        key = f"{route.key}:{route.major_parameters}"
        for held in (key,) if free else (key, ""):
            left = self._held.get(held, 0) - self.loop.time()
            if left > 0:
                raise Later(left)
            self._held.pop(held, None)

        async def judge(response: aiohttp.ClientResponse) -> None:
            if response.status == 429:
                seconds, everywhere = await _asked_to_wait(response)
                self._held["" if everywhere else key] = self.loop.time() + seconds
                raise Later(seconds)
            if response.status >= 500:
                raise Broken(f"status {response.status}")

        kwargs.setdefault("timeout", _TIMEOUT)
        return await super().request(route, raise_for_status=judge, **kwargs)

    async def _turn(self, *, spare: bool) -> None:
        keys = (_ALL, _SPARE) if spare else (_ALL,)
        wait = self._pacer.wait(*keys)
        if spare and wait > 0:
            raise Later(wait)
        async with self._pacer.turn(*keys, urgent=not spare):
            pass  # it is the moment that counts


async def _asked_to_wait(response: aiohttp.ClientResponse) -> tuple[float, bool]:
    """How long a 429 asks to wait, and whether that is for all calls."""
    header = response.headers.get("Retry-After", "1")
    seconds = float(header) if header.replace(".", "", 1).isdecimal() else 1.0
    # Without this header the answer is not the API's: the address is banned, everything has to stop.
    everywhere = "Via" not in response.headers or "X-RateLimit-Global" in response.headers
    try:
        told = await response.json()
        exact = float(told["retry_after"])
        seconds = exact if math.isfinite(exact) else seconds
        everywhere = everywhere or bool(told.get("global"))
    except (aiohttp.ClientError, ValueError, TypeError, KeyError, LookupError, AttributeError):
        pass  # the ban's answer is a page, not JSON
    return min(_LONGEST_ASKED, max(0.0, seconds)) + 0.01, everywhere


class Api:
    """What the channel says to Discord. It is open while somebody uses it."""

    def __init__(self, base: str, token: Callable[[], str], pace: float = 1.0) -> None:
        self._base = base
        self._pacer = Pacer({kind: limit.times(pace) for kind, limit in _LIMITS.items()})
        self._token = token
        self._rest: Rest | None = None
        self._users = 0
        self._opening = asyncio.Lock()
        self.me: Mapping[str, Any] = {}

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[Rest]:
        """The connection, logged in. Raises Refused, Later, Broken and what aiohttp raises."""
        self._users += 1
        try:
            yield await self._open()
        finally:
            self._users -= 1
            if not self._users and self._rest is not None:
                rest, self._rest = self._rest, None
                await rest.close()

    async def call(
        self,
        verb: str,
        path: str,
        body: object = None,
        *,
        uploads: Sequence[Upload] = (),
        query: Mapping[str, str | int] | None = None,
        spare: bool = False,
        **gaps: str,
    ) -> Any:
        """One call; what is to ``spare`` is not made where others wait.

        Raises Refused, Later, Broken, and what aiohttp raises.
        """
        arguments: dict[str, Any] = {"spare": spare}
        if uploads:
            form = form_of(cast("Mapping[str, Any]", body or {}), uploads)
            arguments |= {"form": form, "timeout": _UPLOAD_TIMEOUT}
        elif body is not None:
            arguments["json"] = body
        if query:
            arguments["params"] = dict(query)
        async with self.opened() as rest:
            try:
                return await rest.request(Route(verb, path, **gaps), **arguments)
            except discord.HTTPException as error:
                raise Refused(error.status, error.code, error.text) from error

    async def insist(self, verb: str, path: str, body: object = None, **rest: Any) -> Any:
        """A call that is worth waiting for. Raises Refused, and after some tries what ``call`` raises."""
        for tries in range(_RETRIES):
            try:
                return await self.call(verb, path, body, **rest)
            except Later as later:
                await asyncio.sleep(later.seconds)
            except (Broken, aiohttp.ClientError, TimeoutError):
                if tries + 1 == _RETRIES:
                    raise
                await asyncio.sleep(min(30.0, 0.5 * 2.0**tries))
        return await self.call(verb, path, body, **rest)

    async def place(self, verb: str, path: str, body: object, **rest: Any) -> Mapping[str, Any]:
        """A call that places or changes a message. Raises as a channel's ``send`` does, and Refused."""
        try:
            return cast("Mapping[str, Any]", await self.call(verb, path, body, **rest))
        except Later as later:
            raise PlacementDeferred("Discord asks to wait", later.seconds) from later
        except aiohttp.ClientConnectorError as error:
            raise PlacementDeferred(type(error).__name__) from error
        except (Broken, aiohttp.ClientError, TimeoutError, OSError) as error:
            raise PlacementUncertain(str(error) or type(error).__name__) from error
        except Refused as refused:
            if refused.status == 401 and "webhook_token" not in rest:
                raise PlacementDeferred("Discord refuses the token", _NO_TOKEN) from refused
            raise

    async def download(self, url: str) -> bytes:
        """A file of a message. Raises Refused and what aiohttp raises."""
        async with self.opened() as rest:
            try:
                return await rest.get_from_cdn(url)
            except discord.HTTPException as error:
                raise Refused(error.status, error.code, error.text) from error

    async def _open(self) -> Rest:
        async with self._opening:
            if self._rest is None:
                rest = Rest(self._base, self._pacer)
                try:
                    self.me = cast("Mapping[str, Any]", await rest.static_login(self._token()))
                except BaseException as error:
                    await rest.close()
                    if isinstance(error, discord.LoginFailure):
                        raise Refused(401, 0, "Discord does not know this token") from error
                    if isinstance(error, discord.HTTPException):
                        raise Refused(error.status, error.code, error.text) from error
                    raise
                self._rest = rest
        return self._rest


def refuse(refused: Refused) -> NoReturn:
    """Say that a message will never be placed."""
    raise PlacementRefused(str(refused)) from refused
