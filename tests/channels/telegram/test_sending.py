"""Pictures and files that answers bring, and pages that are placed and edited."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from channels.telegram import Options, create
from channels.telegram.fake import FakeTelegram
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
from gateway.testing.script import Reply, Use
from tests.channels.telegram.lab import lab, until
from tests.channels.telegram.pictures import png


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
    how: dict[str, Any] = {"token": fake.token, "api_base_url": fake.url}
    host: Any = None  # nothing is asked of the gateway while a page is sent
    channel = create(host, "telegram", Options(**how))
    address = Address("telegram", "123456789", str(chat))
    wrong = ({"type": "text_link", "offset": 0, "length": 2, "url": "http://localhost/"},)
    message = Message(session_id="s", role="assistant", parts=(TextPart("hi"),))
    page = TextPage("hi", wrong)
    placed = await channel.send(OutboundMessage(address=address, message=message, page=page, nonce="0" * 24))
    [stands] = fake.messages(chat)
    assert (placed.platform_id, stands.text, stands.entities) == (str(stands.id), "hi", ())
