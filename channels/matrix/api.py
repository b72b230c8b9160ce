"""Client-server API of one account: calls, whose errors say whether they were applied."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast
from urllib.parse import quote, urlencode

from channels.matrix.options import Options
from gateway.channel import Backoff, PlacementDeferred, PlacementRefused, PlacementUncertain
from gateway.http_client import ConnectError, HttpClient, HttpError, open_client

Json = dict[str, Any]
T = TypeVar("T")
FAILURES = (PlacementDeferred, PlacementUncertain)
"""Failures that a retry may end."""

_SECONDS = 30.0
_MOST_BYTES = 64 * 1024 * 1024
_PAGE = 100
_PAUSES = Backoff(0.1, 5.0)
"""Pauses between the repetitions of a call that reads."""
_NOT_CONNECTED_SECONDS, _REJECTED_SECONDS, _LONGEST_WAIT = 0.5, 30.0, 3600.0
_JSON = "application/json"
_NOT_MATRIX = "a page that is not Matrix's: a proxy or firewall answers, or homeserver is wrong"


class RefusedError(PlacementRefused):
    """A call that the homeserver refused: nothing was applied."""

    def __init__(self, status: int, code: str, reason: str) -> None:
        advice = "; check homeserver" if code == "M_UNRECOGNIZED" else ""
        super().__init__(f"{status} {code}: {reason[:200]}{advice}")
        self.status = status


class TooLargeError(Exception):
    """A response that exceeds its limit."""


class Api:
    """Calls with the access token of one account; ``me`` is its user id once ``connected``.

    ``patience`` are the seconds in which a call that reads is repeated.
    """

    def __init__(self, options: Options) -> None:
        self._base = options.homeserver
        self._authorization = f"Bearer {options.access_token.get_secret_value().strip()}"
        self._http: HttpClient | None = None
        self.me = ""
        self.patience = 5.0

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[None]:
        """Keep connections open while the block runs."""
        self._http = http = open_client()
        try:
            yield
        finally:
            self._http, self.me = None, ""
            await http.close()

    async def call(
        self,
        method: str,
        *path: str,
        body: Json | None = None,
        api: str = "client/v3",
        seconds: float = _SECONDS,
        **query: Any,
    ) -> Json:
        """Make a call and return its answer. Raises PlacementDeferred, PlacementUncertain, RefusedError."""
        data = None if body is None else json.dumps(body, ensure_ascii=False).encode(errors="replace")
        return _object(await self.request(method, api, path, query, data, seconds=seconds))

    async def read(self, *path: str, times: int = 1, **given: Any) -> Json:
        """Make a GET call, as ``patiently`` does."""
        return await self.patiently(lambda: self.call("GET", *path, **given), times)

    async def patiently(self, ask: Callable[[], Awaitable[T]], times: int = 1) -> T:
        """Repeat a call while it fails, for ``times`` the patience: one 502 must not stop all rooms."""
        loop = asyncio.get_running_loop()
        failures, end = 0, loop.time() + times * self.patience
        while True:
            try:
                return await ask()
            except FAILURES as error:
                failures += 1
                asked = error.seconds if isinstance(error, PlacementDeferred) else None
                pause = max(asked or 0, _PAUSES.pause(failures))
                if loop.time() + pause > end:
                    raise
            await asyncio.sleep(pause)

    async def upload(self, name: str, mime_type: str, data: bytes) -> str:
        """Upload a file and return its URI. A file that no message shows is invisible: nothing is doubled."""
        path, query = ("upload",), {"filename": name}
        try:
            answer = await self.request("POST", "media/v3", path, query, data, mime_type, 2 * _SECONDS)
            return str(_object(answer)["content_uri"])
        except (PlacementUncertain, KeyError) as error:
            raise PlacementDeferred(f"upload: {error}", 1.0) from error

    async def messages(
        self, room: str, direction: str, times: int = 1, **query: Any
    ) -> AsyncIterator[list[Any]]:
        """Yield the events of a room, one page at a time, to the end or the token ``to``."""
        path = ("rooms", room, "messages")
        while True:
            answer = await self.read(*path, times=times, dir=direction, limit=_PAGE, **query)
            chunk: object = answer.get("chunk")
            if not isinstance(chunk, list):  # an empty page would skip these messages
                raise PlacementUncertain("messages: the answer has no events")
            yield cast(list[Any], chunk)
            end = answer.get("end")
            if not isinstance(end, str) or end == query.get("from"):
                return
            query["from"] = end

    async def request(
        self,
        method: str,
        api: str,
        path: tuple[str, ...],
        query: Json,
        body: bytes | None = None,
        mime_type: str = _JSON,
        seconds: float = _SECONDS,
        most: int = _MOST_BYTES,
    ) -> bytes:
        """Return the body of a successful answer. Raises the errors of ``call``, and TooLargeError."""
        if self._http is None:
            raise PlacementDeferred("not connected to the homeserver yet", _NOT_CONNECTED_SECONDS)
        url = f"{self._base}/_matrix/{api}/{'/'.join(quote(one, safe='') for one in path)}"
        headers = {"Authorization": self._authorization, "Content-Type": mime_type}
        try:
            async with asyncio.timeout(seconds):
                response = await self._http.request(
                    method, f"{url}?{urlencode(query)}" if query else url, headers, body, seconds
                )
                content = bytearray()
                try:
                    while piece := await response.read():
                        content += piece
                        if len(content) > most:
                            raise TooLargeError(f"{path[-1]}: more than {most:,} bytes")
                finally:
                    response.close()
        except (ConnectError, ValueError) as error:
            raise PlacementDeferred(f"the homeserver cannot be reached: {error}") from error
        except (HttpError, TimeoutError) as error:
            raise PlacementUncertain(f"no answer of the homeserver: {error or 'timeout'}") from error
        if response.status != 200:
            raise _failure(response.status, bytes(content), response.headers.get("retry-after"))
        return bytes(content)


def _object(content: bytes) -> Json:
    """Decode an answer. Lone surrogates, which UTF-8 cannot encode, become question marks."""
    try:
        value: object = json.loads(content)
        if "\\ud" in (text := content.decode(errors="replace")).lower():
            value = json.loads(json.dumps(json.loads(text), ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError) as error:
        raise PlacementUncertain(f"the answer is {_NOT_MATRIX}") from error
    if not isinstance(value, dict):
        raise PlacementUncertain("the answer of the homeserver is not an object")
    return cast(Json, value)


def _failure(status: int, content: bytes, retry_after: str | None) -> Exception:
    """Map an error answer to an exception. A 5xx may come before or after the call was applied.

    An answer without a code comes from a proxy. Of those, only 413 is a refusal: a proxy may accept smaller
    requests than the homeserver.
    """
    try:
        said = _object(content)
    except PlacementUncertain:
        said = {}
    code, reason = str(said.get("errcode", "")), str(said.get("error", ""))
    if status == 429:
        asked = said.get("retry_after_ms")
        stated = float(retry_after) if retry_after and retry_after.isdigit() else 1.0
        wait = asked / 1000 if isinstance(asked, int | float) else stated
        return PlacementDeferred("the homeserver asked to wait", min(_LONGEST_WAIT, max(0.1, wait)))
    if status == 401:
        return PlacementDeferred(
            f"the homeserver rejects access_token ({code}); sign in again and copy the new one",
            _REJECTED_SECONDS,
        )
    if status >= 500:
        return PlacementUncertain(f"the homeserver answers with status {status} {code}".rstrip())
    if not code and status != 413:
        return PlacementUncertain(f"status {status} with {_NOT_MATRIX}")
    return RefusedError(status, code, reason)
