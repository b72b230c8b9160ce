"""The route table's noun: an address with everything that is known of it.

A route names what it takes and what it answers as types. The same types read its requests and describe it
at ``/openapi.json``, so the two cannot differ.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

import msgspec
from aiohttp import web
from msgspec import Struct

from gateway.access.tokens import Auth, bearer_token, session_cookie
from gateway.contract.errors import InvalidRequestError, SlowRequestError, TooLargeError, TrunklineError
from gateway.server.answers import ErrorAnswer, json_answer

PathT = TypeVar("PathT", bound=Struct)
QueryT = TypeVar("QueryT", bound=Struct)
HeadersT = TypeVar("HeadersT", bound=Struct)
BodyT = TypeVar("BodyT")

_BODY_SECONDS = 30.0


class Nothing(Struct, frozen=True):
    """No parameters."""


class Call(Generic[PathT, QueryT, HeadersT, BodyT]):
    """One request, read: its address, its query, its headers, its body; and who asks."""

    __slots__ = ("body", "headers", "path", "query", "request", "user")

    def __init__(
        self, request: web.Request, user: str, path: PathT, query: QueryT, headers: HeadersT, body: BodyT
    ) -> None:
        self.request = request
        self.user = user
        self.path = path
        self.query = query
        self.headers = headers
        self.body = body


class Route(Struct, frozen=True, kw_only=True):
    """An address and a method. ``name`` is its id in the API description.

    ``call`` returns what ``answer`` says, None where that is None, or a whole response. ``also`` are answers
    of other statuses than ``status``; ``errors`` what may be refused beside what is common to all.
    """

    method: Literal["GET", "POST", "DELETE"]
    path: str
    name: str
    summary: str
    call: Callable[[Call[Any, Any, Any, Any]], Awaitable[object]]
    takes: type[Struct] = Nothing
    """What its address holds."""
    query: type[Struct] = Nothing
    headers: type[Struct] = Nothing
    body: type[Struct] | None = None
    answer: type[Struct] | None = None
    status: int = 200
    media: str = "application/json"
    """What it sends; beside an ``answer``, what it sends where it is asked to stream."""
    failure: type[Struct] = ErrorAnswer
    """The shape of its refusals."""
    also: Mapping[int, type[Struct]] = {}
    errors: tuple[type[TrunklineError], ...] = ()
    open: bool = False
    """Whether it needs no token."""
    explain: Callable[[bytes], None] | None = None
    """Raises a more exact error for a body that does not fit ``body``; returns where it knows none."""


class Binder:
    """Makes aiohttp routes of ours."""

    def __init__(self, auth: Auth) -> None:
        self._auth = auth

    def bind(self, routes: Sequence[Route]) -> list[web.AbstractRouteDef]:
        """Every route as aiohttp wants it."""
        return [web.route(route.method, route.path, self._bound(route)) for route in routes]

    def _bound(self, route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        read_body = None if route.body is None else msgspec.json.Decoder(route.body).decode

        async def handle(request: web.Request) -> web.StreamResponse:
            user = "" if route.open else self._user(request, route)
            path = _read(route.takes, request.match_info, "the address")
            query = _read(route.query, _single(request), "the query")
            headers = _read(route.headers, _wanted(route.headers, request), "the headers")
            body = None if read_body is None else await _body(request, read_body, route.explain)
            answer = await route.call(Call(request, user, path, query, headers, body))
            if isinstance(answer, web.StreamResponse):
                return answer
            return web.Response(status=204) if answer is None else json_answer(answer, route.status)

        return handle

    def _user(self, request: web.Request, route: Route) -> str:
        token = bearer_token(request.headers.get("Authorization", ""))
        if token is None and route.path.startswith("/api/"):
            cookie = session_cookie(request.method, request.headers, request.cookies)
            user = None if cookie is None else self._auth.user_of_cookie(cookie)
            if user is not None:
                return user
        return self._auth.user_of(token, request.remote or "")


def _read(kind: type[Struct], given: Mapping[str, str], where: str) -> Struct:
    try:
        return msgspec.convert(dict(given), kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequestError(f"{where}: {error}") from None


def _single(request: web.Request) -> Mapping[str, str]:
    if len(request.query) != len(set(request.query)):
        raise InvalidRequestError("the query: something is given twice")
    return request.query


def _wanted(kind: type[Struct], request: web.Request) -> Mapping[str, str]:
    names = kind.__struct_encode_fields__
    return {name: request.headers[name] for name in names if name in request.headers}


async def _body(
    request: web.Request, decode: Callable[[bytes], Any], explain: Callable[[bytes], None] | None
) -> Any:
    """The body of a request. Raises InvalidRequestError with the place of what is wrong."""
    received = await _received(request)
    try:
        try:
            return decode(received)
        except msgspec.ValidationError:
            if explain is not None:
                explain(received)
            raise
    except RecursionError:
        raise InvalidRequestError("the body is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"the body: {error}") from None


async def _received(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            return await request.read()
    except TimeoutError:
        raise SlowRequestError(f"the body did not come within {_BODY_SECONDS:.0f} seconds") from None
    except web.HTTPRequestEntityTooLarge:
        raise TooLargeError("the body is larger than limits.frame_bytes") from None
    except web.RequestPayloadError as error:
        raise InvalidRequestError(f"the body cannot be read: {type(error).__name__}") from None
