"""Random and damaged events of every kind in the gateway's schema: none stops the channel."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from channels.discord import parse
from channels.discord.fake import FakeDiscord, relaxed
from channels.discord.inflow import PARSE_ERRORS
from channels.discord.options import Options
from channels.discord.parse import (
    BotProfile,
    Channel,
    Chat,
    Guild,
    Interaction,
    Message,
    Reaction,
    Ready,
    chat_of,
    read,
)
from channels.discord.rooms import Chats
from tests.channels.discord.talking import gateway_at, until
from tests.channels.hostile import Inventor, spoiled

SCHEMA: dict[str, Any] = json.loads((Path(__file__).parent / "answers.json").read_text())
KINDS = sorted(SCHEMA["events"])
VIEW = BotProfile("discord", "1", Options.model_validate({"token": "t"}), frozenset({"help"}))
ROOM = Chat("5", "channel")
TEXTS = ("hello", "/help", "<@1> hi", "2026-01-01T00:00:00+00:00", "", "x" * 300)


def invented(name: str, dice: Random) -> Any:
    """Return random data for an event."""
    return Inventor(SCHEMA["$defs"], dice, TEXTS).value(SCHEMA["events"][name])


def taken(name: str, data: Any) -> None:
    """Parse an event as the channel does."""
    match name:
        case "MESSAGE_CREATE" | "MESSAGE_UPDATE":
            said = read(data, Message)
            if parse.is_user_message(said, "1"):
                assert all(len(other.quote.text) <= 8_000 for other in parse.pointed(said, VIEW))
                assert "\0" not in parse.inbound(said, ROOM, VIEW).dedup_key
        case "INTERACTION_CREATE":
            used = read(data, Interaction)
            parse.from_command(used, ROOM, VIEW)
            parse.shared(used, VIEW)
        case "READY":
            read(data, Ready)
        case "GUILD_CREATE":
            for channel in read(data, Guild).channels:
                chat_of(channel, "1")
        case _ if name.startswith("MESSAGE_REACTION_"):
            parse.feedback(name, read(data, Reaction), VIEW)
        case _ if name.startswith(("CHANNEL_", "THREAD_")):
            read(data, Channel)
        case _:
            pass


@pytest.mark.parametrize("name", KINDS)
def test_any_event_is_read_or_quarantined(name: str) -> None:
    dice, chats = Random(name), Chats(_nobody, _nobody)
    for _ in range(100):
        event = invented(name, dice)
        for data in (event, spoiled(event, dice)):
            try:
                taken(name, data)
                if isinstance(data, dict) and name.startswith(("CHANNEL_", "THREAD_")):
                    chats.apply_event(name, data, "1")
            except PARSE_ERRORS:
                continue


async def _nobody(key: str) -> Any:
    raise LookupError(key)


async def test_the_channel_survives_any_events(tmp_path: Path) -> None:
    dice = Random(11)
    async with (
        FakeDiscord(figures=relaxed()) as fake,
        gateway_at(fake, tmp_path, groups="always", streaming=False) as gateway,
    ):
        for name in KINDS:
            for _ in range(6 if name not in ("READY", "GUILD_CREATE") else 1):
                data = spoiled(invented(name, dice), dice)
                for session in fake.gateway.sessions.values():
                    session.add_event(name, data)
        fake.say(fake.dm("ada"), "still there?")
        await until(lambda: "You said: still there?" in fake.answers(fake.dm("ada")))
        assert gateway.health()["discord"][0]
        gateway.parts.dispatcher.cancel()
