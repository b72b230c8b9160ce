"""The delivery of an answer: begin, show, commit, settle; whatever happens in between, it is placed once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio
from sqlalchemy import select

from gateway import ErrorPart, Message, TextPart
from gateway.channel import OutboundMessage, Placed, PlacementRefused
from gateway.delivery.deliverer import AnswerDelivery, Deliverer
from gateway.extensions.registry import ChannelRegistry
from gateway.session import Session, Sessions, Turn
from gateway.store import Store
from gateway.store import schema as t
from gateway.store.inbox import Entry
from gateway.store.outbox import Outbox
from gateway.testing.chat import written
from gateway.testing.letterbox import Letterbox


class Desk:
    """A session with one accepted message, whose answers are delivered to a channel."""

    def __init__(self, store: Store, session: Session, tasks: asyncio.TaskGroup) -> None:
        self.store, self.session, self._tasks = store, session, tasks
        self.box = Letterbox()
        self.entry = Entry.of(self.box.id, written("hi", channel=self.box.id), 1, attempts=1)
        self.channels = ChannelRegistry()
        self.channels.register(self.box)

    @property
    def deliverer(self) -> Deliverer:
        """A deliverer that knows only what is durable."""
        return Deliverer(Outbox(self.store, self.channels), self._tasks)

    async def commit(self, delivery: AnswerDelivery, text: str = "Hello.") -> None:
        """Commit an answer."""
        turn = Turn(self.session, self.entry)
        answer = Message(
            id=self.entry.answer_id, session_id=self.session.id, role="assistant", parts=(TextPart(text),)
        )
        await delivery.commit(turn, answer)

    async def restart(self) -> None:
        """Forget what only a process knows of the message, whose answer is committed."""
        self.entry.recovered = self.entry.answered = True

    async def state(self) -> str:
        """The message's state in the inbox."""
        query = select(t.inbox.c.state).where(t.inbox.c.id == self.entry.id)
        return await self.store.read(lambda c: c.execute(query).scalar_one())

    @property
    def placed(self) -> list[str]:
        """The texts that the channel was sent."""
        return [sent.message.text for sent in self.box.sent]


@pytest_asyncio.fixture
async def desk(store: Store) -> AsyncGenerator[Desk]:
    inbound = written("hi", channel="letters")
    session = await Sessions(store, 100).get_or_create(
        inbound.session, channel="letters", owner="ada", address=inbound.address
    )
    async with asyncio.TaskGroup() as tasks:
        made = Desk(store, session, tasks)
        await store.write(session.put(), made.entry.accept())
        yield made


async def test_an_answer_is_placed_when_its_delivery_ends(desk: Desk) -> None:
    async with desk.deliverer.begin(desk.session, desk.entry) as delivery:
        await desk.commit(delivery)
        assert (desk.placed, await desk.state()) == ([], "new")
    assert (desk.placed, await desk.state()) == (["Hello."], "done")


async def test_a_message_without_an_answer_has_nothing_placed(desk: Desk) -> None:
    async with desk.deliverer.begin(desk.session, desk.entry):
        pass
    assert (desk.placed, await desk.state()) == ([], "new")


async def test_an_answer_that_was_committed_before_a_crash_is_placed_after_it(desk: Desk) -> None:
    async def commit_and_crash() -> None:
        async with desk.deliverer.begin(desk.session, desk.entry) as delivery:
            await desk.commit(delivery)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await commit_and_crash()
    assert (desk.placed, await desk.state()) == ([], "new")
    await desk.restart()
    async with desk.deliverer.begin(desk.session, desk.entry):
        pass
    assert (desk.placed, await desk.state()) == (["Hello."], "done")


async def test_an_answer_that_was_placed_before_a_crash_is_not_placed_again(desk: Desk) -> None:
    async with desk.deliverer.begin(desk.session, desk.entry) as delivery:
        await desk.commit(delivery)
    await desk.restart()
    async with desk.deliverer.begin(desk.session, desk.entry):
        pass
    assert (desk.placed, await desk.state()) == (["Hello."], "done")


async def test_a_refused_answer_becomes_a_dead_letter_and_a_notice(desk: Desk) -> None:
    class Closed(Letterbox):
        async def send(self, outbound: OutboundMessage) -> Placed:
            raise PlacementRefused("the chat is closed")

    desk.channels = ChannelRegistry()
    desk.channels.register(Closed())
    async with desk.deliverer.begin(desk.session, desk.entry) as delivery:
        await desk.commit(delivery)
    assert await desk.state() == "dead"
    [part] = desk.session.messages()[-1].parts
    assert isinstance(part, ErrorPart)
    assert part.error_name == "PlacementRefused"


async def test_an_abandoned_answer_is_not_placed(desk: Desk) -> None:
    async with desk.deliverer.begin(desk.session, desk.entry) as delivery:
        await desk.commit(delivery)
        await delivery.abandon("the operator gave it up")
    assert (desk.placed, await desk.state()) == ([], "dead")


async def test_without_its_channel_an_answer_is_settled_by_its_commit(desk: Desk) -> None:
    desk.channels = ChannelRegistry()
    async with desk.deliverer.begin(desk.session, desk.entry) as delivery:
        await desk.commit(delivery)
        assert await desk.state() == "done"
    assert desk.placed == []
    assert desk.deliverer.intend(desk.entry, Message(session_id="s", role="assistant")) is None
