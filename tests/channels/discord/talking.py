"""A complete gateway connected to the fake Discord, for end-to-end tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import and_, create_engine, select, update

from channels.discord.fake import FakeDiscord, Message
from gateway import Attachment, Plugin, Tool, ToolOutput, tool_from
from gateway.app import Gateway
from gateway.settings import Settings
from gateway.store import schema as t
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import until

CREATE = "POST /channels/{channel_id}/messages"
EDIT = "PATCH /channels/{channel_id}/messages/{message_id}"
REGISTER = "PUT /applications/{application_id}/commands"
CALLBACK = "POST /interactions/{interaction_id}/{interaction_token}/callback"
ORIGINAL = "PATCH /webhooks/{webhook_id}/{webhook_token}/messages/@original"


def settings_for(directory: Path, models: FakeModels, channel: dict[str, Any], **more: Any) -> Settings:
    return Settings.model_validate(
        {
            "data_dir": directory,
            "model": "openai/fake-small",
            "providers": {"openai": {"base_url": models.openai_url, "api_key": "none"}},
            "channels": {"discord": channel},
            "permissions": {"*": "allow"},
            **more,
        }
    )


def later(directory: Path, seconds: float = 6) -> None:
    """Move the stored time of the bot's last login back, as if that much time had passed."""
    engine = create_engine(f"sqlite:///{directory / 'trunkline.db'}")
    kept = and_(t.cursor.c.channel == "discord", t.cursor.c.shard == "identify")
    with engine.begin() as connection:
        left, at = json.loads(connection.execute(select(t.cursor.c.value).where(kept)).scalar_one())
        earlier = json.dumps([left, at - round(seconds * 1000)])
        connection.execute(update(t.cursor).where(kept).values(value=earlier))
    engine.dispose()


def bot_at(fake: FakeDiscord, **options: Any) -> dict[str, Any]:
    """Return settings of a bot. Models get the plain texts, which the fake model repeats."""
    given = {"token": fake.token, "api_base_url": fake.api_url, "allow": "*", "envelope": "off"}
    return {**given, **options}


@asynccontextmanager
async def gateway_at(
    fake: FakeDiscord,
    directory: Path,
    *,
    models: FakeModels | None = None,
    plugins: Sequence[Plugin] = (),
    more: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncGenerator[Gateway]:
    """Run a gateway whose only channel is Discord; yield it once it is connected."""
    async with FakeModels() as own:
        given = {"server": {"port": 0}, **(more or {})}
        settings = settings_for(directory, models or own, bot_at(fake, **options), **given)
        gateway = Gateway(settings, plugins=plugins)
        async with gateway.running():
            await until(lambda: healthy(gateway))
            yield gateway


def healthy(gateway: Gateway, channel: str = "discord") -> bool:
    return gateway.health()[channel][0]


async def states(gateway: Gateway) -> list[str]:
    """Return the states of the accepted messages, in order."""
    # Deletions of messages that were not accepted have no session.
    accepted = select(t.inbox.c.state).where(t.inbox.c.session != "")
    query = accepted.order_by(t.inbox.c.received_at, t.inbox.c.ord)
    return await gateway.parts.store.read(lambda c: list(c.execute(query).scalars()))


async def settled(gateway: Gateway, count: int, seconds: float = 30) -> None:
    """Wait until that many messages are answered or replaced, and no other one waits."""
    async with asyncio.timeout(seconds):
        while len(found := await states(gateway)) < count or not {*found} <= {"done", "merged"}:
            assert len(found) <= count, found
            await asyncio.sleep(0.02)


async def quarantined(gateway: Gateway) -> list[str]:
    return await gateway.parts.store.read(lambda c: list(c.execute(select(t.quarantine.c.raw)).scalars()))


async def sessions(gateway: Gateway) -> int:
    return len(await gateway.parts.store.read(lambda c: set(c.execute(select(t.inbox.c.session)).scalars())))


class Measuring(Plugin):
    """Plugin with two tools: one returns text, one an image."""

    name = "measuring"

    def tools(self) -> Sequence[Tool]:
        async def measure(what: str) -> str:
            """Measure something."""
            return f"{what} is 5 long"

        async def draw() -> ToolOutput:
            """Draw something."""
            return ToolOutput("done", attachments=(Attachment("image/png", "aGVsbG8=", "plan.png"),))

        return [tool_from(measure), tool_from(draw)]


async def registered(fake: FakeDiscord) -> None:
    await fake.until(lambda: bool(fake.transcript.of(REGISTER)))


def bots(fake: FakeDiscord, chat: Any) -> list[Message]:
    return [message for message in fake.messages(chat) if message.author == fake.bot_id]


NO_DRAIN = {"limits": {"drain_seconds": 0}}


HISTORY = "GET /channels/{channel_id}/messages"
