"""What can go wrong with a backend, each under a code that does not change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self, cast

from gateway import ProviderError
from gateway.provider_http import (
    ProviderUnavailableError,
    RateLimitError,
    ServerFailedError,
    StreamAbortedError,
    StreamTimeoutError,
)

Code = Literal[
    "TIMEOUT",
    "SPAWN_FAILURE",
    "PROCESS_EXIT",
    "BUFFER_OVERFLOW",
    "CONCURRENCY_LIMIT",
    "PROVIDER_ERROR",
    "SESSION_ERROR",
    "UNKNOWN",
    "ABORTED",
]
"""ABORTED is somebody's wish and no failure; the eight others are the public set."""

_PASSING: frozenset[Code] = frozenset({"TIMEOUT", "CONCURRENCY_LIMIT"})


class BackendError(ProviderError):
    """A dispatch failed. ``detail`` is what the program itself said about it, for the log.

    It is also one of the core's errors, where the code has an equal: so another provider may stand in.
    """

    def __new__(cls, code: Code, backend: str, message: str, detail: str = "") -> Self:
        """The error of its code."""
        return super().__new__(cast("type[Self]", _BY_CODE.get(code, cls)))

    def __init__(self, code: Code, backend: str, message: str, detail: str = "") -> None:
        super().__init__(f"{backend}: {message}", provider=backend)
        self.code: Code = code
        self.backend = backend
        self.detail = detail
        self.retryable = code in _PASSING

    @property
    def name(self) -> str:
        """The code."""
        return self.code


class _Silent(BackendError, StreamTimeoutError):
    """It said nothing, or took too long."""


class _NotThere(BackendError, ProviderUnavailableError):
    """It cannot be started."""


class _Ended(BackendError, StreamAbortedError):
    """It ended before its answer did."""


class _Busy(BackendError, RateLimitError):
    """It works for others."""


class _Refused(BackendError, ServerFailedError):
    """Its model service, or its store of sessions, said no."""


_BY_CODE: Mapping[Code, type[BackendError]] = {
    "TIMEOUT": _Silent,
    "SPAWN_FAILURE": _NotThere,
    "PROCESS_EXIT": _Ended,
    "CONCURRENCY_LIMIT": _Busy,
    "PROVIDER_ERROR": _Refused,
    "SESSION_ERROR": _Refused,
}
