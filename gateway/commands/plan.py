"""Plan mode: a session in which the model only reads, until a user agrees to its plan.

The user enters it with /plan, or agrees when the model asks for it. The model leaves it with its plan, if the
user agrees; what it does then follows the plan in its context.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from gateway.contract.errors import ToolError
from gateway.contract.messages import DisplayHints
from gateway.contract.plugin import CommandContext, Plugin, PluginContext, SlashCommand
from gateway.contract.services import UIService
from gateway.contract.tool import Tool, ToolContext, tool_from
from gateway.pipeline.agent import PLAN_INSTRUCTION
from gateway.session import Sessions

_LONGEST_PLAN = 20_000
_LIMITS = 600_000
"""Milliseconds that a mode tool may take besides the time in which the user decides."""


class PlanMode(Plugin):
    """/plan, and the two tools with which a model asks to enter and to leave plan mode.

    The agent offers only the one that can be used (``ENTER_PLAN_MODE`` and ``EXIT_PLAN_MODE``).
    """

    name = "plan_mode"

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._ui: UIService | None = None
        hints = DisplayHints(verb="asking for plan mode"), DisplayHints(verb="presenting the plan")
        self._tools = tuple(
            # They only change the mode, and only if a user agrees.
            tool_from(one, display=hint, read_only=True, idempotent=True, timeout_ms=_LIMITS)
            for one, hint in zip((self.enter_plan_mode, self.exit_plan_mode), hints, strict=True)
        )

    async def activate(self, ctx: PluginContext) -> None:
        """Keep the service that asks users."""
        self._ui = ctx.ui

    def commands(self) -> Sequence[SlashCommand]:
        """Return /plan."""
        return (SlashCommand("plan", "Only read and plan, until /plan off or an agreed plan", self._plan),)

    def tools(self) -> Sequence[Tool]:
        """Return the two tools."""
        return self._tools

    async def _plan(self, rest: str, ctx: CommandContext) -> str:
        row = self._sessions.get_loaded(ctx.session).row
        if rest not in ("", "on", "off"):
            return f"Use /plan, or /plan off; not {rest[:40]!r}."
        row.mode = None if rest == "off" else "plan"
        if row.mode is None:
            return "Plan mode is off. All tools are available again."
        return "Plan mode is on: tools that change something are not used. `/plan off` ends it."

    async def enter_plan_mode(
        self,
        context: ToolContext,
        reason: Annotated[str, Field(max_length=500, description="Why to plan first, in one sentence")],
    ) -> str:
        """Ask the user to enter plan mode, for a task that should be planned before anything is changed."""
        if not await self._confirm("Plan first?", reason):
            return "The user did not agree to plan first. Continue without plan mode."
        await self._set(context.session, planning=True)
        return f"The user agreed. {PLAN_INSTRUCTION}"

    async def exit_plan_mode(
        self,
        context: ToolContext,
        plan: Annotated[
            str, Field(min_length=1, max_length=_LONGEST_PLAN, description="The whole plan, in Markdown")
        ],
    ) -> str:
        """Present the complete plan to the user, and leave plan mode if the user agrees to it."""
        if not await self._confirm("Carry out this plan?", plan):
            return (
                "The user did not agree to this plan, or gave no answer. "
                "Plan mode continues: ask what to change."
            )
        await self._set(context.session, planning=False)
        return f"The user agreed to the plan. Plan mode is over; carry out the plan now:\n\n{plan}"

    async def _confirm(self, title: str, text: str) -> bool:
        if self._ui is None:
            raise ToolError("no user can be asked here")
        return await self._ui.confirm(title, text)

    async def _set(self, session_id: str, *, planning: bool) -> None:
        session = self._sessions.get_loaded(session_id)
        session.row.mode = "plan" if planning else None
        # Durable before the result: a repeated turn would otherwise find the other mode.
        await session.save()
