"""Generated and corrupted updates of every kind in the schema: none of them stops the channel."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from channels.telegram.fake import FakeTelegram
from channels.telegram.fake.calls import schemas
from channels.telegram.parse import message_ids, parse_update
from channels.telegram.updates import objects
from channels.telegram.updates.received import BotIdentity, ReceivedMessage
from gateway.channel import Rejected
from tests.channels.hostile import Inventor, spoiled
from tests.channels.telegram.lab import lab, until

TYPES: dict[str, Any] = schemas().at("$defs")
UPDATE: dict[str, Any] = TYPES["Update"]["properties"]
KINDS = [kind for kind in UPDATE if kind != "update_id"]
ALL = (*objects.KINDS, *objects.BUSINESS_KINDS, *objects.CHANNEL_KINDS, *objects.INLINE_KINDS)
ME = BotIdentity("telegram", 123456789, "fake_bot", commands={"help": "help"}, kinds=ALL)
TEXTS = ("hello", "/help", "@fake_bot hi", "😀" * 50, "", "supergroup", "private")


def invented(kind: str, dice: Random) -> dict[str, Any]:
    """Return an update with one kind of content."""
    content = Inventor(TYPES, dice, TEXTS).value(UPDATE[kind])
    return {"update_id": dice.randrange(2**31), kind: content}


@pytest.mark.parametrize("kind", KINDS)
def test_every_update_is_parsed_or_quarantined(kind: str) -> None:
    dice = Random(kind)
    for _ in range(150):
        update = invented(kind, dice)
        for raw in (update, spoiled(update, dice)):
            found = parse_update(raw, ME)
            list(message_ids(raw))
            if isinstance(found, ReceivedMessage):
                assert "\0" not in found.inbound.text + found.inbound.session + found.inbound.dedup_key
            if isinstance(found, Rejected):
                found.raw.encode()


async def test_no_update_stops_the_channel(tmp_path: Path, fake: FakeTelegram) -> None:
    dice, chat = Random(5), fake.private()
    async with lab(
        tmp_path, fake, groups="always", streaming=False, business=[1, 2], channel_posts=True
    ) as running:
        for kind in KINDS:
            for _ in range(6):
                raw = spoiled(invented(kind, dice), dice)
                if isinstance(raw, dict):
                    raw.pop("update_id", None)
                    fake.deliver_raw(raw)
        fake.say(chat, "still there?")
        await until(lambda: "You said: still there?" in fake.answers(chat))
        await until(lambda: running.gateway.health()["telegram"] == (True, ""))
        running.gateway.parts.dispatcher.cancel()
