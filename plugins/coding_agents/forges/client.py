"""JSON requests to the REST API of one service: conditional requests, pages, and errors with their cause.

In: paths, and the types of answers. Out: decoded answers, ``ForgeError`` or ``CredentialDeniedError``. The
modules of the three services use it; the token is sent to the address of the settings alone and is in no
text. Sources: docs.github.com/rest (best practices, rate limits), docs.gitlab.com/api/rest,
docs.gitea.com/api.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn, TypeVar, cast
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from gateway.provider_http import UNDECODABLE, HttpClient, HttpError, parse_retry_after, server_time
from plugins.coding_agents.errors import CredentialDeniedError
from plugins.coding_agents.forges.contract import ForgeError, PullRequest

T = TypeVar("T")

SECONDS = 20.0
"""Time limit of a request with its answer."""
ANSWER_BYTES = 8_000_000
"""Largest answer, in bytes."""
MOST_PAGES = 10
"""Pages of a list that are read, each of up to 100 entries."""

_MOST_CACHED = 500
_LONGEST_REASON = 300


class _Cached(Struct, frozen=True):
    etag: str
    value: Any
    has_next: bool


class ForgeApi:
    """The API of one service at one address. It keeps the newest answers for conditional requests."""

    def __init__(
        self,
        client: HttpClient,
        host: str,
        base_url: str,
        headers: Mapping[str, str],
        token: str = "",
        *,
        seconds: float = SECONDS,
    ) -> None:
        """``headers`` authorize the requests; ``token`` is removed from the texts of errors."""
        self.host = host
        self._client = client
        self._base_url = base_url.rstrip("/")
        self._headers = {"Accept": "application/json", "User-Agent": "trunkline", **headers}
        self._token = token
        self._seconds = seconds
        self._cache: OrderedDict[str, _Cached] = OrderedDict()

    async def get(self, path: str, kind: type[T], query: Mapping[str, str] | None = None) -> T:
        """Return the answer to a GET; the service may say that an earlier answer is still current."""
        return (await self._get(path, kind, query)).value

    async def pages(self, path: str, kind: type[T], query: Mapping[str, str]) -> list[T]:
        """Return the entries of a list, of at most ``MOST_PAGES`` pages."""
        return [one for page in await self.whole_pages(path, list[kind], query) for one in page]

    async def whole_pages(
        self, path: str, kind: type[T], query: Mapping[str, str], is_full: Callable[[T], bool] | None = None
    ) -> list[T]:
        """Return the pages of an answer, at most ``MOST_PAGES``.

        A page names the next one in its header ``Link``; ``is_full`` decides where a service sends none.
        """
        found: list[T] = []
        for page in range(1, MOST_PAGES + 1):
            got = await self._get(path, kind, {**query, "page": str(page)})
            found.append(got.value)
            if not (got.has_next if is_full is None else is_full(got.value)):
                break
        return found

    async def post(self, path: str, kind: type[T], body: Mapping[str, Any]) -> T:
        """Send a POST and return its answer. Without an answer it may have been carried out."""
        status, headers, answer = await self._send("POST", path, {}, msgspec.json.encode(body))
        if not 200 <= status < 300:
            self._refuse(f"POST {path}", status, headers, answer)
        return self._decode(f"POST {path}", answer, kind)

    async def _get(self, path: str, kind: Any, query: Mapping[str, str] | None) -> _Cached:
        place = f"{path}?{urlencode(query)}" if query else path
        cached = self._cache.get(place)
        extra = {} if cached is None else {"If-None-Match": cached.etag}
        status, headers, answer = await self._send("GET", place, extra, None)
        if status == 304 and cached is not None:
            self._cache.move_to_end(place)
            return cached
        if status != 200:
            self._refuse(f"GET {path}", status, headers, answer)
        value = self._decode(f"GET {path}", answer, kind)
        etag = headers.get("etag", "")
        got = _Cached(etag, value, 'rel="next"' in headers.get("link", ""))
        if etag:
            self._cache[place] = got
            self._cache.move_to_end(place)
            if len(self._cache) > _MOST_CACHED:
                self._cache.popitem(last=False)
        return got

    async def _send(
        self, method: str, place: str, extra: Mapping[str, str], body: bytes | None
    ) -> tuple[int, Mapping[str, str], bytes]:
        headers = {**self._headers, **extra}
        if body is not None:
            headers["Content-Type"] = "application/json"
        url = f"{self._base_url}/{place}"
        try:
            async with asyncio.timeout(self._seconds):
                response = await self._client.request(method, url, headers, body, self._seconds)
                try:
                    answer = bytearray()
                    while piece := await response.read():
                        answer += piece
                        if len(answer) > ANSWER_BYTES:
                            raise ForgeError(f"{self.host} sent more than {ANSWER_BYTES:,} bytes")
                    return response.status, response.headers, bytes(answer)
                finally:
                    response.close()
        except TimeoutError:
            raise ForgeError(
                f"{self.host} did not answer within {self._seconds:g} s; try again later", retryable=True
            ) from None
        except (HttpError, ValueError) as error:
            raise ForgeError(
                f"{self.host} cannot be reached: {self._clean(str(error))}; see {self._setting('base_url')}",
                retryable=True,
            ) from None

    def _decode(self, request: str, answer: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(answer, type=kind)
        except UNDECODABLE:
            raise ForgeError(
                f"{self.host} sent an answer to {request} that cannot be read; see "
                f"{self._setting('kind')} and {self._setting('base_url')}",
                retryable=True,
            ) from None

    def _refuse(self, request: str, status: int, headers: Mapping[str, str], body: bytes) -> NoReturn:
        """Raise the error for a status that is not success."""
        reason = self._clean(_reason(body))
        said = f"{self.host} answered {status} to {request}" + (f": {reason}" if reason else "")
        wait = _wait(status, headers, server_time(headers))
        if wait is not None or status == 429:
            raise ForgeError(
                f"{self.host} limits the rate of requests ({status}); they continue later",
                retryable=True,
                retry_after=wait,
                upstream_status=status,
            )
        token = self._setting("token")
        if status == 401:
            what = "reject the token" if self._token else "need a token"
            raise CredentialDeniedError(f"{said}. It seems to {what}; correct {token}")
        if status == 403:
            raise CredentialDeniedError(
                f"{said}. Allow the token to read and write pull requests, or set another one: {token}"
            )
        if status == 404:
            said += f". The repository or its branch does not exist, or {token} may not see it"
        if 300 <= status < 400:
            said += ". The repository has probably moved; use its new address"
        raise ForgeError(said, retryable=status >= 500 or status == 408, upstream_status=status)

    def _clean(self, text: str) -> str:
        """Return text of a service on one line, short, and without the token."""
        if self._token:
            text = text.replace(self._token, "…")
        line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        return line if len(line) <= _LONGEST_REASON else f"{line[: _LONGEST_REASON - 1]}…"

    def _setting(self, key: str) -> str:
        return f'plugins.coding_agents.forges."{self.host}".{key}'


async def create_or_find(
    create: Awaitable[PullRequest], find: Callable[[], Awaitable[PullRequest | None]]
) -> PullRequest:
    """Return the pull request that ``create`` opens, or the open one because of which it is refused."""
    try:
        return await create
    except ForgeError as error:
        # GitHub says 422 and the others 409, each also for other reasons: the list decides.
        found = await find() if error.upstream_status in (409, 422) else None
        if found is None:
            raise
        return found


def _wait(status: int, headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds until the service takes requests again; None if its rate limit is not reached."""
    if status not in (403, 429, 503):
        return None
    wait = parse_retry_after(headers, now)
    if wait is None and status != 503 and headers.get("x-ratelimit-remaining") == "0":
        reset = headers.get("x-ratelimit-reset", "")
        wait = max(0.0, int(reset) - now) if reset.isascii() and reset.isdigit() else 60.0
    return wait


def _reason(body: bytes) -> str:
    """Return the texts of an error: of GitHub ``message`` and ``errors``, of GitLab also lists and tables."""
    try:
        content = msgspec.json.decode(body, type=dict[str, Any])
    except UNDECODABLE:
        return ""
    keys = ("message", "error", "error_description", "errors")
    return "; ".join(text for key in keys for text in _texts(content.get(key)))


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value] if value else []
    if isinstance(value, list):
        return [text for one in cast("list[Any]", value) for text in _texts(one)]
    if not isinstance(value, dict):
        return []
    table = cast("dict[str, Any]", value)
    if isinstance(message := table.get("message"), str):
        return [message]
    return [f"{name}: {text}" for name, one in table.items() for text in _texts(one)]
