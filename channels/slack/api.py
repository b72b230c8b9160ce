"""Calls of Slack's Web API, and their rate limits."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any, cast
from urllib.parse import urljoin, urlsplit
from urllib.request import getproxies

import aiohttp
from slack_sdk.errors import SlackClientError
from slack_sdk.web.async_client import AsyncWebClient

from gateway.channel import Limit, Pacer, PlacementDeferred, PlacementRefused, PlacementUncertain

Json = dict[str, Any]

_TIMEOUT = 30
_FORMS = frozenset(
    {
        "conversations.history",
        "conversations.replies",
        "files.getUploadURLExternal",
        "files.info",
        "oauth.v2.access",
        "users.conversations",
    }
)
"""Methods that take no JSON."""
_UNCLEAR = frozenset({"fatal_error", "internal_error", "request_timeout", "service_unavailable"})
_LATER = frozenset(
    {"accesslimited", "invalid_auth", "not_authed", "token_expired", "team_access_not_granted"}
)
_REVOKED = frozenset({"account_inactive", "token_revoked"})
_TOKEN = _REVOKED | {"invalid_auth", "not_authed", "token_expired"}
"""What Slack says of a token that it does not accept."""
_LATER_SECONDS = 60.0
_PAGE = 200
_HOPS = 4


class RefusedError(PlacementRefused):
    """Slack answered ``ok: false``. ``error`` is its name for the reason."""

    def __init__(self, method: str, error: str, needed: str = "") -> None:
        super().__init__(f"{method}: {error}" + (f" (needs {needed})" if needed else ""))
        self.error = error


class Api:
    """Calls of one account. Raises PlacementDeferred, PlacementUncertain or RefusedError.

    ``on_wrong_token`` is called with the reason when Slack refuses the token.
    """

    def __init__(
        self,
        token: str,
        base_url: str,
        pace: float = 1.0,
        on_wrong_token: Callable[[str], None] = lambda _reason: None,
    ) -> None:
        self._on_wrong_token = on_wrong_token
        base = base_url if base_url.endswith("/") else f"{base_url}/"
        # The library would send again what may have been applied.
        self.client = AsyncWebClient(
            token, base_url=base, timeout=_TIMEOUT, retry_handlers=[], logger=_quiet()
        )
        self.pace = Pace(pace)
        self._token = token
        self._users = 0

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[None]:
        """Keep connections open as long as somebody is in the block; each call has its own else."""
        client: Any = self.client
        if not self._users:
            timeout = aiohttp.ClientTimeout(total=_TIMEOUT)
            client.session = aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                session, client.session = client.session, None
                await session.close()

    async def call(
        self, method: str, *, urgent: bool = True, has_turn: bool = False, **arguments: Any
    ) -> Json:
        """One call, at its turn unless it has one. Arguments that are None are left out."""
        if not has_turn:
            await self.pace.turn(method, str(arguments.get("channel", "")), urgent=urgent)
        given = {name: value for name, value in arguments.items() if value is not None}
        client: Any = self.client
        try:
            async with self.connected():
                if method in _FORMS:
                    form = {name: _formed(value) for name, value in given.items()}
                    answer = await client.api_call(method, data=form)
                else:
                    answer = await client.api_call(method, json=given)
        except SlackClientError as error:
            raise self._failure(method, getattr(error, "response", None), error) from error
        except (aiohttp.ClientConnectorError, aiohttp.InvalidURL) as error:
            raise PlacementDeferred(f"{method}: {type(error).__name__}") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise PlacementUncertain(f"{method}: {type(error).__name__}") from error
        except (AttributeError, LookupError, TypeError, ValueError) as error:  # the library cannot read it
            raise PlacementUncertain(f"{method}: an answer of an unexpected shape") from error
        if not isinstance(answer.data, dict):
            raise PlacementUncertain(f"{method}: an answer of an unexpected shape")
        return cast(Json, answer.data)

    async def pages(
        self, method: str, key: str, *, urgent: bool = False, **arguments: Any
    ) -> AsyncIterator[list[Json]]:
        """The rows of a listing, page by page."""
        cursor: str | None = None
        while True:
            answer = await self.call(method, urgent=urgent, limit=_PAGE, cursor=cursor, **arguments)
            rows: object = answer.get(key)
            if not isinstance(rows, list):  # taken for an empty page, what stands there would be lost
                raise PlacementUncertain(f"{method}: an answer without {key}")
            yield [cast(Json, row) for row in cast(list[object], rows) if isinstance(row, dict)]
            told: object = answer.get("response_metadata")
            cursor = cast(Json, told).get("next_cursor") if isinstance(told, dict) else None
            if not cursor:
                return

    async def post(self, url: str, *, json: object = None, data: bytes | None = None) -> None:
        """Post to an address that Slack gave out."""
        try:
            async with self._http() as http, http.post(url, json=json, data=data) as answer:
                status = answer.status
                wait = _seconds(answer.headers)
                said = (await answer.read())[:200].decode(errors="replace")
        except aiohttp.ClientConnectorError as error:
            raise PlacementDeferred(type(error).__name__) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise PlacementUncertain(type(error).__name__) from error
        if status == 429:
            raise PlacementDeferred("an address of Slack asked to wait", wait)
        if status >= 500:
            raise PlacementUncertain(f"status {status}")
        if status >= 300:
            raise RefusedError("post", f"status {status}: {said}")

    async def fetch(self, url: str, most: int) -> bytes:
        """A file's content. Raises RefusedError if it has more than ``most`` bytes, or is not for us."""
        try:
            async with self._http() as http:
                for _ in range(_HOPS):
                    found = await self._hop(http, url, most)
                    if isinstance(found, bytes):
                        return found
                    url = urljoin(url, found)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise PlacementDeferred(type(error).__name__) from error
        raise RefusedError("download", "the file is redirected in circles")

    async def _hop(self, http: aiohttp.ClientSession, url: str, most: int) -> bytes | str:
        """The content, or where it is said to be. Every step has to lie within Slack: it sees our token."""
        if not self._is_slack(url):
            raise RefusedError("download", "the file lies outside of Slack")
        headers = {"Authorization": f"Bearer {self._token}"}
        async with http.get(url, headers=headers, allow_redirects=False) as answer:
            if answer.status in (301, 302, 303, 307, 308):
                location = answer.headers.get("Location", "")
                if "redir" in location:
                    raise RefusedError("download", "files:read is not granted")
                return location
            if answer.status != 200:
                raise _not_fetched(answer.status, _seconds(answer.headers))
            content = await answer.content.read(most + 1)
            while len(content) <= most and (more := await answer.content.read(most + 1 - len(content))):
                content += more
        if len(content) > most:
            raise RefusedError("download", "the file is too large")
        return content

    def _is_slack(self, url: str) -> bool:
        """Whether an address may be shown our token."""
        there, api = urlsplit(url), urlsplit(self.client.base_url)
        ours = (there.scheme, there.netloc) == (api.scheme, api.netloc)
        return ours or (there.scheme == "https" and (there.hostname or "").endswith(".slack.com"))

    def _http(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=_TIMEOUT), trust_env=bool(getproxies())
        )

    def _failure(self, method: str, response: Any, error: Exception) -> Exception:
        """What a failed call means. 5xx may come from before or after it was applied."""
        status = getattr(response, "status_code", None) or getattr(response, "status", 0)
        said: Any = getattr(response, "data", None)
        told: Json = cast(Json, said) if isinstance(said, dict) else {}
        name = str(told.get("error") or "")
        if status == 429 or name in ("ratelimited", "rate_limited"):
            wait = _seconds(getattr(response, "headers", {}))
            self.pace.hold(method, wait)
            return PlacementDeferred(f"{method}: Slack asked to wait", wait)
        if status >= 500 or name in _UNCLEAR or not name:
            return PlacementUncertain(f"{method}: status {status} {name or type(error).__name__}")
        if name in _TOKEN:
            self._on_wrong_token(name)
        if name in _LATER or (name in _REVOKED and method != "auth.test"):
            return PlacementDeferred(f"{method}: {name}", _LATER_SECONDS)
        return RefusedError(method, name, str(told.get("needed") or ""))


def _quiet() -> logging.Logger:
    """A logger for the library, which would tell all that is said, and the app's secret."""
    logger = logging.getLogger("trunkline.slack.sdk")
    logger.setLevel(logging.WARNING)
    return logger


def _not_fetched(status: int, wait: float) -> Exception:
    if status == 429 or status >= 500:
        return PlacementDeferred(f"download: status {status}", wait)
    return RefusedError("download", f"status {status}")


def _seconds(headers: Mapping[str, str]) -> float:
    try:
        return min(3600.0, max(0.1, float(headers.get("Retry-After", "1"))))
    except ValueError:
        return 1.0


def _formed(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


async def patiently(limit: float, task: asyncio.Future[Any]) -> bool:
    """Wait for something that goes on anyway. Returns whether it is done; raises what it raised."""
    done, _ = await asyncio.wait([task], timeout=limit)
    if done:
        task.result()
    return bool(done)


_MINUTE = 60.5
"""Seconds; a little more than Slack counts, as calls travel."""
_TIER_2, _TIER_3, _TIER_4 = Limit(20, _MINUTE), Limit(50, _MINUTE), Limit(100, _MINUTE)
_SPREAD = Limit(50, _MINUTE, burst=20)
"""Where many calls come at once, so that an urgent one soon has its turn."""
_PER_METHOD: Mapping[str, Limit] = {
    "agents.sessions.setStatus": _TIER_3,
    "assistant.threads.setStatus": Limit(60, _MINUTE),
    "auth.test": _TIER_4,
    "chat.appendStream": _TIER_4,
    "chat.delete": _TIER_3,
    "chat.postEphemeral": _TIER_4,
    "chat.postMessage": Limit(300, _MINUTE),
    "chat.startStream": _TIER_2,
    "chat.stopStream": _TIER_2,
    "chat.update": _TIER_3,
    "conversations.history": _SPREAD,
    "conversations.replies": _SPREAD,
    "files.completeUploadExternal": _TIER_4,
    "files.delete": _TIER_3,
    "files.getUploadURLExternal": _TIER_4,
    "files.info": _TIER_4,
    "oauth.v2.access": Limit(100, _MINUTE),
    "reactions.add": _TIER_3,
    "reactions.remove": _TIER_2,
    "users.conversations": _TIER_3,
}
_PLACING = frozenset({"chat.postMessage", "chat.startStream", "files.completeUploadExternal"})
_ROOM = "room"
_PER_ROOM = Limit(60, _MINUTE, burst=3)
"""Messages that are placed in one room."""


class Pace:
    """The windows of one app in one workspace. ``clock`` tells seconds.

    ``pace`` is how many times Slack's figures are allowed.
    """

    def __init__(self, pace: float = 1.0, clock: Callable[[], float] = monotonic) -> None:
        self._limits = {method: limit.times(pace) for method, limit in _PER_METHOD.items()}
        self._pacer = Pacer({**self._limits, _ROOM: _PER_ROOM.times(pace)})
        self._clock = clock
        self._calls: dict[str, deque[float]] = {}

    async def turn(self, method: str, room: str = "", *, urgent: bool = True) -> None:
        """Wait until a method may be called; what is urgent goes first."""
        keys = [method, (_ROOM, room)] if method in _PLACING else [method]
        async with self._pacer.turn(*keys, urgent=urgent):
            if (limit := self._limits.get(method)) is not None:
                self._calls.setdefault(method, deque(maxlen=limit.count)).append(self._clock())

    def has_room(self, method: str, share: float, owed: int = 0) -> bool:
        """Whether less than a share (0 to 1) of what a method takes is used up: for what may be left out.

        ``owed`` calls are still to come whatever happens.
        """
        limit, calls = self._limits[method], self._calls.get(method, deque())
        while calls and calls[0] < self._clock() - limit.seconds:
            calls.popleft()
        return len(calls) + owed < limit.count * share and self._pacer.held(method) <= 0

    async def spare(self, *methods: str) -> bool:
        """Take a turn of each of these methods if nobody has to wait for that; for what can be left out."""
        if any(self._pacer.wait(method) > 0 for method in methods):
            return False
        for method in methods:
            await self.turn(method, urgent=False)
        return True

    def hold(self, method: str, seconds: float) -> None:
        """The platform asked to wait: nobody calls this method before."""
        self._pacer.hold(method, seconds)
