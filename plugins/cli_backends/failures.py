"""What can go wrong with a backend, each under a code that does not change."""

from __future__ import annotations

from typing import Literal

from gateway import ProviderError

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
    """A dispatch failed. ``detail`` is what the program itself said about it, for the log."""

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
