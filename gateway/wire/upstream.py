"""What a model backend means when it refuses: its status, headers and body made one of our named errors.

Vendors word their errors differently but agree on HTTP statuses and on an ``error`` object; what they
say in the middle of a stream is judged by the same rules.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, NoReturn, TypeVar, cast

import aiohttp
import msgspec
from msgspec import Struct

from gateway.errors import (
    AuthFailedError,
    BadRequestError,
    ContentFilterError,
    ContextLengthError,
    DeltaParseError,
    ModelNotFoundError,
    ProviderError,
    RateLimitError,
    ServerFailedError,
    StreamTimeoutError,
)
from gateway.provider import ProviderConfig
from gateway.wire.exchange import body_of
from gateway.wire.remaining import seconds_until_reset

T = TypeVar("T")

GARBLED = (msgspec.DecodeError, ValueError, RecursionError)
"""What decoding JSON that somebody sent may fail with: no JSON, no UTF-8, numbers and nesting without end."""
TEXT_LIMIT = 300
"""Characters of a backend's own words that an error may quote."""
ERROR_BODY_LIMIT = 64 * 1024
ERROR_BODY_SECONDS = 5.0

_WHOLE_BODY_LIMIT = 8 * 1024 * 1024

_BY_STATUS: Mapping[int, type[ProviderError]] = {
    401: AuthFailedError,
    402: AuthFailedError,
    403: AuthFailedError,
    404: ModelNotFoundError,
    408: StreamTimeoutError,
    413: ContextLengthError,
    424: ServerFailedError,
    429: RateLimitError,
    498: AuthFailedError,
}
_BY_TYPE: Mapping[str, int] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "api_error": 500,
    "server_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
_TOO_LONG = re.compile(
    r"context.{0,20}(length|window|size|limit)|(prompt|input) is too long|too many (input |total )?tokens"
    r"|maximum prompt length|maximum number of (input )?tokens|token count.{0,40}exceeds"
    r"|tokens.{0,60}must be <=|reduce the length|max_prompt_tokens",
    re.IGNORECASE,
)
_FILTERED = re.compile(
    r"content[ _-]?(filter|policy|management)|safety system|responsible.?ai|usage guidelines|moderation"
    r"|(was|been) flagged",
    re.IGNORECASE,
)
_NO_KEY = re.compile(
    r"(incorrect|invalid) (api|x-api)[ -]key|api[ _]key(_| not |_not_)(invalid|valid)", re.IGNORECASE
)
_NO_MODEL = re.compile(
    r"model\b.{0,80}\b(not found|not exist|unknown|not supported|not available)"
    r"|(unknown|invalid|no such) model",
    re.IGNORECASE,
)
_LOOKS_SECRET = re.compile(r"\b(?:sk|pk|rk|gsk|xai|key|tok)-[\w*.-]{6,}|\bBearer\s+\S+", re.IGNORECASE)


class Refusal(Struct, frozen=True):
    """What a backend said when it refused. ``status`` is 0 when it only said it in words.

    ``more`` is judged, but not shown.
    """

    status: int = 0
    message: str = ""
    kind: str = ""
    code: str = ""
    retry_after: float | None = None
    more: str = ""

    def error(self) -> ProviderError:
        """The named error for it."""
        status = self.status or _BY_TYPE.get(self.kind) or _BY_TYPE.get(self.code) or 500
        failure = self._class(status)(
            f"{_SAYS[status // 100 == 5]} ({status}): {self.message or 'no reason given'}",
            status=status,
            retry_after=self.retry_after,
        )
        if "insufficient_quota" in (self.code, self.kind):
            failure.retryable = False
        return failure

    def _class(self, status: int) -> type[ProviderError]:
        said = f"{self.code} {self.kind} {self.message} {self.more}"
        if status in (400, 403, 404, 413, 422):
            if self.code == "context_length_exceeded" or _TOO_LONG.search(said):
                return ContextLengthError
            if _FILTERED.search(said):
                return ContentFilterError
            if self.code == "model_not_found" or _NO_MODEL.search(said):
                return ModelNotFoundError
            if _NO_KEY.search(said):
                return AuthFailedError
        if status >= 500:
            return ServerFailedError
        return _BY_STATUS.get(status, BadRequestError)


_SAYS = {True: "the model's server failed", False: "the model's server refused"}


def refusal(status: int, headers: Mapping[str, str], body: bytes, now: float | None = None) -> Refusal:
    """Read a refusing response; ``body`` may be anything. ``now`` is seconds since the epoch."""
    said = said_in(body)
    wait = retry_after(headers, time.time() if now is None else now)
    if wait is None and said.retry_after is None and status == 429:
        wait = seconds_until_reset(headers, now) or None
    return msgspec.structs.replace(
        said,
        status=status,
        message=said.message or _plain(body),
        retry_after=said.retry_after if wait is None else wait,
    )


def said_in(body: bytes) -> Refusal:
    """The error that a JSON text tells of, as far as it does: ``{"error": {…}}``, or plainer shapes."""
    try:
        value: Any = msgspec.json.decode(body)
    except GARBLED:
        return Refusal()
    if isinstance(value, list) and len(cast("list[Any]", value)) == 1:
        value = cast("list[Any]", value)[0]
    outer = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    inner: Any = outer.get("error") or outer.get("detail") or cast("Any", value)
    if not isinstance(inner, dict):
        return Refusal(message=inner if isinstance(inner, str) else "", code=_word(outer.get("code")))
    fields = cast("dict[str, Any]", inner)
    code = fields.get("code")
    return Refusal(
        code if isinstance(code, int) and 400 <= code < 600 else 0,
        _message(fields),
        _word(fields.get("type") or fields.get("status")),
        _word(code),
        _delay(fields.get("details")),
        str(fields.get("metadata") or fields.get("innererror") or fields.get("details") or "")[:2000],
    )


async def check_status(response: aiohttp.ClientResponse) -> None:
    """Raise the named error for a response that refuses."""
    if response.status >= 300:
        body = await body_of(response, ERROR_BODY_LIMIT, ERROR_BODY_SECONDS)
        raise refusal(response.status, response.headers, body).error()


async def whole_body(response: aiohttp.ClientResponse, seconds: float) -> bytes:
    """The body of a response that is no stream, which it closes. Raises the error if it refuses."""
    async with response:
        await check_status(response)
        return await body_of(response, _WHOLE_BODY_LIMIT, seconds)


def raise_said(body: bytes) -> NoReturn:
    """Raise the error that a backend sent in the middle of its stream."""
    raise said_in(body).error()


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds to wait as the headers say: ``retry-after-ms``, or ``retry-after`` in seconds or as a date."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        if (value := headers.get(name)) is not None:
            try:
                seconds = float(value) * unit
            except ValueError:
                continue
            return seconds if 0 <= seconds < float("inf") else None
    try:
        return max(0.0, parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - now)
    except ValueError:
        return None


def redacted(error: ProviderError, config: ProviderConfig) -> ProviderError:
    """The error with its text cut to a quotable length and without anything that looks like a secret."""
    text = str(error)
    for secret in (*config.keys, *config.credentials.values(), *config.custom_headers.values()):
        if secret and len(secret) >= 4:
            text = text.replace(secret, "***")
    text = _LOOKS_SECRET.sub("***", text)
    error.args = (text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]}…",)
    error.provider = error.provider or config.id
    return error


def unreadable(event: bytes, reason: Exception) -> DeltaParseError:
    """The error for an event that is no JSON of the expected shape."""
    start = event[:60].decode("utf-8", "replace")
    return DeltaParseError(f"an event of the stream cannot be read ({reason}): {start!r}")


def uncounted(decode: Callable[[bytes], T], event: bytes, name: str, reason: Exception) -> T:
    """Read an event once more without its counts: an answer is worth more than they are.

    ``name`` is what they are called, however deep. Raises DeltaParseError if it cannot be read without
    them either.
    """
    try:
        value: Any = msgspec.json.decode(event)
        if _dropped(value, name):
            return decode(msgspec.json.encode(value))
    except GARBLED:
        pass
    raise unreadable(event, reason) from None


def _dropped(value: Any, name: str) -> bool:
    """Take a field out of objects within objects. Returns whether it was anywhere."""
    if not isinstance(value, dict):
        return False
    fields = cast("dict[str, Any]", value)
    had = fields.pop(name, None) is not None
    return any([had, *(_dropped(inner, name) for inner in fields.values())])


def _message(fields: Mapping[str, Any]) -> str:
    """An error's own words: one text, or what is wrong with each of several fields."""
    for name in ("message", "Message", "detail", "error", "error_description"):
        if isinstance(said := fields.get(name), str) and said:
            return said
    several: Any = fields.get("message") or fields.get("detail")
    return msgspec.json.encode(several).decode() if several else ""


def _word(value: Any) -> str:
    return str(value) if isinstance(value, str | int) else ""


def _delay(details: Any) -> float | None:
    """The wait that an RPC error carries in its details (``google.rpc.RetryInfo``), as "34.5s"."""
    for detail in cast("list[Any]", details) if isinstance(details, list) else ():
        delay = cast("dict[str, Any]", detail).get("retryDelay") if isinstance(detail, dict) else None
        if isinstance(delay, str) and re.fullmatch(r"\d+(\.\d+)?s", delay):
            return float(delay[:-1])
    return None


def _plain(body: bytes) -> str:
    text = body[:2000].decode("utf-8", "replace").strip()
    return "" if text.startswith(("<", "{")) else text[:TEXT_LIMIT]
