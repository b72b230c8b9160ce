"""The causes of failures: which failure of a turn is the cause, in plain words, and its key.

A turn may fail at several models. The cause is the failure that the operator can fix: a key, a quota or the
name of a model comes before an overload, that before a timeout, and that before a conversation that is too
long. Failures with one key (provider, class of the error, alias of the key) have one cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from gateway.contract.messages import ErrorPart
from gateway.why.records import Records
from gateway.why.words import Words

_ATTEMPT = re.compile(r"^([^\s:;/]+)/(\S+): (\w+)(?: \((\d{3})\))?$", re.MULTILINE)
_STATUS = re.compile(r"\((\d{3})\)")
_OVERLOADED = (503, 529)

_RANKS: Mapping[str, int] = {
    **dict.fromkeys(
        (
            "AuthFailedError",
            "QuotaExceededError",
            "ModelNotFoundError",
            "ProviderResolutionError",
            "BudgetExceededError",
        ),
        0,
    ),
    **dict.fromkeys(("ServerFailedError", "RateLimitError", "ProviderUnavailableError"), 1),
    **dict.fromkeys(("StreamTimeoutError", "StreamAbortedError", "DeltaParseError", "EmptyAnswerError"), 2),
    **dict.fromkeys(("ContextLengthError", "CapabilityError"), 3),
}
"""The order of causes: what the operator can fix, what passes, timeouts, requests that do not fit."""
_LAST_RANK = 4

_OF_PROVIDERS = frozenset((*_RANKS, "ContentFilterError", "BadRequestError", "ProviderError"))


class Failure(Struct, frozen=True):
    """A failed call of a model, or another failure of the turn, without provider and model.

    ``code`` is the name of the error's class, ``key`` the alias of the API key. ``asked`` is false for a
    model that was not called; ``text`` is the original text.
    """

    provider: str
    model: str
    code: str
    text: str = ""
    key: str = ""
    status: int = 0
    asked: bool = True

    @property
    def rank(self) -> int:
        """The place in the order of causes; lower ones are more likely the cause."""
        return _RANKS.get(self.code, _LAST_RANK) if self.asked else _LAST_RANK + 1

    @property
    def is_fixable(self) -> bool:
        """Return whether the operator can fix it, so that a replay then succeeds."""
        return self.asked and self.rank == 0

    @property
    def cause_key(self) -> str:
        """The key that failures with the same cause share."""
        return f"{self.provider or '-'}:{self.code}:{self.key or '-'}"

    @property
    def is_of_provider(self) -> bool:
        """Return whether a provider failed, so that another model might have answered."""
        return self.code in _OF_PROVIDERS

    def in_words(self, words: Words) -> str:
        """Return the failure as the main clause of a sentence, without a full stop."""
        key = f"cause.{self.code}"
        if self.code == "AuthFailedError" and self.status == 403:
            key += ".403"
        if self.code == "ServerFailedError" and self.status in _OVERLOADED:
            key += ".overloaded"
        if not words.has(key):
            return words("cause.other", code=self.code)
        provider = words.named(self.provider) if self.provider else words("the_provider")
        return words(key, provider=provider, model=self.model or words("the_model"))


def the_cause(failures: Sequence[Failure]) -> Failure | None:
    """Return the failure that is the cause: of the first rank that there is, the first one."""
    return min(failures, key=lambda failure: failure.rank, default=None)


def failures_of(records: Records, calls: Iterable[Failure] = ()) -> list[Failure]:
    """Return the failures of a turn: those of the recorded calls, else those that the answer's error names.

    Empty if the answer has no error, or if only its delivery failed.
    """
    error = records.error
    if is_undelivered(records) or (error is None and not records.dead_at):
        return []
    if found := list(calls):
        return found
    if error is None or records.dead_at:
        # The notice of an unexpected failure names none.
        return dead_failures(records.dead_reason)
    return stored_failures(error, *_last_model(records))


def stored_failures(error: ErrorPart, provider: str, model: str) -> list[Failure]:
    """Return the failures that an error names; ``provider`` and ``model`` made the last call."""
    # What people see of a failed chain has no class names; those of its attempts are kept for operators.
    attempts = error.metadata.stack if error.metadata is not None and error.metadata.stack else ""
    if error.error_name == "FallbackExhaustedError" and (found := _ATTEMPT.findall(attempts)):
        return [Failure(one[0], one[1], one[2], status=int(one[3] or 0)) for one in found]
    of_provider = error.error_name in _OF_PROVIDERS
    code = error.metadata.code if error.metadata is not None and error.metadata.code else ""
    status = int(code) if code.isdecimal() else status_in(error.message)
    where = (provider, model) if of_provider else ("", "")
    return [Failure(*where, error.error_name, error.message, status=status)]


def dead_failures(reason: str) -> list[Failure]:
    """Return the failure that the reason of a dead letter names."""
    code, _, text = reason.partition(": ")
    return [Failure("", "", code, text)]


def is_undelivered(records: Records) -> bool:
    """Return whether the answer is stored, and the platform refused it."""
    return records.state == "dead" and records.dead_reason.startswith("PlacementRefused")


def _last_model(records: Records) -> tuple[str, str]:
    metadata = None if records.answer is None else records.answer.metadata
    return ("", "") if metadata is None else (metadata.provider or "", metadata.model or "")


def status_in(text: str) -> int:
    """Return the HTTP status that the text of a provider's error names, or 0."""
    found = _STATUS.search(text)
    return int(found[1]) if found else 0
