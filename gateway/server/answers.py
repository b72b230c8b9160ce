"""Answers: values as JSON, and errors as clients get to see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec
from aiohttp import web
from msgspec import Struct

from gateway.contract.errors import (
    InvalidRequestError,
    MethodNotAllowedError,
    NotFoundError,
    OverloadedError,
    TooLargeError,
    TooManyRequestsError,
    TrunklineError,
    UnauthorizedError,
)

_encode = msgspec.json.Encoder().encode
_NAMED = {404: NotFoundError, 405: MethodNotAllowedError, 413: TooLargeError}
_TEXTS = {
    404: "there is nothing at this address",
    405: "this address takes another method",
    413: "the body is larger than limits.frame_bytes",
}


class Shape(Protocol):
    """Makes an answer of a named error, in the shape its clients know."""

    def __call__(self, error: TrunklineError, headers: Mapping[str, str] | None = None) -> web.Response: ...


class ErrorAnswer(Struct, frozen=True):
    """What went wrong: a stable name, a sentence, and whether trying again can help."""

    error_name: str
    message: str
    retryable: bool


def json_answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """A value as a JSON answer that nobody keeps."""
    return web.Response(
        body=_encode(value),
        status=status,
        content_type="application/json",
        headers={"Cache-Control": "no-store", **(headers or {})},
    )


def error_answer(error: TrunklineError, headers: Mapping[str, str] | None = None) -> web.Response:
    """A named error as an answer with its status."""
    said = ErrorAnswer(error.name, str(error), error.retryable)
    return json_answer(said, error.status, {**advice(error), **(headers or {})})


def refusal_of(error: web.HTTPException, shaped: Shape = error_answer) -> web.StreamResponse:
    """What aiohttp refused, as one of our named errors; anything that is no refusal stays as it is."""
    if error.status < 400:
        return error
    kind = _NAMED.get(error.status, InvalidRequestError)
    named = kind(_TEXTS.get(error.status) or error.text or error.reason)
    answer = shaped(named, {k: v for k, v in error.headers.items() if k == "Allow"})
    answer.set_status(error.status)
    return answer


def advice(error: TrunklineError) -> Mapping[str, str]:
    """The headers that tell a client what to do about an error."""
    if isinstance(error, TooManyRequestsError):
        return {"Retry-After": "60"}
    if isinstance(error, OverloadedError):
        return {"Retry-After": "1"}
    if isinstance(error, UnauthorizedError) and error.status == 401:
        return {"WWW-Authenticate": "Bearer"}
    return {}
