"""Placing an answer exactly once: what may have gone through is looked for before it is sent again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import select

from gateway.channel import OutboundMessage, Placed, PlacementDeferred, PlacementUncertain
from gateway.store import schema as t
from gateway.store.inbox import Entry
from gateway.store.outbox import Outbox, Page
from gateway.testing.chat import Chat, chatting, written
from gateway.testing.letterbox import Letterbox
from tests.small_plugins import Brings


class Moody(Letterbox):
    """Fails as it is told to, before or after the message stands in the room."""

    def __init__(self, *failures: tuple[str, Exception]) -> None:
        super().__init__()
        self.failures = list(failures)
        self.tries = 0
        self.tried = asyncio.Event()

    async def send(self, outbound: OutboundMessage) -> Placed:
        self.tries += 1
        self.tried.set()
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


async def states(chat: Chat) -> list[str]:
    """The state of everything that was accepted."""
    query = select(t.inbox.c.state).order_by(t.inbox.c.ord)
    return await chat.gateway.parts.store.read(lambda c: list(c.execute(query).scalars()))


async def settled(chat: Chat) -> list[str]:
    """The same, once all that came before in the session is settled: another message waits for that."""
    await chat.say("and this, which is placed nowhere")
    return (await states(chat))[:-1]


@pytest.mark.parametrize(
    ("failure", "tries"),
    [
        (("before", PlacementDeferred("slow down", 0.0)), 2),
        (("before", PlacementUncertain()), 2),
        (("after", PlacementUncertain()), 1),
        (("before", ZeroDivisionError()), 2),
        (("after", ZeroDivisionError()), 1),
    ],
    ids=str,
)
async def test_what_went_wrong_is_made_good_and_never_doubled(
    tmp_path: Path, failure: tuple[str, Exception], tries: int
) -> None:
    box = Looking(failure)
    async with chatting(tmp_path, Brings(box)) as chat:
        await box.write(written("hi", channel=box.id))
        assert await settled(chat) == ["done"]
    assert (len(box.sent), box.tries) == (1, tries)


async def test_an_answer_that_may_have_been_placed_is_looked_for_after_a_restart(tmp_path: Path) -> None:
    box = Looking(("after", PlacementDeferred("it stands there, but who knows", 600)))
    async with chatting(tmp_path, Brings(box), limits={"drain_seconds": 0}) as chat:
        await box.write(written("hi", channel=box.id))
        await box.until(1)
    async with chatting(tmp_path, Brings(box)) as chat:
        assert await settled(chat) == ["done"]
        assert [call.messages[-1].text for call in chat.model.calls] == ["and this, which is placed nowhere"]
    assert (len(box.sent), box.tries) == (1, 1)


async def test_an_answer_for_a_channel_that_is_gone_waits_for_its_return(tmp_path: Path) -> None:
    box = Moody(("before", PlacementDeferred("later", 600)))
    async with chatting(tmp_path, Brings(box), limits={"drain_seconds": 0}):
        await box.write(written("hi", channel=box.id))
        await box.tried.wait()
    async with chatting(tmp_path) as chat:
        assert await settled(chat) == ["new"]
    async with chatting(tmp_path, Brings(box)) as chat:
        assert await settled(chat) == ["done", "done"]
    assert [out.message.text for out in box.sent] == ["You said: hi"]


async def test_answers_are_told_apart_after_the_clock_was_set_back_by_days(tmp_path: Path) -> None:
    box = Letterbox()
    async with chatting(tmp_path, Brings(box)) as chat:
        await box.write(written("hi", channel=box.id))
        await settled(chat)
        received_before = Entry.of(box.id, written("ho", channel=box.id), 2)
        received_before.received_at += 2 * 86_400_000
        outbox = Outbox(chat.gateway.parts.store, chat.gateway.channels)
        found = await outbox.read_other_placements(received_before, Page(number=0, nonce="its own"))
        assert found == (("room", "1"),)


async def test_the_key_of_an_answer_is_the_same_in_every_attempt(tmp_path: Path) -> None:
    nonces: list[str] = []

    class Noting(Moody):
        async def send(self, outbound: OutboundMessage) -> Placed:
            nonces.append(outbound.nonce)
            return await super().send(outbound)

    box = Noting(("before", PlacementDeferred("later", 0.0)), ("before", PlacementDeferred("later", 600)))
    async with chatting(tmp_path, Brings(box), limits={"drain_seconds": 0}):
        await box.write(written("hi", channel=box.id))
        while box.tries < 2:
            await asyncio.sleep(0.01)
    async with chatting(tmp_path, Brings(box)):
        await box.until(1)
    assert len(nonces) == 3
    assert len(set(nonces)) == 1
