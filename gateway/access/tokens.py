"""Tokens of the gateway's server: bearer tokens, browser cookies and the limit on wrong guesses."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections import deque
from collections.abc import Callable, Mapping

from gateway.contract.errors import TooManyRequestsError, UnauthorizedError

OWNER = "owner"
_MAX_WRONG = 10
_WINDOW = 60.0
_COOKIE_SECONDS = 30 * 86_400
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


class Auth:
    """Checks tokens in constant time, and limits wrong guesses by peer.

    Without a token every client is the owner; the settings then allow local connections only.
    """

    def __init__(self, token: str | None) -> None:
        self._token = None if token is None else token.encode()
        self._wrong = Attempts(_MAX_WRONG, _WINDOW)

    @property
    def open(self) -> bool:
        """Return whether no token is needed."""
        return self._token is None

    def user_of(self, token: str | None, peer: str) -> str:
        """Return the user of a token.

        A correct token always works: clients that share the address of a proxy must not lock the owner out.
        Raises UnauthorizedError, or TooManyRequestsError for further wrong tokens of a peer after ten within
        a minute.
        """
        if self._token is None:
            return OWNER
        if token is None:
            raise UnauthorizedError("a token is required")
        if hmac.compare_digest(token.encode(errors="surrogatepass"), self._token):
            return OWNER
        if self._wrong.used_up(peer):
            raise TooManyRequestsError("too many wrong tokens; try again in a minute")
        self._wrong.count(peer)
        raise UnauthorizedError("the token is wrong")

    def cookie(self, now: float | None = None) -> str:
        """Make the value of a browser's session cookie: the time (seconds) and its MAC, keyed by the token.

        It needs no server-side state, reveals nothing of the token, and expires with it or after 30 days.
        """
        issued = str(int(time.time() if now is None else now))
        return f"{issued}.{self._mac(issued)}"

    def user_of_cookie(self, cookie: str, now: float | None = None) -> str | None:
        """Return the user of a session cookie, or None. An expired one does not count as a wrong guess."""
        issued, _, mac = cookie.partition(".")
        if self._token is None:
            return OWNER
        if not (issued.isascii() and issued.isdecimal() and mac.isascii() and len(issued) <= 12):
            return None
        age = (time.time() if now is None else now) - int(issued)
        valid = hmac.compare_digest(mac, self._mac(issued)) and abs(age) <= _COOKIE_SECONDS
        return OWNER if valid else None

    def _mac(self, issued: str) -> str:
        return hmac.new(self._token or b"", b"browser session " + issued.encode(), hashlib.sha256).hexdigest()


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
