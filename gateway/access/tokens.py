"""Tokens of the gateway's server: bearer tokens, browser cookies and the limit on wrong guesses."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from gateway.contract.errors import ForbiddenError, TooManyRequestsError, UnauthorizedError
from gateway.settings import ServerSettings

OWNER = "owner"
ServerRole = Literal["admin", "viewer"]
"""What a client of the server may do: everything, or read without messages and commands."""
_MAX_WRONG = 10
_WINDOW = 60.0
_COOKIE_SECONDS = 30 * 86_400
_CONFIRMED_MS = 5 * 60_000
_MIN_CAPACITY = 1_000
"""Counted keys that are kept before expired ones are removed."""


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
        and expires with it or after 30 days.
        """
        issued = str(int(time.time() if now is None else now))
        return ".".join((issued, self._mac(account, issued), *([] if account == OWNER else [account])))

    def user_of_cookie(self, cookie: str) -> str | None:
        """Return the user of a session cookie, or None. An expired one does not count as a wrong guess."""
        return OWNER if self.holder_of_cookie(cookie) is not None else None

    def confirms(self, cookie: str) -> bool:
        """Return whether a session cookie is so new that it proves who its user is."""
        holder = self.holder_of_cookie(cookie)
        return holder is not None and holder.is_confirmed

    def holder_of_cookie(self, cookie: str) -> Identity | None:
        """Return the admin of a session cookie, or None. The proof is as old as the cookie."""
        if self.open:
            return Identity(OWNER, "admin")
        issued, _, rest = cookie.partition(".")
        mac, _, account = rest.partition(".")
        known = self._tokens.get(account or OWNER)
        if known is None or known.role != "admin":
            return None
        if not (issued.isascii() and issued.isdecimal() and mac.isascii() and len(issued) <= 12):
            return None
        age = time.time() - int(issued)
        valid = hmac.compare_digest(mac, self._mac(account or OWNER, issued)) and abs(age) <= _COOKIE_SECONDS
        found = self.find(account or OWNER) if valid else None
        return None if found is None else replace(found, confirmed_at=int(issued) * 1000)

    def _mac(self, account: str, issued: str) -> str:
        known = self._tokens.get(account)
        key = b"" if known is None else known.token.encode()
        return hmac.new(key, b"browser session " + issued.encode(), hashlib.sha256).hexdigest()


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
