"""Fault scripts for fake platforms: which of the bot's calls go wrong, by script or by chance."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

Fault = Literal["none", "slow_down", "fail_before", "fail_after", "drop_before", "drop_after"]
"""What becomes of a call: a 429; a 5xx before or after it was applied; no answer, before or after."""

FAULTS: tuple[Fault, ...] = ("slow_down", "fail_before", "fail_after", "drop_before", "drop_after")


class FaultScript:
    """Decides call by call: a ``share`` (0 to 1) fails by chance, ``repeats`` of the events come twice.

    The same seed spoils the same calls. What ``then`` says goes first.
    """

    def __init__(self, share: float = 0, *, repeats: float = 0, seed: int = 0) -> None:
        self.share = share
        self.repeats = repeats
        self._dice = random.Random(seed)  # noqa: S311 - repeatable faults, not a secret
        self._next: dict[str, deque[Fault]] = {}
        self._answers: dict[str, deque[object]] = {}
        self._outages: dict[str, tuple[float, float]] = {}

    def then(self, *faults: Fault, method: str = "") -> None:
        """What happens to the next calls: of one method, or of any."""
        self._next.setdefault(method, deque()).extend(faults)

    def fail_regularly(self, method: str, seconds: float, every: float) -> None:
        """Let all calls of a method fail for so many seconds of each ``every`` seconds."""
        self._outages[method] = seconds, every

    def of(self, method: str = "") -> Fault:
        """What happens to this call."""
        seconds, every = self._outages.get(method, (0.0, 1.0))
        if time.monotonic() % every < seconds:
            return "fail_before"
        for scripted in (self._next.get(method), self._next.get("")):
            if scripted:
                return scripted.popleft()
        return self._dice.choice(FAULTS) if self._chance(self.share) else "none"

    def answer_next(self, method: str, *answers: object) -> None:
        """What the next calls of a method that succeed are answered in place of what they should be."""
        self._answers.setdefault(method, deque()).extend(answers)

    def answered(self, method: str, answer: Any) -> Any:
        """The answer of a call that succeeded: the one it has, or the next that was given in its place."""
        given = self._answers.get(method)
        return given.popleft() if given else answer

    def doubles(self) -> bool:
        """Whether this event is delivered twice."""
        return self._chance(self.repeats)

    def _chance(self, share: float) -> bool:
        return share > 0 and self._dice.random() < share


class Refusal(Exception):
    """A call that the platform refuses.

    ``problem`` names the rule that the bot broke and goes into the transcript. It is None where a correct bot
    gets the same refusal, for example because a user deleted the message.
    """

    def __init__(self, message: str, problem: str | None = None) -> None:
        super().__init__(message)
        self.problem = problem


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
