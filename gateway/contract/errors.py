"""The named errors.

Every error that may reach a user, a client or a log carries a stable ``name`` (sent on the wire) and
says whether a retry can succeed (``retryable``). Errors of other libraries are mapped to these once,
at the seam where they enter. ``gateway.server.errors`` has those of HTTP alone.

::

    TrunklineError
    ├── SettingsError                 a setting is unknown, missing or wrong
    │   └── AddressInUseError         the address to listen on is not free at the moment
    ├── StoreError                    the database cannot do what was asked
    │   ├── StoreUnavailableError     it cannot be reached or written at the moment
    │   │   └── StoreLockedError      another process uses it
    │   └── WeakDurabilityError       the server would acknowledge writes it may lose
    ├── InvalidRequestError           a client's request is invalid
    │   ├── InvalidPartTypeError      a part of an unknown kind
    │   ├── PartValidationError       a part of a known kind with wrong fields
    │   ├── FetchError                a URL in a message could not be fetched
    │   │   └── AddressRefusedError   the URL leads to a forbidden network
    │   └── InvalidStateError         not possible in the current state
    ├── NotFoundError                 no such session, message, dead letter …
    ├── UnauthorizedError             no token, or a wrong one
    │   └── ForbiddenError            authenticated, but not permitted
    ├── OverloadedError               a limit is reached; nothing was accepted
    │   ├── TooManyRequestsError      this client sends too many requests
    │   └── BackpressureError         a reader was too slow and was dropped
    ├── BudgetExceededError           the budget is used up
    ├── PluginError                   a plugin or a registration went wrong
    │   ├── PluginActivationError     a plugin failed to activate, or took too long
    │   └── AlreadyRegisteredError    the name is taken
    ├── ToolError                     a tool refused or failed
    ├── InternalError                 an internal error; the log has details under its id
    └── ProviderError                 a model provider failed
        ├── ProviderUnavailableError  it cannot be reached
        ├── ProviderResolutionError   no provider serves the model that was asked for
        ├── AuthFailedError           it rejected the credentials
        ├── RateLimitError            rate limited; retry later
        │   └── QuotaExceededError    its account has no money or quota left
        ├── ServerFailedError         it failed on its side
        ├── ModelNotFoundError        it does not have the model
        ├── CapabilityError           the model lacks a required capability
        ├── ContextLengthError        the conversation is too long for the model
        ├── ContentFilterError        it refused to answer
        ├── BadRequestError           it rejected the request
        ├── StreamTimeoutError        it sent no data in time
        ├── StreamAbortedError        the stream ended before the answer did
        ├── DeltaParseError           its response cannot be parsed
        ├── EmptyAnswerError          it ended its answer without content
        └── FallbackExhaustedError    all models of the chain failed
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

NO_REASON = "no reason given"
_TOO_LONG = "/compact summarizes the conversation, /new starts a new one"


class TrunklineError(Exception):
    """The root of the tree. ``str(error)`` never contains a secret; ``sentence(error)`` is for people."""

    retryable: bool = False
    shown = ""
    """The sentence for people where ``str(error)`` has more, such as the name of a class."""
    status: int = 500
    """The HTTP status of a response with this error."""

    @property
    def name(self) -> str:
        """The stable name, for clients to match."""
        return type(self).__name__


class SettingsError(TrunklineError):
    """A setting is unknown, missing or wrong; the text names key, value and place."""


class AddressInUseError(SettingsError):
    """The address to listen on is used by another process, or not yet assigned to this machine."""

    retryable = True


class StoreError(TrunklineError):
    """A database operation failed."""


class StoreUnavailableError(StoreError):
    """The database cannot be reached or written; a retry may succeed."""

    retryable = True


class StoreLockedError(StoreUnavailableError):
    """Another process uses the database."""


class WeakDurabilityError(StoreError):
    """The database would acknowledge writes that it may lose."""


class InvalidRequestError(TrunklineError):
    """A client's request is invalid."""

    status = 400

    def __init__(self, *args: object, param: str | None = None) -> None:
        super().__init__(*args)
        self.param = param
        """The invalid field of the request, if known."""


class InvalidPartTypeError(InvalidRequestError):
    """A message part of a kind that does not exist."""


class PartValidationError(InvalidRequestError):
    """A message part of a known kind whose fields are missing or wrong."""


class FetchError(InvalidRequestError):
    """A URL in a message could not be fetched."""


class AddressRefusedError(FetchError):
    """A URL that leads to this machine, its network, or another non-public address."""


class InvalidStateError(InvalidRequestError):
    """The operation is not possible in the current state."""

    status = 409


class NotFoundError(TrunklineError):
    """No such session, message, question or dead letter.

    ``known`` is False for a question that is not stored: only the channel can remove its buttons.
    """

    status = 404

    def __init__(self, *args: object, known: bool = True) -> None:
        super().__init__(*args)
        self.known = known


class UnauthorizedError(TrunklineError):
    """No token was given, or a wrong one."""

    status = 401


class ForbiddenError(UnauthorizedError):
    """The user is authenticated, but not permitted to do this."""

    status = 403


class OverloadedError(TrunklineError):
    """A limit is reached. Nothing was accepted; the sender may retry later."""

    retryable = True
    status = 503


class TooManyRequestsError(OverloadedError):
    """This client sends too many requests or wrong guesses."""

    status = 429


class BackpressureError(OverloadedError):
    """A reader was too slow and was dropped; it can resume where it stopped."""


class BudgetExceededError(TrunklineError):
    """A budget forbids another model call; the text names the budget and the time of its reset.

    ``elsewhere``: the budget is that of a provider or a model, so that another one may answer.
    """

    status = 402

    def __init__(self, *args: object, elsewhere: bool = False) -> None:
        super().__init__(*args)
        self.elsewhere = elsewhere


class PluginError(TrunklineError):
    """A plugin raised an exception, or its registration is invalid."""


class PluginActivationError(PluginError):
    """A plugin failed to activate, or took too long. A later start may succeed."""

    retryable = True


class AlreadyRegisteredError(PluginError):
    """The name is taken in its registry."""


class ToolError(TrunklineError):
    """A tool refused or failed; the text goes to the model."""


class InternalError(TrunklineError):
    """An internal error. Its text contains the id of the log entry with details."""


class ProviderError(TrunklineError):
    """A model provider failed. ``provider`` is its id, ``status`` its HTTP status."""

    def __init__(
        self, message: str, *, provider: str = "", status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.provider = provider
        self.upstream_status = status
        self.retry_after = retry_after
        """Seconds to wait, as requested by the provider; None if it gave no delay."""
        self.key = ""
        """Name of the API key that was used; empty if none was, or if it has no name."""
        self.original = ""
        """The provider's own words; people see a sentence made of kind and status instead."""

    status = 502


class ProviderUnavailableError(ProviderError):
    """The provider cannot be reached."""

    retryable = True


class ProviderResolutionError(ProviderError):
    """No provider serves the model that was asked for. ``suggestions`` are the nearest that exist."""

    def __init__(self, message: str, *, suggestions: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.suggestions = tuple(suggestions)


class AuthFailedError(ProviderError):
    """The provider rejected the credentials."""


class RateLimitError(ProviderError):
    """The provider's rate limit is reached; ``retry_after`` is its delay in seconds, if given."""

    retryable = True


class QuotaExceededError(RateLimitError):
    """The account at the provider has no credit or quota left; a retry does not help."""

    retryable = False
    status = 402


class ServerFailedError(ProviderError):
    """The provider failed (5xx, overloaded)."""

    retryable = True


class ModelNotFoundError(ProviderError):
    """The provider does not have the model."""


class CapabilityError(ProviderError):
    """The model lacks a required capability, such as image input; nothing was sent to it."""

    status = 400


class ContextLengthError(ProviderError):
    """The conversation is too long for the model."""


class ContentFilterError(ProviderError):
    """The provider refused to answer."""


class BadRequestError(ProviderError):
    """The provider rejected the request."""


class StreamTimeoutError(ProviderError):
    """The provider sent no data for longer than ``stream_timeout_ms``."""

    retryable = True


class StreamAbortedError(ProviderError):
    """The connection ended before the answer did."""

    retryable = True


class DeltaParseError(ProviderError):
    """The provider's response cannot be parsed."""


class EmptyAnswerError(ProviderError):
    """The provider ended its answer without content."""

    retryable = True


class FallbackExhaustedError(ProviderError):
    """All models of the chain failed. ``attempts`` has each model with the name and status of its failure."""

    retryable = True

    def __init__(self, message: str, *, attempts: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.attempts = tuple(attempts)


def sentence(error: TrunklineError) -> str:
    """Return the text of an error for users: without class names and original texts of the provider."""
    text = error.shown or str(error).strip() or "Something went wrong."
    return f"{text.rstrip('.')}. {_TOO_LONG}." if isinstance(error, ContextLengthError) else text


CATCHABLE = (Exception, asyncio.CancelledError, SystemExit)
"""Exceptions of foreign code to catch, always together with ``is_cancellation_requested``."""


def is_cancellation_requested(error: BaseException) -> bool:
    """Return whether cancellation of the current task was requested.

    A CancelledError without a request (a plugin awaited a task it had cancelled itself) and ``sys.exit`` are
    failures of the code that raised them. Treated as a shutdown they would leave a message unanswered.
    """
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def fallback_notice(failed: str, error: TrunklineError, instead: str) -> str:
    """Return the notice for users: the failed provider, the reason, and the provider that answers."""
    return f"{failed} {reason_of(error)}. Answering with {instead} instead."


_REASONS: Mapping[type[TrunklineError], str] = {
    QuotaExceededError: "has no credit left",
    RateLimitError: "reached its rate limit",
    AuthFailedError: "rejected the API key",
    BudgetExceededError: "is over its budget",
    ModelNotFoundError: "does not have the model",
    StreamTimeoutError: "stopped responding",
    CapabilityError: "cannot read this message",
    ContextLengthError: "cannot read a conversation of this length",
    ContentFilterError: "refused to answer",
    BadRequestError: "rejected the request",
    ProviderUnavailableError: "is not available",
    TrunklineError: "failed",
}


def reason_of(error: TrunklineError) -> str:
    """Return what a provider did, by kind and status of its error: ``rejected the API key (401)``."""
    status = error.upstream_status if isinstance(error, ProviderError) else None
    reason = next(_REASONS[kind] for kind in type(error).__mro__ if kind in _REASONS)
    if status == 403 and isinstance(error, AuthFailedError):
        reason = "denied access"
    return f"{reason} ({status})" if status else reason
