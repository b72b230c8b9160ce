"""Placing an answer exactly once: what may have gone through is looked for before it is sent again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select

from gateway import (
    ChannelRegistry,
    Message,
    OutboundMessage,
    Placed,
    PlacementDeferred,
    PlacementRefused,
    PlacementUncertain,
    TextPart,
)
from gateway.inbox import Entry
from gateway.outbox import Intended, Outbox, nonce_of
from gateway.store import Store
from gateway.store import schema as t
from gateway.testing.chat import written
from gateway.testing.letterbox import Letterbox


class Moody(Letterbox):
    """Fails as it is told to, before or after the message stands in the room."""

    def __init__(self, *failures: tuple[str, Exception]) -> None:
        super().__init__()
        self.failures = list(failures)
        self.tries = 0

    async def send(self, outbound: OutboundMessage) -> Placed:
        self.tries += 1
        when, failure = self.failures.pop(0) if self.failures else ("", None)
        if failure is not None and when == "before":
            raise failure
        placed = await super().send(outbound)
        if failure is not None:
            raise failure
        return placed


class Looking(Moody):
    """Can tell what stands in the room."""

    async def find(self, outbound: OutboundMessage) -> Placed | None:
        nonces = [sent.nonce for sent in self.sent]
        return Placed(str(nonces.index(outbound.nonce) + 1)) if outbound.nonce in nonces else None


class Desk:
    """An outbox with one channel, and an answer to place there."""

    def __init__(self, store: Store, channel: Letterbox) -> None:
        channels = ChannelRegistry()
        channels.register(channel)
        self.store, self.outbox = store, Outbox(store, channels)
        self.entry = Entry.of(channel.id, written("hi", channel=channel.id), 1, 1)
        self.answer = Message(
            id=self.entry.answer_id, session_id="s", role="assistant", parts=(TextPart("Hello."),)
        )

    async def place(self, *, ambiguous: bool = False) -> None:
        """Record the answer, and place it."""
        await self.store.write(self.entry.accept(), *self.outbox.intend(self.entry, self.answer))
        await self.outbox.place(self.entry, Intended(self.answer, "done"), ambiguous=ambiguous)

    async def states(self) -> tuple[str, str, str | None]:
        """The states of message and answer, and where the answer stands."""
        query = select(t.inbox.c.state, t.outbox.c.state, t.outbox.c.platform_id)
        joined = query.join(t.outbox, t.outbox.c.inbox_id == t.inbox.c.id)
        return await self.store.read(lambda c: tuple(c.execute(joined).one()))


async def test_an_answer_that_was_placed_settles_its_message(store: Store) -> None:
    desk = Desk(store, box := Letterbox())
    assert desk.outbox.places(desk.entry)
    await desk.place()
    assert await desk.states() == ("done", "final", "1")
    [sent] = box.sent
    assert (sent.message, sent.nonce) == (desk.answer, nonce_of(desk.entry.id, 0))


@pytest.mark.parametrize(
    ("failure", "tries"),
    [
        (("before", PlacementDeferred("slow down", 0.0)), 2),
        (("before", PlacementUncertain()), 2),
        (("after", PlacementUncertain()), 1),
        (("before", ZeroDivisionError()), 2),
        (("after", ZeroDivisionError()), 1),
    ],
)
async def test_what_went_wrong_is_made_good_and_never_doubled(
    store: Store, failure: tuple[str, Exception], tries: int
) -> None:
    desk = Desk(store, box := Looking(failure))
    await desk.place()
    assert (len(box.sent), box.tries) == (1, tries)
    assert await desk.states() == ("done", "final", "1")


async def test_an_earlier_attempt_is_looked_for_first(store: Store) -> None:
    desk = Desk(store, box := Looking())
    await box.send(
        OutboundMessage(
            address=desk.entry.inbound.address, message=desk.answer, nonce=nonce_of(desk.entry.id, 0)
        )
    )
    await desk.place(ambiguous=True)
    assert (len(box.sent), box.tries) == (1, 1)


async def test_a_refusal_is_passed_on_and_recorded_when_it_is_given_up(store: Store) -> None:
    desk = Desk(store, Moody(("before", PlacementRefused("the room is gone"))))
    with pytest.raises(PlacementRefused):
        await desk.place()
    assert await desk.states() == ("new", "intent", None)
    await store.write(*desk.outbox.give_up(desk.entry, "the room is gone"))
    assert await desk.states() == ("dead", "dead", None)


async def test_what_was_recorded_comes_back_after_a_crash(store: Store) -> None:
    desk = Desk(store, Letterbox())
    await store.write(desk.entry.accept(), *desk.outbox.intend(desk.entry, desk.answer))
    assert await desk.outbox.intended(desk.entry) == Intended(desk.answer, "done")
    await store.write(desk.entry.bury("it failed", None))
    assert (await desk.outbox.intended(desk.entry)).outcome == "dead"


async def test_an_answer_for_a_channel_that_is_gone_waits_for_its_return(store: Store) -> None:
    desk = Desk(store, Letterbox())
    gone = Outbox(store, ChannelRegistry())
    await store.write(desk.entry.accept(), *desk.outbox.intend(desk.entry, desk.answer))
    await gone.place(desk.entry, Intended(desk.answer, "done"), ambiguous=True)
    assert await desk.states() == ("new", "intent", None)
    assert not gone.places(desk.entry)


def test_the_key_of_an_answer_is_its_own_and_always_the_same() -> None:
    keys: Callable[[int], Any] = lambda part: nonce_of("0198-a", part)  # noqa: E731
    assert keys(0) == keys(0) != keys(1) != nonce_of("0198-b", 1)
    assert len(keys(0)) <= 25
