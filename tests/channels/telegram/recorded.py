"""Recorded updates, and the bot that received them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from channels.telegram.parse import parse_update
from channels.telegram.updates.received import BotIdentity, ReceivedMessage

PAYLOADS = Path(__file__).parent / "payloads"
ME = BotIdentity(
    channel="telegram", id=123456789, username="fake_bot", commands={"help": "help", "new_chat": "new-chat"}
)


def payload(name: str) -> dict[str, Any]:
    """Return a recorded update."""
    return json.loads((PAYLOADS / f"{name}.json").read_text())


def heard(name: str, **me: Any) -> ReceivedMessage:
    """Return the message of a recorded update; ``me`` changes the bot."""
    return received(payload(name), **me)


def received(update: object, **me: Any) -> ReceivedMessage:
    """Return the message of an update."""
    found = parse_update(update, replace(ME, **me))
    assert isinstance(found, ReceivedMessage), found
    return found
