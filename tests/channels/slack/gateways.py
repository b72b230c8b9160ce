"""Gateways whose only channel is Slack, connected to the fake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import select

from channels.slack.fake import FakeSlack
from gateway.app import Gateway
from gateway.contract.plugin import Plugin
from gateway.server import Server
from gateway.settings import Settings
from gateway.store import schema as t
from gateway.testing.fake_models.server import FakeModels

PACE = 100
"""Most tests do not have the fake enforce the platform's limits: no channel needs to wait for them."""


def settings_of(
    directory: Path, models: FakeModels, fake: FakeSlack, small_model: str | None = None, **slack: Any
) -> Settings:
    """Return the settings of a gateway that uses both fakes.

    By default, the model gets no envelopes, and the channel does not wait for the platform's rate limits.
    """
    account = {
        "enabled": True,
        **({} if "bot_token" in slack else {"bot_token": fake.bot_token}),
        "app_token": fake.app_token,
        "signing_secret": fake.app.signing_secret,
        "api_base_url": fake.api_url,
        "allow": "*",
        "envelope": "off",
        "pace": PACE,
        **slack,
    }
    return Settings.model_validate(
        {
            "data_dir": directory,
            "model": "openai/fake-small",
            "providers": {"openai": {"base_url": models.openai_url, "api_key": "none"}},
            "channels": {"slack": account},
            "server": {"port": 0},
            "permissions": slack.pop("permissions", {"*": "allow"}),
            "small_model": small_model,
        }
    )


@asynccontextmanager
async def gateway_at(
    fake: FakeSlack,
    directory: Path,
    models: FakeModels | None = None,
    plugins: tuple[Plugin, ...] = (),
    **slack: Any,
) -> AsyncGenerator[Gateway]:
    """Run a gateway until the end of the block. Without ``models``, a fake model echoes."""
    async with own(models) as answering:
        permissions = slack.pop("permissions", {"*": "allow"})
        limits = slack.pop("limits", {})
        settings = settings_of(directory, answering, fake, **slack)
        changed = {"permissions": permissions, "limits": settings.limits.model_copy(update=limits)}
        settings = settings.model_copy(update=changed)
        gateway = Gateway(settings, plugins=list(plugins))
        async with gateway.running():
            if slack.get("mode") == "http":
                async with Server(gateway) as server:
                    await until(lambda: gateway.health()["slack"][0])
                    await fake.register(f"{server.url}/slack/events")
                    yield gateway
            else:
                await fake.until(lambda: fake.sockets.live)
                yield gateway


@asynccontextmanager
async def own(models: FakeModels | None) -> AsyncGenerator[FakeModels]:
    """Use the given models, or fake ones that end with the block."""
    if models is not None:
        yield models
        return
    async with FakeModels() as made:
        yield made


async def until(true: Callable[[], object] | Callable[[], Awaitable[object]], seconds: float = 20) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(seconds):
        while True:
            found = true()
            if isinstance(found, Awaitable):
                found = await found
            if found:
                return
            await asyncio.sleep(0.02)


async def states(gateway: Gateway) -> list[str]:
    """Return the states of the accepted messages, in order."""
    return await gateway.parts.store.read(
        lambda c: list(c.execute(select(t.inbox.c.state).order_by(t.inbox.c.ord)).scalars())
    )


async def settled(gateway: Gateway, *wanted: str) -> None:
    """Wait until all accepted messages are in these states."""
    async with asyncio.timeout(60):
        while (await states(gateway)) != list(wanted):
            await asyncio.sleep(0.02)
