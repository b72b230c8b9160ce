"""Routes: a URL with its handler and all that the API description says about it.

The types of a route's parameters, body and response are the annotations of its handler. The same types read
the requests and describe them at ``/openapi.json``, so the two cannot differ.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from types import NoneType
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    Protocol,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
import structlog
from aiohttp import web
from msgspec import UNSET, Struct, UnsetType

from gateway.access.tokens import (
    OWNER,
    Auth,
    BrowserLogins,
    Identity,
    ServerRole,
    bearer_token,
    session_cookie,
)
from gateway.contract.errors import (
    CATCHABLE,
    ForbiddenError,
    InternalError,
    InvalidRequestError,
    TrunklineError,
    is_cancellation_requested,
)
from gateway.contract.plugin import ApiCall, ApiRoute, ApiSocket
from gateway.extensions.deadlines import Limit
from gateway.extensions.registry import PluginRegistry
from gateway.extensions.routes import RESERVED, PluginRoute, prefix_of
from gateway.server.errors import ConfirmIdentityError, SlowRequestError, TooLargeError, UpgradeRequiredError
from gateway.server.responses import ErrorBody, json_response
from gateway.server.sockets import PluginSockets

PathT = TypeVar("PathT", bound=Struct)
QueryT = TypeVar("QueryT", bound=Struct)
HeadersT = TypeVar("HeadersT", bound=Struct)
BodyT = TypeVar("BodyT")

log = structlog.get_logger("trunkline.server")

_BODY_SECONDS = 30.0
_IDENTITY = web.RequestKey("identity", Identity)
_ANYBODY = Identity("", "viewer", reads_messages=False)
_CHAT = re.compile(
    r"/api/((files|search|sessions|shares)(/.*)?|agents|browser|models|plugins|plugins/\{name\}/config)"
)
"""The routes that the chat page uses, beside those of plugins."""


class Nothing(Struct, frozen=True):
    """No parameters."""


class IdempotencyKey(Struct, frozen=True):
    """A key of the request to a plugin: what a plugin does once for each key is not repeated."""

    key: Annotated[str, msgspec.Meta(min_length=1, max_length=200)] | UnsetType = msgspec.field(
        default=UNSET, name="Idempotency-Key"
    )


def identity_of(request: web.Request) -> Identity:
    """Return the client of a request that ``Binder`` let pass; a viewer without an account on open routes."""
    return request.get(_IDENTITY, _ANYBODY)


class Call(Generic[PathT, QueryT, HeadersT, BodyT]):
    """One parsed request: path, query, headers, body, and the authenticated user ("" on open routes)."""

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

    @property
    def identity(self) -> Identity:
        """The client, for the audit log and for what a viewer may see; without an account on open routes."""
        return identity_of(self.request)

    def require_proof(self) -> None:
        """Raise ConfirmIdentityError unless the client proved who it is within the last five minutes.

        A token in the request is such a proof; a cookie of the chat page is one when it is new.
        """
        _require_proof(self.identity)


def _require_proof(identity: Identity) -> None:
    if not identity.is_confirmed:
        raise ConfirmIdentityError("confirm this with your token or a new code")


PlainCall = Call[Nothing, Nothing, Nothing, None]
"""A request without parameters or body."""


class Signature(Struct, frozen=True):
    """The types in the annotations of a handler. ``answer`` is None if it returns None or a response."""

    path: type[Struct]
    query: type[Struct]
    headers: type[Struct]
    body: type[Struct] | None
    answer: type[Struct] | None
    is_empty: bool
    """True if the handler returns None."""


class Route(Struct, frozen=True):
    """A method and a path with their handler. ``name`` is the operation id in the API description.

    The handler is an async function of one ``Call``. It returns a Struct, None (status 204) or a response.
    ``sends`` is the JSON in the response of a handler that returns one. ``also`` maps other statuses to
    their bodies. ``errors`` are those beside the errors that all routes have.
    """

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str
    name: str
    summary: str
    handler: Callable[[Call[Any, Any, Any, Any]], Awaitable[object]]
    sends: type[Struct] | None = None
    success: int = 200
    media: str = "application/json"
    """Content type. Beside an ``answer``: the content type of the streamed variant."""
    takes: str | None = None
    """Content type of a body that the handler reads itself, as bytes."""
    error_body: type[Struct] = ErrorBody
    also: Mapping[int, type[Struct]] = {}
    errors: tuple[type[TrunklineError], ...] = ()
    open: bool = False
    """True if the route needs no token."""
    role: ServerRole = "admin"
    """The least role that may use the route. A viewer gets only what all viewers may see."""
    needs_proof: bool = False
    """True if it changes who or what may act: the client must have proved its identity a moment ago.

    A handler that needs this for some requests alone calls ``Call.require_proof``.
    """
    hides: tuple[str, ...] = ()
    """Fields, such as ``message.text``, that viewers get only if the settings let them read messages. Lists
    on the way are left out of the name."""
    explain: Callable[[bytes], None] | None = None
    """Raises a more exact error for a body that does not have the type of the handler's body."""
    types: Signature | None = None
    """The types of a handler whose annotations do not have them."""

    @property
    def signature(self) -> Signature:
        """The types of its handler."""
        return self.types or _signature(getattr(self.handler, "__func__", self.handler))

    @property
    def answer(self) -> type[Struct] | None:
        """The JSON of a success, if there is one."""
        return self.sends or self.signature.answer

    @property
    def status(self) -> int:
        """The status of a success."""
        return 204 if self.signature.is_empty else self.success


Answer = Callable[[web.Request, str, Mapping[str, str]], Awaitable[web.StreamResponse]]


class Logins(Protocol):
    """The source of the console login behind a request."""

    async def find(self, request: web.Request) -> Identity | None:
        """Return the client of a request with the cookie of a login, or None."""
        ...


class Binder:
    """Converter of our routes into aiohttp routes. It checks who sends a request, and in which role."""

    def __init__(
        self, auth: Auth, logins: Logins | None = None, browsers: BrowserLogins | None = None
    ) -> None:
        self._auth = auth
        self._logins = logins
        self._browsers = browsers

    def bind(self, routes: Sequence[Route]) -> list[web.AbstractRouteDef]:
        """Return the aiohttp routes."""
        return [web.route(route.method, route.path, self._bind(route)) for route in routes]

    def _bind(self, route: Route) -> Callable[..., Awaitable[web.StreamResponse]]:
        answer: Answer | None = None
        is_chat = _CHAT.fullmatch(route.path) is not None

        async def handle(
            request: web.Request, parameters: Mapping[str, str] | None = None
        ) -> web.StreamResponse:
            # The types are read with the first request, because most gateways use few of their routes.
            nonlocal answer
            answer = answer or answer_of(route)
            user = "" if route.open else await self.authenticate(request, route.role, chat=is_chat)
            if request.get(_IDENTITY, _ANYBODY).session and route.takes is None:
                _check_json(request)
            return await answer(request, user, request.match_info if parameters is None else parameters)

        return handle

    async def authenticate(
        self, request: web.Request, role: ServerRole = "admin", *, chat: bool = True
    ) -> str:
        """Return the user of a request: all admins are the owner.

        ``chat`` is whether the cookie of the chat page counts, which lasts for 30 days. Raises
        UnauthorizedError, and ForbiddenError for a viewer where an admin is needed.
        """
        identity = await self._identify(request, chat=chat)
        if role == "admin" and identity.role != "admin":
            raise ForbiddenError("viewers may only read")
        request[_IDENTITY] = identity
        return OWNER if identity.role == "admin" else identity.account

    async def _identify(self, request: web.Request, *, chat: bool) -> Identity:
        token = bearer_token(request.headers.get("Authorization", ""))
        if token is None and request.path.startswith("/api/"):
            logins = None if self._auth.open else self._logins
            found = None if logins is None else await logins.find(request)
            if found is not None:
                return found
            cookie = session_cookie(request.method, request.headers, request.cookies) if chat else None
            browsers = self._browsers
            found = None if cookie is None or browsers is None else await browsers.find(cookie)
            if found is not None:
                return found
        return self._auth.identify(token, request.remote or "")


class LateRoutes:
    """Routes under some paths that are made with the first request to one of them.

    ``make`` returns them. It is called once, after ``module`` was imported in a thread. What few gateways use
    takes no memory in the others.
    """

    def __init__(
        self, binder: Binder, paths: Sequence[str], module: str, make: Callable[[], Sequence[Route]]
    ) -> None:
        self._binder = binder
        self._paths = paths
        self._module = module
        self._make = make
        self._made: Sequence[Route] = ()
        self._router = web.UrlDispatcher()
        self._making = asyncio.Lock()

    def bind(self) -> list[web.AbstractRouteDef]:
        """Return one route for each of the paths and all below it."""
        return [web.route("*", f"{path}{{rest:(?s:/.*)?}}", self._answer) for path in self._paths]

    async def routes(self) -> Sequence[Route]:
        """Return the routes, and make them if they are not yet there."""
        async with self._making:
            if not self._made:
                await asyncio.to_thread(import_module, self._module)
                self._made = self._make()
                self._router.add_routes(self._binder.bind(self._made))
        return self._made

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        await self.routes()
        match = await self._router.resolve(request)
        if match.http_exception is not None:
            raise match.http_exception
        return await cast("Callable[..., Awaitable[web.StreamResponse]]", match.handler)(request, match)


def _check_json(request: web.Request) -> None:
    """Raise InvalidRequestError for a body that a form of a foreign page could send."""
    if request.body_exists and request.content_type != "application/json":
        raise InvalidRequestError("send JSON")


def answer_of(route: Route) -> Answer:
    """Return the function that answers a request of an authenticated user with these path parameters."""
    types = route.signature
    read_body = None if types.body is None else msgspec.json.Decoder(types.body).decode

    async def answer(request: web.Request, user: str, parameters: Mapping[str, str]) -> web.StreamResponse:
        if route.needs_proof:
            _require_proof(identity_of(request))
        path = _convert(types.path, parameters, "the path")
        query = _convert(types.query, _query(request), "the query")
        headers = _convert(types.headers, _headers(types.headers, request), "the headers")
        body = None if read_body is None else await _body(request, read_body, route.explain)
        found = await route.handler(Call(request, user, path, query, headers, body))
        hidden = not request.get(_IDENTITY, _ANYBODY).reads_messages and not route.open
        if isinstance(found, web.StreamResponse):
            if hidden and found.content_type == "text/csv":
                raise ForbiddenError("viewers may not export")
            return found
        if hidden and found is not None:
            found = _without(msgspec.to_builtins(found), route.hides)
        return web.Response(status=204) if found is None else json_response(found, route.success)

    return answer


def _without(value: Any, names: Sequence[str]) -> Any:
    """Return JSON without the fields of these names."""
    for name in names:
        _remove(value, name.split("."))
    return value


def _remove(value: Any, path: Sequence[str]) -> None:
    if isinstance(value, list | tuple):
        for each in cast("Sequence[Any]", value):
            _remove(each, path)
    elif isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        if len(path) == 1:
            fields.pop(path[0], None)
        elif path[0] in fields:
            _remove(fields[path[0]], path[1:])


class PluginRoutes:
    """The routes and websockets of plugins, which come and go while the server runs."""

    def __init__(self, registry: PluginRegistry, binder: Binder) -> None:
        self.sockets = PluginSockets(registry, binder.authenticate)
        self._registry = registry
        self._binder = binder
        self._bound: Mapping[str, Sequence[PluginRoute]] = {}
        self._router = web.UrlDispatcher()

    def bind(self) -> list[web.AbstractRouteDef]:
        """Return the routes for all: aiohttp's own routes cannot change after its start."""
        # Not the words of the gateway's own routes: of these, a wrong method has its own answer.
        word = f"(?!(?:{'|'.join(sorted(RESERVED))})(?:/|$))[a-z][a-z0-9-]*"
        return [
            web.route("*", prefix_of("{plugin}") + "/{rest:(?s:.*)}", self._answer),
            web.route("*", f"/api/{{word:{word}}}{{rest:(?s:/.*)?}}", self._answer_prefix),
        ]

    def routes(self) -> dict[str, list[Route]]:
        """Return the routes by plugin, as the API description and the router have them."""
        return {
            plugin: [self._route_of(each) for each in found]
            for plugin, found in self._registry.routes.items()
        }

    async def _answer_prefix(self, request: web.Request) -> web.StreamResponse:
        prefix = f"/api/{request.match_info['word']}"
        if not any(prefix in each.plugin.api_prefixes for each in self._registry.current.active):
            raise web.HTTPNotFound
        return await self._answer(request)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        user = await self._binder.authenticate(request)
        if self._bound is not self._registry.routes:
            self._bound, self._router = self._registry.routes, web.UrlDispatcher()
            for routes in self.routes().values():
                for route in routes:
                    self._router.add_route(route.method, route.path, cast("Any", answer_of(route)))
        match = await self._router.resolve(request)
        if match.http_exception is not None:
            raise match.http_exception
        return await cast("Answer", match.handler)(request, user, match)

    def _route_of(self, found: PluginRoute) -> Route:
        offered, is_socket = found.route, isinstance(found.route, ApiSocket)
        limit = self._registry.limit_of_route(found.plugin, found.place)

        async def handle(call: Call[Any, Any, Any, Any]) -> Struct | web.StreamResponse | None:
            path = call.path if found.path is not None else None
            query = call.query if found.query is not None else None
            key = call.headers.key if isinstance(call.headers, IdempotencyKey) else UNSET
            given = ApiCall(path, query, call.body, call.user, "" if key is UNSET else key)
            if is_socket:
                return await self.sockets.serve(call.request, found, given)
            return await _ask(found, limit, given)

        words = re.findall(r"\w+", f"{found.plugin} {offered.method.lower()} {offered.path}")
        return Route(
            offered.method,
            found.url,
            "_".join(words),
            offered.summary,
            handle,
            success=101 if is_socket else 200,
            needs_proof=isinstance(offered, ApiRoute) and offered.needs_proof,
            errors=(*offered.errors, InternalError, *([UpgradeRequiredError] if is_socket else [])),
            types=Signature(
                found.path or Nothing,
                found.query or Nothing,
                IdempotencyKey if offered.method == "POST" else Nothing,
                found.body,
                found.answer,
                found.answer is None and not is_socket,
            ),
        )


async def _ask(found: PluginRoute, limit: Limit, call: ApiCall[Any, Any, Any]) -> Struct | None:
    """Return the answer of a plugin's handler. Raises an error that names the plugin if the handler fails."""
    try:
        answer = await limit.call(found.route.handler, call)
        if not isinstance(answer, found.answer or NoneType):
            raise TypeError(f"the handler returned {type(answer).__name__}, which it does not declare")
    except TrunklineError:
        raise
    except CATCHABLE as error:
        if is_cancellation_requested(error):
            raise
        log.exception("a route of a plugin failed", plugin=found.plugin, route=found.route.path)
        name = type(error).__name__
        raise InternalError(f"plugin {found.plugin!r} could not answer: {name}; see the log") from None
    return answer


# Cached by function, not by bound method, which would keep its gateway in memory.
@cache
def _signature(handler: Callable[..., Any]) -> Signature:
    hints = get_type_hints(handler)
    returned = hints.pop("return")
    (call,) = hints.values()
    path, query, headers, body = get_args(call)
    is_struct = isinstance(returned, type) and issubclass(returned, Struct)
    answer = cast("type[Struct]", returned) if is_struct else None
    return Signature(
        path,
        query,
        headers,
        None if body is NoneType else body,
        answer,
        returned is NoneType,
    )


def _convert(kind: type[Struct], given: Mapping[str, str], where: str) -> Struct:
    try:
        return msgspec.convert(dict(given), kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequestError(f"{where}: {error}{_choices(kind, str(error))}") from None


def _choices(kind: type[Struct], error: str) -> str:
    """Return the values that the parameter in an error may have, if it is one of a few."""
    named = re.search(r"^Invalid enum value .* at `\$\.([^`]+)`$", error)
    field = named and next((one for one in msgspec.structs.fields(kind) if one.encode_name == named[1]), None)
    hint = field.type if field else None
    choices = get_args(get_args(hint)[0] if get_origin(hint) is Annotated else hint)
    return f"; use {' or '.join(map(str, choices))}" if choices else ""


def _query(request: web.Request) -> Mapping[str, str]:
    if len(request.query) != len(set(request.query)):
        raise InvalidRequestError("the query: a parameter is given twice")
    return request.query


def _headers(kind: type[Struct], request: web.Request) -> Mapping[str, str]:
    names = kind.__struct_encode_fields__
    return {name: request.headers[name] for name in names if name in request.headers}


async def _body(
    request: web.Request, decode: Callable[[bytes], Any], explain: Callable[[bytes], None] | None
) -> Any:
    """Return the decoded body. Raises InvalidRequestError with the place of the mistake."""
    received = await _receive(request)
    if not received:
        raise InvalidRequestError("the body is empty; send JSON")
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


async def _receive(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            return await request.read()
    except TimeoutError:
        raise SlowRequestError(f"the body did not arrive within {_BODY_SECONDS:.0f} seconds") from None
    except web.HTTPRequestEntityTooLarge:
        raise TooLargeError("the body is larger than limits.frame_bytes") from None
    except web.RequestPayloadError as error:
        raise InvalidRequestError(f"the body cannot be read: {type(error).__name__}") from None
