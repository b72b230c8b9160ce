"""The named errors.

Every error that may reach a person, a client or a log carries a stable ``name`` (sent on the wire) and
says whether trying again can help (``retryable``). Errors of other libraries are mapped to these once,
at the seam where they enter.

::

    TrunklineError
    ├── SettingsError                 a setting is unknown, missing or wrong
    ├── StoreError                    the database cannot do what was asked
    │   ├── StoreLockedError          another process owns this SQLite file
    │   └── WeakDurabilityError       the server would acknowledge writes it may lose
    ├── InvalidRequestError           what a client sent is not understood
    │   ├── InvalidPartTypeError      a part of a kind we do not know
    │   ├── PartValidationError       a part of a known kind with wrong fields
    │   ├── FetchError                what a message names could not be fetched
    │   │   └── AddressRefusedError   it lies where messages may not reach
    │   ├── InvalidStateError         asked at a moment when it makes no sense
    │   ├── TooLargeError             a body or frame beyond its bound
    │   ├── SlowRequestError          a body that does not come
    │   ├── MethodNotAllowedError     an address that takes another method
    │   └── MisdirectedRequestError   reached under a name that is not ours
    ├── NotFoundError                 no such session, message, dead letter …
    ├── UnauthorizedError             no token, or a wrong one
    │   ├── ForeignPageError          a web page of somebody else asks
    │   └── ForbiddenError            known, and not entitled to this
    ├── OverloadedError               a bound is reached; nothing was accepted
    │   ├── TooManyRequestsError      this client asks too often
    │   └── BackpressureError         a reader was too slow and was dropped
    ├── BudgetExceededError           the money for this is spent
    ├── PluginError                   a plugin or a registration went wrong
    │   └── AlreadyRegisteredError    the name is taken
    ├── ToolError                     a tool refused or failed
    ├── InternalError                 a fault of our own; the log tells more under its id
    └── ProviderError                 a model backend went wrong
        ├── ProviderUnavailableError  it cannot be reached
        ├── ProviderResolutionError   no provider serves the model that was asked for
        ├── AuthFailedError           it refused our credentials
        ├── RateLimitError            it wants us to wait
        ├── ServerFailedError         it failed on its side
        ├── ModelNotFoundError        it does not have the model
        ├── CapabilityError           the model cannot do what it is asked for
        ├── ContextLengthError        the conversation is too long for the model
        ├── ContentFilterError        it declined to answer
        ├── BadRequestError           it did not accept our request
        ├── StreamTimeoutError        it went silent
        ├── StreamAbortedError        the stream ended before the answer did
        ├── DeltaParseError           what it sent cannot be read
        ├── EmptyAnswerError          it ended its answer and had said nothing
        └── FallbackExhaustedError    none of the chain answered
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence


class TrunklineError(Exception):
    """The root of the tree. ``str(error)`` is a sentence fit to be shown; it never holds a secret."""

    retryable: bool = False
    status: int = 500
    """The HTTP status this error has when it answers a request."""

    @property
    def name(self) -> str:
        """The stable name clients may switch on."""
        return type(self).__name__


class SettingsError(TrunklineError):
    """A setting is unknown, missing or wrong; the text names key, value and place."""


class StoreError(TrunklineError):
    """The database cannot do what was asked."""


class StoreLockedError(StoreError):
    """Another process owns this SQLite file."""


class WeakDurabilityError(StoreError):
    """The database would acknowledge writes that it may lose."""


class InvalidRequestError(TrunklineError):
    """What a client sent is not understood."""

    status = 400


class InvalidPartTypeError(InvalidRequestError):
    """A message part of a kind that does not exist."""


class PartValidationError(InvalidRequestError):
    """A message part of a known kind whose fields are missing or wrong."""


class FetchError(InvalidRequestError):
    """What a message names by an address could not be fetched."""


class AddressRefusedError(FetchError):
    """An address that lies on this machine, in its network, or otherwise not in the internet at large."""


class InvalidStateError(InvalidRequestError):
    """Asked at a moment when it makes no sense."""

    status = 409


class TooLargeError(InvalidRequestError):
    """A request body or a frame has more bytes than ``limits.frame_bytes``."""

    status = 413


class SlowRequestError(InvalidRequestError):
    """A request whose body did not arrive in time."""

    retryable = True
    status = 408


class MethodNotAllowedError(InvalidRequestError):
    """The address exists, and takes other methods."""

    status = 405


class MisdirectedRequestError(InvalidRequestError):
    """The request came under a host name that is not ours."""

    status = 421


class NotFoundError(TrunklineError):
    """No such session, message or dead letter."""

    status = 404


class UnauthorizedError(TrunklineError):
    """No token was given, or a wrong one."""

    status = 401


class ForeignPageError(UnauthorizedError):
    """A browser asks on behalf of a web page that may not."""

    status = 403


class ForbiddenError(UnauthorizedError):
    """It is known who asks, and it is not theirs to do."""

    status = 403


class OverloadedError(TrunklineError):
    """A bound is reached. Nothing was accepted; the sender may try again later."""

    retryable = True
    status = 503


class TooManyRequestsError(OverloadedError):
    """This client asks, or guesses, too often."""

    status = 429


class BackpressureError(OverloadedError):
    """A reader was too slow and was dropped; it can resume where it stopped."""


class BudgetExceededError(TrunklineError):
    """A budget forbids another call of a model; the text says which, and when it begins anew.

    ``elsewhere`` says that the budget is that of a provider or a model, so that another one may answer.
    """

    status = 402

    def __init__(self, *args: object, elsewhere: bool = False) -> None:
        super().__init__(*args)
        self.elsewhere = elsewhere


class PluginError(TrunklineError):
    """A plugin raised, or was registered wrongly."""


class AlreadyRegisteredError(PluginError):
    """The name is taken in its registry."""


class ToolError(TrunklineError):
    """A tool refused or failed; the text goes to the model."""


class InternalError(TrunklineError):
    """A fault of our own. Its text names the id under which the log tells more."""


class ProviderError(TrunklineError):
    """A model backend went wrong. ``provider`` is its id, ``status`` the HTTP status it answered."""

    def __init__(
        self,
        message: str,
        *,
        provider: str = "",
        status: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.provider = provider
        self.upstream_status = status
        self.retry_after = retry_after
        """Seconds the backend asked us to wait, when it said so."""

    status = 502


class ProviderUnavailableError(ProviderError):
    """The backend cannot be reached."""

    retryable = True


class ProviderResolutionError(ProviderError):
    """No provider serves the model that was asked for. ``suggestions`` are the nearest that exist."""

    def __init__(self, message: str, *, suggestions: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.suggestions = tuple(suggestions)


class AuthFailedError(ProviderError):
    """The backend refused our credentials."""


class RateLimitError(ProviderError):
    """The backend wants us to wait (``retry_after`` seconds, when it said how long)."""

    retryable = True


class ServerFailedError(ProviderError):
    """The backend failed on its side (5xx, overloaded)."""

    retryable = True


class ModelNotFoundError(ProviderError):
    """The backend does not have the model."""


class CapabilityError(ProviderError):
    """The model cannot do what it is asked for, such as see a picture; nothing was sent to it."""

    status = 400


class ContextLengthError(ProviderError):
    """The conversation is too long for the model."""


class ContentFilterError(ProviderError):
    """The backend declined to answer."""


class BadRequestError(ProviderError):
    """The backend did not accept our request."""


class StreamTimeoutError(ProviderError):
    """The backend sent nothing for longer than ``stream_timeout_ms``."""

    retryable = True


class StreamAbortedError(ProviderError):
    """The connection ended before the answer did."""

    retryable = True


class DeltaParseError(ProviderError):
    """What the backend sent cannot be read."""


class EmptyAnswerError(ProviderError):
    """The backend ended its answer and had said nothing."""

    retryable = True


class FallbackExhaustedError(ProviderError):
    """Nobody in the chain answered. ``attempts`` tells of each, in order."""

    retryable = True

    def __init__(self, message: str, *, attempts: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.attempts = tuple(attempts)


FAILURES = (Exception, asyncio.CancelledError, SystemExit)
"""What code of others may fail with; ``except FAILURES`` goes with ``asked_for``."""


def asked_for(error: BaseException) -> bool:
    """Whether somebody cancels the running task, so that it has to end.

    A cancellation that nobody asked for (a plugin awaited a task it had cancelled itself) and ``sys.exit``
    are failures of the code they come from. Taken for an end, they would leave a message without an answer.
    """
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
