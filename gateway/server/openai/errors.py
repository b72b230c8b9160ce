"""Errors in OpenAI's format."""

from __future__ import annotations

import re
from collections.abc import Mapping

from aiohttp import web
from msgspec import Struct

from gateway.contract.errors import InvalidRequestError, TrunklineError
from gateway.server.responses import error_headers, json_response

OPENAI_ROOT = "/v1/"
"""The prefix of the API's paths."""

_UPSTREAM = 502
_PLACE = re.compile(r"at `\$\.(\w+)")
"""The field in the message of a body that could not be decoded."""


class ErrorDetails(Struct, frozen=True):
    """Error details. Programs switch on ``code``; ``param`` is the invalid field of the request."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAiError(Struct, frozen=True):
    """An error, in OpenAI's format."""

    error: ErrorDetails


class _Known(Struct, frozen=True):
    status: int
    code: str
    param: str | None = None


# AuthFailedError is left out: a provider that rejects our key is not an invalid token of the client (401).
_KNOWN = {
    "UnauthorizedError": _Known(401, "invalid_api_key"),
    "TooManyRequestsError": _Known(429, "rate_limit_exceeded"),
    "TooLargeError": _Known(413, "request_too_large"),
    "ProviderResolutionError": _Known(404, "model_not_found", "model"),
    "NotFoundError": _Known(404, "not_found"),
    "ModelNotFoundError": _Known(404, "model_not_found", "model"),
    "CapabilityError": _Known(400, "unsupported_by_model", "model"),
    "BudgetExceededError": _Known(402, "insufficient_quota"),
    "ContextLengthError": _Known(400, "context_length_exceeded", "messages"),
    "ContentFilterError": _Known(400, "content_filter"),
    "BadRequestError": _Known(400, "refused_upstream"),
    "QuotaExceededError": _Known(402, "insufficient_quota"),
    "RateLimitError": _Known(429, "rate_limit_exceeded"),
    "ProviderUnavailableError": _Known(503, "provider_unavailable"),
    "StreamTimeoutError": _Known(504, "provider_timeout"),
    "OverloadedError": _Known(503, "overloaded"),
    "InternalError": _Known(500, "internal_error"),
}


def openai_error_response(error: TrunklineError, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return a named error as a response."""
    text = str(error)
    return named_error_response(
        error.name, text, error.status, {**error_headers(error), **(headers or {})}, _param(error, text)
    )


def named_error_response(
    name: str,
    message: str,
    default_status: int = _UPSTREAM,
    headers: Mapping[str, str] | None = None,
    param: str | None = None,
) -> web.Response:
    """Return an error as a response, by its name. ``default_status`` is for names without a status here."""
    known = _KNOWN.get(name)
    body = openai_error(name, message, default_status, param)
    return json_response(body, known.status if known else default_status, headers)


def openai_error(
    name: str, message: str, default_status: int = _UPSTREAM, param: str | None = None
) -> OpenAiError:
    """Return an error as a body, by its name. ``param`` is the invalid field of the request."""
    known = _KNOWN.get(name) or _Known(default_status, name)
    return OpenAiError(ErrorDetails(message, _type(known.status), param or known.param, known.code))


def _param(error: TrunklineError, text: str) -> str | None:
    """Return the invalid field of the body: the error's own, or the one that could not be decoded."""
    if not isinstance(error, InvalidRequestError):
        return None
    found = _PLACE.search(text)
    return error.param or (found[1] if found else None)


def _type(status: int) -> str:
    if status == 401:
        return "authentication_error"
    if status == 429:
        return "rate_limit_error"
    if status == 402:
        return "insufficient_quota"
    return "invalid_request_error" if status < 500 else "server_error"
