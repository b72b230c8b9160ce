"""/why: explains why a message of the user was answered or not.

The answer is the sentence that the console and ``trunkline why`` print, with the line of the message. A user
gets explanations of own messages only, and nothing about prompts, keys or other users.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gateway.access import Access
from gateway.contract.errors import NotFoundError, TooManyRequestsError
from gateway.contract.plugin import CommandContext, Plugin, SlashCommand

if TYPE_CHECKING:
    from gateway.why import Why

_HOW = (
    "You have written no message here that can be explained. Reply with `/why` to a message of yours or to "
    "its answer, or type `/why` with its link or its id."
)


class WhyCommands(Plugin):
    """The /why command. ``why`` returns the explanations of the running gateway."""

    name = "why"

    def __init__(self, access: Access, why: Callable[[], Why]) -> None:
        self._access = access
        self._why = why

    def commands(self) -> Sequence[SlashCommand]:
        """Return /why."""
        description = "Explain why your last message was answered or not"
        return (SlashCommand("why", description, self._tell, at_once=True),)

    async def _tell(self, rest: str, ctx: CommandContext) -> str:
        asker = str(self._access.policy.user_of(ctx.channel, ctx.inbound))
        try:
            return await self._why().explain_to_writer(asker, ctx.inbound, ctx.channel, rest, ctx.session)
        except NotFoundError as refusal:
            return str(refusal) if rest or ctx.inbound.in_reply_to else _HOW
        except TooManyRequestsError as refusal:
            return str(refusal)
