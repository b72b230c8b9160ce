"""Errors in the shape that clients of OpenAI know."""

from __future__ import annotations

import re
from collections.abc import Mapping

from aiohttp import web
from msgspec import Struct

from gateway.contract.errors import InvalidRequestError, TrunklineError
from gateway.server.responses import error_headers, json_response

OPENAI_ROOT = "/v1/"
"""What the addresses of this API begin with."""

_UPSTREAM = 502
_PLACE = re.compile(r"at `\$\.(\w+)")
"""Where a body could not be decoded."""


class Failure(Struct, frozen=True):
    """What went wrong: ``code`` is what programs switch on, ``param`` the part of the request it is about."""

    message: str
    type: str
    param: str | None
    code: str | None


class FailureAnswer(Struct, frozen=True):
    """A refusal as clients of OpenAI expect it."""

    error: Failure


class _Known(Struct, frozen=True):
    status: int
    code: str
    param: str | None = None


# A backend that refuses our key is no fault of the client's token, so it is no 401.
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


def failure_answer(error: TrunklineError, headers: Mapping[str, str] | None = None) -> web.Response:
    """A named error as an answer."""
    text = str(error)
    return failure_of(
        error.name, text, error.status, {**error_headers(error), **(headers or {})}, _param(error, text)
    )


def failure_of(
    name: str,
    message: str,
    usual: int = _UPSTREAM,
    headers: Mapping[str, str] | None = None,
    param: str | None = None,
) -> web.Response:
    """An answer for an error by its name; ``usual`` is its status where its name says nothing."""
    known = _KNOWN.get(name)
    return json_response(failure(name, message, usual, param), known.status if known else usual, headers)


def failure(name: str, message: str, usual: int = _UPSTREAM, param: str | None = None) -> FailureAnswer:
    """An error by its name, as a body. ``param`` is the field of the request it is about."""
    known = _KNOWN.get(name) or _Known(usual, name)
    return FailureAnswer(Failure(message, _type(known.status), param or known.param, known.code))


def _param(error: TrunklineError, text: str) -> str | None:
    """The field of the body that is wrong: what the error says, or where decoding failed."""
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
