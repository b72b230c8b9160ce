"""What is done with one accepted message, from the hooks to the committed outcome.

``transform_user_input`` hooks, then slash commands, then the agent; a stranger gets to none of them. Whatever
the outcome is, it is committed together with the message's settlement, and shown as finished only after that.
"""

from __future__ import annotations

import re
import traceback
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import structlog

from gateway.access import Access
from gateway.agent import Agent, error_part
from gateway.channel import PlacementRefused
from gateway.deltas import Complete, StopReason
from gateway.errors import FAILURES, TrunklineError, asked_for
from gateway.figures import Figures
from gateway.inbox import Entry, Inbox, Outcome
from gateway.live import Live
from gateway.messages import ErrorPart, Message, Metadata, Part, TextPart
from gateway.outbox import Intended, Outbox
from gateway.painter import Painter
from gateway.plugin import CommandContext, Intercept, Transform
from gateway.registry import PluginRegistry
from gateway.session import Session, Turn
from gateway.steps import Steps
from gateway.store import Op, Store
from gateway.wordings import takes_place

log = structlog.get_logger("trunkline.runner")

_COMMAND = re.compile(r"/(\S+)(?:\s+(.*))?", re.DOTALL)
_UNHEARD = "I cannot listen to voice messages: no plugin here turns them into text. Please write to me."
_NOT_HEARD = "[voice message, not heard]"
"""What a model is told of a voice message that came with something else, where no plugin made words of it."""
_AWAY = "I was away. Here is my answer to what you wrote meanwhile."


class Runner:
    """Brings accepted messages to their outcome."""

    def __init__(
        self,
        store: Store,
        inbox: Inbox,
        registry: PluginRegistry,
        access: Access,
        agent: Agent,
        steps: Steps,
        outbox: Outbox,
        live: Live,
        figures: Figures,
        cwd: str,
    ) -> None:
        self._store = store
        self._inbox = inbox
        self._registry = registry
        self._access = access
        self._agent = agent
        self._steps = steps
        self._outbox = outbox
        self._live = live
        self._figures = figures
        self._cwd = cwd

    async def run(self, session: Session, entry: Entry) -> None:
        """Answer one message. Returns once the outcome is durable (and placed, where that is needed)."""
        painter = await Painter.of(self._outbox, entry)
        if entry.answered:
            await self._place_again(session, entry, painter)
            return
        role = self._access.role(entry)
        agent = self._agent.chosen(session, entry)
        turn = Turn(session, entry, role=role or "user", agent=agent)
        try:
            if role is None:
                await self._turn_away(turn, painter)
            else:
                await self._outcome(turn, painter)
        finally:
            session.finish(turn)
        await self._place_new(turn, painter)

    async def bury(self, session: Session, entry: Entry, error: BaseException) -> None:
        """Give a message up: a dead letter for the operator, and one visible notice in its place."""
        reason = f"{type(error).__name__}: {error}"
        painter = await Painter.of(self._outbox, entry)
        if entry.answered:
            await self._give_up_placing(session, entry, painter, reason)
            return
        trace = "".join(traceback.format_exception(error))
        part = error_part(error) if isinstance(error, TrunklineError) else _failure(error)
        turn = Turn(session, entry)
        session.begin(turn, [_said(session, asked) for asked in (*entry.merged, entry)])
        turn.emit(turn.writer.part(part))
        # Its steps are kept: if the operator has it answered after all, no tool runs a second time.
        await self._commit(turn, painter, "cancelled", [entry.bury(reason, trace)], outcome="dead")
        session.finish(turn)
        await self._place_new(turn, painter, "dead")

    async def _turn_away(self, turn: Turn, painter: Painter | None) -> None:
        """Tell a stranger how to be let in. Neither hooks nor commands nor the model see the message."""
        said = await self._access.greet(turn.entry)
        await self._reply(turn, painter, None if said is None else TextPart(said))

    async def _outcome(self, turn: Turn, painter: Painter | None) -> None:
        entry, hooks = turn.entry, self._registry.get_hooks()
        text = entry.inbound.text
        if entry.silent or not await takes_place(self._inbox, turn.session, entry):
            await self._reply(turn, painter, None)
            return
        try:
            verdict = await hooks.transform_user_input(text, turn.ctx)
        except TrunklineError as error:
            await self._reply(turn, painter, error_part(error))
            return
        if isinstance(verdict, Intercept):
            await self._reply(turn, painter, TextPart(verdict.reply) if verdict.reply else None)
            return
        if isinstance(verdict, Transform):
            text = verdict.text
        command = _COMMAND.fullmatch(text.strip())
        if command is not None:
            await self._reply(turn, painter, await self._command(turn, command))
        elif entry.inbound.kind == "audio" and not (text or entry.inbound.parts):
            await self._reply(turn, painter, TextPart(_UNHEARD))
        else:
            await self._ask(turn, painter, text)

    async def _command(self, turn: Turn, command: re.Match[str]) -> Part | None:
        name, rest = command[1], (command[2] or "").strip()
        found = self._registry.find_command(name)
        if found is None:
            return TextPart(f"Unknown command: /{name}. Type /help for a list.")
        known, config = found
        if known.admin and turn.ctx.role != "admin":
            return TextPart(f"/{name} is for admins.")
        context = self._command_context(turn, config)
        try:
            said = await known.execute(rest, context)
        except TrunklineError as error:
            return error_part(error)
        except FAILURES as error:
            if asked_for(error):
                raise
            log.exception("a command failed", command=name, session=turn.session.id)
            return _failure(error)
        return TextPart(said) if said else None

    def _command_context(self, turn: Turn, config: Mapping[str, Any]) -> CommandContext:
        session, entry = turn.session, turn.entry
        return CommandContext(
            session=session.id,
            messages=session.messages(),
            cwd=self._cwd,
            config=config,
            sender=turn.sender,
            channel=entry.channel,
            inbound=entry.inbound,
            role=turn.ctx.role,
        )

    async def _reply(self, turn: Turn, painter: Painter | None, part: Part | None) -> None:
        """Answer without the model; neither question nor answer is ever shown to it."""
        asked = msgspec.structs.replace(_said(turn.session, turn.entry), for_model=False)
        turn.session.begin(turn, [*_before(turn.session, turn.entry), asked])
        if part is None:
            if painter is not None:
                await painter.retract()
            await turn.session.commit(turn, None, self._unanswered(turn.entry))
            turn.session.publish(Complete(turn.message_id, Metadata(), "end_turn"))
            return
        turn.emit_part(part)
        await self._commit(turn, painter, "end_turn", for_model=False)

    async def _ask(self, turn: Turn, painter: Painter | None, text: str) -> None:
        session, entry = turn.session, turn.entry
        if entry.silent:  # it was taken back while the hooks looked at it
            await self._reply(turn, painter, None)
            return
        asked = [*_before(session, entry), *(_said(session, older) for older in entry.merged)]
        asked.append(_said(session, entry, text))
        if entry.late:
            asked.insert(0, _away(session, entry))
        asked.extend(session.bus.drain_next())
        session.name_after(text)
        session.begin(turn, asked)
        async with self._live.showing(turn, painter):
            stop = await self._agent.run(turn)
        if entry.silent:
            await self._unsay(turn, painter)
            return
        await self._commit(turn, painter, stop, [self._steps.drop(entry.id)] if turn.steps_written else ())

    async def _unsay(self, turn: Turn, painter: Painter | None) -> None:
        """End a turn whose message was taken back: nothing of it stands in its room, the session keeps it."""
        if painter is not None:
            await painter.retract()
        turn.session.unsay(turn)
        answer = msgspec.structs.replace(turn.result("cancelled"), for_model=False)
        await self._end(turn, answer, "cancelled", self._unanswered(turn.entry))

    def _unanswered(self, entry: Entry) -> list[Op]:
        """The writes that settle a message without an answer, and forget what attempts left of one."""
        return [*entry.done(), self._steps.drop(entry.id), self._outbox.forget(entry)]

    async def _commit(
        self,
        turn: Turn,
        painter: Painter | None,
        stop: StopReason,
        extra: Sequence[Op] = (),
        *,
        outcome: Outcome = "done",
        for_model: bool = True,
    ) -> None:
        """Make the answer durable, with the settlement or with the intent to place it; then show its end."""
        entry = turn.entry
        answer = msgspec.structs.replace(turn.result(stop), for_model=for_model)
        if painter is not None:
            turn.placing = answer
            settled = painter.intend(answer)
        else:
            settled = [entry.settle(outcome), *entry.absorb()]
        await self._end(turn, answer, stop, [*settled, *extra])

    async def _end(self, turn: Turn, answer: Message, stop: StopReason, settled: Sequence[Op]) -> None:
        seq = await turn.session.commit(turn, answer, settled)
        turn.session.complete(answer, seq, Complete(answer.id, answer.metadata, stop))
        ended = stop if stop != "cancelled" else "aborted" if turn.aborted else "failed"
        self._figures.turn(ended, answer.metadata, turn.first_text)
        log.debug(
            "answered",
            session=turn.session.id,
            message=answer.id,
            stop=stop,
            provider=answer.metadata.provider,
            model=answer.metadata.model,
            deltas=turn.deltas,
            first_text_ms=None if turn.first_text is None else round(turn.first_text * 1000),
            duration_ms=answer.metadata.duration_ms,
        )

    async def _place_new(self, turn: Turn, painter: Painter | None, outcome: Outcome = "done") -> None:
        if painter is not None and turn.placing is not None:
            turn.entry.answered = True
            await self._place(turn.session, turn.entry, painter, Intended(turn.placing, outcome))

    async def _place_again(self, session: Session, entry: Entry, painter: Painter | None) -> None:
        if painter is None:
            log.warning("the channel is gone; its answer stays in the session", channel=entry.channel)
            return
        await self._place(session, entry, painter, await self._outbox.intended(entry))

    async def _place(self, session: Session, entry: Entry, painter: Painter, intended: Intended) -> None:
        try:
            await painter.finish(intended.answer)
            await painter.settle(intended.outcome)
        except PlacementRefused as refused:
            await self._give_up_placing(session, entry, painter, f"PlacementRefused: {refused}")

    async def _give_up_placing(
        self, session: Session, entry: Entry, painter: Painter | None, reason: str
    ) -> None:
        """The answer stands in the session but not in its room; the session says so."""
        log.error("an answer could not be placed", session=session.id, message=entry.id, reason=reason)
        part = ErrorPart("PlacementRefused", "This answer could not be delivered to its room.")
        notice = Message(
            id=str(uuid.uuid5(uuid.UUID(entry.id), "undelivered")),
            session_id=session.id,
            role="assistant",
            parts=(part,),
            custom_type="notice",
            for_model=False,
        )
        settled = entry.dead(reason, None) if painter is None else painter.give_up(reason)
        await session.note(notice, settled)


def _said(session: Session, entry: Entry, text: str | None = None) -> Message:
    """What the user wrote, as a message of the session; its id is the entry's."""
    inbound = entry.inbound
    words = inbound.text if text is None else text
    if inbound.audio is not None and words == inbound.text:
        words = "\n\n".join(filter(None, (words, "[voice message]" if text is None else _NOT_HEARD)))
    parts: tuple[Part, ...] = (TextPart(words), *inbound.parts) if words else inbound.parts
    return Message(id=entry.id, session_id=session.id, role="user", parts=parts, created_at=entry.received_at)


def _before(session: Session, entry: Entry) -> Sequence[Message]:
    """What was said before the session, when it begins now."""
    first = entry.merged[0] if entry.merged else entry
    return () if session.messages() else first.inbound.before


def _away(session: Session, entry: Entry) -> Message:
    return Message(
        id=str(uuid.uuid5(uuid.UUID(entry.id), "away")),
        session_id=session.id,
        role="assistant",
        parts=(TextPart(_AWAY),),
        custom_type="notice",
        for_model=False,
    )


def _failure(error: BaseException) -> ErrorPart:
    return ErrorPart("InternalError", f"This could not be answered ({type(error).__name__}).")
