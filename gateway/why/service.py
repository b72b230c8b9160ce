"""The answers to "why": for operators, who see everything, and for writers, who see their own messages."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Literal

from msgspec.structs import replace
from sqlalchemy import Connection, select

from gateway.access import Access
from gateway.access.tokens import Attempts
from gateway.contract.channel import InboundMessage, MessageLink, ReadsLinks
from gateway.contract.errors import NotFoundError, ProviderError, SettingsError, TooManyRequestsError
from gateway.contract.messages import ToolCallPart, ToolResultPart, now_ms
from gateway.extensions.backends import ProviderRegistry
from gateway.extensions.registry import ChannelRegistry
from gateway.pipeline.mailbox import Mailbox
from gateway.session import Sessions, Turn
from gateway.store import Store
from gateway.store import schema as t
from gateway.store.writes import audit_op
from gateway.trail import Step
from gateway.why.explanation import (
    Explained,
    Explanation,
    choices_of,
    explain,
    explain_not_accepted,
    explain_unknown,
)
from gateway.why.finder import Found, Place, find_by_platform_id, find_last, find_messages
from gateway.why.same_cause import count_same_cause
from gateway.why.stations import Station
from gateway.why.verdict import Live
from gateway.why.words import ENGLISH, Language, Words

_MOST_QUESTIONS, _QUESTIONS_SECONDS = 10, 60.0
NOT_YOURS = "None of your messages in this chat has that id."
"""The reply for a message that is unknown, of another writer, or hidden: it must not reveal which."""


class Why:
    """Explains messages. Rows are read; of the running gateway only the running turns are looked at.

    ``mailbox`` returns that of a session, if messages wait in it.
    """

    def __init__(
        self,
        store: Store,
        sessions: Sessions,
        access: Access,
        channels: ChannelRegistry,
        providers: ProviderRegistry,
        mailbox: Callable[[str], Mailbox | None],
    ) -> None:
        self._store = store
        self._sessions = sessions
        self._access = access
        self._channels = channels
        self._providers = providers
        self._mailbox = mailbox
        self._asked = Attempts(_MOST_QUESTIONS, _QUESTIONS_SECONDS)

    def provider_name(self, provider_id: str) -> str:
        """Return the display name of a provider; its id if it cannot be used."""
        provider = self._providers.get(provider_id)
        return provider_id if provider is None else provider.name

    def words(self, language: Language = "en") -> Words:
        """Return the words of a language, with the names of the providers."""
        return Words(self.provider_name, language)

    async def explain(self, given: str, language: Language = "en") -> Explanation:
        """Explain the message that a text names: a message's or platform's id, a link, or a trace id."""
        links, words = self._links(given), self.words(language)
        found = await self._store.read(lambda c: find_messages(c, given, links))
        if len(found.ids) > 1:
            return await self._store.read(lambda c: choices_of(c, found.ids))
        if found.ids:
            explained = await self._explain(found.ids[0], words)
            if explained is not None:
                return explained.explanation
        return await self._store.read(
            lambda c: _explain_missing(c, words, found, links[0][0] if links else "")
        )

    async def explain_to_writer(
        self, asker: str, message: InboundMessage, channel: str, given: str, session: str
    ) -> str:
        """Return what the writer of a message may know about it, as the reply to ``/why``.

        The message is the one that ``given`` names, or that ``message`` replies to, or else the last one of
        its sender in the conversation ``session``. Raises TooManyRequestsError after ten questions of an
        ``asker`` in a minute, and NotFoundError for a message that is not stored, is hidden, or was written
        by another user or in another chat.
        """
        if self._asked.used_up(asker):
            raise TooManyRequestsError("ten questions in a minute are the most; ask again in a minute")
        self._asked.count(asker)
        found = await self._find_own(channel, message, given, session)
        for message_id in found.ids:
            explained = await self._explain(message_id, self.words())
            if explained is not None and await self._may_see(explained, channel, message):
                return render_for_writer(explained)
        raise NotFoundError(NOT_YOURS)

    async def _find_own(self, channel: str, message: InboundMessage, given: str, session: str) -> Found:
        address = message.address
        place = Place(channel, address.account, address.chat)
        if not given:
            reply = message.in_reply_to
            if reply is None:
                sender = message.sender.id
                return await self._store.read(lambda c: find_last(c, session, sender, "/why"))
            key = f"{address.chat}:{reply}"
            return await self._store.read(lambda c: find_by_platform_id(c, place, reply, key))
        links = [one for one in self._links(given) if one[0] == channel and one[1].chat == address.chat]
        if links:
            return await self._store.read(lambda c: find_messages(c, given, links))
        return await self._store.read(lambda c: _find_own_id(c, given.strip()))

    async def _may_see(self, explained: Explained, channel: str, message: InboundMessage) -> bool:
        """Return whether the sender of ``message`` may see an explanation in its chat."""
        records, written = explained.records, explained.records.inbound
        if records.hidden or records.was_deleted:
            return False
        asker = self._access.policy.user_of(channel, message)
        writer = self._access.policy.user_of(records.channel, written)
        if asker != writer and writer not in await self._access.links.same(asker):
            return False
        # Other users read a room, so nothing of another chat is shown there.
        here = (channel, message.address.account, message.address.chat)
        there = (records.channel, records.account, written.address.chat)
        return here == there or not message.address.group

    async def _explain(self, message_id: str, words: Words) -> Explained | None:
        session = await self._store.read(lambda c: _session_of(c, message_id))
        live = None if session is None else self._live(session, message_id)
        now = now_ms()

        def read(connection: Connection) -> Explained | None:
            found = explain(connection, message_id, words, now, live)
            return None if found is None else with_same_cause(connection, found, now)

        explained = await self._store.read(read)
        # A provider has its name once it exists, which it may not since the start.
        if explained is not None and await self._create_providers(explained):
            explained = await self._store.read(read)
        return explained

    async def _create_providers(self, explained: Explained) -> bool:
        """Create the providers of an explanation that are set up and not used yet; return whether any was."""
        steps = explained.explanation.steps or ()
        named = {str(step.detail["provider"]) for step in steps if "provider" in step.detail}
        missing = named.intersection(self._providers.set_up()) - {one.id for one in self._providers.list()}
        created = False
        for provider_id in missing:
            with suppress(ProviderError, SettingsError):
                await self._providers.ready(provider_id)
                created = True
        return created

    async def try_now(self, message_id: str, by: str) -> bool:
        """End the pause before the next attempt to answer a message; return whether there was one."""
        session = await self._store.read(lambda c: _session_of(c, message_id))
        mailbox = None if session is None else self._mailbox(session)
        entry = None if mailbox is None else mailbox.running
        if mailbox is None or entry is None or entry.id != message_id or not entry.trail.unsaved:
            return False
        last = entry.trail.unsaved[-1]
        if (last.name, last.state) != ("retry", "waiting") or "provider" in last.detail:
            return False
        await self._store.write(audit_op(by, "message.now", message_id))
        mailbox.interrupted.set()
        return True

    def _live(self, session_id: str, message_id: str) -> Live | None:
        """Return what the running turn of a message does."""
        mailbox, session = self._mailbox(session_id), self._sessions.get(session_id)
        entry = None if mailbox is None else mailbox.running
        if entry is None or message_id not in {one.id for one in (*entry.merged, entry)}:
            return None
        turn = session.turn if session is not None else None
        unsaved = _marked(entry.trail.unsaved, now_ms())
        if not isinstance(turn, Turn) or turn.entry is not entry:
            return Live("delivery" if entry.answered else "hooks", now_ms(), steps=unsaved)
        last = unsaved[-1] if unsaved else None
        begun = turn.assembler.message().created_at if last is None else last.at + last.took // 1000
        doing, name = current_step(turn)
        return Live(doing, begun, name, unsaved)

    def _links(self, given: str) -> list[tuple[str, MessageLink]]:
        found: list[tuple[str, MessageLink]] = []
        for channel in self._channels.list():
            link = channel.read_link(given) if isinstance(channel, ReadsLinks) else None
            if link is not None:
                found.append((channel.id, link))
        return found


def explain_stored(connection: Connection, given: str) -> Explanation:
    """Explain a message while no gateway runs. Links of platforms are known to their channels only."""
    found, now = find_messages(connection, given), now_ms()
    if len(found.ids) > 1:
        return choices_of(connection, found.ids)
    explained = explain(connection, found.ids[0], ENGLISH, now, running=False) if found.ids else None
    if explained is None:
        return _explain_missing(connection, ENGLISH, found, "")
    return with_same_cause(connection, explained, now).explanation


def with_same_cause(connection: Connection, found: Explained, now: int) -> Explained:
    """Add to an explanation how many messages have no answer for the same cause."""
    if found.cause is None:
        return found
    same = count_same_cause(connection, found.cause.cause_key, now)
    return replace(found, explanation=replace(found.explanation, same_cause=same))


def _marked(steps: tuple[Step, ...], now: int) -> tuple[Step, ...]:
    """Return steps, the last one as ended if it is a wait whose time is over."""
    until = steps[-1].detail.get("until") if steps else None
    if not isinstance(until, int) or until > now:
        return steps
    return (*steps[:-1], replace(steps[-1], state="ok"))


def current_step(turn: Turn) -> tuple[Literal["tool", "model", "hooks"], str]:
    """Return what a turn does, and the name of the tool or model."""
    parts = [part for _, part in turn.assembler.parts_from(0)]
    done = {part.tool_call_id for part in parts if isinstance(part, ToolResultPart)}
    calls = [part for part in parts if isinstance(part, ToolCallPart) and part.tool_call_id not in done]
    if calls:
        return "tool", calls[0].tool_name
    return ("model", turn.model) if turn.model else ("hooks", "")


def render_for_writer(explained: Explained) -> str:
    """Return the sentence and the line of a message, without details that name people, keys or texts."""
    line = " → ".join(map(_station_text, explained.stations))
    rule = ENGLISH("rule", rule=explained.verdict.rule) if explained.verdict.rule else ""
    return "\n\n".join(filter(None, (f"**{explained.verdict.text}**", rule, line)))


def _station_text(station: Station) -> str:
    if station.kind == "received":
        return f"{station.text} {datetime.fromtimestamp(station.at / 1000).astimezone():%H:%M:%S}"
    took = f" ({ENGLISH.duration(station.took // 1000)})" if station.took >= 1000 else ""
    return f"{station.text}{took}"


def _explain_missing(connection: Connection, words: Words, found: Found, channel: str) -> Explanation:
    if found.not_accepted is not None:
        return explain_not_accepted(words, found.not_accepted)
    return explain_unknown(connection, words, channel)


def _session_of(connection: Connection, message_id: str) -> str | None:
    return connection.execute(select(t.inbox.c.session).where(t.inbox.c.id == message_id)).scalar()


def _find_own_id(connection: Connection, given: str) -> Found:
    """Find a message by its own id, as a writer may name it: no platform's ids, and no answers of others."""
    i = t.inbox.c
    known = connection.execute(select(i.id).where(i.id == given.lower())).scalar()
    return Found() if known is None else Found((known,))
