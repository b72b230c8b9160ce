"""Calls of Slack's Web API, and their rate limits."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from email.utils import parsedate_to_datetime
from time import monotonic, time
from typing import Any, cast
from urllib.parse import urljoin, urlsplit
from urllib.request import getproxies

import aiohttp
import structlog
from slack_sdk.errors import SlackClientError
from slack_sdk.web.async_client import AsyncWebClient

from gateway.channel import Limit, Pacer, PlacementDeferred, PlacementRefused, PlacementUncertain

Json = dict[str, Any]

log = structlog.get_logger("trunkline.slack")

_TIMEOUT = 30
_FORMS = frozenset(
    {
        "bots.info",
        "conversations.history",
        "conversations.info",
        "conversations.replies",
        "files.getUploadURLExternal",
        "files.info",
        "oauth.v2.access",
        "usergroups.list",
        "usergroups.users.list",
        "users.conversations",
        "users.info",
    }
)
"""Methods that accept form data only, not JSON."""
_OUTCOME_UNKNOWN = frozenset({"fatal_error", "internal_error", "request_timeout", "service_unavailable"})
"""Errors after which the call may have been applied."""
_RETRY_LATER = frozenset(
    {"accesslimited", "invalid_auth", "not_authed", "token_expired", "team_access_not_granted"}
)
"""Errors that an operator can repair, so the call is retried later."""
REMOVED = "account_inactive"
"""Error after the app was removed from the workspace, or the workspace was deleted."""
INVALID_TOKEN = frozenset({REMOVED, "invalid_auth", "not_authed", "token_expired", "token_revoked"})
"""Errors that mean that the token is not accepted."""
_TOKEN_ADVICE = "; check bot_token: the page OAuth & Permissions of the app shows it"  # noqa: S105 - an advice
REMOVED_ADVICE = "the app was removed from the workspace: install it there again, and use its new token"
_ADVICE = {
    "cannot_dm_bot": "; bots cannot write to bots",
    "channel_not_found": "; the channel was deleted, or the app is not in it: /invite it there",
    "is_archived": "; unarchive the channel",
    "missing_scope": "; add it, and install the app again",
    "not_in_channel": "; /invite the app to the channel",
    "restricted_action": "; the settings of the workspace or channel let it post nothing there",
    "restricted_action_non_threadable_channel": "; the channel takes no threads",
    "restricted_action_read_only_channel": "; the channel is read-only",
    "restricted_action_thread_only_channel": "; the channel takes messages in threads only",
}
"""Advice for errors that admins can correct at Slack, by Slack's codes."""
_RETRY_LATER_SECONDS = 60.0
NOT_SLACKS = "a page that is not Slack's: a proxy or firewall answers, or api_base_url is wrong"
_CLOCK_SECONDS = 5.0
"""Difference from Slack's clock up to which the machine's is taken, because it has fractions of a second."""
_PAGE = 200
_MOST_REDIRECTS = 4


class RefusedError(PlacementRefused):
    """Answer with ``ok: false``. ``error`` is Slack's code, such as ``channel_not_found``."""

    def __init__(self, method: str, error: str, needed: str = "", advice: str = "") -> None:
        super().__init__(f"{method}: {error}" + (f" (needs {needed})" if needed else "") + advice)
        self.error = error


class Api:
    """Client of the Web API with one bot token.

    Calls raise PlacementDeferred (not applied; retry later), PlacementUncertain (may have been applied) or
    RefusedError. ``on_invalid_token`` is called with Slack's error code when the token is rejected.
    """

    def __init__(
        self,
        token: str,
        base_url: str,
        pace: float = 1.0,
        on_invalid_token: Callable[[str], None] = lambda _reason: None,
    ) -> None:
        self._on_invalid_token = on_invalid_token
        base = base_url if base_url.endswith("/") else f"{base_url}/"
        # The SDK would repeat calls that may have been applied.
        self.client = AsyncWebClient(
            token, base_url=base, timeout=_TIMEOUT, retry_handlers=[], logger=_sdk_logger()
        )
        self.limiter = RateLimiter(pace)
        self._token = token
        self._users = 0
        self._date = ""

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[None]:
        """Share one HTTP session between all calls inside the block; other calls open one each. Reentrant."""
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
        self, method: str, *, urgent: bool = True, acquired: bool = False, **arguments: Any
    ) -> Json:
        """Call a method and return its answer. Arguments that are None are omitted.

        Waits for the rate limit, unless ``acquired`` says that the caller did. ``urgent`` calls go first.
        """
        if not acquired:
            await self.limiter.acquire(method, str(arguments.get("channel", "")), urgent=urgent)
        return cast(Json, (await self._answer(method, arguments)).data)

    def slack_time(self) -> float:
        """Return the Unix time of Slack, just after a call; the machine's clock, unless that is wrong."""
        with suppress(ValueError):
            there = parsedate_to_datetime(self._date).timestamp()
            if abs(there - time()) > _CLOCK_SECONDS:
                return there + 1  # it is without fractions
        return time()

    async def scopes(self) -> tuple[Json, frozenset[str]]:
        """Return the answer of ``auth.test``, and the scopes of the token; none if Slack does not say."""
        answer = await self._answer("auth.test", {})
        listed = str(answer.headers.get("x-oauth-scopes") or "")
        return cast(Json, answer.data), frozenset(one.strip() for one in listed.split(",") if one.strip())

    async def _answer(self, method: str, arguments: Mapping[str, Any]) -> Any:
        given = {name: value for name, value in arguments.items() if value is not None}
        client: Any = self.client
        try:
            async with self.connected():
                if method in _FORMS:
                    form = {name: _form_value(value) for name, value in given.items()}
                    answer = await client.api_call(method, data=form)
                else:
                    answer = await client.api_call(method, json=given)
        except SlackClientError as error:
            raise self._call_error(method, getattr(error, "response", None), error) from error
        except (aiohttp.ClientConnectorError, aiohttp.InvalidURL) as error:
            raise PlacementDeferred(f"Slack cannot be reached: {error}") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise PlacementUncertain(f"{method}: {type(error).__name__}") from error
        except (
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
        ) as error:  # raised by the SDK for malformed answers
            raise PlacementUncertain(f"{method}: the answer is {NOT_SLACKS}") from error
        if not isinstance(answer.data, dict):
            raise PlacementUncertain(f"{method}: the answer is {NOT_SLACKS}")
        self._date = str(answer.headers.get("Date"))
        return answer

    async def pages(
        self, method: str, key: str, *, urgent: bool = False, **arguments: Any
    ) -> AsyncIterator[list[Json]]:
        """Yield the rows under ``key`` of a paginated method, one page at a time."""
        cursor: str | None = None
        while True:
            answer = await self.call(method, urgent=urgent, limit=_PAGE, cursor=cursor, **arguments)
            rows: object = answer.get(key)
            if not isinstance(rows, list):  # an empty page would skip these messages
                raise PlacementUncertain(f"{method}: the answer has no {key}")
            yield [cast(Json, row) for row in cast(list[object], rows) if isinstance(row, dict)]
            metadata: object = answer.get("response_metadata")
            cursor = cast(Json, metadata).get("next_cursor") if isinstance(metadata, dict) else None
            if not cursor:
                return

    async def post(self, url: str, *, json: object = None, data: bytes | None = None) -> None:
        """Post to a URL that Slack provided, such as a ``response_url`` or an upload URL."""
        try:
            async with self._http() as http, http.post(url, json=json, data=data) as answer:
                status = answer.status
                wait = _retry_after(answer.headers)
                text = (await answer.read())[:200].decode(errors="replace")
        except aiohttp.ClientConnectorError as error:
            raise PlacementDeferred(type(error).__name__) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise PlacementUncertain(type(error).__name__) from error
        if status == 429:
            raise PlacementDeferred("Slack asked to wait", wait)
        if status >= 500:
            raise PlacementUncertain(f"status {status}")
        if status >= 300:
            raise RefusedError("post", f"status {status}: {text}")

    async def fetch(self, url: str, most: int) -> bytes:
        """Download a file. Raises RefusedError if it is over ``most`` bytes or not readable."""
        try:
            async with self._http() as http:
                for _ in range(_MOST_REDIRECTS):
                    fetched = await self._fetch_once(http, url, most)
                    if isinstance(fetched, bytes):
                        return fetched
                    url = urljoin(url, fetched)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise PlacementDeferred(type(error).__name__) from error
        raise RefusedError("download", "too many redirects")

    async def _fetch_once(self, http: aiohttp.ClientSession, url: str, most: int) -> bytes | str:
        """Return the content, or the URL of a redirect.

        Redirects are followed by hand, because each request carries the token and so must stay within Slack.
        """
        if not self._may_see_token(url):
            raise RefusedError("download", "the URL is outside of Slack")
        headers = {"Authorization": f"Bearer {self._token}"}
        async with http.get(url, headers=headers, allow_redirects=False) as answer:
            if answer.status in (301, 302, 303, 307, 308):
                location = answer.headers.get("Location", "")
                if "redir" in location:
                    raise RefusedError("download", "the scope files:read is missing")
                return location
            if answer.status != 200:
                raise _download_error(answer.status, _retry_after(answer.headers))
            content = await answer.content.read(most + 1)
            while len(content) <= most and (more := await answer.content.read(most + 1 - len(content))):
                content += more
        if len(content) > most:
            raise RefusedError("download", "the file is too large")
        return content

    def _may_see_token(self, url: str) -> bool:
        """Return whether a URL belongs to Slack, so that the token may be sent to it."""
        there, api = urlsplit(url), urlsplit(self.client.base_url)
        ours = (there.scheme, there.netloc) == (api.scheme, api.netloc)
        return ours or (there.scheme == "https" and (there.hostname or "").endswith(".slack.com"))

    def _http(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=_TIMEOUT), trust_env=bool(getproxies())
        )

    def _call_error(self, method: str, response: Any, error: Exception) -> Exception:
        """Map the failure of a call to an exception. A 5xx may come before or after the call was applied."""
        status = getattr(response, "status_code", None) or getattr(response, "status", 0)
        data: Any = getattr(response, "data", None)
        answer: Json = cast(Json, data) if isinstance(data, dict) else {}
        name = str(answer.get("error") or "")
        if status == 429 or name in ("ratelimited", "rate_limited"):
            wait = _retry_after(getattr(response, "headers", {}))
            self.limiter.hold(method, wait)
            return PlacementDeferred(f"{method}: Slack asked to wait", wait)
        if status >= 500 or name in _OUTCOME_UNKNOWN:
            return PlacementUncertain(f"{method}: status {status} {name}".rstrip())
        if not name:
            return PlacementUncertain(f"{method}: status {status} with {NOT_SLACKS}")
        advice = _ADVICE.get(name, "")
        if name in INVALID_TOKEN:
            advice = f"; {REMOVED_ADVICE}" if name == REMOVED else _TOKEN_ADVICE
            self._on_invalid_token(name)
        if name in _RETRY_LATER or (name == "token_revoked" and method != "auth.test"):
            return PlacementDeferred(f"{method}: {name}{advice}", _RETRY_LATER_SECONDS)
        return RefusedError(method, name, str(answer.get("needed") or ""), advice)


def _sdk_logger() -> logging.Logger:
    """Return a quiet logger for the SDK, which would log message texts and the app's secret."""
    logger = logging.getLogger("trunkline.slack.sdk")
    logger.setLevel(logging.WARNING)
    return logger


def _download_error(status: int, wait: float) -> Exception:
    if status == 429 or status >= 500:
        return PlacementDeferred(f"download: status {status}", wait)
    return RefusedError("download", f"status {status}")


def _retry_after(headers: Mapping[str, str]) -> float:
    try:
        return min(3600.0, max(0.1, float(headers.get("Retry-After", "1"))))
    except ValueError:
        return 1.0


def _form_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_ATTEMPTS = 3
"""Number of calls until something that is not needed is not shown."""
_NOT_FOR_THIS_APP = frozenset(
    {
        "feature_disabled",
        "missing_scope",
        "not_agent_app",
        "not_allowed_token_type",
        "not_enabled",
        "unknown_method",
    }
)


class Displays:
    """Calls that show something beside messages. Answers do not depend on them, and they may be repeated.

    A method that the app may not call is not called again.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._denied: set[str] = set()

    async def show(self, method: str, **arguments: Any) -> bool:
        """Make a call. Returns False if it failed, and may succeed later."""
        for _ in range(_ATTEMPTS):
            if method in self._denied:
                return True
            try:
                await self._api.call(method, urgent=False, **arguments)
            except RefusedError as refused:
                log.info("Slack refused to show something", reason=str(refused))
                if refused.error in _NOT_FOR_THIS_APP:
                    self._denied.add(method)
            except (PlacementDeferred, PlacementUncertain) as error:
                log.debug("something is not shown yet", reason=str(error))
                await asyncio.sleep(getattr(error, "seconds", None) or 1.0)
                continue
            return True
        return False


_MINUTE = 60.5
"""Window in seconds; slightly longer than Slack's, because of network delays."""
_TIER_2, _TIER_3, _TIER_4 = Limit(20, _MINUTE), Limit(50, _MINUTE), Limit(100, _MINUTE)
_BURSTS = Limit(50, _MINUTE, burst=20)
"""For bulk reads: 50 a minute with a burst of 20, so that an urgent call soon gets its turn."""
_PER_METHOD: Mapping[str, Limit] = {
    "agents.sessions.setStatus": _TIER_3,
    "assistant.threads.setStatus": Limit(60, _MINUTE),
    "assistant.threads.setSuggestedPrompts": _TIER_4,
    "assistant.threads.setTitle": _TIER_4,
    "auth.test": _TIER_4,
    "bots.info": _TIER_3,
    "chat.appendStream": _TIER_4,
    "chat.delete": _TIER_3,
    "chat.postEphemeral": _TIER_4,
    "chat.postMessage": Limit(300, _MINUTE),
    "chat.startStream": _TIER_2,
    "chat.stopStream": _TIER_2,
    "chat.update": _TIER_3,
    "conversations.history": _BURSTS,
    "conversations.info": _TIER_3,
    "conversations.open": _TIER_3,
    "conversations.replies": _BURSTS,
    "files.completeUploadExternal": _TIER_4,
    "files.delete": _TIER_3,
    "files.getUploadURLExternal": _TIER_4,
    "files.info": _TIER_4,
    "oauth.v2.access": Limit(100, _MINUTE),
    "reactions.add": _TIER_3,
    "reactions.remove": _TIER_2,
    "usergroups.list": _TIER_2,
    "usergroups.users.list": _TIER_2,
    "users.conversations": _TIER_3,
    "users.info": _TIER_4,
    "views.open": _TIER_4,
    "views.publish": _TIER_4,
}
_POSTING = frozenset({"chat.postMessage", "chat.startStream", "files.completeUploadExternal"})
_CHAT = "chat"
_PER_CHAT = Limit(60, _MINUTE, burst=3)
"""New messages in one chat."""


class RateLimiter:
    """Rate limits of one app in one workspace, by method. ``pace`` multiplies Slack's published limits."""

    def __init__(self, pace: float = 1.0, clock: Callable[[], float] = monotonic) -> None:
        self._limits = {method: limit.times(pace) for method, limit in _PER_METHOD.items()}
        self._pacer = Pacer({**self._limits, _CHAT: _PER_CHAT.times(pace)})
        self._clock = clock
        self._calls: dict[str, deque[float]] = {}

    async def acquire(self, method: str, chat: str = "", *, urgent: bool = True) -> None:
        """Wait until the limits allow a call of ``method``. Urgent calls go first."""
        keys = [method, (_CHAT, chat)] if method in _POSTING else [method]
        async with self._pacer.turn(*keys, urgent=urgent):
            if (limit := self._limits.get(method)) is not None:
                self._calls.setdefault(method, deque(maxlen=limit.count)).append(self._clock())

    def has_capacity(self, method: str, share: float, reserved: int = 0) -> bool:
        """Return whether less than ``share`` (0 to 1) of a method's limit is used, for optional calls.

        ``reserved`` calls, which must still be made, count as used.
        """
        limit, calls = self._limits[method], self._calls.get(method, deque())
        while calls and calls[0] < self._clock() - limit.seconds:
            calls.popleft()
        return len(calls) + reserved < limit.count * share and self._pacer.held(method) <= 0

    async def try_acquire(self, *methods: str) -> bool:
        """Take a turn of each method if none has to wait; return whether it did. For optional calls."""
        if any(self._pacer.wait(method) > 0 for method in methods):
            return False
        for method in methods:
            await self.acquire(method, urgent=False)
        return True

    def hold(self, method: str, seconds: float) -> None:
        """Block a method for some seconds, after Slack asked to wait."""
        self._pacer.hold(method, seconds)
