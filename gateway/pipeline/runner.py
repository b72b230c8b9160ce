"""The runner: brings one accepted message to its committed outcome.

``transform_user_input`` hooks, then slash commands, then the agent; an unauthorised user gets a pairing code
instead. The outcome is committed together with the message's settlement, or with the intent to place the
answer, and shown as complete only after that.
"""

from __future__ import annotations

import asyncio
import re
import traceback
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import structlog

from gateway.access import Access
from gateway.access.questions import Questions
from gateway.contract.channel import Sender
from gateway.contract.deltas import Complete, StopReason
from gateway.contract.errors import CATCHABLE, TrunklineError, is_cancellation_requested
from gateway.contract.events import ChatMessage
from gateway.contract.messages import ErrorPart, Message, Metadata, Origin, Part, TextPart
from gateway.contract.plugin import CommandContext, Intercept, Transform
from gateway.counters import Counters
from gateway.delivery.deliverer import AnswerDelivery, Deliverer
from gateway.events.types import SessionError, SlashCommandExecuted, TurnFinished, TurnStarted
from gateway.extensions.registry import PluginRegistry
from gateway.pipeline.agent import Agent, error_part
from gateway.pipeline.revisions import should_answer
from gateway.rooms.context import RoomContext
from gateway.rooms.envelope import quote_header
from gateway.session import Session, Turn, running
from gateway.store import Op
from gateway.store.inbox import Entry, Inbox, Outcome
from gateway.store.steps import DROP_STEPS

log = structlog.get_logger("trunkline.runner")

# Only the log has the error: the text of an unexpected one may hold secrets or paths.
_INTERNAL_ERROR = ErrorPart("InternalError", "This could not be answered.")

_COMMAND = re.compile(r"/(\S+)(?:\s+(.*))?", re.DOTALL)
_NO_SPEECH_TO_TEXT = (
    "I cannot listen to voice messages: no speech-to-text plugin is set up. Please write to me."
)
_MAX_QUOTES, _MAX_QUOTE_LENGTH = 10, 8_000
"""Limits of the quotes of a message: their number, and the characters of each."""
_NO_TEXT = "(mentioned without text)"
_NOT_HEARD = "[voice message, not heard]"
"""Shown to the model for a voice message that came with text or files, if no plugin transcribed it."""
_TOO_MANY = (
    "Too many messages are waiting in this chat, so I did not take this one, nor those that follow until I "
    "have caught up. Please wait for my answers and then send again what is still missing."
)
_LATE = "I was offline. Here is my answer to your earlier messages."


@dataclass(frozen=True, kw_only=True, eq=False)
class Runner:
    """Runs accepted messages, one call for each message; ``answered`` is called with each settled turn."""

    inbox: Inbox
    registry: PluginRegistry
    access: Access
    context: RoomContext
    agent: Agent
    deliverer: Deliverer
    questions: Questions
    counters: Counters
    answered: Callable[[Turn], None]
    cwd: str

    def acts_at_once(self, text: str) -> bool:
        """Return whether a text is a command that does not wait for the running answer."""
        command = _COMMAND.fullmatch(text.strip())
        found = None if command is None else self.registry.current.find_command(command[1])
        return found is not None and found[0].at_once

    @property
    def handles_each(self) -> bool:
        """Return whether a plugin may change or answer each message, so that none are answered together."""
        return any(map(self.registry.get_hooks().uses, ("transform_user_input", "chat_message")))

    async def run(self, session: Session, entry: Entry) -> None:
        """Answer one message. Returns once the outcome is durable, and placed where that is needed."""
        async with self.deliverer.begin(session, entry) as delivery:
            if entry.announced:
                await delivery.announce()
            # An answer that an earlier process committed only has to be placed, which ending the block does.
            turn = None if entry.answered else await self._answer(session, entry, delivery)
        # After the answer is placed, because a thread that gets the title is opened with it.
        if turn is not None and turn.committed:
            self.answered(turn)

    async def dead_letter(self, session: Session, entry: Entry, error: BaseException) -> None:
        """Give a message up: store a dead letter for the operator, and answer with an error."""
        reason = f"{type(error).__name__}: {error}"
        async with self.deliverer.begin(session, entry, repeated=True) as delivery:
            if entry.answered:
                await delivery.abandon(reason)
                return
            trace = "".join(traceback.format_exception(error))
            part = error_part(error) if isinstance(error, TrunklineError) else _INTERNAL_ERROR
            turn = Turn(session, entry)
            session.begin(turn, [self._user_message(session, asked) for asked in (*entry.merged, entry)])
            turn.emit(turn.writer.part(part))
            # The recorded steps are kept: if the operator replays the message, no tool runs a second time.
            letter = entry.dead_letter(reason, trace)
            try:
                await self._commit(turn, delivery, "cancelled", [letter], outcome="dead")
            finally:
                session.finish(turn)

    async def _answer(self, session: Session, entry: Entry, delivery: AnswerDelivery) -> Turn:
        for one in (*entry.merged, entry):
            await self.access.confirm(one.channel, one.inbound)
            # Also for one that is not answered: its context is stored for those after it.
            await self.context.drop_deleted(one)
        # Looked up now and not when the message was accepted: access may have been revoked since.
        role, agent = self.access.role(entry), self.agent.agent_for(session, entry)
        with self.registry.lease() as lease:
            turn = Turn(session, entry, role=role or "user", agent=agent, lease=lease)
            if session.events.wants(TurnStarted):
                session.events.emit(TurnStarted(session.id, turn.message_id, entry.channel))
            turn.worker = asyncio.current_task()
            token = running.set(turn)
            try:
                if role is None:
                    await self._reply_with_pairing_code(turn, delivery)
                else:
                    await self._process(turn, delivery)
            finally:
                running.reset(token)
                session.finish(turn)
        return turn

    async def _reply_with_pairing_code(self, turn: Turn, delivery: AnswerDelivery) -> None:
        """Reply to an unauthorised user. Neither hooks nor commands nor the model see the message."""
        reply = await self.access.greet(turn.entry)
        await self._reply(turn, delivery, None if reply is None else TextPart(reply))

    async def _process(self, turn: Turn, delivery: AnswerDelivery) -> None:
        """Apply the hooks to an authorised user's message, then run its command or the agent."""
        entry = turn.entry
        if entry.refused and not entry.silent:
            await self._reply(turn, delivery, TextPart(_TOO_MANY))
            return
        wanted = entry.to_answer
        if not wanted or not await should_answer(self.inbox, turn.session, entry):
            await self._reply(turn, delivery, None)
            return
        await self.context.complete(turn.session, wanted[0])
        if turn.ctx.inbound is not entry.inbound:
            turn.ctx = msgspec.structs.replace(turn.ctx, inbound=entry.inbound)
        newest = wanted[-1]
        text = await self._transformed(turn, delivery, newest.inbound.text)
        if text is None:
            return
        if entry.aside and not self.acts_at_once(text):
            # A hook changed the command. The agent cannot run beside the running answer: it waits, after all.
            entry.aside = False
            return
        command = _COMMAND.fullmatch(text.strip())
        if command is not None:
            reply = await self._run_command(turn, command)
            entry.trail.add("command", command[1], "failed" if isinstance(reply, ErrorPart) else "ok")
            await self._reply(turn, delivery, reply, "answered")
        elif entry.inbound.kind == "audio" and not (text or entry.inbound.parts):
            await self._reply(turn, delivery, TextPart(_NO_SPEECH_TO_TEXT))
        else:
            await self._chat(turn, delivery, newest, text)

    async def _transformed(self, turn: Turn, delivery: AnswerDelivery, text: str) -> str | None:
        """Return a text as ``transform_user_input`` hooks change it; None if one of them answers it."""
        try:
            verdict = await turn.plugins.hooks.transform_user_input(text, turn.ctx)
        except TrunklineError as error:
            await self._reply(turn, delivery, error_part(error))
            return None
        if isinstance(verdict, Intercept):
            await self._reply(turn, delivery, TextPart(verdict.reply) if verdict.reply else None)
            return None
        return verdict.text if isinstance(verdict, Transform) else text

    async def _chat(self, turn: Turn, delivery: AnswerDelivery, newest: Entry, text: str) -> None:
        """Let ``chat.message`` handlers pass, change or answer what users wrote, then run the agent.

        ``text`` is the text of ``newest`` after the hooks.
        """
        session, entry = turn.session, turn.entry
        messages = _earlier_messages(session, entry)
        for one in entry.to_answer:
            messages.append(self._user_message(session, one, text if one is newest else None))
        hooks, events = turn.plugins.hooks, session.events
        if hooks.uses("chat_message") or events.wants(ChatMessage, session.id):
            asked = {one.id for one in entry.to_answer}
            try:
                verdict = await hooks.chat_messages(messages, asked, turn.ctx, events.emit)
            except TrunklineError as error:
                await self._reply(turn, delivery, error_part(error))
                return
            if isinstance(verdict, Intercept):
                await self._reply(turn, delivery, TextPart(verdict.reply) if verdict.reply else None)
                return
            messages = verdict
        await self._run_agent(turn, delivery, messages, has_title=bool(text))

    async def _run_command(self, turn: Turn, command: re.Match[str]) -> Part | None:
        name, arguments = command[1], (command[2] or "").strip()
        found = turn.plugins.find_command(name)
        if found is None:
            return TextPart(f"Unknown command: /{name}. Type /help for a list.")
        known, config = found
        if known.admin and turn.ctx.role != "admin":
            return TextPart(f"/{name} is for admins.")
        context, ok = self._command_context(turn, config), False
        try:
            with turn.pinned():
                reply = await known.execute(arguments, context)
            ok = True
        except TrunklineError as error:
            return error_part(error)
        except CATCHABLE as error:
            if is_cancellation_requested(error):
                raise
            log.exception("a command failed", command=name, session=turn.session.id)
            return _INTERNAL_ERROR
        finally:
            events = turn.session.events
            if events.wants(SlashCommandExecuted, turn.session.id):
                masked = turn.session.redactor.redact_text(arguments)
                events.emit(SlashCommandExecuted(turn.session.id, name, masked, ok))
        return TextPart(reply) if reply else None

    def _command_context(self, turn: Turn, config: Mapping[str, Any]) -> CommandContext:
        session, entry = turn.session, turn.entry
        return CommandContext(
            session=session.id,
            messages=session.messages(),
            cwd=self.cwd,
            config=config,
            sender=turn.sender,
            channel=entry.channel,
            inbound=entry.inbound,
            role=turn.ctx.role,
            compact=partial(self.agent.compact, turn),
        )

    async def _reply(
        self, turn: Turn, delivery: AnswerDelivery, part: Part | None, outcome: str = "notice"
    ) -> None:
        """Answer without the model, which never sees the question or the answer. None: no answer at all."""
        # Before a crash it may have run the agent: the message was deleted since, or a hook answers it now.
        await self.agent.end_runs(turn)
        message = msgspec.structs.replace(self._user_message(turn.session, turn.entry), for_model=False)
        turn.session.begin(turn, [*_earlier_messages(turn.session, turn.entry), message])
        if part is None:
            forgotten = await delivery.discard()
            await turn.session.commit(turn, None, [*self._settled(turn.entry), *forgotten])
            turn.session.publish(Complete(turn.message_id, Metadata(), "end_turn"))
            self._report(turn, "unanswered", "", Metadata())
            return
        turn.emit_part(part)
        turn.entry.trail.decide(outcome)
        await self._commit(turn, delivery, "end_turn", for_model=False)

    async def _run_agent(
        self, turn: Turn, delivery: AnswerDelivery, messages: list[Message], *, has_title: bool
    ) -> None:
        """Run the agent on the turn's messages. With ``has_title`` the last one may become the title."""
        session, entry = turn.session, turn.entry
        # Checked again: the user may have deleted a message while the hooks ran.
        if not entry.to_answer:
            await self._reply(turn, delivery, None)
            return
        left = {one.id for one in (*_earlier_messages(session, entry), *entry.to_answer)}
        messages = [one for one in messages if one.id in left]
        if has_title:
            session.set_title_from(messages[-1].text)
        if entry.late:
            messages.insert(0, _late_notice(session, entry))
        turn.injected = session.bus.drain_next()
        messages.extend(turn.injected)
        session.begin(turn, messages)
        if entry.interrupted == "stopped":
            turn.abort()
        async with delivery.show(turn):
            stop = await self.agent.run(turn)
        if not entry.to_answer:
            await self._discard_answer(turn, delivery)
            return
        session.exclude_from_context(turn)
        await self._commit(turn, delivery, stop)

    async def _discard_answer(self, turn: Turn, delivery: AnswerDelivery) -> None:
        """End a turn whose message was deleted: remove the answer from its chat; the session keeps it."""
        forgotten = await delivery.discard()
        turn.session.exclude_from_context(turn)
        answer = msgspec.structs.replace(turn.build_message("cancelled"), for_model=False)
        seq, _ = (await turn.session.commit(turn, answer, [*self._settled(turn.entry), *forgotten]))[-1]
        self._complete(turn, answer, seq, "cancelled")

    async def _commit(
        self,
        turn: Turn,
        delivery: AnswerDelivery,
        stop: StopReason,
        extra: Sequence[Op] = (),
        *,
        outcome: Outcome = "done",
        for_model: bool = True,
    ) -> None:
        """Commit the answer through its delivery, then show that it is complete."""
        entry = turn.entry
        answer = msgspec.structs.replace(turn.build_message(stop), for_model=for_model)
        entry.trail.decide(*_outcome(turn, answer, stop, outcome))
        # An earlier attempt may have left steps that this one did not load, if it was stopped, refused or
        # intercepted first. A first attempt without tools is spared the two statements.
        if outcome == "done" and (turn.steps_written or turn.questions.asked or turn.is_repeated):
            extra = [*extra, *self._drop_recorded(entry)]
        seq = await delivery.commit(turn, answer, extra, outcome)
        self._complete(turn, answer, seq, stop)

    def _settled(self, entry: Entry) -> list[Op]:
        """Return the writes that settle a message without an answer."""
        trail = entry.trail.finish("nothing", entry.interrupted or "")
        return [*entry.settle_silently(), *self._drop_recorded(entry), *trail]

    def _drop_recorded(self, entry: Entry) -> list[Op]:
        """Return the writes that delete a message's recorded tool steps and questions."""
        return [(DROP_STEPS, (entry.id,)), self.questions.forget(entry.id)]

    def _complete(self, turn: Turn, answer: Message, seq: int, stop: StopReason) -> None:
        """Show readers that the answer is complete, after its commit; count and log the turn."""
        done = None if turn.entry.aside else Complete(answer.id, answer.metadata, stop)
        turn.session.complete(answer, seq, done)
        outcome = stop if stop != "cancelled" else "aborted" if turn.aborted else "failed"
        error = "" if answer.error is None else answer.error.error_name
        spent, session = answer.metadata, turn.session
        self._report(turn, outcome, error, spent)
        if answer.error is not None and session.events.wants(SessionError, session.id):
            text = session.redactor.redact_text(answer.error.message)
            session.events.emit(SessionError(session.id, session.row.channel, session.row.owner, error, text))
        self.counters.count_turn(turn.entry.channel, outcome, spent, turn.first_text_seconds, error)
        log.info(
            "turn",
            session=session.id,
            channel=turn.entry.channel,
            message=answer.id,
            outcome=outcome,
            **({"error": error} if error else {}),
            provider=spent.provider,
            model=spent.model,
            input_tokens=spent.input_tokens,
            output_tokens=spent.output_tokens,
            cost=spent.cost,
            duration_ms=spent.duration_ms,
            first_text_ms=None if turn.first_text_seconds is None else round(turn.first_text_seconds * 1000),
            deltas=turn.delta_count,
            coalesced=self.counters.coalesced_of.pop(session.id, 0),
        )

    def _report(self, turn: Turn, outcome: str, error: str, spent: Metadata) -> None:
        session = turn.session
        if session.events.wants(TurnFinished):
            finished = TurnFinished(
                session=session.id,
                answer=turn.message_id,
                channel=turn.entry.channel,
                outcome=outcome,
                error=error,
                model=f"{spent.provider}/{spent.model}" if spent.model else "",
                input_tokens=spent.input_tokens or 0,
                output_tokens=spent.output_tokens or 0,
                cost=spent.cost or 0.0,
            )
            session.events.emit(finished)

    def _user_message(self, session: Session, entry: Entry, text: str | None = None) -> Message:
        """Return the user's message for the session, with the entry's id. ``text`` replaces its text."""
        inbound = entry.inbound
        words = inbound.text if text is None else text
        if inbound.audio is not None and words == inbound.text:
            words = "\n\n".join(filter(None, (words, "[voice message]" if text is None else _NOT_HEARD)))
        parts: list[Part] = []
        for quote in inbound.quotes[:_MAX_QUOTES]:
            author = quote.sender or Sender("")
            header = quote_header(quote.kind, author.name, author.username, own=quote.own)
            parts += [TextPart(f"{header}\n{quote.text[:_MAX_QUOTE_LENGTH]}".rstrip(), "quote"), *quote.parts]
        parts += [TextPart(words)] if words else []
        parts += inbound.parts
        return Message(
            id=entry.id,
            session_id=session.id,
            role="user",
            parts=tuple(parts) or (TextPart(_NO_TEXT),),
            created_at=entry.received_at,
            origin=self._origin(entry) if inbound.address.group or inbound.quotes else None,
        )

    def _origin(self, entry: Entry) -> Origin:
        inbound, policy = entry.inbound, self.access.policy
        address, sender = inbound.address, inbound.sender
        return Origin(
            channel=entry.channel,
            account=address.account,
            room=address.chat,
            title=address.title,
            user=sender.id,
            name=sender.name,
            username=sender.username,
            at=inbound.sent_at or entry.received_at,
            group=address.group,
            trusted=all(
                quote.own or policy.admits(entry.channel, inbound, quote.sender.id if quote.sender else "")
                for quote in inbound.quotes
            ),
        )


def _earlier_messages(session: Session, entry: Entry) -> list[Message]:
    """Return the messages that the turn's messages bring along.

    A client's conversation begins a session. Context of the room is added unless the session has it.
    """
    found: list[Message] = []
    for one in (*entry.merged, entry):
        for message in one.inbound.before:
            origin = message.origin
            if origin is not None and origin.context:
                is_new = origin.source not in session.context
            else:
                is_new = session.is_empty
            if is_new:
                found.append(msgspec.structs.replace(message, session_id=session.id))
    return found


def _outcome(turn: Turn, answer: Message, stop: StopReason, outcome: Outcome) -> tuple[str, str]:
    """Return the outcome of a turn for its trail, and the name of the error that ended it."""
    error = "" if answer.error is None else answer.error.error_name
    if outcome == "dead":
        return "dead", error
    if stop == "cancelled" and turn.aborted:
        return "stopped", error
    if answer.error is not None or stop == "cancelled":
        return "failed", error
    return turn.entry.trail.outcome or "answered", ""


def _late_notice(session: Session, entry: Entry) -> Message:
    return Message(
        id=str(uuid.uuid5(uuid.UUID(entry.id), "away")),
        session_id=session.id,
        role="assistant",
        parts=(TextPart(_LATE),),
        custom_type="notice",
        for_model=False,
    )
