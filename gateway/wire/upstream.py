"""What a model backend means when it refuses: its status, headers and body made one of our named errors.

Vendors word their errors differently but agree on HTTP statuses and on an ``error`` object; what they
say in the middle of a stream is judged by the same rules.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, NoReturn, cast

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

TEXT_LIMIT = 300
"""Characters of a backend's own words that an error may quote."""

_BY_STATUS: Mapping[int, type[ProviderError]] = {
    401: AuthFailedError,
    402: AuthFailedError,
    403: AuthFailedError,
    404: ModelNotFoundError,
    408: StreamTimeoutError,
    413: ContextLengthError,
    429: RateLimitError,
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
    r"context.{0,20}(length|window|size)|(prompt|input) is too long|too many (input )?tokens",
    re.IGNORECASE,
)
_FILTERED = re.compile(r"content[ _-]?(filter|policy|management)|safety system", re.IGNORECASE)
_NO_MODEL = re.compile(
    r"model\b.{0,80}\b(not found|not exist|unknown|not supported|not available)|(unknown|no such) model",
    re.IGNORECASE,
)
_LOOKS_SECRET = re.compile(r"\b(?:sk|pk|rk|gsk|xai|key|tok)-[\w*.-]{6,}|\bBearer\s+\S+", re.IGNORECASE)


class Refusal(Struct, frozen=True):
    """What a backend said when it refused. ``status`` is 0 when it only said it in words."""

    status: int = 0
    message: str = ""
    kind: str = ""
    code: str = ""
    retry_after: float | None = None

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
        said = f"{self.code} {self.kind} {self.message}"
        if status in (400, 404, 413, 422):
            if self.code == "context_length_exceeded" or _TOO_LONG.search(said):
                return ContextLengthError
            if _FILTERED.search(said):
                return ContentFilterError
            if self.code == "model_not_found" or _NO_MODEL.search(said):
                return ModelNotFoundError
        if status >= 500:
            return ServerFailedError
        return _BY_STATUS.get(status, BadRequestError)


_SAYS = {True: "the model's server failed", False: "the model's server refused"}


def refusal(status: int, headers: Mapping[str, str], body: bytes, now: float | None = None) -> Refusal:
    """Read a refusing response; ``body`` may be anything. ``now`` is seconds since the epoch."""
    said = said_in(body)
    return Refusal(
        status,
        said.message or _plain(body),
        said.kind,
        said.code,
        retry_after(headers, time.time() if now is None else now),
    )


def said_in(body: bytes) -> Refusal:
    """The error that a JSON text tells of, as far as it does: ``{"error": {…}}``, or plainer shapes."""
    try:
        value: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Refusal()
    inner = cast("dict[str, Any]", value).get("error", value) if isinstance(value, dict) else value
    if not isinstance(inner, dict):
        return Refusal(message=inner if isinstance(inner, str) else "")
    fields = cast("dict[str, Any]", inner)
    code = fields.get("code")
    return Refusal(
        code if isinstance(code, int) and 400 <= code < 600 else 0,
        str(fields.get("message") or fields.get("detail") or ""),
        str(fields.get("type") or ""),
        "" if code is None else str(code),
    )


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
    for secret in (config.api_key, *config.custom_headers.values()):
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


def _plain(body: bytes) -> str:
    text = body[:2000].decode("utf-8", "replace").strip()
    return "" if text.startswith(("<", "{")) else text[:TEXT_LIMIT]
