"""The transcript of a fake platform: every call it got, and what was wrong with it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from gateway.testing.faults import Fault


class Call(Struct, frozen=True, kw_only=True):
    """One call of the bot. ``at`` is monotonic seconds; ``problem`` names the rule that it broke."""

    at: float
    method: str
    arguments: Mapping[str, Any]
    status: int = 200
    answer: Any = None
    fault: Fault = "none"
    problem: str | None = None


class Transcript:
    """All calls in order. At the end of a test ``check`` fails it if the platform would have objected."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def record(
        self,
        method: str,
        arguments: Mapping[str, Any],
        *,
        status: int = 200,
        answer: object = None,
        fault: Fault = "none",
        problem: str | None = None,
    ) -> None:
        """Write down a call."""
        self.calls.append(
            Call(
                at=time.monotonic(),
                method=method,
                arguments=arguments,
                status=status,
                answer=answer,
                fault=fault,
                problem=problem,
            )
        )

    def of(self, *methods: str) -> list[Call]:
        """The calls of some methods, in order."""
        return [call for call in self.calls if call.method in methods]

    @property
    def problems(self) -> list[str]:
        """What was wrong, each with its method."""
        return [f"{call.method}: {call.problem}" for call in self.calls if call.problem is not None]

    def check(self) -> None:
        """Raises AssertionError that lists every problem."""
        if self.problems:
            raise AssertionError("the platform objects:\n" + "\n".join(self.problems))
