"""Discord's REST API on top of discord.py; each call is reported as applied, not applied, or uncertain.

discord.py keeps the addresses in its classes, for the whole process, and waits and retries by itself. Here
each bot has its own address, and the caller gets the wait time at once: only the caller knows whether its
message is still worth the wait.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NoReturn, cast

import aiohttp
import discord
import structlog
from discord.http import HTTPClient, Ratelimit, Route

from channels.discord.files import Upload, form_of
from gateway.channel import Limit, Pacer, PlacementDeferred, PlacementRefused, PlacementUncertain

log = structlog.get_logger("trunkline.discord")

_TIMEOUT = aiohttp.ClientTimeout(total=15)
_UPLOAD_TIMEOUT = aiohttp.ClientTimeout(total=120)
_LONGEST_ASKED = 3600.0
_NO_TOKEN = 60.0
_REFUSED_TOKEN = "Discord refuses the token"  # noqa: S105 - says what is wrong with it
_RETRIES = 6

_ALL, _SPARE = "all", "spare"
_LIMITS = {_ALL: Limit(50, 1.03), _SPARE: Limit(20, 1.03)}
"""Discord allows a bot 50 calls per second. Optional calls leave capacity for the answers."""

ARCHIVED, THREAD_EXISTS, NO_HISTORY, INVALID_FORM = 50083, 160004, 160002, 50035
VOICE_STAYS, NO_VOICE = 50162, frozenset({50013, 50159, 50160, 50161, 50173})
"""Error codes of refusals that the channel can work around."""


class Later(Exception):
    """The call was not made, or was rate limited: it may be retried in ``seconds``."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"wait {seconds:.2f} s")
        self.seconds = seconds


class Broken(Exception):
    """Discord failed with a server error; the call may or may not have been applied."""


class Refused(Exception):
    """Discord refused the call. ``code`` is Discord's own error number."""

    def __init__(self, status: int, code: int, text: str) -> None:
        super().__init__(f"{status} {text} ({code})")
        self.status = status
        self.code = code


class Bucket(Ratelimit):
    """Rate-limit bucket of one kind of call, which reports the wait time instead of waiting."""

    async def acquire(self) -> None:
        """Reserve a call. Raises Later if the window is used up."""
        while True:
            now = self._loop.time()
            self._last_request = now
            if self.is_expired():
                self.reset()
            if self.remaining > 0:
                break
            if self.expires is not None:
                raise Later(self.expires - now)
            # Nothing is known of this bucket yet: the first response reports its limits.
            future: asyncio.Future[Any] = self._loop.create_future()
            self._pending_requests.append(future)
            await future
        self.remaining -= 1
        self.outgoing += 1

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.outgoing -= 1
        if kind is not None:  # without a response the count is a guess: the next one corrects it
            self.remaining = min(self.limit, self.remaining + 1)
        if self.expires is None:
            self.remaining = max(self.remaining, self.limit - self.outgoing)
        self._wake(len(self._pending_requests))


class Rest(HTTPClient):
    """discord.py's HTTP client for one bot at its own address."""

    def __init__(self, base: str, pacer: Pacer) -> None:
        super().__init__(asyncio.get_running_loop())
        self._base = base
        self._pacer = pacer
        self._held: dict[str, float] = {}

    def get_ratelimit(self, key: str) -> Ratelimit:
        """Return the bucket of a key."""
        if key not in self._buckets:
            self._buckets[key] = Bucket(None)
            self._try_clear_expired_ratelimits()
        return self._buckets[key]

    async def request(self, route: Route, *, spare: bool = False, **kwargs: Any) -> Any:
        """Make one call without retries when the total rate limit allows. A call with ``spare`` does not
        wait.

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
    """Return the seconds that a 429 asks to wait, and whether the wait applies to all calls."""
    header = response.headers.get("Retry-After", "1")
    seconds = float(header) if header.replace(".", "", 1).isdecimal() else 1.0
    # A 429 without this header is not from the API: the IP address is banned, so all calls have to stop.
    everywhere = "Via" not in response.headers or "X-RateLimit-Global" in response.headers
    try:
        told = await response.json()
        exact = float(told["retry_after"])
        seconds = exact if math.isfinite(exact) else seconds
        everywhere = everywhere or bool(told.get("global"))
    except (aiohttp.ClientError, ValueError, TypeError, KeyError, LookupError, AttributeError):
        pass  # the ban's response is an HTML page, not JSON
    return min(_LONGEST_ASKED, max(0.0, seconds)) + 0.01, everywhere


class Api:
    """REST client of the channel. It is open while at least one user of it is inside ``opened``."""

    def __init__(self, base: str, token: Callable[[], str], pace: float = 1.0) -> None:
        self._base = base
        self._pacer = Pacer({kind: limit.times(pace) for kind, limit in _LIMITS.items()})
        self._token = token
        self._rest: Rest | None = None
        self._users = 0
        self._opening = asyncio.Lock()
        self.me: Mapping[str, Any] = {}
        self.problem = ""
        """Error text while Discord rejects the token; empty since a call succeeded."""

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[Rest]:
        """Open the connection and log in. Raises Refused, Later, Broken and what aiohttp raises."""
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
        """Make one call; a call with ``spare`` is skipped if other calls wait.

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
            ours = not any(name.endswith("_token") for name in gaps)
            try:
                told = await rest.request(Route(verb, path, **gaps), **arguments)
            except discord.HTTPException as error:
                if error.status == 401 and ours:
                    if not self.problem:
                        log.error(_REFUSED_TOKEN, call=f"{verb} {path}")
                    self.problem = _REFUSED_TOKEN
                raise Refused(error.status, error.code, error.text) from error
            if ours:
                self.problem = ""
            return told

    async def insist(self, verb: str, path: str, body: object = None, **rest: Any) -> Any:
        """Make a call that is worth retrying. Raises Refused, and after the last retry what ``call``
        raises."""
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
        """Make a call that sends or edits a message. Raises the errors of a channel's ``send``, and
        Refused."""
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
                raise PlacementDeferred(_REFUSED_TOKEN, _NO_TOKEN) from refused
            raise

    async def download(self, url: str) -> bytes:
        """Download a file of a message. Raises Refused and what aiohttp raises."""
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
    """Raise the error for a message that Discord will never accept."""
    raise PlacementRefused(str(refused)) from refused
