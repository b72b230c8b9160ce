"""Second opinions: the model revises its longer answers, and ``/opinion`` asks another model.

In: ``[plugins.second_opinion]``. Out: answers that are a second draft, at twice the cost, and a command whose
questions go to their own sessions. The plugin loader imports it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from msgspec.structs import replace
from pydantic import BaseModel, Field

from gateway import (
    AgentEvent,
    CommandContext,
    ContentEvent,
    ErrorPart,
    LoopRun,
    Message,
    Part,
    Plugin,
    PluginContext,
    PluginError,
    SlashCommand,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    TrunklineError,
    TurnContext,
    TurnEndEvent,
    TurnResult,
    new_id,
)

MOST_CALLS = 50
"""Model calls of one answer, as many as the built-in loop makes by default."""


class SecondOpinionSettings(BaseModel):
    """The settings of the plugin."""

    revise_from: int = Field(
        default=600, ge=1, description="Revise answers of at least this many characters; default 600"
    )
    instruction: str = Field(
        default="Check this answer for mistakes and gaps. Reply with the improved answer only.",
        min_length=1,
        description="What to ask the model about its draft",
    )
    model: str | None = Field(
        default=None, min_length=1, description="Model of /opinion; without it there is no such command"
    )


class SecondOpinion(Plugin):
    """An agent loop that revises drafts, and a command that asks another model."""

    name = "second_opinion"
    settings_model = SecondOpinionSettings

    def __init__(self) -> None:
        self._settings = SecondOpinionSettings()
        self._drafts: dict[str, str] = {}
        self.agent_loop = self

    async def activate(self, ctx: PluginContext) -> None:
        """Read the settings."""
        self._settings = ctx.options(SecondOpinionSettings)
        self._submit = ctx.submit

    def commands(self) -> Sequence[SlashCommand]:
        """Return /opinion, if there is a model for it."""
        model = self._settings.model
        return [SlashCommand("opinion", f"Ask {model} too", self._ask)] if model and self._submit else []

    async def after_llm_call(self, result: TurnResult, ctx: TurnContext) -> TurnResult | None:
        """Withdraw a draft that will be revised."""
        long = len(result.content) >= self._settings.revise_from
        if ctx.session not in self._drafts or result.tool_calls or not long:
            return None
        self._drafts[ctx.session] = result.content
        return replace(result, content="")

    async def run(self, run: LoopRun) -> AsyncIterator[AgentEvent]:
        """Answer like the built-in loop, then revise the answer. Raises PluginError after too many calls."""
        asked, parts, session = run.messages, list[Part](), run.messages[-1].session_id
        if asked[-1].role == "assistant":  # the turn is repeated after a crash; this is what it had done
            asked, parts = asked[:-1], [*asked[-1].parts]
        for _ in range(MOST_CALLS):
            self._drafts[session] = ""
            try:
                result = await run.call_model([*asked, *_answer(session, parts)])
            finally:
                draft = self._drafts.pop(session)
            if not result.tool_calls:
                break
            parts += [TextPart(result.content)] if result.content else []
            parts += [ToolCallPart(call.id, call.name, dict(call.arguments)) for call in result.tool_calls]
            for call in result.tool_calls:
                output = await run.call_tool(call)
                parts.append(
                    ToolResultPart(
                        call.id, output.content, attachments=output.attachments, is_error=output.is_error
                    )
                )
            yield TurnEndEvent()
        else:
            raise PluginError(f"second_opinion: stopped after {MOST_CALLS} model calls in one turn")
        if not draft:
            return
        instruction = Message(session_id=session, role="user", parts=(TextPart(self._settings.instruction),))
        try:
            await run.call_model([*asked, *_answer(session, [*parts, TextPart(draft)]), instruction])
        except TrunklineError:  # a draft is better than an error
            yield TurnEndEvent()
            yield ContentEvent(draft)

    async def _ask(self, question: str, ctx: CommandContext) -> str | None:
        """Ask the other model, with the conversation so far, and return its answer."""
        if not question or self._submit is None:
            return "Write a question after /opinion."
        session = new_id()
        known = [message for message in ctx.messages if message.for_model]
        asked = replace(
            ctx.inbound,
            session=session,
            dedup_key=session,
            alt_key=None,
            revises=None,
            # No channel has this id: the answer is returned, and not sent to the chat a second time.
            address=replace(ctx.inbound.address, channel=self.name),
            role=ctx.role,
            text=question,
            before=tuple(replace(message, id=new_id(), session_id=session) for message in known),
        )
        answer = await self._submit(asked, model=self._settings.model)
        parts = () if answer is None else answer.parts
        errors = [part.message for part in parts if isinstance(part, ErrorPart)]
        return "\n\n".join([f"**{self._settings.model}**", answer.text if answer else "", *errors])


def _answer(session: str, parts: Sequence[Part]) -> list[Message]:
    """Return the answer so far as a list of one message, or of none."""
    return [Message(session_id=session, role="assistant", parts=tuple(parts))] if parts else []


plugin = SecondOpinion()
