"""Intake of messages, files, edits and repeated updates, and of invalid ones."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from channels.telegram.fake import FakeTelegram
from channels.telegram.files import FileDownloader, named
from channels.telegram.inflow import Inflow, State
from channels.telegram.updates.history import History
from channels.telegram.updates.received import ReceivedMessage
from gateway.channel import Cursor, InboundMessage
from gateway.testing.fake_models.script import Gate, Reply, Say
from tests.channels.telegram.lab import lab, until
from tests.channels.telegram.pictures import png
from tests.channels.telegram.recorded import ME, payload
from tests.documents import nested_bomb, pdf
from tests.recordings import Hearing, ogg_opus
from tests.virtual_time import VirtualTimeLoop

pytestmark = pytest.mark.slow


async def test_updates_that_come_twice_or_in_disorder_are_answered_once_and_in_order(tmp_path: Path) -> None:
    async with FakeTelegram(repeats=1) as fake:
        chat = fake.private()
        for number in range(5):
            fake.say(chat, f"{number}")
        fake.reorder()
        async with lab(tmp_path, fake, streaming=False) as running:
            await running.answers(chat, *(f"You said: {number}" for number in range(5)))
            assert await running.states() == ["done"] * 5
        fake.transcript.check()


async def test_a_chat_in_which_hundreds_of_messages_wait_holds_no_other_chat_up(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    gate = asyncio.Event()
    busy, quiet = fake.private("ada"), fake.private("bob")
    async with lab(tmp_path, fake, streaming=False, pace=100) as running:
        running.models.then(Reply((Gate(gate), Say("Done."))))
        for number in range(300):
            fake.say(busy, f"{number}")
        fake.say(quiet, "hello")
        await until(lambda: fake.answers(quiet) == ["You said: hello"])
        await until(lambda: not fake.world.updates.waiting)
        mailbox = running.gateway.parts.dispatcher.mailbox(f"telegram:{fake.token.partition(':')[0]}:{busy}")
        assert mailbox is not None
        assert (len(mailbox.entries), mailbox.stored.total()) == (50, 200)
        gate.set()
        await running.settled()
        notice, *answers = fake.answers(busy)[1:]
        assert notice.startswith("Too many messages are waiting in this chat")
        assert answers == [f"You said: {number}" for number in range(1, 250)]
    fake.transcript.check()


async def test_messages_during_an_outage_are_answered(tmp_path: Path, fake: FakeTelegram) -> None:
    chat = fake.private()
    async with lab(tmp_path, fake) as running:
        fake.say(chat, "one")
        await running.answers(chat, "You said: one")
    fake.say(chat, "two")
    fake.say(chat, "three")
    async with lab(tmp_path, fake) as running:
        await running.answers(chat, "You said: one", "You said: two", "You said: three")
    fake.transcript.check()


async def test_a_platform_that_drops_every_connection_is_reached_again(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    chat = fake.private()
    async with lab(tmp_path, fake) as running:
        await until(lambda: fake.world.updates.polled)
        fake.then("fail_before", "drop_before", method="getUpdates")
        fake.drop_sockets()
        fake.say(chat, "hello")
        await running.answers(chat, "You said: hello")
        assert running.gateway.health()["telegram"] == (True, "")
    fake.transcript.check()


async def test_whether_the_platform_answers_is_asked_without_waiting(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    async with lab(tmp_path, fake) as running:
        await until(lambda: running.gateway.health()["telegram"] == (True, ""))
        fake.then("fail_before", method="getUpdates")
        fake.drop_sockets()
        await until(lambda: len(fake.transcript.of("getUpdates")) >= 3)
        await until(lambda: running.gateway.health()["telegram"] == (True, ""))
        assert [call.arguments.get("timeout", 0) for call in fake.transcript.of("getUpdates")] == [0, 0, 0]
    fake.transcript.check()


async def test_updates_of_an_unexpected_shape_are_fetched_again_later(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    chat = fake.private()
    fake.answer_next("getUpdates", True, {"odd": 1})
    async with lab(tmp_path, fake) as running:
        fake.say(chat, "hello")
        await until(lambda: "not a list" in running.gateway.health()["telegram"][1])
        await running.answers(chat, "You said: hello")
        assert running.gateway.health()["telegram"] == (True, "")
    fake.transcript.check()


async def test_numbers_of_updates_may_jump_back(tmp_path: Path, fake: FakeTelegram) -> None:
    chat = fake.private()
    async with lab(tmp_path, fake) as running:
        fake.say(chat, "one")
        await running.answers(chat, "You said: one")
        fake.jump(5)
        fake.say(chat, "two")
        await running.answers(chat, "You said: one", "You said: two")
        fake.clock.advance(8 * 86_400)
        fake.jump(700_000_001)
        fake.say(chat, "three")
        await running.answers(chat, "You said: one", "You said: two", "You said: three")
    fake.transcript.check()


POISON: list[dict[str, Any]] = [
    {},
    {"message": None},
    {"message": 7},
    {"message": {"message_id": "x", "chat": {}}},
    {"message": {"message_id": 10**30, "chat": {"id": 1, "type": "private"}, "text": "?"}},
    {"message": {"message_id": 1, "chat": {"id": 1, "type": "private"}, "date": 1, "text": ["?"]}},
    {"edited_message": {"message_id": 1}},
    {"callback_query": {"id": 1}},
    {"stopped_message_generation": "now"},
    {"brand_new": {"deep": [[[[[[[[[[]]]]]]]]]]}},
]


async def test_updates_that_cannot_be_read_are_set_aside(tmp_path: Path, fake: FakeTelegram) -> None:
    chat = fake.private()
    async with lab(tmp_path, fake) as running:
        for content in POISON:
            fake.deliver_raw(content)
        fake.say(chat, "hello")
        await running.answers(chat, "You said: hello")
        assert len(await running.quarantined()) == 7
    fake.transcript.check()


async def test_an_edited_message_is_answered_again(tmp_path: Path, fake: FakeTelegram) -> None:
    chat = fake.private()
    async with lab(tmp_path, fake) as running:
        said = fake.say(chat, "tow plus two")
        await running.answers(chat, "You said: tow plus two")
        fake.edit(chat, said, "two plus two")
        await running.answers(chat, "You said: tow plus two", "You said: two plus two")
        assert [
            m["content"] for m in running.models.requests[-1].body["messages"] if m["role"] == "user"
        ] == ["two plus two"]
        fake.edit(chat, said, "/help")
        await until(lambda: len(fake.answers(chat)) == 3)
        assert fake.answers(chat)[-1] == "You said: Edited: /help"
        await running.settled()
    fake.transcript.check()


async def test_edits_can_be_ignored(tmp_path: Path, fake: FakeTelegram) -> None:
    chat = fake.private()
    async with lab(tmp_path, fake, edits="ignore") as running:
        said = fake.say(chat, "one")
        await running.answers(chat, "You said: one")
        fake.edit(chat, said, "won")
        fake.say(chat, "two")
        await running.answers(chat, "You said: one", "You said: two")
    fake.transcript.check()


async def test_a_picture_reaches_the_model(tmp_path: Path, fake: FakeTelegram) -> None:
    chat = fake.private()
    async with lab(tmp_path, fake) as running:
        fake.send(chat, png(), caption="what is this?")
        await running.answers(chat, "You said: what is this?")
        sent = json.dumps(running.models.requests[-1].body["messages"])
    assert base64.b64encode(png()).decode() in sent
    fake.transcript.check()


async def test_a_text_file_reaches_the_model_under_a_safe_name(tmp_path: Path, fake: FakeTelegram) -> None:
    chat = fake.private()
    async with lab(tmp_path, fake) as running:
        fake.send(chat, b"x = 1\n", kind="document", name="../../etc/x.py", mime="text/x-python")
        await until(lambda: running.models.requests)
        await running.settled()
        sent = json.dumps(running.models.requests[-1].body["messages"])
    assert "x = 1" in sent
    assert "x.py" in sent
    assert ".." not in sent
    fake.transcript.check()


async def test_the_text_of_a_document_reaches_the_model(tmp_path: Path, fake: FakeTelegram) -> None:
    chat = fake.private()
    async with lab(tmp_path, fake) as running:
        fake.send(chat, pdf("Revenue was 42"), kind="document", name="report.pdf", mime="application/pdf")
        await until(lambda: running.models.requests)
        await running.settled()
        fake.send(chat, nested_bomb(1_000_000_000), kind="document", name="bomb.pdf", mime="application/pdf")
        await until(lambda: len(running.models.requests) == 2)
        await running.settled()
        first, second = (json.dumps(request.body["messages"]) for request in running.models.requests)
    assert "report.pdf" in first
    assert "Revenue was 42" in first
    assert "[bomb.pdf: it is damaged or too complex, and cannot be read]" in second
    fake.transcript.check()


async def test_a_file_that_is_too_large_is_replaced_by_a_note(tmp_path: Path, fake: FakeTelegram) -> None:
    chat = fake.private()
    async with lab(tmp_path, fake, file_bytes=100) as running:
        fake.send(chat, b"x" * 101, kind="document", name="big.txt")
        await running.answers(chat, "You said: [big.txt: it has more than 100 bytes]")
    fake.transcript.check()


async def test_a_voice_message_is_audio(tmp_path: Path, fake: FakeTelegram) -> None:
    chat = fake.private()
    async with lab(tmp_path, fake) as running:
        fake.send(chat, b"OggS...", kind="voice")
        await until(lambda: fake.answers(chat))
        await running.settled()
        assert "cannot listen" in fake.answers(chat)[0]
    fake.transcript.check()


async def test_a_voice_message_reaches_the_model(tmp_path: Path, fake: FakeTelegram) -> None:
    chat = fake.private()
    async with lab(tmp_path, fake, Hearing()) as running:
        fake.send(chat, ogg_opus(), kind="voice", caption="both:")
        await running.answers(chat, f"You said: both: audio data:audio/ogg {len(ogg_opus())}")
    fake.transcript.check()


async def test_an_album_is_one_message(tmp_path: Path, fake: FakeTelegram) -> None:
    chat = fake.private()
    pictures = [png(30 + n, 20) for n in range(3)]
    async with lab(tmp_path, fake) as running:
        fake.album(chat, pictures, caption="three of them")
        await running.answers(chat, "You said: three of them")
        sent = json.dumps(running.models.requests[-1].body["messages"])
        assert all(base64.b64encode(picture).decode() in sent for picture in pictures)
        assert await running.states() == ["done"]
    fake.transcript.check()


async def test_an_edited_caption_brings_the_whole_album_again(tmp_path: Path, fake: FakeTelegram) -> None:
    """Telegram sends only the picture whose caption was edited."""
    chat = fake.private()
    pictures = [png(30 + n, 20) for n in range(3)]
    async with lab(tmp_path, fake) as running:
        first, second, _ = fake.album(chat, pictures, caption="three of then")
        await running.answers(chat, "You said: three of then")
        fake.edit(chat, first, "three of them")
        await running.answers(chat, "You said: three of then", "You said: three of them")
        fake.edit(chat, second, "and the best")
        await until(lambda: len(fake.answers(chat)) == 3)
        assert fake.answers(chat)[-1] == "You said: three of them\nand the best"
        (asked,) = [m for m in running.models.requests[-1].body["messages"] if m["role"] == "user"]
        assert all(base64.b64encode(picture).decode() in json.dumps(asked) for picture in pictures)
        await running.settled()
    fake.transcript.check()


async def test_a_caption_that_was_edited_during_an_outage_belongs_to_its_album(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    chat = fake.private()
    async with lab(tmp_path, fake):
        pass
    first, _ = fake.album(chat, [png(), png(40, 40)], caption="tow")
    fake.edit(chat, first, "two")
    async with lab(tmp_path, fake) as running:
        await running.answers(chat, "You said: two")
        (asked,) = [m for m in running.models.requests[-1].body["messages"] if m["role"] == "user"]
        assert base64.b64encode(png(40, 40)).decode() in json.dumps(asked)
        await running.settled()
    fake.transcript.check()


async def test_an_album_survives_a_restart_before_it_is_complete(tmp_path: Path, fake: FakeTelegram) -> None:
    chat = fake.private()
    async with lab(tmp_path, fake):
        fake.album(chat, [png(), png(40, 40)], caption="two")
        await until(lambda: not fake.world.updates.waiting)
    async with lab(tmp_path, fake) as running:
        await running.answers(chat, "You said: two")
        assert await running.states() == ["done"]
    fake.transcript.check()


def test_an_album_waits_for_the_pieces_that_come_after_a_restart_or_an_outage() -> None:
    taken: list[InboundMessage] = []

    async def receive(*messages: InboundMessage, **_: object) -> tuple[()]:
        taken.extend(messages)
        return ()

    class NoFiles:
        async def complete(self, messages: Sequence[ReceivedMessage]) -> list[InboundMessage]:
            return [named(one) for one in messages]

    def piece(number: int) -> dict[str, Any]:
        raw = payload("album")
        raw["update_id"] += number
        raw["message"]["message_id"] += number
        return raw

    async def follow() -> list[int]:
        none = cast("Any", None)
        files, history = cast("FileDownloader", NoFiles()), History(topics=True)
        inflow = Inflow(
            receive, ME, files, history, lambda _: "answer", lambda *_: None, none, none, none, none, {}
        )
        state = msgspec.json.encode(State(albums=(piece(0),))).decode()
        await inflow.restore([Cursor(str(ME.id), state)])
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(inflow.run())
            counts: list[int] = []
            for number in (1, 2):
                # Telegram cannot be asked for a minute: the other piece may be waiting there.
                await asyncio.sleep(60)
                counts.append(len(taken))
                await inflow.take([piece(number)])
                inflow.caught_up()
                if number == 1:
                    inflow.fell_behind()
            await asyncio.sleep(2)
            running.cancel()
        return [*counts, len(taken)]

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(follow()) == [0, 0, 1]


async def test_what_follows_an_album_is_answered_after_it(tmp_path: Path, fake: FakeTelegram) -> None:
    chat = fake.private()
    async with lab(tmp_path, fake, streaming=False) as running:
        fake.album(chat, [png(), png(40, 40)], caption="two")
        fake.say(chat, "and?")
        await running.answers(chat, "You said: two", "You said: and?")
    fake.transcript.check()


async def test_commands_are_offered_and_understood(tmp_path: Path, fake: FakeTelegram) -> None:
    chat = fake.private()
    async with lab(tmp_path, fake) as running:
        fake.say(chat, "/status")
        await until(lambda: fake.answers(chat))
        assert "• session telegram:" in fake.answers(chat)[0]
        fake.say(chat, "/start")
        await until(lambda: len(fake.answers(chat)) == 2)
        assert "/help Show the commands" in fake.answers(chat)[1]
        [commands] = fake.world.commands.values()
        assert {"command": "help", "description": "Show the commands"} in commands
        await running.settled()
    fake.transcript.check()


async def test_004_t08_a_chat_is_forked_at_the_message_that_the_command_replies_to(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    chat = fake.private()
    async with lab(tmp_path, fake) as running:
        for count, text in enumerate(("one", "two", "three"), 1):
            asked = fake.say(chat, text)
            await until(lambda count=count: len(fake.answers(chat)) == count)
            await running.settled()
        first = next(one.id for one in fake.messages(chat) if one.text == "You said: one")
        fake.say(chat, "/fork", reply_to=first)
        await until(lambda: len(fake.answers(chat)) == 4)
        assert "that ends at the message you replied to" in fake.answers(chat)[3]
        fake.say(chat, "four")
        await until(lambda: len(fake.answers(chat)) == 5)
        await running.settled()
        [fork] = [one for one in running.gateway.parts.sessions.live() if one.row.parent]
        texts = [message.text for message in fork.messages()]
        assert texts == ["one", "You said: one", "four", "You said: four"]
        fake.say(chat, "/fork back")
        await until(lambda: len(fake.answers(chat)) == 6)
        # At a question, the copy ends before it.
        fake.say(chat, "/fork", reply_to=asked)
        await until(lambda: len(fake.answers(chat)) == 7)
        await running.settled()
        rows = await running.gateway.parts.sessions.list()
        assert sorted(row.messages for row in rows if row.parent) == [4, 6]  # one with `/fork back`
    fake.transcript.check()


async def test_forwarded_words_are_not_a_command(tmp_path: Path, fake: FakeTelegram) -> None:
    chat = fake.private()
    async with lab(tmp_path, fake) as running:
        forwarded = {
            "message_id": 4711,
            "date": 1,
            "chat": {"id": chat, "type": "private"},
            "from": {"id": chat, "is_bot": False, "first_name": "Ada"},
            "forward_origin": {"type": "hidden_user", "date": 1, "sender_user_name": "Eve"},
            "text": "/new",
            "entities": [{"type": "bot_command", "offset": 0, "length": 4}],
        }
        fake.deliver_raw({"message": forwarded})
        await running.answers(chat, "You said: [Forwarded from Eve]\n\n/new")
    fake.transcript.check()


async def test_a_long_answer_is_several_messages(tmp_path: Path, fake: FakeTelegram) -> None:
    chat = fake.private()
    words = " ".join(f"word{number}" for number in range(1500))
    async with lab(tmp_path, fake) as running:
        running.models.then(Reply((Say(words),)))
        fake.say(chat, "much")
        await until(lambda: len(fake.answers(chat)) == 4)
        await running.settled()
    assert " ".join(fake.answers(chat)).split() == words.split()
    fake.transcript.check()


@pytest.mark.parametrize("pages", [1, 2])
async def test_a_very_long_answer_comes_as_a_file(tmp_path: Path, fake: FakeTelegram, pages: int) -> None:
    chat = fake.private()
    words = " ".join(f"word{number}" for number in range(1500))
    async with lab(tmp_path, fake, pages=pages) as running:
        running.models.then(Reply((Say(words),)))
        fake.say(chat, "much")
        await until(lambda: any("document" in one.media for one in fake.messages(chat)))
        await running.settled()
    shown = fake.messages(chat)[-1].media["document"]
    assert fake.world.files.data(shown["file_id"]) == words.encode()
    assert len(fake.answers(chat)) == pages + 1
    fake.transcript.check()
