"""Bot API client on top of python-telegram-bot's ``Bot``: raw results, and errors that say whether a call was
applied.

The library builds the requests; ``Transport`` replaces its HTTP layer, because the library's own does not
distinguish a call that was never sent from a lost response, nor an unknown response from an unreadable
one.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, nullcontext
from typing import Any, Literal, cast
from urllib.request import getproxies

import aiohttp
from telegram import Bot, InputFile, InputMedia, InputMediaAudio, InputMediaDocument, InputMediaPhoto
from telegram.error import TelegramError
from telegram.request import BaseRequest, RequestData

from channels.telegram.parse import decoded

_CONNECT_SECONDS = 10.0
_CALL_SECONDS = 30.0
_UPLOAD_SECONDS = 120.0
_MAX_BYTES = 64 * 1024 * 1024


class CallError(TelegramError):
    """Base class for failed calls."""


class NotSentError(CallError):
    """The request was not sent: the connection was refused, or the host name could not be resolved."""


class UnansweredError(CallError):
    """The request was sent, but no Bot API response arrived: the call may or may not have been applied."""


class RefusedError(CallError):
    """The Bot API answered with an error: nothing was applied.

    ``code`` is the HTTP status, ``reason`` the description without ``Bad Request:`` and similar prefixes.
    ``retry_after`` is in seconds, ``migrated_to`` is the new id of a group that became a supergroup.
    """

    def __init__(
        self, code: int, reason: str, retry_after: float | None = None, migrated_to: int | None = None
    ) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.retry_after = retry_after
        self.migrated_to = migrated_to

    def says(self, *words: str) -> bool:
        """Return whether the reason contains one of the given texts, ignoring case."""
        reason = self.reason.lower()
        return any(word.lower() in reason for word in words)


class Transport(BaseRequest):
    """HTTP transport on aiohttp. Connections stay open between ``initialize`` and ``shutdown``; before and
    after, each request opens its own."""

    __slots__ = ("_http",)

    def __init__(self) -> None:
        self._http: aiohttp.ClientSession | None = None

    @property
    def read_timeout(self) -> float:
        """Timeout of a response, in seconds."""
        return _CALL_SECONDS

    async def initialize(self) -> None:
        """Open a session that keeps its connections alive."""
        if self._http is None:
            self._http = _session()

    async def shutdown(self) -> None:
        """Close all connections."""
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    async def do_request(
        self,
        url: str,
        method: str,
        request_data: RequestData | None = None,
        read_timeout: Any = BaseRequest.DEFAULT_NONE,
        write_timeout: Any = BaseRequest.DEFAULT_NONE,
        connect_timeout: Any = BaseRequest.DEFAULT_NONE,
        pool_timeout: Any = BaseRequest.DEFAULT_NONE,
    ) -> tuple[int, bytes]:
        """Make one request. Raises NotSentError, UnansweredError or RefusedError."""
        data = _body(request_data)
        seconds = read_timeout if isinstance(read_timeout, int | float) else _CALL_SECONDS
        if isinstance(data, aiohttp.FormData):
            seconds = max(seconds, _UPLOAD_SECONDS)
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=_CONNECT_SECONDS)
        try:
            async with (
                nullcontext(self._http) if self._http is not None else _session() as http,
                http.request(method, url, data=data, timeout=timeout) as answer,
            ):
                content = await _read(answer)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL) as error:
            raise NotSentError(type(error).__name__) from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise UnansweredError(type(error).__name__) from error
        if answer.status >= 300:
            raise _refusal(answer.status, content)
        return answer.status, content

    @staticmethod
    def parse_json_payload(payload: bytes) -> dict[str, Any]:
        """Decode a response. Raises UnansweredError if it is not valid JSON or has no result."""
        try:
            said: object = decoded(payload)
        except ValueError as error:
            raise UnansweredError(f"the response is not JSON: {error}") from None
        if not isinstance(said, dict) or "result" not in said:
            raise UnansweredError("the response has no result")
        return cast("dict[str, Any]", said)


class Client(Bot):
    """Bot API client of one bot. ``call`` makes any call, including those that the library does not support
    yet."""

    __slots__ = ("_transports",)

    def __init__(self, token: str, base_url: str) -> None:
        logging.getLogger("telegram").setLevel(logging.INFO)  # lower levels log the token
        calls, polls = Transport(), Transport()
        super().__init__(
            token,
            base_url=f"{base_url}/bot",
            base_file_url=f"{base_url}/file/bot",
            request=calls,
            get_updates_request=polls,
        )
        with self._unfrozen():
            self._transports = (calls, polls)

    def __repr__(self) -> str:
        """Return a text without the token, which the library's own ``__repr__`` contains."""
        return type(self).__name__

    async def call(self, method: str, *, seconds: float | None = None, **arguments: Any) -> Any:
        """Return the raw result of a method. Raises NotSentError, UnansweredError or RefusedError."""
        try:
            return await self._post(
                method, arguments, read_timeout=_CALL_SECONDS if seconds is None else seconds
            )
        except CallError:
            raise
        except TelegramError as error:
            raise UnansweredError(type(error).__name__) from None

    async def fetch(self, file_id: str, most: int) -> bytes:
        """Download a file. Raises ValueError if it exceeds ``most`` bytes, and the errors of ``call``."""
        found = await self.call("getFile", file_id=file_id)
        if not isinstance(found, dict):
            raise UnansweredError("getFile: the result is not an object")
        found = cast("dict[str, Any]", found)
        path, size = found.get("file_path"), found.get("file_size") or 0
        if not isinstance(path, str) or not isinstance(size, int) or size > most:
            raise ValueError("the file is too large")
        data = await self._transports[0].retrieve(f"{self.base_file_url}/{path}")
        if len(data) > most:
            raise ValueError("the file is too large")
        return data

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[None]:
        """Keep connections open while the block runs."""
        try:
            for transport in self._transports:
                await transport.initialize()
            yield
        finally:
            for transport in self._transports:
                await transport.shutdown()


def upload(data: bytes, name: str) -> InputFile:
    """Return a file as an argument of a call."""
    return InputFile(data, filename=name)


def media(kind: Literal["photo", "audio", "document"], data: bytes, name: str, caption: str) -> InputMedia:
    """Return a file with its caption, as the new content of a message."""
    made = {"photo": InputMediaPhoto, "audio": InputMediaAudio, "document": InputMediaDocument}[kind]
    return made(data, caption=caption or None, filename=name)


def _session() -> aiohttp.ClientSession:
    """Open a session that uses the proxy from the environment.

    ``trust_env`` is off if the environment names no proxy: otherwise aiohttp looks for one in a thread, for
    every request.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=bool(getproxies()),
    )


def _body(request: RequestData | None) -> aiohttp.FormData | Mapping[str, str] | None:
    """Return the fields of a request as a form; a request with files becomes a multipart form."""
    if request is None:
        return None
    if not request.contains_files:
        return request.json_parameters
    form = aiohttp.FormData()
    for name, value in request.json_parameters.items():
        form.add_field(name, value)
    for name, (file_name, content, mime) in request.multipart_data.items():
        form.add_field(name, content, filename=file_name, content_type=mime)
    return form


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    """Read a response body. Raises UnansweredError if it exceeds the size limit."""
    pieces: list[bytes] = []
    size = 0
    async for piece in answer.content.iter_any():
        pieces.append(piece)
        size += len(piece)
        if size > _MAX_BYTES:
            raise UnansweredError("the response is too large")
    return b"".join(pieces)


def _refusal(status: int, content: bytes) -> CallError:
    """Map an error response to an exception. After a 5xx response the call may have been applied."""
    try:
        said: Any = decoded(content)
        reason = str(said["description"])
    except (ValueError, LookupError, TypeError):
        return (
            UnansweredError(f"status {status}") if status >= 500 else RefusedError(status, f"status {status}")
        )
    given = said.get("parameters")
    hints: Mapping[str, Any] = cast("Mapping[str, Any]", given) if isinstance(given, dict) else {}
    retry_after, migrated_to = hints.get("retry_after"), hints.get("migrate_to_chat_id")
    if status >= 500:
        return UnansweredError(reason)
    for lead in ("Bad Request: ", "Forbidden: ", "Conflict: ", "Not Found: "):
        reason = reason.removeprefix(lead)
    return RefusedError(
        status,
        reason,
        float(retry_after) if isinstance(retry_after, int | float) else None,
        migrated_to if isinstance(migrated_to, int) else None,
    )
