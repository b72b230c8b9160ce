"""The login at the console: with a token, or with a code that ``/console`` sends in a private chat."""

from __future__ import annotations

from typing import Annotated

import structlog
from aiohttp import web
from msgspec import Meta, Struct

from gateway.access.tokens import Auth, Identity, ServerRole
from gateway.contract.errors import (
    ForbiddenError,
    InvalidRequestError,
    NotFoundError,
    TooManyRequestsError,
    UnauthorizedError,
)
from gateway.server.console.sessions import ConsoleSessions, Login, cookie_name_of, set_cookie
from gateway.server.errors import ForeignPageError
from gateway.server.responses import json_response
from gateway.server.routes import Call, Nothing, PlainCall, Route

log = structlog.get_logger("trunkline.server")

_Proof = Annotated[str, Meta(min_length=1, max_length=500)]


class ConsoleLogin(Struct, frozen=True, forbid_unknown_fields=True):
    """Proof of an identity: a token of the settings, or a code of ``/console``."""

    token: _Proof | None = None
    code: _Proof | None = None


class ConsoleUser(Struct, frozen=True):
    """The user of a login. ``expires_at`` (milliseconds) is its end without a further request.

    ``open`` means that the settings have no token, so that every user of this machine is the owner.
    """

    account: str
    role: ServerRole
    reads_messages: bool
    open: bool = False
    expires_at: int | None = None


class EndedLogins(Struct, frozen=True):
    """The number of logins that were ended."""

    ended: int


class ConsoleAccess:
    """The routes under ``/api/console``."""

    def __init__(self, sessions: ConsoleSessions, auth: Auth) -> None:
        self._sessions = sessions
        self._auth = auth

    def routes(self) -> list[Route]:
        """Return the routes."""
        refused = (UnauthorizedError, ForeignPageError, TooManyRequestsError, NotFoundError)
        return [
            Route(
                "GET",
                "/api/console/session",
                "showConsoleUser",
                "Show who is signed in at the console.",
                self._show,
                role="viewer",
            ),
            Route(
                "POST",
                "/api/console/login",
                "signIn",
                "Sign in at the console, with a token or a code of /console; sets a cookie.",
                self._sign_in,
                sends=ConsoleUser,
                errors=refused,
                open=True,
            ),
            Route(
                "POST",
                "/api/console/logout",
                "signOut",
                "End this login at the console.",
                self._sign_out,
                success=204,
                role="viewer",
            ),
            Route(
                "POST",
                "/api/console/logout-all",
                "signOutEverywhere",
                "End all logins of this account at the console.",
                self._sign_out_everywhere,
                sends=EndedLogins,
                role="viewer",
            ),
            Route(
                "POST",
                "/api/console/confirm",
                "confirmIdentity",
                "Prove again who is signed in, for actions that need it; this holds for five minutes.",
                self._confirm,
                errors=(ForbiddenError, NotFoundError),
                role="viewer",
            ),
        ]

    async def _show(self, call: PlainCall) -> ConsoleUser:
        identity = call.identity
        if self._auth.open:
            return ConsoleUser(identity.account, "admin", reads_messages=True, open=True)
        return _shown(identity, await self._login(identity))

    async def _sign_in(self, call: Call[Nothing, Nothing, Nothing, ConsoleLogin]) -> web.Response:
        request = call.request
        _check_origin(request)
        cookie_name_of(request)
        try:
            identity = await self._sessions.prove(call.body.token, call.body.code, request.remote or "")
        except (UnauthorizedError, NotFoundError, TooManyRequestsError) as error:
            log.warning("a login at the console was refused", peer=request.remote, reason=str(error))
            raise
        before = await self._sessions.find(request)
        value, login = await self._sessions.begin(identity, "" if before is None else before.session)
        response = json_response(_shown(identity, login))
        set_cookie(request, response, value)
        return response

    async def _sign_out(self, call: PlainCall) -> web.Response:
        await self._sessions.end(await self._login(call.identity))
        response = web.Response(status=204)
        set_cookie(call.request, response, "")
        return response

    async def _sign_out_everywhere(self, call: PlainCall) -> web.Response:
        ended = await self._sessions.end(await self._login(call.identity), everywhere=True)
        response = json_response(EndedLogins(ended))
        set_cookie(call.request, response, "")
        return response

    async def _confirm(self, call: Call[Nothing, Nothing, Nothing, ConsoleLogin]) -> None:
        login = await self._login(call.identity)
        proved = await self._sessions.prove(call.body.token, call.body.code, call.request.remote or "")
        if proved.account != login.account:
            raise ForbiddenError(
                f"this is the proof of another account; you are signed in as {login.account}"
            )
        await self._sessions.confirm(login.id)

    async def _login(self, identity: Identity) -> Login:
        """Return the login of a request. Raises UnauthorizedError for a request with other credentials."""
        login = await self._sessions.login(identity.session) if identity.session else None
        if login is None:
            raise UnauthorizedError("sign in at the console")
        return login


def _shown(identity: Identity, login: Login) -> ConsoleUser:
    return ConsoleUser(identity.account, identity.role, identity.reads_messages, expires_at=login.expires_at)


def _check_origin(request: web.Request) -> None:
    """Raise an error unless a page of this gateway sends JSON; the guard has checked the Origin itself."""
    if "Origin" not in request.headers:
        raise ForeignPageError("sign in from the page /console: the request names no Origin")
    if request.content_type != "application/json":
        raise InvalidRequestError("send JSON")
