"""The pages of an answer are placed exactly once, in order, whatever fails on the way."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Sequence
from contextlib import suppress

import pytest
from msgspec.structs import replace
from sqlalchemy import select

from gateway import Message, TextPart
from gateway.channel import (
    Address,
    OutboundMessage,
    Placed,
    PlacementDeferred,
    PlacementMismatch,
    PlacementRefused,
    PlacementUncertain,
    Streaming,
)
from gateway.delivery.pages import AnswerPages
from gateway.extensions.registry import ChannelRegistry
from gateway.store import Op, Store
from gateway.store import schema as t
from gateway.store.inbox import Entry
from gateway.store.outbox import Outbox
from gateway.testing.chat import written
from gateway.testing.letterbox import Letterbox

WIDTH = 5


class Board(Letterbox):
    """A room whose messages hold five characters, and can be edited, removed and looked for.

    Fails as it is told to, before or after a message stands in the room.
    """

    def __init__(self, *failures: tuple[str, Exception]) -> None:
        super().__init__()
        self.failures = list(failures)
        self.room: dict[str, str] = {}
        self.edits = 0
        self.drafts: list[str] = []

    def pages(self, message: Message, *, final: bool) -> Sequence[str]:
        text = message.text + ("" if final or not message.text else "…")
        return [text[at : at + WIDTH] for at in range(0, len(text), WIDTH)]

    def watermark(self, address: Address) -> str | None:
        return str(len(self.sent))

    async def send(self, outbound: OutboundMessage) -> Placed:
        when, failure = self.failures.pop(0) if self.failures else ("", None)
        if failure is not None and when == "before":
            raise failure
        placed = await super().send(outbound)
        self.room[placed.platform_id] = outbound.page
        if failure is not None:
            raise failure
        return placed

    async def find(self, outbound: OutboundMessage) -> Placed | None:
        nonces = [sent.nonce for sent in self.sent]
        return Placed(str(nonces.index(outbound.nonce) + 1)) if outbound.nonce in nonces else None

    async def edit(self, placed: Placed, outbound: OutboundMessage) -> None:
        self.edits += 1
        self.room[placed.platform_id] = outbound.page

    async def delete(self, placed: Placed, address: Address) -> None:
        self.room.pop(placed.platform_id, None)

    async def draft(self, outbound: OutboundMessage) -> None:
        self.drafts.append(outbound.page)

    def streaming(self, address: Address) -> Streaming | None:
        return Streaming("edit", 0.0)


class Desk:
    """An outbox with one channel, and a message whose answer is to be placed there."""

    def __init__(self, store: Store, channel: Letterbox) -> None:
        self.channels = ChannelRegistry()
        self.channels.register(channel)
        self.store, self.channel, self.outbox = store, channel, Outbox(store, self.channels)
        self.entry = Entry.of(channel.id, written("hi", channel=channel.id), 1, attempts=1)

    def answer(self, text: str) -> Message:
        """An answer, whole or so far."""
        return Message(id=self.entry.answer_id, session_id="s", role="assistant", parts=(TextPart(text),))

    async def pages(self, *, crashed: bool = False) -> AnswerPages:
        """The pages of a first attempt, or of one that knows only what is durable."""
        stored = await self.outbox.read_pages(self.entry) if crashed else ()
        return AnswerPages(self.outbox, self.channel, self.entry, stored)

    async def finish(self, pages: AnswerPages, text: str) -> None:
        """Record the final answer, place it and settle."""
        answer = self.answer(text)
        await self.store.write(*pages.intend(answer))
        await pages.place(answer)
        await pages.settle("done")

    async def states(self) -> list[tuple[str, str | None]]:
        """The pages as they are recorded."""
        query = select(t.outbox.c.state, t.outbox.c.platform_id).order_by(t.outbox.c.part)
        return await self.store.read(lambda c: [(row.state, row.platform_id) for row in c.execute(query)])


async def desk_for(store: Store, channel: Letterbox) -> Desk:
    """A desk whose message was accepted."""
    desk = Desk(store, channel)
    await store.write(desk.entry.accept())
    return desk


async def test_a_channel_that_cannot_cut_is_sent_the_answer_whole(store: Store) -> None:
    desk = await desk_for(store, box := Letterbox())
    await desk.finish(await desk.pages(), "Hello.")
    [sent] = box.sent
    assert (sent.message.text, sent.page, sent.part, sent.parts, sent.final) == ("Hello.", None, 0, 1, True)
    assert await desk.states() == [("final", "1")]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("failure", [PlacementUncertain(), ZeroDivisionError()])
async def test_what_went_wrong_is_made_good_and_never_doubled(
    store: Store, when: str, failure: Exception
) -> None:
    desk = await desk_for(store, board := Board((when, failure)))
    await desk.finish(await desk.pages(), "Hello")
    assert (board.room, len(board.sent)) == ({"1": "Hello"}, 1)
    assert await desk.states() == [("final", "1")]


async def test_waits_that_the_platform_asked_for_are_not_failures(store: Store) -> None:
    waits = [("before", PlacementDeferred("too many", 0.0)) for _ in range(30)]
    board = Board(*waits, ("after", ZeroDivisionError()))
    desk = await desk_for(store, board)
    async with asyncio.timeout(60):
        await desk.finish(await desk.pages(), "hi")
    assert (list(board.room.values()), len(board.sent)) == (["hi"], 1)


async def test_a_long_wait_that_the_platform_asked_for_is_logged(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    board = Board(("before", PlacementDeferred("Too Many Requests", 3_600.0)))
    desk = await desk_for(store, board)
    finishing = asyncio.create_task(desk.finish(await desk.pages(), "hi"))
    out = ""
    async with asyncio.timeout(60):
        while "seconds=3600" not in (out := out + capsys.readouterr().out):
            await asyncio.sleep(0.01)
    finishing.cancel()
    assert "Too Many Requests" in out


async def test_a_long_answer_is_several_messages_in_order(store: Store) -> None:
    board = Board(("before", PlacementDeferred("slow down", 0.0)))
    desk = await desk_for(store, board)
    await desk.finish(await desk.pages(), "one, two, three")
    assert list(board.room.values()) == ["one, ", "two, ", "three"]
    assert [(s.part, s.parts, s.watermark) for s in board.sent] == [(0, 3, "0"), (1, 3, "1"), (2, 3, "2")]
    assert len({sent.nonce for sent in board.sent}) == 3
    assert await desk.states() == [("final", "1"), ("final", "2"), ("final", "3")]


async def test_an_answer_grows_by_edits_of_one_message(store: Store) -> None:
    desk = await desk_for(store, board := Board())
    pages = await desk.pages()
    for text in ("", "H", "He", "He"):
        await pages.update(desk.answer(text), final=False)
    assert (board.room, board.edits) == ({"1": "He…"}, 1)
    assert await desk.states() == [("placed", "1")]
    await desk.finish(pages, "Hello")
    assert (board.room, board.edits, len(board.sent)) == ({"1": "Hello"}, 2, 1)


async def test_the_end_is_reported_even_if_it_looks_the_same(store: Store) -> None:
    """A platform that was told of a stream has to be told of its end."""
    desk = await desk_for(store, board := Board())
    pages = await desk.pages()
    await pages.update(desk.answer("Hi"), final=False)
    await desk.finish(pages, "Hi…")
    assert (board.room, board.edits) == ({"1": "Hi…"}, 1)


async def test_a_turn_that_is_run_again_writes_over_what_it_had_shown(store: Store) -> None:
    desk = await desk_for(store, board := Board())
    await (await desk.pages()).update(desk.answer("Good morn"), final=False)
    assert list(board.room.values()) == ["Good ", "morn…"]
    await desk.finish(await desk.pages(crashed=True), "Bye")
    assert (board.room, len(board.sent)) == ({"1": "Bye"}, 2)


async def test_a_page_that_a_crash_left_uncertain_is_found_and_taken_away(store: Store) -> None:
    desk = await desk_for(store, board := Board())
    pages = await desk.pages()
    await pages.update(desk.answer("Good"), final=False)
    board.failures.append(("after", PlacementUncertain()))
    with pytest.raises(PlacementUncertain):
        await pages.update(desk.answer("Good morn"), final=False)
    assert await desk.states() == [("placed", "1"), ("intent", None)]
    await desk.finish(await desk.pages(crashed=True), "Bye")
    assert board.room == {"1": "Bye"}


class Crash(BaseException):
    """The end of the process."""


class Shelf(Board):
    """A room in which a text cannot take the place of a file, whose page begins with "#".

    The process ends at step ``crash_at``: before or after a call, or before or after a commit.
    """

    def __init__(self, crash_at: int) -> None:
        super().__init__()
        self.crash_at = crash_at

    def step(self) -> None:
        self.crash_at -= 1
        if self.crash_at == 0:
            raise Crash

    async def send(self, outbound: OutboundMessage) -> Placed:
        self.step()
        placed = await super().send(outbound)
        self.step()
        return placed

    async def find(self, outbound: OutboundMessage) -> Placed | None:
        sent = {one.nonce: str(number) for number, one in enumerate(self.sent, 1) if str(number) in self.room}
        return Placed(sent[outbound.nonce]) if outbound.nonce in sent else None

    async def edit(self, placed: Placed, outbound: OutboundMessage) -> None:
        self.step()
        if placed.platform_id not in self.room:
            return  # a user deleted it
        if self.room[placed.platform_id].startswith("#"):
            raise PlacementMismatch
        await super().edit(placed, outbound)
        self.step()

    async def delete(self, placed: Placed, address: Address) -> None:
        self.step()
        await super().delete(placed, address)
        self.step()


class ShelfOutbox(Outbox):
    """The outbox of a process that ends as its channel says."""

    def __init__(self, desk: Desk, shelf: Shelf) -> None:
        super().__init__(desk.store, desk.channels)
        self._shelf = shelf

    async def write(self, *ops: Op) -> None:
        self._shelf.step()
        await super().write(*ops)
        self._shelf.step()


async def test_a_page_whose_message_cannot_show_it_is_placed_again_also_after_a_crash_at_any_step(
    store: Store,
) -> None:
    for crash_at in range(100):
        desk = await desk_for(store, shelf := Shelf(crash_at))
        desk.outbox = ShelfOutbox(desk, shelf)
        wanted = "Hello world, and"
        try:
            pages = await desk.pages()
            await pages.update(desk.answer("Hello#file then "), final=False)
            assert [*shelf.room.values()] == ["Hello", "#file", " then", " …"]
            await desk.finish(pages, wanted)
        except Crash:
            await desk.finish(await desk.pages(crashed=True), wanted)
        assert [shelf.room[key] for key in sorted(shelf.room, key=int)] == ["Hello", " worl", "d, an", "d"]
        if shelf.crash_at > 0:
            assert crash_at > 30
            return


class Strict(Shelf):
    """A room that says so when a message to edit was deleted."""

    async def edit(self, placed: Placed, outbound: OutboundMessage) -> None:
        if placed.platform_id not in self.room:
            self.step()
            raise PlacementMismatch
        await super().edit(placed, outbound)


@pytest.mark.parametrize("gone", ["1", "2", "3"])
async def test_a_page_whose_message_a_user_deleted_is_placed_again_also_after_a_crash_at_any_step(
    store: Store, gone: str
) -> None:
    for crash_at in range(100):
        desk = await desk_for(store, shelf := Strict(0))
        await (await desk.pages()).update(desk.answer("Hello world, and"), final=False)
        assert [*shelf.room.values()] == ["Hello", " worl", "d, an", "d…"]
        del shelf.room[gone]
        desk.outbox = ShelfOutbox(desk, shelf)
        shelf.crash_at = crash_at
        try:
            # A later attempt, which does not know what the pages show.
            await desk.finish(await desk.pages(crashed=True), "Hello world, and")
        except Crash:
            await desk.finish(await desk.pages(crashed=True), "Hello world, and")
        assert [shelf.room[key] for key in sorted(shelf.room, key=int)] == ["Hello", " worl", "d, an", "d"]
        if shelf.crash_at > 0:
            assert crash_at > 10
            return


@pytest.mark.parametrize("kind", [Shelf, Strict])
async def test_an_answer_that_was_being_deleted_when_the_process_ended_can_still_be_given(
    store: Store, kind: type[Shelf]
) -> None:
    for crash_at in range(100):
        desk = await desk_for(store, shelf := kind(0))
        desk.outbox = ShelfOutbox(desk, shelf)
        pages = await desk.pages()
        await pages.update(desk.answer("Hello world"), final=False)
        shelf.crash_at = crash_at
        with suppress(Crash):
            await pages.retract()
        ended = shelf.crash_at > 0
        shelf.crash_at = 0
        await desk.finish(await desk.pages(crashed=True), "Good day")
        assert [shelf.room[key] for key in sorted(shelf.room, key=int)] == ["Good ", "day"]
        if ended:
            assert crash_at > 5
            return


async def test_nothing_is_deleted_before_the_withdrawal_is_committed(store: Store) -> None:
    class Watched(Board):
        durable: bool | None = None

        async def delete(self, placed: Placed, address: Address) -> None:
            query = select(t.inbox.c.interrupted).where(t.inbox.c.id == desk.entry.id)
            self.durable = await store.read(lambda c: c.execute(query).scalar_one()) == "withdrawn"

    desk = await desk_for(store, board := Watched())
    pages = await desk.pages()
    await pages.update(desk.answer("Good"), final=False)
    desk.entry.interrupted = "withdrawn"
    committed = store.submit([desk.entry.interrupt()])
    await pages.retract()
    assert board.durable
    await committed


@pytest.mark.parametrize("kind", [Shelf, Strict])
async def test_an_announcement_that_becomes_shorter_may_become_longer_again(
    store: Store, kind: type[Shelf]
) -> None:
    desk = await desk_for(store, shelf := kind(0))
    await desk.finish(await desk.pages(), "Hello world")
    again = await desk.pages(crashed=True)
    for text in ("Hello", "Hello moon"):
        await desk.finish(again, text)
    assert [*shelf.room.values()] == ["Hello", " moon"]
    await desk.finish(await desk.pages(crashed=True), "Hi")
    await desk.finish(await desk.pages(crashed=True), "Hello world")
    assert [*shelf.room.values()] == ["Hello", " worl", "d"]
    assert [state for state, _ in await desk.states()] == ["final"] * 3


class AlbumShelf(Shelf):
    """A room that takes up to three files in a row together, unless one of them is bad."""

    def __init__(self, crash_at: int) -> None:
        super().__init__(crash_at)
        self.albums: list[list[str]] = []

    def pages(self, message: Message, *, final: bool) -> Sequence[str]:
        pages = message.text.split()
        while pages and not final and pages[-1].startswith("#"):
            pages.pop()
        return pages

    def album_size(self, pages: Sequence[str]) -> int:
        return sum(1 for _ in itertools.takewhile(lambda page: page.startswith("#"), pages[:3]))

    async def send_album(self, outbounds: Sequence[OutboundMessage]) -> Sequence[Placed]:
        self.step()
        if any(outbound.page == "#bad" for outbound in outbounds):
            raise PlacementRefused("one of them is bad")
        self.albums.append([outbound.page for outbound in outbounds])
        placed = [await Board.send(self, outbound) for outbound in outbounds]
        self.step()
        return placed

    async def edit(self, placed: Placed, outbound: OutboundMessage) -> None:
        if outbound.page.startswith("#"):
            await Board.edit(self, placed, outbound)
        else:
            await super().edit(placed, outbound)


ALBUM = "look #a #b #c #d and #e #bad #f end"


async def test_an_album_is_placed_exactly_once_also_after_a_crash_at_any_step(store: Store) -> None:
    for crash_at in range(200):
        desk = await desk_for(store, shelf := AlbumShelf(crash_at))
        desk.outbox = ShelfOutbox(desk, shelf)
        try:
            pages = await desk.pages()
            await pages.update(desk.answer(" ".join(ALBUM.split()[:6])), final=False)
            assert [*shelf.room.values()] == ALBUM.split()[:6]
            await desk.finish(pages, ALBUM)
        except Crash:
            await desk.finish(await desk.pages(crashed=True), ALBUM)
        assert [shelf.room[key] for key in sorted(shelf.room, key=int)] == ALBUM.split()
        assert len(shelf.sent) == len(ALBUM.split())
        assert ["#a", "#b", "#c"] in shelf.albums
        if shelf.crash_at > 0:
            assert crash_at > 20
            assert shelf.albums == [["#a", "#b", "#c"]]
            return


async def test_a_lost_response_to_an_album_does_not_double_it(store: Store) -> None:
    class Deaf(AlbumShelf):
        async def send_album(self, outbounds: Sequence[OutboundMessage]) -> Sequence[Placed]:
            await super().send_album(outbounds)
            raise PlacementUncertain

    desk = await desk_for(store, shelf := Deaf(0))
    await desk.finish(await desk.pages(), "look #a #b end")
    assert ([*shelf.room.values()], len(shelf.albums)) == (["look", "#a", "#b", "end"], 1)


async def test_an_answer_that_is_not_wanted_is_taken_away(store: Store) -> None:
    desk = await desk_for(store, board := Board())
    pages = await desk.pages()
    await pages.update(desk.answer("Good"), final=False)
    board.failures.append(("after", PlacementUncertain()))
    with pytest.raises(PlacementUncertain):
        await pages.update(desk.answer("Good morn"), final=False)
    await (await desk.pages(crashed=True)).retract()
    assert board.room == {}


async def test_what_cannot_be_taken_away_stays(store: Store) -> None:
    class Carved(Board):
        async def delete(self, placed: Placed, address: Address) -> None:
            raise PlacementRefused("it is too old")

    desk = await desk_for(store, board := Carved())
    pages = await desk.pages()
    await pages.update(desk.answer("Go"), final=False)
    await pages.retract()
    assert board.room == {"1": "Go…"}


async def test_what_was_found_is_brought_up_to_date(store: Store) -> None:
    desk = await desk_for(store, board := Board(("after", PlacementUncertain())))
    pages = await desk.pages()
    with pytest.raises(PlacementUncertain):
        await pages.update(desk.answer("Go"), final=False)
    await desk.finish(pages, "Bye")
    assert (board.room, len(board.sent)) == ({"1": "Bye"}, 1)


async def test_a_draft_places_only_what_is_full(store: Store) -> None:
    desk = await desk_for(store, board := Board())
    pages = await desk.pages()
    for text in ("", "Hel", "Hello wo"):
        await pages.update_draft(desk.answer(text))
    assert (board.drafts, board.room) == (["Hel…", " wo…"], {"1": "Hello"})
    await desk.finish(pages, "Hello world")
    assert list(board.room.values()) == ["Hello", " worl", "d"]


async def test_a_showing_that_is_cut_short_while_it_places_is_looked_for(store: Store) -> None:
    class Slow(Board):
        answers = asyncio.Event()

        async def send(self, outbound: OutboundMessage) -> Placed:
            placed = await super().send(outbound)
            await self.answers.wait()
            return placed

    desk = await desk_for(store, board := Slow())
    pages = await desk.pages()
    async with asyncio.TaskGroup() as tasks:
        showing = tasks.create_task(pages.update(desk.answer("Go"), final=False))
        await board.until(1)
        assert pages.placing
        showing.cancel()
    assert not pages.placing
    board.answers.set()
    await desk.finish(pages, "Bye")
    assert (board.room, len(board.sent)) == ({"1": "Bye"}, 1)


async def test_a_refusal_is_passed_on_and_recorded_when_it_is_given_up(store: Store) -> None:
    desk = await desk_for(store, Board(("before", PlacementRefused("the room is gone"))))
    pages = await desk.pages()
    with pytest.raises(PlacementRefused):
        await desk.finish(pages, "Hello")
    assert await desk.states() == [("intent", None)]
    await store.write(*pages.give_up("the room is gone"))
    assert await desk.states() == [("dead", None)]


async def test_a_search_for_a_message_gets_the_ids_of_other_messages(store: Store) -> None:
    class Asked(Board):
        told: tuple[object, ...] = ()

        async def find(self, outbound: OutboundMessage) -> Placed | None:
            self.told = outbound.others, outbound.elsewhere
            return await super().find(outbound)

    desk = await desk_for(store, board := Asked())
    elsewhere = Desk(store, board)
    away = replace(written("hi", "t", channel=board.id), address=Address(board.id, "bot", "another room"))
    elsewhere.entry = Entry.of(board.id, away, 1, attempts=1)
    beside = Desk(store, board)
    beside.entry = Entry.of(board.id, written("ho", channel=board.id), 2, attempts=1)
    for other in (elsewhere, beside):
        await store.write(other.entry.accept())
        await other.finish(await other.pages(), "Hello")
    board.failures.append(("after", PlacementUncertain()))
    await desk.finish(await desk.pages(), "Hi")
    assert board.told == (("2",), (("another room", "1"),))
    assert list(board.room.values()) == ["Hello", "Hello", "Hi"]


async def test_others_are_also_what_was_placed_before_a_message_came(store: Store) -> None:
    class Asked(Board):
        others: tuple[str, ...] = ()

        async def find(self, outbound: OutboundMessage) -> Placed | None:
            self.others = outbound.others
            return await super().find(outbound)

    desk = await desk_for(store, board := Asked())
    await desk.finish(await desk.pages(), "Hello")
    late = Desk(store, board)
    late.entry = Entry.of(board.id, written("ho", channel=board.id), 2, attempts=1)
    late.entry.received_at += 12 * 3_600_000
    await store.write(late.entry.accept())
    board.failures.append(("after", PlacementUncertain()))
    await late.finish(await late.pages(), "Hi")
    assert (board.others, list(board.room.values())) == (("1",), ["Hello", "Hi"])


async def test_a_complete_page_is_left_alone_but_after_a_crash(store: Store) -> None:
    desk = await desk_for(store, board := Board())
    pages = await desk.pages()
    for text in ("Hel", "HelloWor", "HelloWorldAga"):
        await pages.update(desk.answer(text), final=False)
    assert list(board.room.values()) == ["Hello", "World", "Aga…"]
    assert board.edits == 2, "each of the first two was completed once"
    await desk.finish(pages, "HelloWorldAgain")
    assert (list(board.room.values()), board.edits) == (["Hello", "World", "Again"], 3)
    await desk.store.write(*pages.intend(desk.answer("OtherWordsAgain")))
    again = await desk.pages(crashed=True)
    await again.place(desk.answer("OtherWordsAgain"))
    assert list(board.room.values()) == ["Other", "Words", "Again"]


async def test_a_channel_that_always_fails_unexpectedly_is_given_up_in_seconds(store: Store) -> None:
    failures = [("before", AttributeError("'bool' object has no attribute 'get'"))] * 20
    desk = await desk_for(store, board := Board(*failures))
    with pytest.raises(PlacementRefused, match="in an unexpected way"):
        await desk.finish(await desk.pages(), "Hello")
    assert len(board.failures) == 15


class Counting(Board):
    """Notes in which thread each message was cut into pages."""

    def __init__(self, *failures: tuple[str, Exception]) -> None:
        super().__init__(*failures)
        self.cut_in: list[int] = []

    def pages(self, message: Message, *, final: bool) -> Sequence[str]:
        self.cut_in.append(threading.get_ident())
        return [message.text[:WIDTH]]


@pytest.mark.parametrize(
    ("text", "at_once"), [("x" * 2_000, True), ("x" * 2_001, False), ("*" * 201, False), ("|\n" * 101, False)]
)
async def test_a_long_answer_is_cut_into_pages_off_the_event_loop(
    store: Store, text: str, at_once: bool
) -> None:
    board = Counting()
    desk = await desk_for(store, board)
    await desk.finish(await desk.pages(), text)
    assert [thread == threading.get_ident() for thread in board.cut_in] == [at_once]
    assert [*board.room.values()] == [text[:WIDTH]]


async def test_an_answer_is_cut_into_pages_once_however_often_it_is_tried(store: Store) -> None:
    board = Counting(*[("before", PlacementDeferred("busy", 0.0))] * 3)
    desk = await desk_for(store, board)
    await desk.finish(await desk.pages(), "x" * 3_000)
    assert len(board.cut_in) == 1
