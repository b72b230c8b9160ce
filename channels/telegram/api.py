"""The Bot API by python-telegram-bot's ``Bot``: raw answers, and errors that say whether a call was applied.

The library makes the requests; what carries them is ours, because its own tells apart neither a call that
never left from one whose answer was lost, nor what it does not know from what it cannot read.
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

from channels.telegram.wire import decoded

_CONNECT_SECONDS = 10.0
_CALL_SECONDS = 30.0
_UPLOAD_SECONDS = 120.0
_MOST_BYTES = 64 * 1024 * 1024


class CallError(TelegramError):
    """A call failed."""


class NotSentError(CallError):
    """The request never left: nobody listens there, or its name is not known."""


class UnansweredError(CallError):
    """The request left, and no answer of the Bot API came back: it may have been applied, or not."""


class RefusedError(CallError):
    """The Bot API answered with an error: nothing was applied.

    ``code`` is its HTTP status, ``reason`` its words without ``Bad Request:`` and the like. ``retry_after``
    is in seconds, ``migrated_to`` the new number of a group that became a supergroup.
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
        """Whether its reason holds one of these."""
        reason = self.reason.lower()
        return any(word.lower() in reason for word in words)


class Transport(BaseRequest):
    """Carries requests by aiohttp. Between ``initialize`` and ``shutdown`` connections are kept open; before
    and after that each request has one of its own."""

    __slots__ = ("_http",)

    def __init__(self) -> None:
        self._http: aiohttp.ClientSession | None = None

    @property
    def read_timeout(self) -> float:
        """Seconds that an answer may take."""
        return _CALL_SECONDS

    async def initialize(self) -> None:
        """Keep connections open from now on."""
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
        """One request. Raises NotSentError, UnansweredError or RefusedError."""
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
        """What an answer says. Raises UnansweredError if that cannot be read."""
        try:
            said: object = decoded(payload)
        except ValueError as error:
            raise UnansweredError(f"an answer that is no JSON: {error}") from None
        if not isinstance(said, dict) or "result" not in said:
            raise UnansweredError("an answer without a result")
        return cast("dict[str, Any]", said)


class Client(Bot):
    """A bot at the Bot API. ``call`` makes any call, also one that the library does not know yet."""

    __slots__ = ("_transports",)

    def __init__(self, token: str, base_url: str) -> None:
        logging.getLogger("telegram").setLevel(logging.INFO)  # what it tells of below that holds the token
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
        """Without the token, which the library's own holds."""
        return type(self).__name__

    async def call(self, method: str, *, seconds: float | None = None, **arguments: Any) -> Any:
        """The raw result of a method. Raises NotSentError, UnansweredError or RefusedError."""
        try:
            return await self._post(
                method, arguments, read_timeout=_CALL_SECONDS if seconds is None else seconds
            )
        except CallError:
            raise
        except TelegramError as error:
            raise UnansweredError(type(error).__name__) from None

    async def fetch(self, file_id: str, most: int) -> bytes:
        """The bytes of a file. Raises ValueError if it has more than ``most``, and what ``call`` raises."""
        found = await self.call("getFile", file_id=file_id)
        path, size = found.get("file_path"), found.get("file_size") or 0
        if not isinstance(path, str) or not isinstance(size, int) or size > most:
            raise ValueError("the file is too large")
        data = await self._transports[0].retrieve(f"{self.base_file_url}/{path}")
        if len(data) > most:
            raise ValueError("the file is too large")
        return data

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[None]:
        """Keep connections open as long as the block runs."""
        try:
            for transport in self._transports:
                await transport.initialize()
            yield
        finally:
            for transport in self._transports:
                await transport.shutdown()


def upload(data: bytes, name: str) -> InputFile:
    """A file as an argument of a call."""
    return InputFile(data, filename=name)


def media(kind: Literal["photo", "audio", "document"], data: bytes, name: str, caption: str) -> InputMedia:
    """A file with what stands below it, as the new content of a message."""
    made = {"photo": InputMediaPhoto, "audio": InputMediaAudio, "document": InputMediaDocument}[kind]
    return made(data, caption=caption or None, filename=name)


def _session() -> aiohttp.ClientSession:
    """Connections, through the proxy that the environment names.

    Where it names none, aiohttp is not let look for one: it does so anew in a thread for every request.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=bool(getproxies()),
    )


def _body(request: RequestData | None) -> aiohttp.FormData | Mapping[str, str] | None:
    """The fields of a request, as a form; with files it has several parts."""
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
    """The content of an answer, within bounds."""
    pieces: list[bytes] = []
    size = 0
    async for piece in answer.content.iter_any():
        pieces.append(piece)
        size += len(piece)
        if size > _MOST_BYTES:
            raise UnansweredError("the answer is too large")
    return b"".join(pieces)


def _refusal(status: int, content: bytes) -> CallError:
    """What an answer with an error means. 5xx may come from before or after the call was applied."""
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
