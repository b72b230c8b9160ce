"""Bot API client on top of python-telegram-bot's ``Bot``: raw results, and errors that say whether a call was
applied.

The library builds requests with files; all others are sent as JSON, which costs less. ``Transport`` replaces
its HTTP layer, because the library's own does not distinguish a call that was never sent from a lost
response, nor an unknown response from an unreadable one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal, cast

import msgspec
from aiohttp import FormData
from telegram import Bot, InputFile, InputMedia, InputMediaAudio, InputMediaDocument, InputMediaPhoto
from telegram.error import TelegramError
from telegram.request import BaseRequest, RequestData

from channels.telegram.parse import decoded
from gateway.http_client import ConnectError, HttpClient, HttpError, HttpResponse, open_client

_CALL_SECONDS = 30.0
_UPLOAD_SECONDS = 120.0
_MAX_BYTES = 64 * 1024 * 1024
_JSON = "application/json"
_NOT_TELEGRAMS = "a page that is not Telegram's: a proxy or firewall answers, or api_base_url is wrong"


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
    """HTTP transport. Connections stay open between ``initialize`` and ``shutdown``; before and
    after, each request opens its own."""

    __slots__ = ("_http",)

    def __init__(self) -> None:
        self._http: HttpClient | None = None

    @property
    def read_timeout(self) -> float:
        """Timeout of a response, in seconds."""
        return _CALL_SECONDS

    async def initialize(self) -> None:
        """Open a client that keeps its connections alive."""
        if self._http is None:
            self._http = open_client()

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
        """Make one request of the library. Raises NotSentError, UnansweredError or RefusedError."""
        seconds = read_timeout if isinstance(read_timeout, int | float) else _CALL_SECONDS
        if request_data is None:
            return await self.send(method, url, None, "", seconds)
        if request_data.contains_files:
            seconds = max(seconds, _UPLOAD_SECONDS)
        # aiohttp encodes the form; its ``as_bytes`` reads files that are already in memory.
        form = _form(request_data)()
        return await self.send(method, url, await form.as_bytes(), form.headers["Content-Type"], seconds)

    async def send(
        self, method: str, url: str, body: bytes | None, content_type: str, seconds: float
    ) -> tuple[int, bytes]:
        """Send a request; return the status and the body. Raises the errors of ``do_request``."""
        http = self._http or open_client()
        headers = {"Content-Type": content_type} if content_type else {}
        try:
            async with asyncio.timeout(seconds):
                response = await http.request(method, url, headers, body, seconds)
                content = await _read(response)
        except (ConnectError, ValueError) as error:
            raise NotSentError(str(error)) from error
        except (HttpError, TimeoutError) as error:
            raise UnansweredError(str(error) or type(error).__name__) from error
        finally:
            if http is not self._http:
                await http.close()
        if response.status >= 300:
            raise _refusal(response.status, content)
        return response.status, content

    @staticmethod
    def parse_json_payload(payload: bytes) -> dict[str, Any]:
        """Decode a response. Raises UnansweredError if it is not valid JSON or has no result."""
        try:
            said: object = decoded(payload)
        except ValueError as error:
            raise UnansweredError(f"the response is {_NOT_TELEGRAMS}") from error
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
        seconds = _CALL_SECONDS if seconds is None else seconds
        calls, polls = self._transports
        transport = polls if method == "getUpdates" else calls
        given = {name: value for name, value in arguments.items() if value is not None}
        try:
            body = msgspec.json.encode(given)
        except TypeError:
            return await self._call_with_objects(method, given, seconds)
        _, content = await transport.send("POST", f"{self.base_url}/{method}", body, _JSON, seconds)
        return transport.parse_json_payload(content)["result"]

    async def _call_with_objects(self, method: str, arguments: dict[str, Any], seconds: float) -> Any:
        """Make a call whose arguments are files or objects of the library, which encodes them."""
        try:
            return await self._post(method, arguments, read_timeout=seconds)
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


def _form(request: RequestData) -> FormData:
    """Return the fields of a request as a form; a request with files becomes a multipart form."""
    form = FormData()
    for name, value in request.json_parameters.items():
        form.add_field(name, value)
    for name, (file_name, content, mime) in request.multipart_data.items():
        form.add_field(name, content, filename=file_name, content_type=mime)
    return form


async def _read(response: HttpResponse) -> bytes:
    """Read a response body. Raises UnansweredError if it exceeds the size limit."""
    pieces: list[bytes] = []
    size = 0
    try:
        while piece := await response.read():
            pieces.append(piece)
            size += len(piece)
            if size > _MAX_BYTES:
                raise UnansweredError("the response is too large")
    finally:
        response.close()
    return b"".join(pieces)


def _refusal(status: int, content: bytes) -> CallError:
    """Map an error response to an exception. After a 5xx response the call may have been applied.

    A response that is not of the Bot API is a page of something in between, and refuses nothing, unless it
    accepts less than the Bot API (413) or the address is wrong (404).
    """
    try:
        said: Any = decoded(content)
        reason = str(said["description"])
    except (ValueError, LookupError, TypeError):
        text = f"status {status}" if status >= 500 else f"status {status} with {_NOT_TELEGRAMS}"
        return RefusedError(status, text) if status in (404, 413, 429) else UnansweredError(text)
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
