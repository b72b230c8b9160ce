"""The calls of a bot to a fake platform: scripted faults, refusals, and the transcript."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

Fault = Literal["none", "slow_down", "fail_before", "fail_after", "drop_before", "drop_after"]
"""The fault of a call: a 429; a 5xx before or after it is applied; a lost connection before or after that."""

FAULTS: tuple[Fault, ...] = ("slow_down", "fail_before", "fail_after", "drop_before", "drop_after")


class FaultScript:
    """The faults of calls: a ``share`` (0 to 1) of them by chance, and the share ``repeats`` of events
    delivered twice.

    The same seed selects the same calls. Faults set with ``then`` are used first.
    """

    def __init__(self, share: float = 0, *, repeats: float = 0, seed: int = 0) -> None:
        self.share = share
        self.repeats = repeats
        self._dice = random.Random(seed)  # noqa: S311 - repeatable faults, not a secret
        self._next: dict[str, deque[Fault]] = {}
        self._answers: dict[str, deque[object]] = {}
        self._outages: dict[str, tuple[float, float]] = {}

    def then(self, *faults: Fault, method: str = "") -> None:
        """Set the faults of the next calls: of one method, or of any."""
        self._next.setdefault(method, deque()).extend(faults)

    def fail_regularly(self, method: str, seconds: float, every: float) -> None:
        """Let all calls of a method fail for so many seconds of each ``every`` seconds."""
        self._outages[method] = seconds, every

    def of(self, method: str = "") -> Fault:
        """Return the fault of the current call."""
        seconds, every = self._outages.get(method, (0.0, 1.0))
        if time.monotonic() % every < seconds:
            return "fail_before"
        for scripted in (self._next.get(method), self._next.get("")):
            if scripted:
                return scripted.popleft()
        return self._dice.choice(FAULTS) if self._chance(self.share) else "none"

    def answer_next(self, method: str, *answers: object) -> None:
        """Replace the results of the next calls of a method that succeed."""
        self._answers.setdefault(method, deque()).extend(answers)

    def replace_answer(self, method: str, answer: Any) -> Any:
        """Return the result of a successful call: its own, or the next replacement."""
        replacements = self._answers.get(method)
        return replacements.popleft() if replacements else answer

    def is_repeated(self) -> bool:
        """Return whether the current event is delivered twice."""
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
    """A call of the bot. ``at`` is in monotonic seconds; ``problem`` names the rule that the call broke."""

    at: float
    method: str
    arguments: Mapping[str, Any]
    status: int = 200
    answer: Any = None
    fault: Fault = "none"
    problem: str | None = None


class Transcript:
    """All calls in order. ``check`` fails a test in which the bot broke a rule of the platform."""

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
        """Add a call."""
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
        """Return the calls of these methods, in order."""
        return [call for call in self.calls if call.method in methods]

    @property
    def problems(self) -> list[str]:
        """All broken rules, each with the method of the call."""
        return [f"{call.method}: {call.problem}" for call in self.calls if call.problem is not None]

    def check(self) -> None:
        """Raise AssertionError with every problem, if there is any."""
        if self.problems:
            raise AssertionError("the platform objects:\n" + "\n".join(self.problems))
