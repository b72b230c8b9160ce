"""Logins at the console: random ids in a cookie, of which the database has only digests.

The role is read again for each request. A login ends after 12 hours without a request, after 7 days, when its
token changes or is removed, and when the role of its account changes.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping

from aiohttp import web
from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import ColumnElement, Connection, or_, select

from gateway.access import Access, UserRef
from gateway.access.codes import Code
from gateway.access.tokens import Auth, Identity, ServerRole
from gateway.contract.errors import InvalidRequestError
from gateway.contract.messages import now_ms
from gateway.server.guard import is_loopback_name
from gateway.server.now import Reader, owner_as_reader
from gateway.server.routes import identity_of
from gateway.store import Store
from gateway.store import schema as t
from gateway.store.writes import Write, audit_op

IDLE_MS = 12 * 3_600_000
LONGEST_MS = 7 * 86_400_000
_SEEN_MS = 60_000
"""Requests within this time of one another are one write."""
_PREFIXED = "__Host-trunkline-console"

_ADD = Write("insert", 110, t.console_session, "id account role proof created_at seen_at confirmed_at")
_SEE = Write("update", 111, t.console_session, "id seen_at")
_CONFIRM = Write("update", 112, t.console_session, "id confirmed_at")
_DROP = Write("delete", 113, t.console_session, "id")


class Login(Struct, frozen=True, kw_only=True):
    """A login. ``id`` is the digest of its cookie; times are in milliseconds."""

    id: str
    account: str
    role: ServerRole
    proof: str
    created_at: int
    seen_at: int
    confirmed_at: int

    @property
    def expires_at(self) -> int:
        """The time at which it ends without a further request."""
        return min(self.seen_at + IDLE_MS, self.created_at + LONGEST_MS)

    def is_valid(self, now: int) -> bool:
        """Return whether it counts at a time (ms).

        A login of the future counts no longer than one of the past: the clock was set back since.
        """
        return abs(now - self.seen_at) < IDLE_MS and abs(now - self.created_at) < LONGEST_MS


class ConsoleSessions:
    """Begins, finds and ends logins."""

    def __init__(self, store: Store, auth: Auth, access: Access, clock: Callable[[], int] = now_ms) -> None:
        self._store = store
        self._auth = auth
        self._access = access
        self._clock = clock
        self._known: dict[str, Login] = {}
        """Logins of this process's requests, as they were at the latest one; the streams ask for them."""

    async def begin(self, identity: Identity, before: str = "") -> tuple[str, Login]:
        """Store a new login. Returns the value of its cookie. ``before`` is a login that it replaces."""
        value, now = secrets.token_urlsafe(32), self._clock()
        login = Login(
            id=_digest(value),
            account=identity.account,
            role=identity.role,
            proof=identity.proof,
            created_at=now,
            seen_at=now,
            confirmed_at=now,
        )
        c = t.console_session.c
        old = await self._read(
            or_(
                c.seen_at < now - IDLE_MS,
                # Also those of a clock that was ahead: they would count again at that time.
                ~c.created_at.between(now - LONGEST_MS, now + LONGEST_MS),
                c.id == before,
            )
        )
        row = tuple(getattr(login, name) for name in _ADD.columns)
        dropped = [(_DROP, (each.id,)) for each in old]
        audit = audit_op(identity.account, "console.login", identity.account, f"role {identity.role}")
        await self._store.write((_ADD, row), *dropped, audit)
        return value, login

    async def find(self, request: web.Request) -> Identity | None:
        """Return who sends a request with the cookie of a login; None without a valid one."""
        value = _cookie_of(request)
        login = None if value is None else await self.login(_digest(value))
        if login is None:
            return None
        now = self._clock()
        # A stream that stays open is not an activity.
        streams = "text/event-stream" in request.headers.get("Accept", "")
        if not streams and abs(now - login.seen_at) > _SEEN_MS:
            login = self._known[login.id] = replace(login, seen_at=now)
            await self._store.write((_SEE, (login.id, now)))
        known = self.identity_of(login.account)
        assert known is not None, "its login was found"
        return replace(known, session=login.id, confirmed_at=login.confirmed_at)

    async def login(self, session: str) -> Login | None:
        """Return a login that is still valid. One that is not is deleted."""
        found = await self._read(t.console_session.c.id == session)
        if not found:
            return None
        login, known = found[0], self.identity_of(found[0].account)
        is_same = known is not None and (known.role, known.proof) == (login.role, login.proof)
        if is_same and login.is_valid(self._clock()):
            self._known[login.id] = login
            return login
        self._known.pop(login.id, None)
        await self._store.write((_DROP, (login.id,)))
        return None

    def reader_of(self, request: web.Request) -> Reader:
        """Return who reads the state now, and until when."""
        who, known = identity_of(request), owner_as_reader(request)
        # One token is one session, regardless of other headers.
        session = who.session or (f"token {who.account}" if who.proof else known.session)
        alive = (lambda: self._is_alive(who.session)) if who.session else known.is_alive
        return Reader(session, who.role == "admin", who.reads_messages, alive, who.account)

    def _is_alive(self, session: str) -> bool:
        """Return whether a login of a request to this process still counts, without a look at the store."""
        login = self._known.get(session)
        if login is None or not login.is_valid(self._clock()):
            return False
        known = self.identity_of(login.account)
        return known is not None and (known.role, known.proof) == (login.role, login.proof)

    def identity_of(self, account: str) -> Identity | None:
        """Return the present role of an account, or None if it may not open the console any more."""
        user = UserRef.parse(account)
        if user.channel:
            return Identity(account, "admin") if self._access.policy.is_admin(user) else None
        return self._auth.find(account)

    async def by_code(self, given: str, peer: str) -> tuple[Identity, Code]:
        """Return the account that got a code, and the code, which the caller uses under its lock.

        Raises NotFoundError, or TooManyRequestsError after five wrong codes of a peer in ten minutes.
        """
        code = await self._access.codes.find(
            "console",
            given,
            UserRef("", f"peer {peer}"),
            lambda code: self.identity_of(str(code.user)) is not None,
        )
        known = self.identity_of(str(code.user))
        assert known is not None, "the code was found for it"
        return known, code

    async def prove(self, token: str | None, code: str | None, peer: str) -> Identity:
        """Return who holds a token or a code. A code works once. Raises the errors of both."""
        if (token is None) == (code is None):
            raise InvalidRequestError("send a token, or a code of /console")
        if code is None:
            return self._auth.identify(token, peer)
        async with self._access.codes.lock:
            known, used = await self.by_code(code, peer)
            await self._store.write(used.use())
        return known

    async def of(self, account: str) -> list[Login]:
        """Return the logins of an account."""
        return await self._read(t.console_session.c.account == account)

    async def confirm(self, session: str) -> None:
        """Record that the user of a login proved who it is."""
        await self._store.write((_CONFIRM, (session, self._clock())))

    async def end(self, login: Login, *, everywhere: bool = False) -> int:
        """End a login, or all of its account. Returns how many."""
        ended = await self.of(login.account) if everywhere else [login]
        for each in ended:
            self._known.pop(each.id, None)
        what = "console.logout_all" if everywhere else "console.logout"
        dropped = [(_DROP, (each.id,)) for each in ended]
        await self._store.write(*dropped, audit_op(login.account, what, login.account))
        return len(ended)

    async def _read(self, where: ColumnElement[bool]) -> list[Login]:
        query = select(t.console_session).where(where)

        def read(connection: Connection) -> list[Login]:
            return [Login(**row) for row in connection.execute(query).mappings()]

        return await self._store.read(read)


def cookie_name_of(request: web.Request) -> str:
    """Return the cookie to set. Raises InvalidRequestError without TLS, except on this machine."""
    if _is_secure(request):
        return _PREFIXED
    if not is_loopback_name(request.headers.get("Host", "")):
        raise InvalidRequestError("the console needs TLS, except on this machine; see docs/proxy.md")
    return _plain_name(request)


def set_cookie(request: web.Request, response: web.Response, value: str) -> None:
    """Set the cookie of a login, or remove it if the value is empty. Raises as ``cookie_name_of`` does."""
    name, secure = cookie_name_of(request), _is_secure(request)
    if value:
        response.set_cookie(name, value, path="/", httponly=True, samesite="Strict", secure=secure)
    else:
        response.del_cookie(name, path="/", httponly=True, samesite="Strict", secure=secure)


def _cookie_of(request: web.Request) -> str | None:
    """Return the cookie of a login, if the gateway's own page made the request.

    A request that may change something needs the Origin that browsers send, which the guard has checked.
    """
    headers: Mapping[str, str] = request.headers
    if headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        return None
    if request.method not in ("GET", "HEAD") and "Origin" not in headers:
        return None
    found = request.cookies.get(_PREFIXED)
    if found is None and is_loopback_name(headers.get("Host", "")):
        found = request.cookies.get(_plain_name(request))
    return found


def _is_secure(request: web.Request) -> bool:
    """Return whether the browser uses TLS. Behind a proxy only the page's origin shows it."""
    return request.secure or request.headers.get("Origin", "").lower().startswith("https://")


def _plain_name(request: web.Request) -> str:
    port = request.headers.get("Host", "").rpartition(":")[2]
    return f"trunkline_console_{port}" if port.isascii() and port.isdecimal() else "trunkline_console"


def _digest(value: str) -> str:
    return hashlib.sha256(value.encode(errors="surrogatepass")).hexdigest()
