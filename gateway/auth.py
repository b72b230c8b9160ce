"""Who may talk to the gateway's server: whoever shows the token; without one, whoever can connect."""

from __future__ import annotations

import hmac

from gateway.attempts import Attempts
from gateway.errors import TooManyRequestsError, UnauthorizedError

OWNER = "owner"
_GUESSES = 10
_WINDOW = 60.0


class Auth:
    """Checks tokens in constant time, and slows down whoever guesses.

    Without a token everybody who can connect is the owner; settings see to it that only this machine can.
    """

    def __init__(self, token: str | None) -> None:
        self._token = None if token is None else token.encode()
        self._wrong = Attempts(_GUESSES, _WINDOW)

    @property
    def open(self) -> bool:
        """Whether no token is needed."""
        return self._token is None

    def user_of(self, token: str | None, peer: str) -> str:
        """The user a token stands for.

        Raises UnauthorizedError, or TooManyRequestsError after ten wrong tokens of a peer within a minute.
        """
        if self._token is None:
            return OWNER
        if token is None:
            raise UnauthorizedError("this needs a token")
        if self._wrong.used_up(peer):
            raise TooManyRequestsError("too many wrong tokens; try again in a minute")
        if not hmac.compare_digest(token.encode(errors="surrogatepass"), self._token):
            self._wrong.count(peer)
            raise UnauthorizedError("the token is wrong")
        self._wrong.forget(peer)
        return OWNER


def bearer_token(header: str) -> str | None:
    """The token of an ``Authorization`` header, or None if it holds none."""
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None
