"""Client of Discord's REST API on top of discord.py. Its errors distinguish calls that were not applied from
calls that may have been applied.

discord.py has one base URL for the whole process, and waits and retries on its own. Here each bot has its own
base URL, and a rate limit is reported to the caller with the wait time, because only the caller knows if the
call is still worth the wait.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from email.utils import parsedate_to_datetime
from time import time
from typing import Any, NoReturn, cast
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import discord
import structlog
from discord.http import HTTPClient, Ratelimit, Route

from channels.discord.files import Upload, form_of
from gateway import now_ms
from gateway.channel import Limit, Pacer, PlacementDeferred, PlacementRefused, PlacementUncertain

log = structlog.get_logger("trunkline.discord")

_TIMEOUT = aiohttp.ClientTimeout(total=15)
_UPLOAD_TIMEOUT = aiohttp.ClientTimeout(total=120)
_MAX_WAIT = 3600.0
"""Longest wait that a 429 response may ask for, in seconds."""
TOKEN_RETRY_SECONDS = 60.0
_WRONG_TOKEN = "check token, on the page Bot of the application: Discord rejects it"  # noqa: S105 - an error text
_TOKEN_REJECTED = f"{_WRONG_TOKEN} (401)"
_NOT_DISCORDS = "a page that is not Discord's: a proxy or firewall answers, or api_base_url is wrong"
_RETRIES = 6
_CLOCK_SECONDS = 5.0
"""Difference from Discord's clock up to which the machine's is taken."""

_ALL, _OPTIONAL = "all", "optional"
_LIMITS = {_ALL: Limit(50, 1.03), _OPTIONAL: Limit(20, 1.03)}
"""Discord allows a bot 50 calls per second. Optional calls use at most 20 of them, so that answers have the
rest."""

ARCHIVED, THREAD_EXISTS, NO_HISTORY, INVALID_FORM = 50083, 160004, 160002, 50035
UNKNOWN_MESSAGE = 10008
VOICE_STAYS, NO_VOICE = 50162, frozenset({50013, 50159, 50160, 50161, 50173})
"""Error codes of refusals that the channel can work around."""


class RateLimited(Exception):
    """A rate limit: the call was not applied, and may be retried in ``seconds``."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"wait {seconds:.2f} s")
        self.seconds = seconds


class ServerFailure(Exception):
    """A server error, or a response that is not the API's: the call may have been applied."""


class Refused(Exception):
    """A 4xx response: the call was not applied. ``code`` is Discord's own error code."""

    def __init__(self, status: int, code: int, text: str) -> None:
        super().__init__(f"{text} ({status}, code {code})" if code else f"{text} ({status})")
        self.status = status
        self.code = code


UNREACHABLE = (aiohttp.ClientError, OSError, RateLimited, ServerFailure)
"""Errors after which a retry may succeed; OSError includes TimeoutError."""


class Bucket(Ratelimit):
    """Rate-limit bucket of one route, which reports the wait time instead of waiting."""

    async def acquire(self) -> None:
        """Reserve a call. Raises RateLimited if the window is used up."""
        while True:
            now = self._loop.time()
            self._last_request = now
            if self.is_expired():
                self.reset()
            if self.remaining > 0:
                break
            if self.expires is not None:
                raise RateLimited(self.expires - now)
            # The bucket's limits are unknown until the first response; until then calls are made one by one.
            future: asyncio.Future[Any] = self._loop.create_future()
            self._pending_requests.append(future)
            await future
        self.remaining -= 1
        self.outgoing += 1

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.outgoing -= 1
        if kind is not None:  # without a response the count is a guess, which the next response corrects
            self.remaining = min(self.limit, self.remaining + 1)
        if self.expires is None:
            self.remaining = max(self.remaining, self.limit - self.outgoing)
        self._wake(len(self._pending_requests))


def _proxy(base: str) -> str | None:
    """Return the proxy of the environment for a base URL; discord.py does not look for one."""
    there = urlsplit(base)
    return None if proxy_bypass(there.hostname or "") else getproxies().get(there.scheme)


class Rest(HTTPClient):
    """discord.py's HTTP client, for one bot at its own base URL."""

    def __init__(self, base: str, pacer: Pacer) -> None:
        super().__init__(asyncio.get_running_loop(), proxy=_proxy(base))
        self._base = base
        self._pacer = pacer
        self._held: dict[str, float] = {}
        self.dated: tuple[str, float] = ("", 0.0)
        """Time of the newest response as Discord states it, and as the event loop does."""

    def get_ratelimit(self, key: str) -> Ratelimit:
        """Return the bucket of a route."""
        if key not in self._buckets:
            self._buckets[key] = Bucket(None)
            self._try_clear_expired_ratelimits()
        return self._buckets[key]

    async def request(self, route: Route, *, optional: bool = False, **kwargs: Any) -> Any:
        """Make one call without retries, after a wait for the bot's total rate limit.

        An optional call does not wait: it raises RateLimited. Raises RateLimited, ServerFailure,
        discord.HTTPException and the errors of aiohttp.
        """
        route.url = self._base + route.url.removeprefix(Route.BASE)
        # Responses to interactions do not count against the total limit.
        unlimited = route.path.startswith("/interactions/")
        if not unlimited:
            await self._wait_for_turn(optional=optional)
        key = f"{route.key}:{route.major_parameters}"
        for held in (key,) if unlimited else (key, ""):
            left = self._held.get(held, 0) - self.loop.time()
            if left > 0:
                raise RateLimited(left)
            self._held.pop(held, None)

        async def check(response: aiohttp.ClientResponse) -> None:
            self.dated = response.headers.get("Date", ""), self.loop.time()
            if response.status == 429:
                seconds, for_all = await _requested_wait(response)
                self._held["" if for_all else key] = self.loop.time() + seconds
                raise RateLimited(seconds)
            # Errors of the API are JSON. Anything else is a page of something in between, and refuses
            # nothing, unless that accepts less than Discord (413).
            is_own = response.content_type == "application/json" or response.status in (204, 413)
            if response.status >= 500:
                raise ServerFailure(f"status {response.status}")
            if not is_own:
                raise ServerFailure(f"status {response.status} with {_NOT_DISCORDS}")

        kwargs.setdefault("timeout", _TIMEOUT)
        return await super().request(route, raise_for_status=check, **kwargs)

    async def _wait_for_turn(self, *, optional: bool) -> None:
        keys = (_ALL, _OPTIONAL) if optional else (_ALL,)
        wait = self._pacer.wait(*keys)
        if optional and wait > 0:
            raise RateLimited(wait)
        async with self._pacer.turn(*keys, urgent=not optional):
            pass  # only the time of admission counts, not the duration of the call


async def _requested_wait(response: aiohttp.ClientResponse) -> tuple[float, bool]:
    """Return the seconds that a 429 response asks to wait, and whether the wait applies to all calls."""
    header = response.headers.get("Retry-After", "1")
    seconds = float(header) if header.replace(".", "", 1).isdecimal() else 1.0
    # A 429 without the header Via is not from the API: the IP address is banned, so all calls have to stop.
    for_all = "Via" not in response.headers or "X-RateLimit-Global" in response.headers
    try:
        body = await response.json()
        exact = float(body["retry_after"])
        seconds = exact if math.isfinite(exact) else seconds
        for_all = for_all or bool(body.get("global"))
    except (aiohttp.ClientError, ValueError, TypeError, KeyError, LookupError, AttributeError):
        pass  # the response to a banned IP address is an HTML page, not JSON
    return min(_MAX_WAIT, max(0.0, seconds)) + 0.01, for_all


class Api:
    """REST client of a bot. The connection is open while at least one caller is inside ``opened``.

    ``base`` is the base URL, ``token`` a function that returns the bot token, ``pace`` a factor for the
    client's own rate limits. ``me`` is the bot's user object, empty until the first login.
    """

    def __init__(self, base: str, token: Callable[[], str], pace: float = 1.0) -> None:
        self._base = base
        self._pacer = Pacer({kind: limit.times(pace) for kind, limit in _LIMITS.items()})
        self._token = token
        self._rest: Rest | None = None
        self._users = 0
        self._opening = asyncio.Lock()
        self.me: Mapping[str, Any] = {}
        self.problem = ""
        """Error text while Discord rejects the token; a successful call with the token clears it."""

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[Rest]:
        """Open the connection and log in, unless it is open. Raises Refused and UNREACHABLE."""
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
        optional: bool = False,
        **gaps: str,
    ) -> Any:
        """Make one call and return the decoded response.

        ``path`` is a template, ``gaps`` are its values. An optional call raises RateLimited where another one
        waits for the total rate limit. Raises Refused and UNREACHABLE.
        """
        arguments: dict[str, Any] = {"optional": optional}
        if uploads:
            form = form_of(cast("Mapping[str, Any]", body or {}), uploads)
            arguments |= {"form": form, "timeout": _UPLOAD_TIMEOUT}
        elif body is not None:
            arguments["json"] = body
        if query:
            arguments["params"] = dict(query)
        async with self.opened() as rest:
            # A route with the token of an interaction does not use the bot token.
            uses_token = not any(name.endswith("_token") for name in gaps)
            try:
                response = await rest.request(Route(verb, path, **gaps), **arguments)
            except discord.HTTPException as error:
                if error.status == 401 and uses_token:
                    if not self.problem:
                        log.error(_TOKEN_REJECTED, call=f"{verb} {path}")
                    self.problem = _TOKEN_REJECTED
                raise Refused(error.status, error.code, error.text) from error
            if uses_token:
                self.problem = ""
            return response

    async def call_with_retries(self, verb: str, path: str, body: object = None, **rest: Any) -> Any:
        """Make a call, with retries. Raises Refused at once, and UNREACHABLE after the last retry."""
        for tries in range(_RETRIES):
            try:
                return await self.call(verb, path, body, **rest)
            except RateLimited as later:
                await asyncio.sleep(later.seconds)
            except UNREACHABLE:
                if tries + 1 == _RETRIES:
                    raise
                await asyncio.sleep(min(30.0, 0.5 * 2.0**tries))
        return await self.call(verb, path, body, **rest)

    async def place(self, verb: str, path: str, body: object, **rest: Any) -> Mapping[str, Any]:
        """Make a call that sends, edits or deletes a message, or prepares that.

        Raises Refused, PlacementDeferred if the call was not applied, and PlacementUncertain if it may have
        been applied.
        """
        try:
            return cast("Mapping[str, Any]", await self.call(verb, path, body, **rest))
        except RateLimited as later:
            raise PlacementDeferred("rate limited by Discord", later.seconds) from later
        except aiohttp.ClientConnectorError as error:
            raise PlacementDeferred(type(error).__name__) from error
        except UNREACHABLE as error:
            raise PlacementUncertain(str(error) or type(error).__name__) from error
        except Refused as refused:
            if refused.status == 401 and "webhook_token" not in rest:
                raise PlacementDeferred(_TOKEN_REJECTED, TOKEN_RETRY_SECONDS) from refused
            raise

    def discord_ms(self) -> int:
        """Return the Unix time of Discord in milliseconds; the machine's, unless that is wrong."""
        with suppress(ValueError):
            stated, at = ("", 0.0) if self._rest is None else self._rest.dated
            there = parsedate_to_datetime(stated).timestamp() + asyncio.get_running_loop().time() - at
            if abs(there - time()) > _CLOCK_SECONDS:
                return int(there * 1000)
        return now_ms()

    async def download(self, url: str) -> bytes:
        """Download a file of a message. Raises Refused and UNREACHABLE."""
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
                        raise Refused(401, 0, _WRONG_TOKEN) from error
                    if isinstance(error, discord.HTTPException):
                        raise Refused(error.status, error.code, error.text) from error
                    raise
                self._rest = rest
        return self._rest


_ADVICE = {
    10003: "the channel was deleted",
    50001: "let the role of the bot view the channel",
    50007: "the user takes no direct messages from members of the server, or has blocked the bot",
    50013: "give the role of the bot the permission in this channel",
    160005: "unlock the thread, or let the role of the bot manage threads",
    200000: "a rule of the server's AutoMod blocks the text",
}
"""Advice for errors that admins can correct at Discord, by Discord's codes."""


def refuse(refused: Refused) -> NoReturn:
    """Raise PlacementRefused: Discord will never accept this message."""
    advice = _ADVICE.get(refused.code)
    raise PlacementRefused(f"{refused}; {advice}" if advice else str(refused)) from refused
