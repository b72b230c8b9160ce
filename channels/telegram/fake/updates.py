"""What the bot has yet to be told: a queue that forgets what was confirmed, and one waiting poll."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from channels.telegram.fake.clock import Clock
from channels.telegram.fake.refusal import Refused
from channels.telegram.fake.schema import schema

ASKED_FOR = ("chat_member", "message_reaction", "message_reaction_count")
"""Kinds that come only to a bot that asks for them by name."""

_LONGEST_POLL = 50
_TERMINATED = "Conflict: terminated by {}"
_BY_POLL = "other getUpdates request; make sure that only one bot instance is running"
_WEBHOOK_ACTIVE = (
    "Conflict: can't use getUpdates method while webhook is active; "
    "use deleteWebhook to delete the webhook first"
)


class Update(Struct, frozen=True):
    """One update. Those of one ``queue`` are delivered to a webhook one after the other; it is gone after
    ``until``."""

    id: int
    kind: str
    content: Mapping[str, Any]
    queue: str
    until: float

    @property
    def json(self) -> dict[str, Any]:
        """As the Bot API writes it."""
        return {"update_id": self.id, **({self.kind: self.content} if self.kind else self.content)}


class Poll:
    """A ``getUpdates`` that waits. ``ended`` says what put an end to it from outside."""

    def __init__(self) -> None:
        self.ended = ""


class Updates:
    """The queue. At first everything but ``ASKED_FOR`` is allowed; ``allowed`` is empty as long as that is
    so."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: list[Update] = []
        self._poll: Poll | None = None
        self._next_id = 700_000_001
        self._last_offset = 0
        self._last_poll = 0.0
        self._next_conflict = 0.0
        self.allowed: tuple[str, ...] = ()
        self.webhook = False
        self.reversed = False

    def push(self, kind: str, content: Mapping[str, Any], *, queue: str, seconds: float) -> None:
        """Something happened. Without a ``kind`` the content is the update itself, whatever it is."""
        if kind and not self._wanted(kind):
            return
        self._waiting.append(Update(self._next_id, kind, content, queue, self._clock.now() + seconds))
        self._next_id += 1
        self._clock.beat()

    def jump(self, update_id: int) -> None:
        """Go on counting elsewhere, as the platform does after a week without updates."""
        self._next_id = update_id

    def forget(self) -> int:
        """Drop all that waits, as after 24 hours. Returns how many."""
        count = len(self._waiting)
        self._waiting.clear()
        return count

    def confirm(self, update_id: int) -> None:
        """This one was taken, by a webhook."""
        self._waiting = [update for update in self._waiting if update.id != update_id]

    @property
    def waiting(self) -> list[Update]:
        """What has not been confirmed, in order."""
        now = self._clock.now()
        self._waiting = [update for update in self._waiting if update.until > now]
        return list(self._waiting)

    @property
    def polled(self) -> bool:
        """Whether a poll waits."""
        return self._poll is not None

    def allow(self, kinds: Sequence[str] | None) -> None:
        """What the bot wants from now on; nothing said leaves it as it is, an empty list means the usual
        ones."""
        if kinds is not None:
            known = schema().types["Update"].keys() - {"update_id"}
            self.allowed = tuple(kind for kind in kinds if kind in known)

    def terminate(self, why: str) -> None:
        """End the poll that waits."""
        if self._poll is not None:
            self._poll.ended = _TERMINATED.format(why)
            self._poll = None
            self._clock.beat()

    async def poll(
        self, offset: int = 0, limit: int = 100, wait: int = 0, allowed: Sequence[str] | None = None
    ) -> list[Update]:
        """``getUpdates``: confirms what is below ``offset``, and waits for more. Raises Refused (409) in a
        conflict."""
        if self.webhook:
            await self._conflict(_WEBHOOK_ACTIVE)
        self.allow(allowed)
        limit, wait = self._calmed(offset, max(1, min(100, limit)), max(0, min(_LONGEST_POLL, wait)))
        self._confirm_below(offset)
        if not self.waiting and wait:
            await self._wait(self._clock.now() + wait)
        batch = self.waiting[:limit]
        if self.reversed:
            self.reversed = False
            batch.reverse()
        return batch

    async def _wait(self, until: float) -> None:
        self.terminate(_BY_POLL)
        poll = self._poll = Poll()
        try:
            while not self.waiting and not poll.ended and self._clock.now() < until:
                await self._clock.changed(until)
        finally:
            if self._poll is poll:
                self._poll = None
        if poll.ended:
            await self._conflict(poll.ended)

    async def _conflict(self, text: str) -> None:
        """Only one conflict in three seconds is answered at once."""
        now = self._clock.now()
        if now < self._next_conflict:
            await self._clock.sleep_until(now + 3)
        else:
            self._next_conflict = now + 3
        raise Refused(text, 409)

    def _calmed(self, offset: int, limit: int, wait: int) -> tuple[int, int]:
        """Whoever asks for the same again and again is slowed down."""
        now, again = self._clock.now(), offset == self._last_offset
        if again and wait < 3 and now < self._last_poll + 3:
            wait = 3
        if again and now < self._last_poll + 0.5:
            limit = 1
        self._last_offset, self._last_poll = offset, now
        return limit, wait

    def _confirm_below(self, offset: int) -> None:
        """An offset that no update has reached yet confirms nothing: numbers may have jumped back."""
        if offset < 0:
            self._waiting = self._waiting[offset:]
        elif offset <= self._next_id:
            self._waiting = [update for update in self._waiting if update.id >= offset]

    def _wanted(self, kind: str) -> bool:
        return kind in self.allowed if self.allowed else kind not in ASKED_FOR
