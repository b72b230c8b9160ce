"""Platforms in this process, as the tests of access need them: with direct chats and groups."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import select

from gateway import Message, Plugin, PluginContext, TurnContext, new_id
from gateway.channel import Address, InboundMessage, Receipt, Sender
from gateway.store import schema as t
from gateway.testing.chat import Chat, chatting
from gateway.testing.letterbox import Letterbox


class Room:
    """A chat on a letterbox's platform. ``group`` says that others read along."""

    def __init__(self, box: Letterbox, chat: str, *, group: bool = False) -> None:
        self._box = box
        self.address = Address(box.id, "bot", chat, group=group)
        self.session = f"{box.id}:bot:{chat}"

    async def write(self, user: str, text: str, **fields: Any) -> Receipt:
        """Write a message; return when it is accepted."""
        return await self._box.write(self.message(user, text, **fields))

    def message(self, user: str, text: str, **fields: Any) -> InboundMessage:
        """A message of a user."""
        return InboundMessage(
            session=self.session,
            dedup_key=fields.pop("dedup_key", None) or new_id(),
            address=self.address,
            sender=Sender(user, fields.pop("name", "")),
            text=text,
            **fields,
        )

    async def ask(self, user: str, text: str, **fields: Any) -> str:
        """Write a message; return the answer in this room."""
        before = len(self._box.sent)
        await self.write(user, text, **fields)
        placed = (await self._box.until(before + 1))[before]
        assert placed.address == self.address, "the answer goes to the room it was asked from"
        return placed.message.text


class Platforms(Plugin):
    """Brings two platforms, ``home`` and ``away``, and counts what its hook sees."""

    name = "platforms"

    def __init__(self) -> None:
        self.home = Letterbox("home")
        self.away = Letterbox("away")
        self.heard: list[tuple[str, str]] = []

    async def activate(self, ctx: PluginContext) -> None:
        assert ctx.channels is not None
        ctx.channels.register(self.home)
        ctx.channels.register(self.away)

    async def transform_system_prompt(self, prompt: str, ctx: TurnContext) -> None:
        self.heard.append((ctx.inbound.text, ctx.role))

    def room(self, chat: str, channel: str = "home", *, group: bool = False) -> Room:
        """A chat on one of the platforms."""
        return Room(getattr(self, channel), chat, group=group)


RULES: dict[str, Any] = {
    "home": {"allow": ["ada"], "admins": ["root"]},
    "away": {"allow": ["ada", "lovelace"], "admins": ["chief"]},
}


@asynccontextmanager
async def guarded(
    data_dir: Path, *plugins: Plugin, channels: dict[str, Any] = RULES, **settings: Any
) -> AsyncGenerator[tuple[Chat, Platforms]]:
    """A gateway with two platforms: on ``home`` ada may talk and root is an admin.

    The model gets the bare texts: what it is told about rooms has its own tests.
    """
    platforms = Platforms()
    bare = {"envelope": "off", "context_messages": 0}
    channels = {name: bare | given if name in RULES else given for name, given in channels.items()}
    async with chatting(data_dir, platforms, *plugins, channels=channels, **settings) as chat:
        yield chat, platforms


def code_in(text: str) -> str:
    """The one code that a text tells."""
    [code] = set(re.findall(r"\b[34679CDFGHJKMNPQRTVWXY]{8}\b", text))
    return code


async def audited(chat: Chat) -> list[tuple[str, str, str]]:
    """Who did what to whom, oldest first."""
    a = t.audit.c
    query = select(a.actor, a.action, a.subject).order_by(a.at, a.id)
    return await chat.gateway.parts.store.read(lambda c: [tuple(row) for row in c.execute(query)])


def texts(messages: Sequence[Message]) -> list[str]:
    """What messages say."""
    return [message.text for message in messages]
