"""Grants of confined plugins that were decided after their installation, and the questions for them.

A decision is one row, committed together with the answer of the question that led to it. So an admin who
pressed "always" is not asked again after a crash, although the call that waited for it is gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Literal, cast
from weakref import WeakValueDictionary

from gateway.access import Access, PluginGrant
from gateway.access.questions import Held, Questions
from gateway.contract.channel import Address, FollowsSession
from gateway.contract.messages import new_id, now_ms
from gateway.contract.questions import Answer, AsksQuestions, Choice, Question, visible_text
from gateway.extensions.registry import ChannelRegistry
from gateway.plugin_services.actions import grant_op
from gateway.session import Sessions
from gateway.store import Op
from gateway.store.writes import audit_op

OWNER = "capability"
"""The owner of these questions."""
_LONGEST_ACTION = 300
_PAUSE_SECONDS = 60.0
"""Time between two questions for one plugin: more would train admins to press "always"."""
_CHOICES = (
    Choice("once", "Once", style="good"),
    Choice("always", "Always"),
    Choice("never", "Never", style="bad"),
)

Decision = Literal["once", "always", "never"]


class GrantQuestions:
    """Asks admins for grants, and knows those that were given. ``clock`` returns seconds."""

    def __init__(
        self,
        access: Access,
        channels: ChannelRegistry,
        sessions: Sessions,
        questions: Questions,
        timeout_ms: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._access = access
        self._decisions = access.plugin_grants
        self._channels = channels
        self._sessions = sessions
        self._questions = questions
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._asked_at: dict[str, float] = {}
        self._asked: dict[str, str] = {}
        """The action that the last question of each subject is about, in full: titles are cut."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        questions.effects[OWNER] = self._effects
        questions.handlers[OWNER] = self._acknowledge

    def given(self, plugin: str) -> Collection[str]:
        """Return the grants that a plugin was given."""
        return self._decisions.given(plugin)

    def refused(self, plugin: str) -> Collection[str]:
        """Return the grants that a plugin was refused permanently."""
        return self._decisions.refused(plugin)

    async def ask(self, plugin: str, grant: str, action: str, session: str) -> Decision | None:
        """Ask an admin of the session's chat; see ``gateway.extensions.broker.GrantService``."""
        subject = f"{plugin}\n{grant}"
        # Calls that need the same grant wait for one question.
        lock = self._locks.setdefault(subject, asyncio.Lock())
        async with lock:
            held = await self._ask(subject, plugin, action, session)
        if held is None:
            return None
        answer = await asyncio.shield(held.settled)
        self._note(held, answer)
        # "Once" is for the call that the question shows, not for another one that needs the same grant.
        if answer.state != "answered" or (answer.value == "once" and self._asked.get(subject) != action):
            return None
        return cast("Decision", answer.value)

    async def _ask(self, subject: str, plugin: str, action: str, session_id: str) -> Held | None:
        """Return the open question for a grant, or ask it. None if no admin can be asked now."""
        open_already = self._questions.find_open(OWNER, subject)
        if open_already is not None:
            return open_already
        now = self._clock()
        last = self._asked_at.get(plugin)
        if not session_id or (last is not None and now - last < _PAUSE_SECONDS):
            return None
        session = await self._sessions.find(session_id)
        address = session.address
        if not self._can_ask(address):
            return None
        self._asked_at[plugin], self._asked[subject] = now, action
        created, grant = now_ms(), subject.partition("\n")[2]
        question = Question(
            key=new_id(),
            owner=OWNER,
            session=session.id,
            address=address,
            answerers=(),
            title=f"The plugin {plugin} wants to {_one_line(action)}. Allow it?",
            detail=f"Always and Never are about {grant}, also after a restart and in all chats.",
            choices=_CHOICES,
            admins=True,
            created_at=created,
            expires_at=created + self._timeout_ms,
        )
        return await self._questions.ask(question, subject=subject)

    def _can_ask(self, address: Address) -> bool:
        """Return whether a chat can show a question, and there is an admin to answer it."""
        channel = self._channels.get(address.channel)
        if isinstance(channel, FollowsSession):
            return True  # every user of the page has the gateway's token
        return isinstance(channel, AsksQuestions) and bool(self._access.policy.admins(address.channel))

    def _effects(self, held: Held, answer: Answer) -> list[Op]:
        """Return what is committed with an answer: its audit rows, and a lasting decision."""
        plugin, _, capability = held.subject.partition("\n")
        ops = [
            audit_op(answer.by, f"capability.{answer.value}", plugin, capability),
            grant_op(plugin, capability, answer.outcome, answer.by),
        ]
        if answer.value in ("always", "never"):
            ops.append(self._lasting(held, answer).put())
        return ops

    async def _acknowledge(self, answer: Answer) -> None:
        """Take over an answer, which is already durable."""
        held = self._questions.find(answer.question_id)
        if held is not None:
            self._note(held, answer)

    def _note(self, held: Held, answer: Answer) -> None:
        """Keep a lasting decision in memory."""
        if answer.value in ("always", "never"):
            self._decisions.note(self._lasting(held, answer))

    def _lasting(self, held: Held, answer: Answer) -> PluginGrant:
        plugin, _, capability = held.subject.partition("\n")
        return PluginGrant(plugin, capability, answer.value == "always", answer.by, now_ms())


def _one_line(action: str) -> str:
    """Return an action without what could pass for a text of ours: a plugin chose a part of it."""
    text = " ".join(visible_text(action).split())
    return text if len(text) <= _LONGEST_ACTION else f"{text[: _LONGEST_ACTION - 1]}…"
