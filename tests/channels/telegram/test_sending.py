"""Pictures and files that answers bring, and pages that are placed and edited."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from channels.telegram import Options, create
from channels.telegram.api import Client
from channels.telegram.courier import Courier
from channels.telegram.fake import FakeTelegram
from channels.telegram.pace import Pace
from channels.telegram.render import TextPage
from gateway import (
    Address,
    Attachment,
    Message,
    OutboundMessage,
    Plugin,
    TextPart,
    Tool,
    ToolOutput,
    tool_from,
)
from gateway.testing.faults import FAULTS
from gateway.testing.script import Gate, Reply, Say, Use
from tests.channels.telegram.lab import lab, until
from tests.channels.telegram.pictures import png
from tests.recordings import MP3, WAV, Speaking, ogg_opus


class Painting(Plugin):
    """A tool that brings a picture and a file."""

    name = "painting"

    def tools(self) -> Sequence[Tool]:
        async def paint() -> ToolOutput:
            """Paint a picture."""
            picture = Attachment("image/png", base64.b64encode(png()).decode(), "cat.png")
            notes = Attachment("text/plain", base64.b64encode(b"how it was made").decode(), "notes.txt")
            return ToolOutput("painted", attachments=(picture, notes))

        return [tool_from(paint)]


async def test_what_a_tool_made_comes_as_uploads(tmp_path: Path, fake: FakeTelegram) -> None:
    chat = fake.private()
    async with lab(tmp_path, fake, Painting()) as running:
        running.models.then(Reply((Use("paint"),), "tools"))
        fake.say(chat, "paint a cat")
        await until(lambda: any("document" in one.media for one in fake.messages(chat)))
        await running.settled()
    _, text, picture, notes = fake.messages(chat)
    assert text.text.startswith("✓ paint")
    assert fake.world.files.data(picture.media["photo"][-1]["file_id"]) == png()
    assert fake.world.files.data(notes.media["document"]["file_id"]) == b"how it was made"
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
    assert kinds == ["text", "text", "photo", "document"]
    fake.transcript.check()


async def test_what_is_spoken_comes_as_a_voice_message(tmp_path: Path, fake: FakeTelegram) -> None:
    chat = fake.private()
    said = ("audio/ogg; codecs=opus", ogg_opus(2.4), "said.ogg")
    sung, bell = ("audio/mpeg", MP3, "sung"), ("audio/wav", WAV, "bell.wav")
    async with lab(tmp_path, fake, Speaking(said, sung, bell)) as running:
        running.models.then(Reply((Use("speak"),), "tools"))
        fake.say(chat, "say it aloud")
        await until(lambda: any("audio" in one.media for one in fake.messages(chat)))
        await running.settled()
    _, _, *files = fake.messages(chat)
    kinds = [next(iter(one.media)) for one in files]
    assert kinds == ["voice", "voice", "audio"]
    shown = [one.media[kind] for one, kind in zip(files, kinds, strict=True)]
    assert [fake.world.files.data(one["file_id"]) for one in shown] == [said[1], MP3, WAV]
    assert [one["duration"] for one in shown] == [2, 0, 0]
    fake.transcript.check()


async def test_who_takes_no_voice_messages_gets_a_file(tmp_path: Path, fake: FakeTelegram) -> None:
    chat = fake.private()
    fake.chat(chat).unspoken = True
    async with lab(tmp_path, fake, Speaking(("audio/ogg", ogg_opus(), "said.ogg"))) as running:
        running.models.then(Reply((Use("speak"),), "tools"))
        fake.say(chat, "say it aloud")
        await until(lambda: any("document" in one.media for one in fake.messages(chat)))
        await running.settled()
    *_, file = fake.messages(chat)
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
    assert kinds == ["text", "text", "voice", "audio"]
    fake.transcript.check()


async def test_a_message_that_somebody_removed_is_no_trouble(tmp_path: Path, fake: FakeTelegram) -> None:
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
    fake.clock.pass_time(31)
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


def channel_of(fake: FakeTelegram) -> Any:
    """A channel by itself: while it writes, it asks nothing of a gateway."""
    how: dict[str, Any] = {"token": fake.token, "api_base_url": fake.url}
    host: Any = None
    return create(host, "telegram", Options(**how))


async def test_after_a_call_that_nobody_waited_for_the_next_one_does_not_come_at_once() -> None:
    called = asyncio.Event()

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        called.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(never, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        client, pace = Client("1:abc", f"http://{host}:{port}"), Pace()
        async with client.connected(), asyncio.TaskGroup() as tasks:
            typing = tasks.create_task(Courier(client, pace).attend("sendChatAction", chat_id=1))
            await called.wait()
            assert pace.held("sendChatAction") == 0
            typing.cancel()
        assert 0 < pace.held("sendChatAction") <= 1
