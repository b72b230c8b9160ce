"""Tokens of the gateway's server: bearer tokens, browser cookies and the limit on wrong guesses."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import select

from gateway.contract.errors import ForbiddenError, TooManyRequestsError, UnauthorizedError
from gateway.settings import ServerSettings
from gateway.store import Store
from gateway.store import schema as t
from gateway.store.writes import Write, audit_op

OWNER = "owner"
ServerRole = Literal["admin", "viewer"]
"""The rights of a client of the server: everything, or reading without messages and commands."""
_MAX_WRONG = 10
_WINDOW = 60.0
_COOKIE_SECONDS = 30 * 86_400
_CONFIRMED_MS = 5 * 60_000
_MIN_CAPACITY = 1_000
"""Counted keys that are kept before expired ones are removed."""
_KEPT_SECONDS = 365 * 86_400
"""Seconds for which the end of a login is kept: much longer than its cookie counts, because clocks jump."""
_MAX_OLD = 100
"""Ends of old logins that one sign-out removes, at most."""
_END = Write("insert-new", 114, t.ended_login, "id")
_FORGET = Write("delete", 115, t.ended_login, "id")


class Attempts:
    """In-memory counts of attempts by key: at most ``most`` within ``seconds``."""

    def __init__(self, most: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._made: dict[str, deque[float]] = {}
        self._capacity = _MIN_CAPACITY

    def used_up(self, key: str) -> bool:
        """Return whether a key has reached its limit."""
        made = self._made.get(key)
        if made is None:
            return False
        horizon = self._clock() - self._seconds
        while made and made[0] <= horizon:
            made.popleft()
        return len(made) >= self._most

    def count(self, key: str) -> None:
        """Record an attempt."""
        now = self._clock()
        if len(self._made) >= self._capacity:
            horizon = now - self._seconds
            self._made = {key: made for key, made in self._made.items() if made and made[-1] > horizon}
            self._capacity = max(_MIN_CAPACITY, 2 * len(self._made))
        # Only the newest ``most`` attempts decide, so older ones are dropped to bound memory.
        self._made.setdefault(key, deque(maxlen=self._most)).append(now)

    def forget(self, key: str) -> None:
        """Reset the count of a key."""
        self._made.pop(key, None)


class NamedToken(Struct, frozen=True):
    """A further token of the settings, with the role of its holder."""

    token: str
    role: ServerRole


class Identity(Struct, frozen=True):
    """A client of the server.

    ``account`` is the owner, the name of a token, or ``channel:user``. ``proof`` is a digest of the token: a
    login ends when its token changes. ``session`` is the id of a login at the console, empty for others;
    ``confirmed_at`` (milliseconds) is when it last proved who it is, None if it did so with this request.
    """

    account: str
    role: ServerRole
    proof: str = ""
    session: str = ""
    confirmed_at: int | None = None
    reads_messages: bool = True

    @property
    def is_confirmed(self) -> bool:
        """Return whether the client proved who it is with this request, or within the last five minutes.

        A proof of the future counts no longer than one of the past: the clock was set back since.
        """
        return self.confirmed_at is None or abs(time.time() * 1000 - self.confirmed_at) <= _CONFIRMED_MS


class Auth:
    """Checks tokens in constant time, and limits wrong guesses by peer.

    Without a token every client is the owner; the settings then allow local connections only.
    """

    def __init__(
        self,
        token: str | None,
        named: Mapping[str, NamedToken] | None = None,
        *,
        viewers_read_messages: bool = False,
    ) -> None:
        own = {} if token is None else {OWNER: NamedToken(token, "admin")}
        self._tokens = own | dict(named or {})
        self._viewers_read_messages = viewers_read_messages
        self._wrong = Attempts(_MAX_WRONG, _WINDOW)

    @classmethod
    def of(cls, server: ServerSettings) -> Auth:
        """Return the check of the tokens in the settings."""
        own = server.token.get_secret_value() if server.token else None
        named = {name: NamedToken(t.secret, t.role) for name, t in server.tokens.items()}
        return cls(own, named, viewers_read_messages=server.viewer_reads == "messages")

    @property
    def open(self) -> bool:
        """Return whether no token is needed."""
        return not self._tokens

    def user_of(self, token: str | None, peer: str) -> str:
        """Return the user of a token: all admins are the owner. Raises the errors of ``identify``."""
        if self.identify(token, peer).role != "admin":
            raise ForbiddenError("the token of a viewer opens only the console")
        return OWNER

    def identify(self, token: str | None, peer: str) -> Identity:
        """Return the holder of a token.

        A correct token always works: clients that share the address of a proxy must not lock the owner out.
        Raises UnauthorizedError, or TooManyRequestsError for further wrong tokens of a peer after ten within
        a minute.
        """
        if self.open:
            return Identity(OWNER, "admin")
        if token is None:
            raise UnauthorizedError("a token is required")
        given = token.encode(errors="surrogatepass")
        # Compare with every token, also after a match, so that the duration reveals nothing.
        matches = [n for n, known in self._tokens.items() if hmac.compare_digest(given, known.token.encode())]
        found = self.find(matches[0]) if matches else None
        if found is not None:
            return found
        if self._wrong.used_up(peer):
            raise TooManyRequestsError("too many wrong tokens; try again in a minute")
        self._wrong.count(peer)
        raise UnauthorizedError("the token is wrong")

    def find(self, account: str) -> Identity | None:
        """Return the identity of a token by its name, or None if the settings have no such token."""
        if self.open:
            return Identity(OWNER, "admin") if account == OWNER else None
        known = self._tokens.get(account)
        if known is None:
            return None
        proof = hashlib.sha256(b"console " + known.token.encode()).hexdigest()[:32]
        reads = known.role == "admin" or self._viewers_read_messages
        return Identity(account, known.role, proof, reads_messages=reads)

    def cookie(self, account: str = OWNER, now: float | None = None) -> str:
        """Make the value of a browser's session cookie: the time (seconds), its MAC and the token's name.

        The MAC is keyed by the token. So the cookie needs no server-side state, reveals nothing of the token,
        and expires with it or after 30 days. A random part of the time tells logins of one second apart.
        """
        issued = f"{int(time.time() if now is None else now)}-{secrets.token_hex(8)}"
        return ".".join((issued, self._mac(account, issued), *([] if account == OWNER else [account])))

    def confirms(self, cookie: str) -> bool:
        """Return whether a session cookie is so new that it proves who its user is."""
        holder = self.holder_of_cookie(cookie)
        return holder is not None and holder.is_confirmed

    def holder_of_cookie(self, cookie: str) -> Identity | None:
        """Return the admin of a session cookie, or None. The proof is as old as the cookie.

        An expired one does not count as a wrong guess. ``BrowserLogins`` knows those that were ended.
        """
        if self.open:
            return Identity(OWNER, "admin")
        issued, _, rest = cookie.partition(".")
        mac, _, account = rest.partition(".")
        known = self._tokens.get(account or OWNER)
        if known is None or known.role != "admin":
            return None
        seconds = issued.partition("-")[0]
        if not (issued.isascii() and seconds.isdecimal() and mac.isascii() and len(seconds) <= 12):
            return None
        age = time.time() - int(seconds)
        valid = hmac.compare_digest(mac, self._mac(account or OWNER, issued)) and abs(age) <= _COOKIE_SECONDS
        found = self.find(account or OWNER) if valid else None
        return None if found is None else replace(found, confirmed_at=int(seconds) * 1000)

    def _mac(self, account: str, issued: str) -> str:
        known = self._tokens.get(account)
        key = b"" if known is None else known.token.encode()
        return hmac.new(key, b"browser session " + issued.encode(), hashlib.sha256).hexdigest()


class BrowserLogins:
    """Logins at the chat page. Their cookies need no state of the server, until a user signs out."""

    def __init__(self, auth: Auth, store: Store) -> None:
        self.auth = auth
        self._store = store
        self._listeners: set[Callable[[str], None]] = set()

    def begin(self, account: str) -> str:
        """Return the cookie of a new login."""
        return self.auth.cookie(account)

    async def find(self, cookie: str) -> Identity | None:
        """Return the admin of a cookie whose login was not ended, or None."""
        holder = self.auth.holder_of_cookie(cookie)
        if holder is None or self.auth.open:
            return holder
        return None if await self._is_ended(cookie) else holder

    async def user_of(self, cookie: str) -> str | None:
        """Return the user of a cookie whose login was not ended, or None. All admins are the owner."""
        return None if await self.find(cookie) is None else OWNER

    async def end(self, cookie: str) -> None:
        """End the login of a valid cookie, with its open sockets. Durable when it returns."""
        holder = self.auth.holder_of_cookie(cookie)
        if holder is None or self.auth.open:
            return
        old = [(_FORGET, (login,)) for login in await self._read_old()]
        logout = audit_op(holder.account, "chat.logout", holder.account)
        await self._store.write((_END, (_id(cookie),)), *old, logout)
        for listener in tuple(self._listeners):
            listener(_id(cookie))

    def on_end(self, cookie: str, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener`` when the login of a cookie is ended, until the result is called."""
        ended = _id(cookie)

        def call(login: str) -> None:
            if login == ended:
                listener()

        self._listeners.add(call)
        return lambda: self._listeners.discard(call)

    async def _read_old(self) -> list[str]:
        c = t.ended_login.c.id
        query = select(c).where(c < str(int(time.time()) - _KEPT_SECONDS)).limit(_MAX_OLD)
        return await self._store.read(lambda connection: list(connection.execute(query).scalars()))

    async def _is_ended(self, cookie: str) -> bool:
        c = t.ended_login.c.id
        query = select(c).where(c == _id(cookie))
        return await self._store.read(lambda connection: connection.execute(query).first() is not None)


def _id(cookie: str) -> str:
    """Return the id of a login: it is the same for every form of a cookie that counts."""
    issued, _, rest = cookie.partition(".")
    return f"{issued}.{hashlib.sha256(rest.partition('.')[0].encode()).hexdigest()}"


def cookie_name(host: str) -> str:
    """Return the name of the session cookie for a Host header; browsers share cookies between ports."""
    port = host.rpartition(":")[2]
    return f"trunkline_{port}" if port.isascii() and port.isdecimal() else "trunkline"


def session_cookie(method: str, headers: Mapping[str, str], cookies: Mapping[str, str]) -> str | None:
    """Return the session cookie of a request that the gateway's own page made, or None.

    ``SameSite=Strict`` does not stop pages of another port or subdomain. ``Sec-Fetch-Site`` identifies those,
    and ``Origin``, which the guard has checked and which browsers send with websockets and every request that
    may change something.
    """
    if headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
        return None
    reads = method in ("GET", "HEAD") and "Upgrade" not in headers
    if not reads and "Origin" not in headers:
        return None
    return cookies.get(cookie_name(headers.get("Host", "")))


def bearer_token(header: str) -> str | None:
    """Return the token of an ``Authorization`` header, or None."""
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None
