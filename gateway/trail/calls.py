"""Steps of model calls: what was asked of which model, what it cost, or why it failed."""

from __future__ import annotations

import asyncio
import time
from decimal import Decimal
from types import TracebackType
from typing import Protocol

from gateway.contract.errors import (
    AuthFailedError,
    BadRequestError,
    BudgetExceededError,
    CapabilityError,
    ModelNotFoundError,
    ProviderError,
    ProviderResolutionError,
    QuotaExceededError,
    TrunklineError,
)
from gateway.trail.recorder import Trail
from gateway.trail.steps import State, Value, bounded

_NANO = 10**9
_YOURS = (
    AuthFailedError,
    BadRequestError,
    BudgetExceededError,
    CapabilityError,
    ModelNotFoundError,
    ProviderResolutionError,
    QuotaExceededError,
)
"""Errors that pass only when the operator changes something: a key, a limit or the name of a model."""


class Usage(Protocol):
    """Tokens and US dollars of a turn so far."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost: Decimal | None


class ModelStep:
    """Recorder of one model call, as a context manager around it. ``usage`` grows by the call."""

    __slots__ = ("_before", "_begun", "_detail", "_name", "_trail", "_usage")

    def __init__(self, trail: Trail, usage: Usage, provider: str, model: str, attempt: int) -> None:
        self._trail = trail
        self._usage = usage
        self._name = f"{provider}/{model}"
        self._detail: dict[str, Value] = {"provider": provider, "model": model, "attempt": attempt}

    def __enter__(self) -> None:
        self._before = self._counted()
        self._begun = time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds, detail = time.monotonic() - self._begun, self._detail
        for name, now, before in zip(_COUNTED, self._counted(), self._before, strict=True):
            if now != before:
                detail[name] = now - before
        if key := self._trail.take_key():
            detail["key"] = key
        state: State = "ok"
        if error is not None:
            state = "refused" if isinstance(error, BudgetExceededError) else "failed"
            detail |= describe(error)
        self._trail.add("model", self._name, state, seconds, **detail)

    def _counted(self) -> tuple[int, int, int, int]:
        usage = self._usage
        nano = 0 if usage.cost is None else round(usage.cost * _NANO)
        return usage.input_tokens, usage.output_tokens, usage.cached_tokens, nano


_COUNTED = ("input_tokens", "output_tokens", "cached_tokens", "nano_usd")


def describe(error: BaseException) -> dict[str, Value]:
    """Return the details of a failed call: its code and text, and whether a retry or the operator helps."""
    if isinstance(error, asyncio.CancelledError):
        return {"code": "aborted"}
    detail: dict[str, Value] = {"code": type(error).__name__}
    if isinstance(error, TrunklineError):
        detail["error"] = bounded(str(error))
        detail["retryable"] = error.retryable
        detail["yours"] = isinstance(error, _YOURS)
    if isinstance(error, ProviderError):
        if error.upstream_status:
            detail["status"] = error.upstream_status
        if error.key:
            detail["key"] = error.key
    return detail
