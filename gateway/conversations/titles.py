"""Titles: the hidden agent ``title`` names a conversation after its first exchange.

It works after the answer is committed and shown, and delays nothing. If it fails, the title stays the first
line of the conversation. The titles also go to channels that show them, as the names of threads.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

import msgspec
import structlog

from gateway.contract.channel import ShowsTitle
from gateway.contract.deltas import Delta
from gateway.contract.errors import CATCHABLE, NotFoundError, TrunklineError, is_cancellation_requested
from gateway.contract.events import AgentEvent
from gateway.contract.messages import Message, TextPart, new_id
from gateway.contract.provider import TurnOptions
from gateway.extensions.generation import Lease
from gateway.extensions.registry import ChannelRegistry, PluginRegistry
from gateway.models import Agents, Models
from gateway.pipeline.model_call import ModelCaller
from gateway.session import Session, Sessions, Turn
from gateway.session.log import UNNAMED_PREFIX
from gateway.store.inbox import Entry

log = structlog.get_logger("trunkline.titles")

TITLE = "title"
"""Name of the hidden agent."""
LONGEST_TITLE = 100
_SHOWN_TO_MODEL = 2_000
"""Characters of the question and of the answer that the model gets."""
_LAST_EXCHANGE = 3
"""Number of answers after which no title is made: earlier attempts failed, or the session is older."""
_MOST_QUEUED, _MOST_RUNNING = 1_000, 4
_SECONDS = 60.0

_REASONING = re.compile(r"<(think|thinking|reasoning)\b[^>]*>.*?(</\1\s*>|\Z)", re.DOTALL | re.IGNORECASE)
_DECORATION = re.compile(r"^(#+\s+|[-*]\s+)?(title\s*:\s*)?", re.IGNORECASE)
_BOLD = re.compile(r"(?<!\*)\*\*([^*]+)\*\*(?!\*)")
_QUOTES = "\"'`“”„\u2018\u2019«» "


def clean_title(text: str) -> str:
    """Return a title from the output of a model: its first line without reasoning, markup and quotes."""
    for line in _REASONING.sub("", text).splitlines():
        title = _DECORATION.sub("", _BOLD.sub(r"\1", one_line(line))).strip(_QUOTES)
        if title:
            return title if len(title) <= LONGEST_TITLE else title[: LONGEST_TITLE - 3].rstrip() + "…"
    return ""


def one_line(text: str) -> str:
    """Return a text as one line without control characters, such as those that reverse the direction."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


class HiddenTurn(Turn):
    """A turn of a hidden agent. Its input is one request; nothing of it is shown, stored or repeated.

    No user can be asked, so a budget that would ask refuses.
    """

    durable = False

    def __init__(
        self,
        session: Session,
        entry: Entry,
        agent: str,
        request: str,
        lease: Lease | None,
        max_tokens: int | None = None,
    ) -> None:
        options = TurnOptions(tools=(), max_tokens=max_tokens)
        inbound = msgspec.structs.replace(entry.inbound, unattended=True, options=options)
        hidden = msgspec.structs.replace(
            entry, id=new_id(), answer_id=new_id(), inbound=inbound, attempts=1, merged=(), late=False
        )
        super().__init__(session, hidden, agent=agent, lease=lease)
        self._request = Message(session_id=session.id, role="user", parts=(TextPart(request),))

    def _apply(self, delta: Delta) -> None:
        self.assembler.apply(delta)

    def transcript(self) -> tuple[Message, ...]:
        """Return the request."""
        return (self._request,)

    def notify(self, event: AgentEvent) -> None:
        """Drop an agent event: listeners of the session follow its visible turns."""

    def notify_messages(self) -> None:
        """Report no transcript, for the same reason."""


class Titles:
    """Makes titles and shows them on channels, as background work.

    ``enabled`` None makes titles where an agent has a small model; True also uses the model of the answer.
    """

    def __init__(
        self,
        sessions: Sessions,
        registry: PluginRegistry,
        models: Models,
        agents: Agents,
        caller: ModelCaller,
        channels: ChannelRegistry,
        *,
        enabled: bool | None,
    ) -> None:
        self._sessions = sessions
        self._registry = registry
        self._models = models
        self._agents = agents
        self._caller = caller
        self._channels = channels
        self._enabled = enabled
        self._queue: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue(_MOST_QUEUED)

    async def run(self) -> None:
        """Do the queued work until cancelled."""
        slots = asyncio.Semaphore(_MOST_RUNNING)
        async with asyncio.TaskGroup() as tasks:
            while True:
                work = await self._queue.get()
                await slots.acquire()
                tasks.create_task(self._do(work)).add_done_callback(lambda _done: slots.release())

    def answered(self, turn: Turn) -> None:
        """Make a title if a turn was the first exchange of a conversation. Returns at once."""
        session, model = turn.session, self._model_for(turn)
        # Each request to /v1 without a session name is a separate conversation, which is rarely looked at.
        if model is None or session.row.titled is not None or session.id.startswith(UNNAMED_PREFIX):
            return
        answers = [one for one in session.messages() if one.role == "assistant" and one.for_model]
        answer = answers[-1] if answers else None
        # A command, a withdrawn message and a failed turn leave no finished answer of the model.
        if answer is None or answer.id != turn.message_id or answer.metadata.stop_reason == "cancelled":
            return
        asked = "\n\n".join(one.text for _, one in turn.shown if one.role == "user" and one.for_model)
        if len(answers) <= _LAST_EXCHANGE and asked.strip():
            request = _request(asked, answer.text)
            self._put(lambda: self._make(session, turn.entry, request, model))

    def _model_for(self, turn: Turn) -> str | None:
        """Return the model that makes the title of a turn's conversation; None makes no title."""
        if self._enabled is False:
            return None
        usage, small = turn.usage, self._agents.get(turn.agent).small_model
        return small or (f"{usage.provider}/{usage.model}" if self._enabled and usage.model else None)

    async def rename(self, session: Session, title: str) -> None:
        """Set the title that a user chose. Durable when it returns."""
        await session.rename(title, "user")
        self._put(lambda: self._show(session))

    def _put(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            self._queue.put_nowait(work)
        except asyncio.QueueFull:
            log.warning("too many titles are waiting; one is not made", queued=_MOST_QUEUED)

    async def _do(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(_SECONDS):
                await work()
        except (TrunklineError, TimeoutError) as error:
            log.warning("a title could not be made or shown", reason=str(error) or f"no end in {_SECONDS} s")
        except CATCHABLE as error:
            if is_cancellation_requested(error):
                raise
            log.exception("a title failed")

    async def _make(self, session: Session, entry: Entry, request: str, model: str) -> None:
        route = await self._models.resolve(model)
        with self._registry.lease() as lease:
            turn = HiddenTurn(session, entry, TITLE, request, lease)
            _, stop = await self._caller.call(turn, route, self._agents.get(TITLE).system_prompt, ())
        title = clean_title(turn.build_message(stop).text)
        try:
            session = await self._sessions.find(session.id)
        except NotFoundError:
            return  # deleted in the meantime
        # Checked after the call: a user may have set a title, or a later exchange may have been faster.
        if title and session.row.titled is None:
            await session.rename(title, "model")
            await self._show(session)

    async def _show(self, session: Session) -> None:
        channel = self._channels.get(session.row.channel)
        if isinstance(channel, ShowsTitle):
            await channel.show_title(session.address, session.row.title)


def _request(asked: str, answer: str) -> str:
    return (
        f"<user>\n{asked[:_SHOWN_TO_MODEL]}\n</user>\n<assistant>\n{answer[:_SHOWN_TO_MODEL]}\n</assistant>"
        "\n\nWrite the title of this conversation."
    )
