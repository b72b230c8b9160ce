"""Delivery of answers: pictures and files, pages that are placed, edited and found again."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from channels.telegram import Options, create
from channels.telegram.api import Client
from channels.telegram.delivery import Delivery
from channels.telegram.fake import FakeTelegram, Figures, Rate
from channels.telegram.limits import RateLimiter
from channels.telegram.render import QUESTION, FilePage, Page, TextPage, pages_of
from gateway import Attachment, ImagePart, Message, Plugin, TextPart, Tool, ToolOutput, tool_from
from gateway.channel import Address, OutboundMessage, PlacementDeferred, PlacementMismatch
from gateway.delivery.pages import AnswerPages
from gateway.extensions.registry import ChannelRegistry
from gateway.store.inbox import Entry
from gateway.store.outbox import Outbox
from gateway.testing.chat import written
from gateway.testing.fake_models.script import Gate, Reply, Say, Use
from gateway.testing.fake_platform import FAULTS
from tests.channels.telegram.lab import FAST, Lab, lab, until
from tests.channels.telegram.pictures import png
from tests.recordings import MP3, WAV, Speaking, ogg_opus

pytestmark = pytest.mark.slow


class Painting(Plugin):
    """Plugin with a tool that returns a picture and a file."""

    name = "painting"

    def tools(self) -> Sequence[Tool]:
        async def paint() -> ToolOutput:
            """Paint a picture."""
            picture = Attachment("image/png", base64.b64encode(png()).decode(), "cat.png")
            notes = Attachment("text/plain", base64.b64encode(b"how it was made").decode(), "notes.txt")
            return ToolOutput("painted", attachments=(picture, notes))

        return [tool_from(paint)]


@pytest.mark.parametrize("private", [True, False])
async def test_complete_pages_of_a_long_answer_are_not_edited_again(
    tmp_path: Path, fake: FakeTelegram, private: bool
) -> None:
    """Each message is placed or completed once; only the last one is edited when the answer ends."""
    gates = [asyncio.Event() for _ in range(3)]
    pieces = [f"{number} " + "word " * 1_100 for number in range(4)]
    chat = fake.private() if private else fake.group("lab", "Ada", admin=True)
    async with lab(tmp_path, fake, groups="always") as running:
        first, *others = pieces
        running.models.then(
            Reply((Say(first), *(one for pair in zip(gates, others, strict=True) for one in pair_of(*pair))))
        )
        fake.say(chat, "tell me more")
        for number, gate in enumerate(gates, 1):
            await until(lambda number=number: len(fake.answers(chat)) >= number)
            gate.set()
        await running.settled()
        shown: dict[int, Any] = {}
        for call in fake.transcript.of("sendMessage", "editMessageText"):
            number, text = call.answer["message_id"], call.arguments["text"]
            assert shown.get(number) != text, "nothing is shown twice"
            shown[number] = text
        assert len(shown) == len(fake.answers(chat)) > 4
        assert " ".join(fake.answers(chat)).split() == "".join(pieces).split()
    fake.transcript.check()


def pair_of(gate: asyncio.Event, text: str) -> tuple[Gate, Say]:
    return Gate(gate), Say(text)


ODD: Sequence[Any] = (True, None, [], "odd", 7, {})


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("method", ["sendMessage", "editMessageText", "editMessageReplyMarkup"])
async def test_answers_of_an_unexpected_shape_neither_lose_nor_double_a_message(
    tmp_path: Path, fake: FakeTelegram, method: str, odd: Any
) -> None:
    chat = fake.private()
    fake.then("drop_after", method="sendMessage")
    fake.answer_next(method, *[odd] * 3)
    async with lab(tmp_path, fake, streaming=False) as running:
        fake.say(chat, "hello")
        await running.answers(chat, "You said: hello")
        assert await running.states() == ["done"]


@pytest.mark.parametrize("applied", [True, False])
async def test_a_telegram_that_never_shows_what_it_changed_is_asked_by_the_text(
    tmp_path: Path, fake: FakeTelegram, applied: bool
) -> None:
    chat, other = fake.private("ada"), fake.private("bob")
    fake.then("drop_after" if applied else "drop_before", method="sendMessage")
    fake.answer_next("editMessageReplyMarkup", *[True] * 200)
    async with lab(tmp_path, fake, streaming=False) as running:
        fake.say(chat, "hello")
        fake.say(other, "hi")
        await running.answers(other, "You said: hi")
        await running.answers(chat, "You said: hello")
        assert await running.states() == ["done", "done"]


async def test_a_token_that_is_refused_shows_at_once(tmp_path: Path, fake: FakeTelegram) -> None:
    chat, gate = fake.private(), asyncio.Event()
    async with lab(tmp_path, fake, streaming=False, settings={"limits": {"drain_seconds": 0}}) as running:
        running.models.then(Reply((Gate(gate), Say("Done."))))
        fake.say(chat, "hello")
        await until(lambda: running.models.requests)
        await until(lambda: running.gateway.health()["telegram"] == (True, ""))
        fake.token = "1:another"
        gate.set()
        await until(lambda: "rejects the token" in running.gateway.health()["telegram"][1])
        assert fake.transcript.calls[-1].method == "getUpdates", "the poll is still under way"


async def test_files_of_a_tool_are_uploaded(tmp_path: Path, fake: FakeTelegram) -> None:
    chat = fake.private()
    async with lab(tmp_path, fake, Painting()) as running:
        running.models.then(Reply((Use("paint"),), "tools"))
        fake.say(chat, "paint a cat")
        await until(lambda: any("document" in one.media for one in fake.messages(chat)))
        await running.settled()
    _, text, picture, notes, _ = fake.messages(chat)
    assert text.text.startswith("✓ paint")
    assert fake.world.files.data(picture.media["photo"][-1]["file_id"]) == png()
    assert fake.world.files.data(notes.media["document"]["file_id"]) == b"how it was made"
    fake.transcript.check()


@pytest.mark.parametrize("private", [True, False])
async def test_the_text_after_a_picture_is_streamed(
    tmp_path: Path, fake: FakeTelegram, private: bool
) -> None:
    chat = fake.private() if private else fake.group("lab", "Ada", admin=True)
    async with lab(tmp_path, fake, Painting(), groups="always") as running:
        gate = painting(running)
        fake.say(chat, "paint a cat")
        shown = ["before\n\n✓ paint", "photo", "document"]
        await until(lambda: growing(fake, chat) == [*shown, "after"])
        # The picture stands in the chat while the answer goes on.
        assert contents(fake, chat) == (shown if private else [*shown, "after"])
        gate.set()
        await running.settled()
    assert contents(fake, chat) == [*shown, "after it"]
    assert len(fake.transcript.of("sendPhoto", "sendDocument", "editMessageMedia")) == 2
    fake.transcript.check()


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("fault", ["drop_before", "drop_after", "slow_down", "none"])
@pytest.mark.parametrize("method", ["sendMessage", "sendPhoto", "sendDocument"])
async def test_a_crash_around_a_picture_neither_loses_nor_doubles_a_part(
    tmp_path: Path, fake: FakeTelegram, private: bool, fault: str, method: str
) -> None:
    chat = fake.private() if private else fake.group("lab", "Ada", admin=True)
    how: dict[str, Any] = {"groups": "always", "settings": {"limits": {"drain_seconds": 0}}}
    async with lab(tmp_path, fake, Painting(), **how) as running:
        fake.then(fault, method=method)
        painting(running)
        fake.say(chat, "paint a cat")
        # The tool is not repeated, as it may have had its effect: it has to have ended.
        await until(lambda: fake.transcript.of(method) and len(running.models.requests) == 2)
        running.gateway.parts.dispatcher.cancel()
    fake.clock.advance(60)
    async with lab(tmp_path, fake, Painting(), **how) as running:
        running.models.then(Reply((Say("after it"),)))
        await running.settled()
        assert await running.states() == ["done"]
    assert contents(fake, chat) == ["before\n\n✓ paint", "photo", "document", "after it"]
    assert not any(one.markup for one in fake.messages(chat))
    fake.transcript.check()


async def test_a_forbidden_picture_does_not_end_the_answer(tmp_path: Path, fake: FakeTelegram) -> None:
    chat = fake.private()
    fake.chat(chat).refuses_documents = True
    async with lab(tmp_path, fake, Painting()) as running:
        gate = painting(running)
        fake.say(chat, "paint a cat")
        refused = "⚠️ notes.txt could not be sent: not enough rights to send documents to the chat"
        shown = ["before\n\n✓ paint", "photo", refused]
        await until(lambda: growing(fake, chat) == [*shown, "after"])
        gate.set()
        await running.settled()
        assert await running.states() == ["done"]
    assert contents(fake, chat) == [*shown, "after it"]
    fake.transcript.check()


def painting(running: Lab) -> asyncio.Event:
    """Script an answer with a picture, and with text after it that waits for the event."""
    gate = asyncio.Event()
    running.models.then(
        Reply((Say("before"), Use("paint")), "tools"), Reply((Say("after"), Gate(gate), Say(" it")))
    )
    return gate


def contents(fake: FakeTelegram, chat: int) -> list[str]:
    """Return the texts of the bot's messages, and the kinds of those with files."""
    own = [one for one in fake.messages(chat) if one.sender.is_bot]
    return [next(iter(one.media), untimed(one.text)) for one in own]


def growing(fake: FakeTelegram, chat: int) -> list[str]:
    """Return what a user sees of an answer: messages and drafts."""
    return [*contents(fake, chat), *(draft.text for draft in fake.drafts(chat))]


def untimed(text: str) -> str:
    """Return a text without the durations of tools."""
    return re.sub(r" · [\d.]+ m?s", "", text)


SIZES = "# Sizes\n\n|a|b|\n|-|-|\n|1|2|"
GRID = "Sizes\n\na  b\n─  ─\n1  2"


def rich_of(fake: FakeTelegram, chat: int) -> list[list[str]]:
    """Return the kinds of blocks of the bot's messages; none for a text."""
    own = [one for one in fake.messages(chat) if one.sender.is_bot]
    return [[block["type"] for block in one.media.get("rich_message", {}).get("blocks", ())] for one in own]


@pytest.mark.parametrize("private", [True, False])
async def test_a_table_is_a_rich_message_also_while_it_grows(
    tmp_path: Path, fake: FakeTelegram, private: bool
) -> None:
    chat = fake.private() if private else fake.group("lab", "Ada", admin=True)
    async with lab(tmp_path, fake, groups="always") as running:
        gate = asyncio.Event()
        running.models.then(Reply((Say("They are:\n\n"), Gate(gate), Say(SIZES))))
        if not private:
            fake.then("none", "fail_after", method="editMessageText")
        fake.say(chat, "sizes?")
        await until(lambda: "They are:" in growing(fake, chat))
        gate.set()
        await running.settled()
        assert await running.states() == ["done"]
        running.models.then(Reply((Say(SIZES), Gate(second := asyncio.Event()), Say("\n|3|4|"))))
        fake.say(chat, "again")
        # The second answer grows as a rich message, too.
        await until(lambda: any(draft.rich for draft in fake.drafts(chat)) or len(rich_of(fake, chat)) == 2)
        second.set()
        await running.settled()
    assert rich_of(fake, chat) == [["paragraph", "heading", "table"], ["heading", "table"]]
    assert fake.answers(chat) == ["They are:\nSizes\na b\n1 2", "Sizes\na b\n1 2\n3 4"]
    fake.transcript.check()


@pytest.mark.parametrize("version", [(10, 0), (10, 1)])
@pytest.mark.parametrize("private", [True, False])
async def test_an_old_server_gets_a_grid(
    tmp_path: Path, fake: FakeTelegram, private: bool, version: tuple[int, int]
) -> None:
    chat = fake.private() if private else fake.group("lab", "Ada", admin=True)
    fake.world.bot_api = version
    async with lab(tmp_path, fake, groups="always") as running:
        for number in range(2):
            gate = asyncio.Event()
            running.models.then(Reply((Say("They are:\n\n"), Gate(gate), Say(SIZES))))
            fake.say(chat, "sizes?")
            await until(lambda: "They are:" in growing(fake, chat))
            gate.set()
            await running.answers(chat, *[f"They are:\n\n{GRID}"] * (number + 1))
    tried = [call for call in fake.transcript.calls if "rich_message" in call.arguments]
    assert len(tried) == 1, "it is not tried again"


async def test_rich_messages_can_be_switched_off(tmp_path: Path, fake: FakeTelegram) -> None:
    chat = fake.private()
    async with lab(tmp_path, fake, rich_messages=False) as running:
        running.models.then(Reply((Say(SIZES),)))
        fake.say(chat, "sizes?")
        await running.answers(chat, GRID)
    assert rich_of(fake, chat) == [[]]


async def test_a_rich_message_of_an_uncertain_send_is_found(fake: FakeTelegram) -> None:
    chat = fake.private()
    asked = fake.say(chat, "sizes?")
    [page] = pages_of(Message(session_id="s", role="assistant", parts=(TextPart(SIZES),)), final=True)
    lost = page_for(chat, page, nonce="1" * 24, watermark=str(asked))
    placed = await channel_of(fake).send(lost)
    restarted = channel_of(fake)
    assert await restarted.find(lost) == placed
    await restarted.edit(placed, lost)
    await restarted.edit(placed, replace(lost, page=TextPage("hi")))
    assert (rich_of(fake, chat), fake.answers(chat)) == ([[]], ["hi"])
    fake.transcript.check()


async def test_messages_of_a_group_and_of_its_supergroup_are_not_confused(fake: FakeTelegram) -> None:
    group = fake.group("Lab", "Ada", kind="group", admin=True)
    channel, page = channel_of(fake), page_for(group, TextPage("one"), nonce="1" * 24)
    first = await channel.send(page)
    new = fake.migrate(group)
    second = await channel.send(replace(page, page=TextPage("two")))
    await channel.edit(first, replace(page, page=TextPage("one more")))
    restarted = channel_of(fake)
    await restarted.edit(second, replace(page, page=TextPage("two more")))
    assert (fake.answers(group), fake.answers(new)) == (["one more"], ["two more"])
    # Telegram deletes nothing in the old group.
    await restarted.delete(first, page.address)
    await restarted.delete(second, page.address)
    assert (fake.answers(group), fake.answers(new)) == (["one more"], [])
    fake.transcript.check()


class Gallery(Plugin):
    """Plugin with a tool that returns pictures and files."""

    name = "gallery"

    def __init__(self, *files: bytes) -> None:
        self._files = files

    def tools(self) -> Sequence[Tool]:
        async def paint() -> ToolOutput:
            """Paint pictures."""
            kinds = ["image/png" if file.startswith(b"\x89PNG") else "text/plain" for file in self._files]
            encoded = [base64.b64encode(file).decode() for file in self._files]
            return ToolOutput("painted", attachments=tuple(map(Attachment, kinds, encoded)))

        return [tool_from(paint)]


PICTURES = [png(width) for width in (100, 200, 300)]


def pictures_shown(fake: FakeTelegram, chat: int) -> list[bytes]:
    """Return the files of the bot's messages in order, photos and documents."""
    media = [one.media for one in fake.messages(chat) if one.sender.is_bot and one.media]
    shown = [one["photo"][-1] if "photo" in one else one["document"] for one in media]
    return [fake.world.files.data(file["file_id"]) for file in shown]


async def test_pictures_of_an_answer_are_one_album(tmp_path: Path) -> None:
    """In a private chat and in a group: both wait for the limits of the platform at the same time."""
    async with asyncio.TaskGroup() as tasks:
        for private in (True, False):
            tasks.create_task(answer_with_albums(tmp_path / str(private), private=private))


async def answer_with_albums(directory: Path, *, private: bool) -> None:
    async with FakeTelegram(limits=True) as fake:
        chat = fake.private() if private else fake.group("lab", "Ada", admin=True)
        files = (*PICTURES, b"one", b"two", b"three")
        async with lab(directory, fake, Gallery(*files), groups="always") as running:
            gate = painting(running)
            asked = fake.say(chat, "paint")
            shown = ["before\n\n✓ paint", *["photo"] * 3, *["document"] * 3]
            await until(lambda: growing(fake, chat) == [*shown, "after"])
            gate.set()
            await running.settled()
        assert contents(fake, chat) == [*shown, "after it"]
        assert pictures_shown(fake, chat) == [*files]
        albums = [one.album for one in fake.messages(chat) if one.media]
        assert [albums.count(one) for one in dict.fromkeys(albums)] == [3, 3]
        assert len(fake.transcript.of("sendMediaGroup", "sendPhoto", "sendDocument")) == 2
        assert fake.messages(chat)[1].reply_to == (None if private else asked)
        fake.transcript.check()


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("fault", ["drop_before", "drop_after", "fail_after", "slow_down", "none"])
async def test_a_crash_around_an_album_neither_loses_nor_doubles_a_picture(
    tmp_path: Path, fake: FakeTelegram, private: bool, fault: str
) -> None:
    chat = fake.private() if private else fake.group("lab", "Ada", admin=True)
    how: dict[str, Any] = {"groups": "always", "settings": {"limits": {"drain_seconds": 0}}}
    async with lab(tmp_path, fake, Gallery(*PICTURES), **how) as running:
        fake.then(fault, method="sendMediaGroup")
        painting(running)
        fake.say(chat, "paint")
        await until(lambda: fake.transcript.of("sendMediaGroup"))
        running.gateway.parts.dispatcher.cancel()
    fake.clock.advance(60)
    async with lab(tmp_path, fake, Gallery(*PICTURES), **how) as running:
        running.models.then(Reply((Say("after it"),)))
        await running.settled()
        assert await running.states() == ["done"]
    assert contents(fake, chat) == ["before\n\n✓ paint", *["photo"] * 3, "after it"]
    assert pictures_shown(fake, chat) == PICTURES
    assert len({one.album for one in fake.messages(chat) if one.media}) == 1
    fake.transcript.check()


async def test_a_bad_picture_does_not_lose_the_others_of_its_album(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    chat = fake.private()
    pictures = (PICTURES[0], PICTURES[1][:-12], PICTURES[2])  # the second one is cut off
    async with lab(tmp_path, fake, Gallery(*pictures)) as running:
        running.models.then(Reply((Use("paint"),), "tools"), Reply((Say("Done."),)))
        fake.say(chat, "paint")
        await until(lambda: "Done." in fake.answers(chat))
        await running.settled()
    assert contents(fake, chat) == ["✓ paint", "photo", "document", "photo", "Done."]
    assert pictures_shown(fake, chat) == [*pictures]
    fake.transcript.check()


async def test_an_album_is_found_by_the_next_process(fake: FakeTelegram) -> None:
    chat = fake.private()
    asked = fake.say(chat, "paint")
    files = [
        page_for(chat, FilePage("photo", "a.png", data), nonce=str(number) * 24, watermark=str(asked))
        for number, data in enumerate(PICTURES)
    ]
    placed = await channel_of(fake).send_album(files)
    restarted = channel_of(fake)
    assert [await restarted.find(one) for one in files] == placed
    for one, page in zip(placed, files, strict=True):
        await restarted.edit(one, page)
    text = page_for(chat, TextPage("hi"), nonce="a" * 24, watermark=str(asked))
    assert await channel_of(fake).find(text) is None
    document = replace(files[0], page=FilePage("document", "a.txt", b"text"))
    with pytest.raises(PlacementMismatch):
        await restarted.edit(placed[0], document)
    assert pictures_shown(fake, chat) == PICTURES
    fake.transcript.check()


@pytest.mark.parametrize("private", [True, False])
async def test_names_are_escaped_only_where_they_could_notify_a_user(
    tmp_path: Path, fake: FakeTelegram, private: bool
) -> None:
    chat = fake.private() if private else fake.group("lab", "Ada", admin=True)
    async with lab(tmp_path, fake, groups="always") as running:
        gate = asyncio.Event()
        running.models.then(Reply((Say("I met **@ada**"), Gate(gate), Say(" and @bob"))))
        fake.then("drop_after", method="sendMessage")
        fake.say(chat, "who was there?")
        name = "@" if private else "@\u2060"
        await until(lambda: f"I met {name}ada" in growing(fake, chat))
        gate.set()
        await running.answers(chat, f"I met {name}ada and {name}bob")
    [stands] = [one for one in fake.messages(chat) if one.sender.is_bot]
    [bold] = [one for one in stands.entities if one["type"] == "bold"]
    assert stands.text[bold["offset"] :][: bold["length"]] == f"{name}ada"
    fake.transcript.check()


@pytest.mark.parametrize("final", [True, False])
async def test_a_page_that_its_message_cannot_show_takes_the_place_of_that_message(
    fake: FakeTelegram, final: bool
) -> None:
    """An answer that is made again may have a text where a picture was."""
    chat = fake.private()
    channel = channel_of(fake)
    picture = page_for(chat, FilePage("photo", "cat.png", png()), nonce="0" * 24)
    placed = await channel.send(picture)
    text = replace(picture, page=TextPage("hi"), final=final)
    with pytest.raises(PlacementMismatch):
        await channel.edit(placed, text)
    spoken = replace(picture, page=FilePage("voice", "a.ogg", ogg_opus()))
    placed = await channel.send(spoken)
    with pytest.raises(PlacementMismatch):
        await channel.edit(placed, picture)
    placed = await channel.send(text)
    await channel.edit(placed, picture)
    assert contents(fake, chat) == ["photo", "voice", "photo"]


async def test_an_answer_without_the_picture_it_had_replaces_it(tmp_path: Path, fake: FakeTelegram) -> None:
    """A failed model may have made pictures that the answer of its fallback does not have."""
    chat = fake.private()
    address = Address("telegram", "123456789", str(chat))
    asked = replace(written("hi", channel="telegram"), address=address)
    picture = ImagePart(base64.b64encode(png()).decode(), "image/png")
    first = (picture, TextPart("one"), picture, TextPart("two"))
    async with lab(tmp_path, fake) as running:
        channels = ChannelRegistry()
        channels.register(channel := channel_of(fake))
        entry = Entry.of("telegram", asked, 1, attempts=1)
        await running.gateway.parts.store.write(entry.accept())
        pages = AnswerPages(Outbox(running.gateway.parts.store, channels), channel, entry)
        for parts, wanted in ((first, ["photo", "one", "photo", "two"]), ((TextPart("three"),), ["three"])):
            answer = Message(id=entry.answer_id, session_id="s", role="assistant", parts=parts)
            await pages.update(answer, final=parts is not first)
            assert contents(fake, chat) == wanted
    fake.transcript.check()


async def test_uploads_that_go_wrong_are_made_good_and_not_doubled(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    chat = fake.private()
    async with lab(tmp_path, fake, Painting(), streaming=False) as running:
        fake.then(*FAULTS, method="sendPhoto")
        fake.then("drop_after", method="sendDocument")
        running.models.then(Reply((Use("paint"),), "tools"))
        fake.say(chat, "paint a cat")
        await until(lambda: any("document" in one.media for one in fake.messages(chat)))
        await running.settled()
    kinds = [next(iter(one.media), "text") for one in fake.messages(chat)]
    assert kinds == ["text", "text", "photo", "document", "text"]
    fake.transcript.check()


async def test_speech_of_a_tool_is_a_voice_message(tmp_path: Path, fake: FakeTelegram) -> None:
    chat = fake.private()
    said = ("audio/ogg; codecs=opus", ogg_opus(2.4), "said.ogg")
    sung, bell = ("audio/mpeg", MP3, "sung"), ("audio/wav", WAV, "bell.wav")
    async with lab(tmp_path, fake, Speaking(said, sung, bell)) as running:
        running.models.then(Reply((Use("speak"),), "tools"))
        fake.say(chat, "say it aloud")
        await until(lambda: any("audio" in one.media for one in fake.messages(chat)))
        await running.settled()
    _, _, *files, _ = fake.messages(chat)
    kinds = [next(iter(one.media)) for one in files]
    assert kinds == ["voice", "voice", "audio"]
    shown = [one.media[kind] for one, kind in zip(files, kinds, strict=True)]
    assert [fake.world.files.data(one["file_id"]) for one in shown] == [said[1], MP3, WAV]
    assert [one["duration"] for one in shown] == [2, 0, 0]
    fake.transcript.check()


async def test_a_user_who_refuses_voice_messages_gets_a_file(tmp_path: Path, fake: FakeTelegram) -> None:
    chat = fake.private()
    fake.chat(chat).refuses_voice = True
    async with lab(tmp_path, fake, Speaking(("audio/ogg", ogg_opus(), "said.ogg"))) as running:
        running.models.then(Reply((Use("speak"),), "tools"))
        fake.say(chat, "say it aloud")
        await until(lambda: any("document" in one.media for one in fake.messages(chat)))
        await running.settled()
    *_, file, _ = fake.messages(chat)
    assert file.media["document"]["file_name"] == "said.ogg"
    assert fake.world.files.data(file.media["document"]["file_id"]) == ogg_opus()
    fake.transcript.check()


async def test_a_voice_message_that_goes_wrong_is_made_good_and_not_doubled(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    chat = fake.private()
    spoken = Speaking(("audio/ogg", ogg_opus(), "said.ogg"), ("audio/flac", WAV, "sung.flac"))
    async with lab(tmp_path, fake, spoken, streaming=False) as running:
        fake.then(*FAULTS, method="sendVoice")
        fake.then("drop_after", method="sendAudio")
        running.models.then(Reply((Use("speak"),), "tools"))
        fake.say(chat, "say it aloud")
        await until(lambda: any("audio" in one.media for one in fake.messages(chat)))
        await running.settled()
        assert await running.states() == ["done"]
    kinds = [next(iter(one.media), "text") for one in fake.messages(chat)]
    assert kinds == ["text", "text", "voice", "audio", "text"]
    fake.transcript.check()


async def test_a_page_that_was_deleted_is_not_an_error(tmp_path: Path, fake: FakeTelegram) -> None:
    group = fake.group("Lab", "Ada", admin=True)
    async with lab(tmp_path, fake, Painting(), groups="always") as running:
        running.models.then(Reply((Use("paint"),), "tools"))
        fake.say(group, "paint a cat", "Ada")
        await until(lambda: fake.answers(group))
        first = next(one.id for one in fake.messages(group) if one.sender.is_bot)
        fake.delete(group, first)
        await running.settled()
        assert await running.states() == ["done"]
    fake.transcript.check()


async def test_an_answer_whose_message_was_deleted_is_placed_again_and_once(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    go_on = asyncio.Event()
    group = fake.group("Lab", "Ada", admin=True)
    async with lab(tmp_path, fake, groups="always") as running:
        running.models.then(Reply((Say("One "), Gate(go_on), Say("two."))))
        fake.say(group, "count", "Ada")
        await until(lambda: fake.answers(group) == ["One"])
        shown = next(one.id for one in fake.messages(group) if one.sender.is_bot)
        fake.delete(group, shown)
        go_on.set()
        await running.answers(group, "One two.")
        assert await running.states() == ["done"]
    fake.transcript.check()


async def test_a_text_is_not_found_in_a_message_with_a_file(fake: FakeTelegram) -> None:
    """The file may belong to another conversation of the same chat; it cannot be edited into a text."""
    chat = fake.private()
    asked = fake.say(chat, "hello")
    picture, text = FilePage("photo", "cat.png", png()), TextPage("hi")
    await channel_of(fake).send(page_for(chat, picture, nonce="0" * 24))
    restarted = channel_of(fake)
    lost = page_for(chat, text, nonce="1" * 24, watermark=str(asked))
    assert await restarted.find(lost) is None
    placed = await restarted.send(lost)
    assert await channel_of(fake).find(lost) == placed
    assert [one.markup for one in fake.messages(chat)[:2]] == [None, None]


async def test_a_search_reads_no_message_that_an_earlier_one_read(fake: FakeTelegram) -> None:
    chat = fake.private()
    asked = fake.say(chat, "hello")
    question = TextPage(f"{QUESTION} May I?")
    for number in range(3):
        await channel_of(fake).send(page_for(chat, question, nonce=str(number) * 24))
    restarted = channel_of(fake)
    first = page_for(chat, TextPage("one"), nonce="a" * 24, watermark=str(asked))
    second = page_for(chat, TextPage("two"), nonce="b" * 24, watermark=str(asked))
    assert await restarted.find(first) is None
    read = {call.arguments.get("message_id") for call in fake.transcript.calls}
    before = len(fake.transcript.calls)
    assert await restarted.find(second) is None
    again = [call.arguments.get("message_id") for call in fake.transcript.calls[before:]]
    assert {asked + 1, asked + 2, asked + 3} <= read
    assert not {asked + 1, asked + 2, asked + 3} & {*again}


async def test_a_search_ends_in_a_group_that_takes_one_call_at_a_time() -> None:
    """Reading a message and adding its button are two calls, and only one is allowed after each wait."""
    async with FakeTelegram(limits=True) as fake:
        group = fake.group("Lab", "Ada", admin=True)
        lost = page_for(group, TextPage("hi"), nonce="0" * 24, watermark=str(fake.say(group, "hello", "Ada")))
        placed = await channel_of(fake).send(lost)
        fake.limits.figures = Figures(group=Rate(1, 1))
        restarted = channel_of(fake)
        for _ in range(8):
            try:
                found = await restarted.find(lost)
            except PlacementDeferred as deferred:
                await asyncio.sleep(deferred.seconds or 0)
            else:
                break
        assert found == placed


async def test_a_voice_message_that_is_found_again_keeps_no_button(fake: FakeTelegram) -> None:
    chat = fake.private()
    asked = fake.say(chat, "hello")
    spoken = page_for(chat, FilePage("voice", "a.ogg", ogg_opus()), nonce="0" * 24, watermark=str(asked))
    placed = await channel_of(fake).send(spoken)
    restarted = channel_of(fake)
    assert await restarted.find(spoken) == placed
    await restarted.edit(placed, spoken)
    assert [one.markup for one in fake.messages(chat)] == [None, None]


async def test_a_text_whose_entities_are_refused_is_sent_without_them(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    chat = fake.private()
    channel = channel_of(fake)
    address = Address("telegram", "123456789", str(chat))
    wrong = ({"type": "text_link", "offset": 0, "length": 2, "url": "http://localhost/"},)
    message = Message(session_id="s", role="assistant", parts=(TextPart("hi"),))
    page = TextPage("hi", wrong)
    placed = await channel.send(OutboundMessage(address=address, message=message, page=page, nonce="0" * 24))
    [stands] = fake.messages(chat)
    assert (placed.platform_id, stands.text, stands.entities) == (str(stands.id), "hi", ())


async def test_a_draft_that_does_not_grow_stays(fake: FakeTelegram) -> None:
    chat = fake.private()
    channel = channel_of(fake)
    address = Address("telegram", "123456789", str(chat), reply_to="1")
    message = Message(session_id="s", role="assistant", parts=(TextPart("wait"),))
    page = TextPage("wait")
    outbound = OutboundMessage(address=address, message=message, page=page, nonce="1" * 24, final=False)
    await channel.draft(outbound)
    fake.clock.advance(31)
    assert fake.drafts(chat) == []
    for _ in range(5):
        await channel.typing(address)
    assert [draft.text for draft in fake.drafts(chat)] == ["wait"]
    await channel.send(replace(outbound, final=True))
    for _ in range(6):
        await channel.typing(address)
    assert fake.drafts(chat) == []


async def test_no_preview_of_a_link_is_ever_loaded(tmp_path: Path, fake: FakeTelegram) -> None:
    group = fake.group("Lab", "Ada", admin=True)
    async with lab(tmp_path, fake, groups="always") as running:
        gate = asyncio.Event()
        running.models.then(Reply((Say("https://example.org/?s=secret "), Gate(gate), Say("and more"))))
        fake.say(group, "links", "Ada")
        await until(lambda: fake.answers(group))
        gate.set()
        await running.answers(group, "https://example.org/?s=secret and more")
    calls = fake.transcript.of("sendMessage", "editMessageText")
    assert {call.method for call in calls} == {"sendMessage", "editMessageText"}
    assert all(call.arguments["link_preview_options"] == {"is_disabled": True} for call in calls)
    fake.transcript.check()


def page_for(chat: int, page: Page, nonce: str, watermark: str | None = None) -> OutboundMessage:
    address = Address("telegram", "123456789", str(chat))
    message = Message(session_id="s", role="assistant", parts=(TextPart("hi"),))
    return OutboundMessage(
        address=address, message=message, page=page, part=1, nonce=nonce, watermark=watermark
    )


def channel_of(fake: FakeTelegram) -> Any:
    """Return a channel without a gateway, which it does not need to send messages."""
    pace = 1 if fake.limits.on else FAST
    how: dict[str, Any] = {"token": fake.token, "api_base_url": fake.url, "pace": pace}
    host: Any = None
    return create(host, "telegram", Options(**how))


async def test_after_a_cancelled_call_the_next_one_waits() -> None:
    called = asyncio.Event()

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        called.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(never, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        client, pace = Client("1:abc", f"http://{host}:{port}"), RateLimiter()
        async with client.connected(), asyncio.TaskGroup() as tasks:
            typing = tasks.create_task(Delivery(client, pace).call_best_effort("sendChatAction", chat_id=1))
            await called.wait()
            assert pace.held("sendChatAction") == 0
            typing.cancel()
        assert 0 < pace.held("sendChatAction") <= 1
