"""The platforms of a storm, by the gateway's channels."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from importlib import import_module
from typing import Final

from chat_platform import Platform
from discord_rooms import DiscordRooms, OtherDiscordRooms
from line_rooms import LineRooms
from matrix_rooms import MatrixRooms
from slack_rooms import CalledSlackRooms, SlackRooms
from telegram_rooms import DeliveredTelegramRooms, TelegramRooms

Serve = Callable[..., Coroutine[None, None, None]]

_KINDS = (
    LineRooms,
    TelegramRooms,
    DeliveredTelegramRooms,
    DiscordRooms,
    OtherDiscordRooms,
    SlackRooms,
    CalledSlackRooms,
    MatrixRooms,
)
PLATFORMS: Final[Mapping[str, type[Platform]]] = {kind.name: kind for kind in _KINDS}


def meant_by(name: str) -> tuple[str, ...]:
    """The channels that a name means: one of them, or all of a kind. None if there are none."""
    return tuple(channel for channel, kind in PLATFORMS.items() if name in (channel, kind.kind))


def server_of(name: str) -> Serve:
    """What runs a platform: it takes flags and what to call when the bot changed something."""
    kind = PLATFORMS[name].kind
    module = "gateway.testing.polling_platform" if kind == "line" else f"channels.{kind}.fake"
    return import_module(module).serve


async def arrived(output: asyncio.StreamReader, kind: type[Platform], gateway: str) -> Platform | None:
    """Wait until the process reports its platform; None if it ends instead."""
    url = (await output.readline()).decode().strip()
    facts: dict[str, str] = {}
    while url and not all(name in facts for name in kind.needs):
        if not (line := await output.readline()):
            return None
        name, _, value = line.decode().strip().partition(" ")
        facts[name] = value
    return kind(url, facts, gateway) if url else None
