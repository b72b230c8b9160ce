"""Search engines behind one interface: SearXNG, Brave Search and Tavily.

An engine builds the request of a query and reads the answer; ``WebSearch`` sends it within limits of size and
time, and explains failures. Sources: docs.searxng.org/dev/search_api, api-dashboard.search.brave.com (Web
Search), docs.tavily.com/documentation/api-reference/endpoint/search.
"""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from gateway import ToolError
from gateway.provider_http import UNDECODABLE, HttpClient, HttpError, RequestSpec

SECONDS = 25.0
"""Time limit of a search."""
ANSWER_BYTES = 2_000_000
"""Largest answer of an engine, in bytes."""

_SNIPPET = 1000
_TAG = re.compile(r"<[^<>]{0,200}>")


class Hit(Struct, frozen=True):
    """One result of a search."""

    title: str
    url: str
    snippet: str


class Engine(Protocol):
    """A search engine: its requests, its answers and its own statuses."""

    title: ClassVar[str]
    base_url: ClassVar[str]
    """The address of its service; empty if everyone runs their own."""
    variable: ClassVar[str]
    """The environment variable of its API key; empty if it has none."""
    statuses: ClassVar[Mapping[int, str]]
    """The meaning of statuses, and advice for them."""

    @staticmethod
    def request(base_url: str, key: str, query: str, count: int) -> RequestSpec:
        """Build the request of a query."""
        ...

    @staticmethod
    def parse(body: bytes) -> Sequence[Hit]:
        """Read an answer. Raises one of ``UNDECODABLE``."""
        ...


class _Result(Struct):
    url: str
    title: str | None = None
    content: str | None = None
    description: str | None = None


class _Results(Struct):
    results: list[_Result] = []


class _BraveAnswer(Struct):
    web: _Results | None = None


_KEY_REFUSED = "it rejected the API key; correct plugins.web.api_key"


class SearXNG:
    """A SearXNG server. It has no parameter for the number of results."""

    title: ClassVar[str] = "SearXNG"
    base_url: ClassVar[str] = ""
    variable: ClassVar[str] = ""
    statuses: ClassVar[Mapping[int, str]] = {
        403: "it does not answer in JSON; add json to search.formats in its settings.yml",
        429: "its limiter refused the request; allow this machine in its limiter.toml",
    }

    @staticmethod
    def request(base_url: str, key: str, query: str, count: int) -> RequestSpec:
        """Build the request of a query."""
        return RequestSpec(
            f"{base_url}/search?{urlencode({'q': query, 'format': 'json'})}",
            "GET",
            {"Accept": "application/json"},
        )

    @staticmethod
    def parse(body: bytes) -> Sequence[Hit]:
        """Read an answer."""
        return _hits(msgspec.json.decode(body, type=_Results))


class Brave:
    """Brave Search, its web search API. It returns 20 results at most."""

    title: ClassVar[str] = "Brave Search"
    base_url: ClassVar[str] = "https://api.search.brave.com"
    variable: ClassVar[str] = "BRAVE_API_KEY"
    statuses: ClassVar[Mapping[int, str]] = {
        401: _KEY_REFUSED,
        403: _KEY_REFUSED,
        422: f"it refused the query, or {_KEY_REFUSED}",
        429: "the limit of the plan is reached; try again later",
    }

    @staticmethod
    def request(base_url: str, key: str, query: str, count: int) -> RequestSpec:
        """Build the request of a query."""
        asked = urlencode({"q": query, "count": min(count, 20), "text_decorations": "false"})
        headers = {"Accept": "application/json", "X-Subscription-Token": key}
        return RequestSpec(f"{base_url}/res/v1/web/search?{asked}", "GET", headers)

    @staticmethod
    def parse(body: bytes) -> Sequence[Hit]:
        """Read an answer; without ``web`` nothing was found."""
        return _hits(msgspec.json.decode(body, type=_BraveAnswer).web or _Results())


class Tavily:
    """Tavily, its search endpoint. It returns 20 results at most."""

    title: ClassVar[str] = "Tavily"
    base_url: ClassVar[str] = "https://api.tavily.com"
    variable: ClassVar[str] = "TAVILY_API_KEY"
    statuses: ClassVar[Mapping[int, str]] = {
        401: _KEY_REFUSED,
        403: _KEY_REFUSED,
        429: "too many requests; try again later",
        432: "the limit of the plan is reached",
        433: "the limit of the pay-as-you-go plan is reached",
    }

    @staticmethod
    def request(base_url: str, key: str, query: str, count: int) -> RequestSpec:
        """Build the request of a query."""
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        body = msgspec.json.encode({"query": query, "max_results": min(count, 20)})
        return RequestSpec(f"{base_url}/search", "POST", headers, body)

    @staticmethod
    def parse(body: bytes) -> Sequence[Hit]:
        """Read an answer."""
        return _hits(msgspec.json.decode(body, type=_Results))


ENGINES: Mapping[str, type[Engine]] = {"searxng": SearXNG, "brave": Brave, "tavily": Tavily}


class WebSearch:
    """Searches with one engine."""

    def __init__(self, engine: type[Engine], client: HttpClient, base_url: str, key: str) -> None:
        self._engine = engine
        self._client = client
        self._base_url = (base_url or engine.base_url).rstrip("/")
        self._key = key

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def search(self, query: str, count: int) -> Sequence[Hit]:
        """Return the first results. Raises ToolError with the reason and what to do."""
        title = self._engine.title
        request = self._engine.request(self._base_url, self._key, query, count)
        try:
            async with asyncio.timeout(SECONDS):
                status, body = await self._send(request)
        except TimeoutError:
            raise ToolError(f"{title} did not answer within {SECONDS:g} s") from None
        except (HttpError, ValueError) as error:
            raise ToolError(f"{title} cannot be reached: {error}; see plugins.web.url") from None
        if status != 200:
            reason = self._engine.statuses.get(status, "see plugins.web.url")
            raise ToolError(f"{title} answered with status {status}: {reason}")
        try:
            return self._engine.parse(body)[:count]
        except UNDECODABLE:
            raise ToolError(f"{title} sent an answer that cannot be read; see plugins.web.url") from None

    async def _send(self, request: RequestSpec) -> tuple[int, bytes]:
        response = await self._client.request(
            request.method, request.url, request.headers, request.body, SECONDS
        )
        try:
            body = bytearray()
            while piece := await response.read():
                body += piece
                if len(body) > ANSWER_BYTES:
                    raise ToolError(f"{self._engine.title} sent more than {ANSWER_BYTES} bytes")
            return response.status, bytes(body)
        finally:
            response.close()


def _hits(found: _Results) -> list[Hit]:
    return [
        Hit(_line(result.title or ""), result.url, _line(result.content or result.description or ""))
        for result in found.results
        if result.url.startswith(("https://", "http://"))
    ]


def _line(text: str) -> str:
    """Return text of an engine on one line, without the tags that mark found words."""
    return " ".join(html.unescape(_TAG.sub("", text)).split())[:_SNIPPET]
