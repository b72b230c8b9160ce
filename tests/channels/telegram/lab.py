"""Gateway with a bot on the fake Telegram and a fake model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import select

from channels.telegram.fake import FakeTelegram
from gateway.app import Gateway
from gateway.contract.plugin import Plugin
from gateway.settings import Settings
from gateway.store import schema as t
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import until

PATIENCE = 60.0
FAST = 100
"""Pace of a channel whose platform does not enforce its limits: it does not wait for them."""


class Lab:
    """A running gateway with its fake platform and its fake models."""

    def __init__(self, gateway: Gateway, fake: FakeTelegram, models: FakeModels) -> None:
        self.gateway = gateway
        self.fake = fake
        self.models = models

    async def answers(self, chat: int, *wanted: str) -> None:
        """Wait until the bot's messages in a chat are these, and all messages are settled."""
        try:
            await until(lambda: self.fake.answers(chat) == [*wanted])
        except TimeoutError:
            raise AssertionError(f"{self.fake.answers(chat)} instead of {[*wanted]}") from None
        await self.settled()
        assert self.fake.answers(chat) == [*wanted]

    async def settled(self) -> None:
        """Wait until all messages are settled."""
        await until(lambda: self.gateway.parts.dispatcher.waiting == 0)

    async def states(self) -> list[str]:
        """Return the states of all accepted messages, in order."""
        query = select(t.inbox.c.state).order_by(t.inbox.c.received_at, t.inbox.c.ord)
        return await self.gateway.parts.store.read(lambda c: [*c.execute(query).scalars()])

    async def quarantined(self) -> list[str]:
        """Return the reasons of quarantined updates."""
        query = select(t.quarantine.c.reason).order_by(t.quarantine.c.at)
        return await self.gateway.parts.store.read(lambda c: [*c.execute(query).scalars()])


@asynccontextmanager
async def lab(
    directory: Path,
    fake: FakeTelegram,
    *plugins: Plugin,
    models: FakeModels | None = None,
    channels: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> AsyncGenerator[Lab]:
    """Run a gateway whose only channel is Telegram, without envelopes. ``options`` are the bot's settings.

    By default, the channel keeps to the platform's limits only where the fake enforces them.
    """
    if models is None:
        async with (
            FakeModels() as made,
            lab(
                directory,
                fake,
                *plugins,
                models=made,
                channels=channels,
                settings=settings,
                **options,
            ) as running,
        ):
            yield running
        return
    telegram = {
        "token": fake.token,
        "api_base_url": fake.url,
        "allow": "*",
        "envelope": "off",
        "pace": 1 if fake.limits.on else FAST,
        **options,
    }
    given = {
        "data_dir": directory,
        "model": "openai/fake-small",
        "providers": {"openai": {"base_url": models.openai_url, "api_key": "none", "max_retries": 0}},
        "channels": channels if channels is not None else {"telegram": telegram},
        "permissions": {"*": "allow"},
        **(settings or {}),
    }
    gateway = Gateway(Settings.model_validate(given), plugins=plugins)
    async with gateway.running():
        yield Lab(gateway, fake, models)
