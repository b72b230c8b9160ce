"""Decisions about tool calls: of plugins, then of users, with the events around them.

Where a user would be asked, ``permission.ask`` comes first and ``permission.replied`` last. An approval of a
plugin counts less than a user's: not for the plugin's own tools, not where a rule of the settings demands the
question, and not where the conversation holds content that may instruct the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from gateway.access.approvals import Approvals, Outcome
from gateway.access.permissions import match_text
from gateway.contract.events import PermissionAsked, ToolStarting
from gateway.contract.plugin import Plugin, ToolBlock, ToolCall
from gateway.contract.tool import Tool, ToolOutput
from gateway.events.types import PermissionReplied, ToolFinished
from gateway.session import Turn


class Decision(Struct, frozen=True):
    """The outcome for a call, and the plugin that decided; "" if a user or a grant did."""

    outcome: Outcome
    plugin: str = ""

    @property
    def decided_by(self) -> str:
        """Return who decided, for the trail: a plugin, a user, a grant of "always", or why no user did."""
        if self.plugin:
            return f"plugin {self.plugin}"
        return "person" if self.outcome in ("once", "deny") else self.outcome

    @property
    def allows(self) -> bool:
        """Return whether the call may run."""
        return self.outcome in ("once", "always")


class CallDecisions:
    """Asks plugins and users about tool calls, and reports calls on the event bus."""

    def __init__(self, approvals: Approvals) -> None:
        self._approvals = approvals

    async def approve(
        self,
        turn: Turn,
        tool: Tool,
        arguments: Mapping[str, Any],
        *,
        recorded: bool = False,
        reason: str = "",
        always: str | None = None,
        by_rule: bool = False,
    ) -> Decision:
        """Return whether a call that needs an approval may run; see ``Approvals.ask``.

        ``by_rule``: a rule of the settings demands the question.
        """
        events, hooks = turn.session.events, turn.plugins.hooks
        asked: PermissionAsked | None = None
        plugin = ""

        async def consult() -> Outcome | None:
            nonlocal asked, plugin
            if not (hooks.uses("permission_ask") or events.wants(PermissionAsked, turn.root.session.id)):
                return None
            asked = _asked(turn, tool, arguments)
            events.emit(asked)
            owner = turn.plugins.owner_of(tool)

            def may_allow(other: Plugin) -> bool:
                return not (reason or by_rule) and other is not owner

            verdict = await hooks.permission_ask(asked, turn.ctx, may_allow)
            if verdict is None:
                return None
            plugin = verdict[1].name
            return "once" if verdict[0] else "deny"

        ruling = await self._approvals.ask(
            turn, tool, arguments, recorded=recorded, reason=reason, always=always, consult=consult
        )
        if events.wants(PermissionReplied, turn.root.session.id):
            by = f"plugin:{plugin}" if plugin else f"user:{ruling.by}" if ruling.by else ""
            asked = asked or _asked(turn, tool, arguments)
            fields = {name: getattr(asked, name) for name in asked.__struct_fields__}
            events.emit(PermissionReplied(**fields, outcome=ruling.outcome, by=by))
        return Decision(ruling.outcome, plugin)

    async def start(self, turn: Turn, call: ToolCall) -> ToolBlock | None:
        """Let plugins block a permitted call. Returns the block, or None."""
        events, hooks = turn.session.events, turn.plugins.hooks
        session = turn.root.session.id
        if not (hooks.uses("tool_execute_before") or events.wants(ToolStarting, session)):
            return None
        event = ToolStarting(session, call.name, call.arguments, call.id)
        events.emit(event)
        return await hooks.tool_execute_before(event, turn.ctx)

    def finished(self, turn: Turn, call: ToolCall, output: ToolOutput, took_ms: int) -> None:
        """Report a call that was made."""
        events, session = turn.session.events, turn.root.session.id
        if events.wants(ToolFinished, session):
            text = turn.session.redactor.redact_text(output.content)
            events.emit(
                ToolFinished(session, call.name, call.arguments, call.id, text, output.is_error, took_ms)
            )


def _asked(turn: Turn, tool: Tool, arguments: Mapping[str, Any]) -> PermissionAsked:
    return PermissionAsked(
        session=turn.root.session.id,
        tool=tool.name,
        command=match_text(tool, arguments) or "",
        args=arguments,
        user=turn.sender.id,
        role=turn.ctx.role,
    )
