"""The notice of a fallback: one line in the answer, however many did not answer."""

from __future__ import annotations

from gateway.deltas import PartDelta
from gateway.errors import (
    AuthFailedError,
    BudgetExceededError,
    RateLimitError,
    StreamTimeoutError,
    TrunklineError,
)
from gateway.messages import TextPart
from gateway.routing import Failure, Route
from gateway.session import Turn


class Notice:
    """Says in a turn who answers in whose place."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._index: int | None = None

    def tell(self, failure: Failure, route: Route) -> None:
        """Say so; a later line takes the place of an earlier one."""
        failed, next_one = failure.route.provider.name, route.provider.name
        self._say(f"*{failed} {_reason(failure.error)}; {next_one} answers instead.*")

    def withdraw(self) -> None:
        """Nobody answered: the error says all there is to say."""
        if self._index is not None:
            self._say("")

    def _say(self, text: str) -> None:
        turn = self._turn
        if self._index is None:
            self._index = turn.assembler.next_index
            turn.emit_part(TextPart(text))
        else:
            turn.emit(PartDelta(turn.message_id, self._index, TextPart(text)))


def _reason(error: TrunklineError) -> str:
    match error:
        case RateLimitError():
            return "is busy"
        case AuthFailedError():
            return "did not let us in"
        case BudgetExceededError():
            return "is held back by a budget"
        case StreamTimeoutError():
            return "went silent"
        case _:
            return "failed"
