"""What is done with one accepted message, from the hooks to the committed outcome.

``transform_user_input`` hooks, then slash commands, then the agent. Whatever the outcome is, it is
committed together with the message's settlement, and shown as finished only after that.
"""

from __future__ import annotations

import re
import traceback
import uuid
from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.agent import Agent, error_part
from gateway.deltas import Complete, StopReason
from gateway.errors import TrunklineError
from gateway.inbox import Entry
from gateway.messages import ErrorPart, Message, Metadata, Part, TextPart
from gateway.outbox import Outbox
from gateway.plugin import CommandContext, Intercept, Transform
from gateway.registry import PluginRegistry
from gateway.session import Session, Turn
from gateway.steps import Steps
from gateway.store import Op, Store

_COMMAND = re.compile(r"/(\S+)(?:\s+(.*))?", re.DOTALL)
_AWAY = "I was away. Here is my answer to what you wrote meanwhile."


class Runner:
    """Brings accepted messages to their outcome."""

    def __init__(
        self, store: Store, registry: PluginRegistry, agent: Agent, steps: Steps, outbox: Outbox, cwd: str
    ) -> None:
        self._store = store
        self._registry = registry
        self._agent = agent
        self._steps = steps
        self._outbox = outbox
        self._cwd = cwd
        self._config: Mapping[str, Any] = {}

    async def run(self, session: Session, entry: Entry) -> None:
        """Answer one message. Returns once the outcome is durable (and placed, where that is needed)."""
        if entry.attempts > 1 and self._outbox.places(entry):
            answer = await self._outbox.intended(entry)
            if answer is not None:
                await self._outbox.place(entry, answer, ambiguous=True)
                return
        turn = Turn(session, entry)
        try:
            await self._outcome(turn)
        finally:
            session.finish(turn)

    async def bury(self, session: Session, entry: Entry, error: BaseException) -> None:
        """Give a message up: a dead letter for the operator, and one visible notice in its place."""
        reason = f"{type(error).__name__}: {error}"
        trace = "".join(traceback.format_exception(error))
        part = error_part(error) if isinstance(error, TrunklineError) else _failure(error)
        turn = Turn(session, entry)
        session.begin(turn, [_said(session, entry)])
        turn.emit(turn.writer.part(part))
        await self._commit(turn, "cancelled", entry.dead(reason, trace))
        session.finish(turn)

    async def _outcome(self, turn: Turn) -> None:
        entry, hooks = turn.entry, self._registry.get_hooks()
        text = entry.inbound.text
        try:
            verdict = await hooks.transform_user_input(text, turn.ctx)
        except TrunklineError as error:
            await self._reply(turn, error_part(error))
            return
        if isinstance(verdict, Intercept):
            await self._reply(turn, TextPart(verdict.reply) if verdict.reply else None)
            return
        if isinstance(verdict, Transform):
            text = verdict.text
        command = _COMMAND.fullmatch(text.strip())
        if command is not None:
            await self._reply(turn, await self._command(turn, command))
        else:
            await self._ask(turn, text)

    async def _command(self, turn: Turn, command: re.Match[str]) -> Part | None:
        name, rest = command[1], (command[2] or "").strip()
        known = self._registry.get_commands().get(name)
        if known is None:
            return TextPart(f"Unknown command: /{name}. Type /help for a list.")
        session = turn.session
        context = CommandContext(session.id, session.messages(), self._cwd, self._config, turn.sender)
        try:
            said = await known.execute(rest, context)
        except Exception as error:  # noqa: BLE001 - a plugin's command; its failure is its answer
            return _failure(error)
        return TextPart(said) if said else None

    async def _reply(self, turn: Turn, part: Part | None) -> None:
        """Answer without the model; neither question nor answer is ever shown to it."""
        asked = msgspec.structs.replace(_said(turn.session, turn.entry), for_model=False)
        turn.session.begin(turn, [asked])
        if part is None:
            await turn.session.commit(turn, None, turn.entry.done())
            turn.session.publish(Complete(turn.message_id, Metadata(), "end_turn"))
            return
        turn.emit_part(part)
        await self._commit(turn, "end_turn", turn.entry.done(), for_model=False)

    async def _ask(self, turn: Turn, text: str) -> None:
        session, entry = turn.session, turn.entry
        asked = [_said(session, older) for older in entry.merged]
        asked.append(_said(session, entry, text))
        if entry.late:
            asked.insert(0, _away(session, entry))
        asked.extend(session.bus.drain_next())
        session.name_after(text)
        session.begin(turn, asked)
        stop = await self._agent.run(turn)
        settled = entry.done()
        if turn.steps_written:
            settled.append(self._steps.drop(entry.id))
        await self._commit(turn, stop, settled)

    async def _commit(
        self, turn: Turn, stop: StopReason, settled: list[Op], *, for_model: bool = True
    ) -> None:
        answer = msgspec.structs.replace(turn.result(stop), for_model=for_model)
        placing = self._outbox.places(turn.entry)
        ops = [self._outbox.intend(turn.entry, answer)] if placing else settled
        seq = await turn.session.commit(turn, answer, ops)
        turn.session.complete(answer, seq, Complete(answer.id, answer.metadata, stop))
        if placing:
            await self._outbox.place(turn.entry, answer, ambiguous=False)


def _said(session: Session, entry: Entry, text: str | None = None) -> Message:
    """What the user wrote, as a message of the session; its id is the entry's."""
    inbound = entry.inbound
    words = inbound.text if text is None else text
    parts: tuple[Part, ...] = (TextPart(words), *inbound.parts) if words else inbound.parts
    return Message(id=entry.id, session_id=session.id, role="user", parts=parts, created_at=entry.received_at)


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
