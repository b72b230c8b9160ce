"""Errors of model backends: the status, headers and body of a refusal become one of the named errors.

Vendors word their errors differently but agree on HTTP statuses and on an ``error`` object. The same rules
apply to errors in the middle of a stream.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, NoReturn, TypeVar, cast

import msgspec
from msgspec import Struct

from gateway.contract.errors import (
    NO_REASON,
    AuthFailedError,
    BadRequestError,
    ContentFilterError,
    ContextLengthError,
    DeltaParseError,
    ModelNotFoundError,
    ProviderError,
    QuotaExceededError,
    RateLimitError,
    ServerFailedError,
    StreamTimeoutError,
    reason_of,
)
from gateway.contract.provider import ProviderConfig
from gateway.http_client import HttpResponse
from gateway.provider_http.exchange import read_body
from gateway.provider_http.rate_limits import seconds_until_reset, server_time

T = TypeVar("T")

UNDECODABLE = (msgspec.DecodeError, ValueError, RecursionError)
"""The exceptions of decoding untrusted JSON: not JSON, not UTF-8, too large numbers, too deep nesting."""
TEXT_LIMIT = 300
"""Characters of a backend's own text that an error may quote."""
ERROR_BODY_LIMIT = 64 * 1024
ERROR_BODY_SECONDS = 5.0

_WHOLE_BODY_LIMIT = 8 * 1024 * 1024
_DAY_SECONDS = 3600.0
"""Seconds after which a quota of a day is tried again: backends do not say when it starts again."""

_BY_STATUS: Mapping[int, type[ProviderError]] = {
    401: AuthFailedError,
    402: QuotaExceededError,
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
    r"|tokens.{0,60}must be <=|reduce the length|max_prompt_tokens"
    # Kimi; Poolside at OpenRouter; Qwen at Alibaba; Nova at Bedrock
    r"|exceeded model token limit|allowed input length|range of input length|input tokens exceeded",
    re.IGNORECASE,
)
_TOO_LONG_ANYWAY = re.compile(
    r"context size has been exceeded|request too large for .{0,200}must be reduced", re.IGNORECASE
)
"""Words that mean the same with any status: llama.cpp's (500), and OpenAI's for a request that exceeds the
limit of a whole minute (429), which no pause helps."""
_FILTERED = re.compile(
    r"content[ _-]?(filter|policy|management)|safety system|responsible.?ai|usage guidelines|moderation"
    r"|(was|been) flagged|content exists risk|data_inspection_failed",
    re.IGNORECASE,
)
_NO_KEY = re.compile(
    r"(incorrect|invalid) (api|x-api)[ -]key|api[ _]key(_| not |_not_)(invalid|valid)", re.IGNORECASE
)
_NO_CREDIT = re.compile(
    r"insufficient_quota|credit balance is too low|reached your specified .{0,20}usage limits"
    r"|billing_hard_limit|billing_not_active|exceeded_current_quota"
    r"|doesn't have any credits|used all available credits|insufficient balance|API calls / month",
    re.IGNORECASE,
)
"""Reasons for a 400, 403 or 429 of Anthropic, OpenAI, Kimi, xAI, Zhipu and Cohere: the account is the cause,
and neither a pause nor another request helps."""
_NO_MODEL = re.compile(
    r"model\b.{0,80}\b(not found|not exist|unknown|not supported|not available|decommissioned)"
    r"|(unknown|invalid|no such) model|not a valid model|model identifier is invalid"
    r"|with on-demand throughput",
    re.IGNORECASE,
)
_LOOKS_SECRET = re.compile(r"\b(?:sk|pk|rk|gsk|xai|key|tok)-[\w*.-]{6,}|\bBearer\s+\S+", re.IGNORECASE)


class ErrorResponse(Struct, frozen=True):
    """An error as the backend reported it. ``status`` is 0 if the error named none.

    ``more`` helps to classify the error and is not shown.
    """

    status: int = 0
    message: str = ""
    kind: str = ""
    code: str = ""
    retry_after: float | None = None
    more: str = ""

    def to_exception(self) -> ProviderError:
        """Return the named error."""
        status = self.status or _BY_TYPE.get(self.kind) or _BY_TYPE.get(self.code) or 500
        no_credit = _NO_CREDIT.search(f"{self.code} {self.kind} {self.message}")
        kind = QuotaExceededError if no_credit else self._class(status)
        said = self.message or NO_REASON
        text = f"{_SUBJECT[status // 100 == 5]} ({status}): {said}"
        error = kind(text, status=status, retry_after=self.retry_after)
        error.original = said
        return error

    def _class(self, status: int) -> type[ProviderError]:
        # The status alone is ambiguous: 400 is a bad request, a too long context or a content filter.
        text = f"{self.code} {self.kind} {self.message} {self.more}"
        if _TOO_LONG_ANYWAY.search(text):
            return ContextLengthError
        if status in (400, 403, 404, 413, 422):
            if self.code == "context_length_exceeded" or _TOO_LONG.search(text):
                return ContextLengthError
            if _FILTERED.search(text):
                return ContentFilterError
            if self.code == "model_not_found" or _NO_MODEL.search(text):
                return ModelNotFoundError
            if _NO_KEY.search(text):
                return AuthFailedError
        if status >= 500:
            return ServerFailedError
        return _BY_STATUS.get(status, BadRequestError)


_SUBJECT = {True: "the model's server failed", False: "the model's server refused"}


def parse_error_response(
    status: int, headers: Mapping[str, str], body: bytes, now: float | None = None
) -> ErrorResponse:
    """Parse a response with an error status; ``body`` may be anything.

    ``now`` is seconds since the epoch, by default the server's.
    """
    error = parse_error_body(body)
    wait = parse_retry_after(headers, server_time(headers) if now is None else now)
    if wait is None and error.retry_after is None and status == 429:
        wait = seconds_until_reset(headers, now) or None
    return msgspec.structs.replace(
        error,
        status=status,
        message=error.message or _plain(body),
        retry_after=error.retry_after if wait is None else wait,
    )


def parse_error_body(body: bytes) -> ErrorResponse:
    """Parse the error in a JSON text: ``{"error": {…}}`` or a simpler shape; missing fields are empty."""
    try:
        value: Any = msgspec.json.decode(body)
    except UNDECODABLE:
        return ErrorResponse()
    if isinstance(value, list) and len(cast("list[Any]", value)) == 1:
        value = cast("list[Any]", value)[0]
    outer = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    inner: Any = outer.get("error") or outer.get("detail") or cast("Any", value)
    if not isinstance(inner, dict):
        return ErrorResponse(message=inner if isinstance(inner, str) else "", code=_word(outer.get("code")))
    fields = cast("dict[str, Any]", inner)
    code = fields.get("code")
    return ErrorResponse(
        code if isinstance(code, int) and 400 <= code < 600 else 0,
        _message(fields),
        _word(fields.get("type") or fields.get("status")),
        _word(code),
        _delay(fields.get("details")),
        str(fields.get("metadata") or fields.get("innererror") or fields.get("details") or "")[:2000],
    )


async def check_status(response: HttpResponse) -> None:
    """Raise the named error for a response with an error status."""
    if response.status >= 300:
        body = await read_body(response, ERROR_BODY_LIMIT, ERROR_BODY_SECONDS)
        raise parse_error_response(response.status, response.headers, body).to_exception()


async def read_checked_body(response: HttpResponse, seconds: float) -> bytes:
    """Read a response that is not streamed, and close it. Raises the named error for an error status."""
    try:
        await check_status(response)
        return await read_body(response, _WHOLE_BODY_LIMIT, seconds)
    finally:
        response.close()


def raise_stream_error(body: bytes) -> NoReturn:
    """Raise the error that a backend sent in the middle of its stream."""
    raise parse_error_body(body).to_exception()


def parse_retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds to wait: ``retry-after-ms``, or ``retry-after`` in seconds or as a date."""
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


def redact(error: ProviderError, config: ProviderConfig, tokens: Iterable[str] = ()) -> ProviderError:
    """Shorten the text of an error to ``TEXT_LIMIT``, remove secrets from it, and set its provider.

    People see a sentence in place of the backend's own words.

    ``tokens`` are secrets that the configuration does not have.
    """
    secrets = (*config.keys, *config.credentials.values(), *config.custom_headers.values(), *tokens)
    hidden = [secret for secret in secrets if len(secret) >= 4]
    error.args = (_cut(str(error), hidden),)
    error.original = _cut(error.original, hidden)
    error.provider = error.provider or config.id
    if error.original:
        error.shown = f"{error.provider} {reason_of(error)}."
    return error


def _cut(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    text = _LOOKS_SECRET.sub("***", text)
    return text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]}…"


def unreadable_event(event: bytes, reason: Exception) -> DeltaParseError:
    """Return the error for an event that is not JSON of the expected shape."""
    start = event[:60].decode("utf-8", "replace")
    return DeltaParseError(f"an event of the stream cannot be read ({reason}): {start!r}")


def decode_ignoring_usage(decode: Callable[[bytes], T], event: bytes, name: str, reason: Exception) -> T:
    """Decode an event again without its token counts, so that a bad count does not lose the answer.

    ``name`` is the field with the counts, at any depth. Raises DeltaParseError if the rest is unreadable too.
    """
    try:
        value: Any = msgspec.json.decode(event)
        if _dropped(value, name):
            return decode(msgspec.json.encode(value))
    except UNDECODABLE:
        pass
    raise unreadable_event(event, reason) from None


def _dropped(value: Any, name: str) -> bool:
    """Remove a field from nested objects; return whether it was in any."""
    if not isinstance(value, dict):
        return False
    fields = cast("dict[str, Any]", value)
    had = fields.pop(name, None) is not None
    return any([had, *(_dropped(inner, name) for inner in fields.values())])


def _message(fields: Mapping[str, Any]) -> str:
    """Return the text of an error: one text, or the errors of several fields."""
    for name in ("message", "Message", "detail", "error", "error_description"):
        if isinstance(text := fields.get(name), str) and text:
            return text
    several: Any = fields.get("message") or fields.get("detail")
    return msgspec.json.encode(several).decode() if several else ""


def _word(value: Any) -> str:
    return str(value) if isinstance(value, str | int) else ""


def _delay(details: Any) -> float | None:
    """Return the delay in the details of an RPC error (``google.rpc.RetryInfo``), such as "34.5s"."""
    # Google gives such a delay, which does not help, also if its quota of the day is used up.
    if "PerDay" in str(details):
        return _DAY_SECONDS
    for detail in cast("list[Any]", details) if isinstance(details, list) else ():
        delay = cast("dict[str, Any]", detail).get("retryDelay") if isinstance(detail, dict) else None
        if isinstance(delay, str) and re.fullmatch(r"\d+(\.\d+)?s", delay):
            return float(delay[:-1])
    return None


def _plain(body: bytes) -> str:
    text = body[:2000].decode("utf-8", "replace").strip()
    return "" if text.startswith(("<", "{")) else text[:TEXT_LIMIT]
