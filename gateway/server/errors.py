"""The errors of the HTTP server alone. Their names are as stable as those in ``gateway.contract.errors``.

::

    InvalidRequestError
    ├── TooLargeError             a body above the limit
    ├── SlowRequestError          the body did not arrive in time
    ├── MethodNotAllowedError     the URL supports other methods
    ├── UpgradeRequiredError      the URL is a websocket
    └── MisdirectedRequestError   the Host header is not accepted
    UnauthorizedError
    └── ForeignPageError          a request on behalf of a foreign web page
    ForbiddenError
    └── ConfirmIdentityError      an action that asks for the token or a code again
"""

from __future__ import annotations

from gateway.contract.errors import ForbiddenError, InvalidRequestError, UnauthorizedError


class TooLargeError(InvalidRequestError):
    """A request body with more bytes than ``limits.frame_bytes``, or ``limits.upload_bytes`` for a file."""

    status = 413


class SlowRequestError(InvalidRequestError):
    """A request whose body did not arrive in time."""

    retryable = True
    status = 408


class MethodNotAllowedError(InvalidRequestError):
    """The URL exists, but supports other methods."""

    status = 405


class UpgradeRequiredError(InvalidRequestError):
    """The URL is a websocket, and the request asks for no upgrade."""

    status = 426


class MisdirectedRequestError(InvalidRequestError):
    """The Host header of the request is not accepted."""

    status = 421


class ForeignPageError(UnauthorizedError):
    """A browser request on behalf of a foreign web page."""

    status = 403


class ConfirmIdentityError(ForbiddenError):
    """The action needs the token, or a new code, once more: the last proof is older than five minutes."""
