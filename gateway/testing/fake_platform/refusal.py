"""The refusal of a call by a fake platform."""

from __future__ import annotations


class Refusal(Exception):
    """A call that the platform refuses.

    ``problem`` names the rule that the bot broke and goes into the transcript. It is None where a correct bot
    gets the same refusal, for example because a user deleted the message.
    """

    def __init__(self, message: str, problem: str | None = None) -> None:
        super().__init__(message)
        self.problem = problem
