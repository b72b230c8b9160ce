"""A user of one channel, on its fake platform: what they write, press and see.

On each channel the user has one chat with the bot. A press that the platform could not deliver is repeated,
as users do it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

import aiohttp

from channels.discord.fake import FakeDiscord
from channels.slack.fake import FakeSlack
from channels.telegram.fake import FakeTelegram
from gateway.testing.served import SocketClient
from tests.e2e.gateway_process import GatewayProcess
from tests.e2e.town import toml

CHANNELS = ("telegram", "discord", "slack", "websocket")


class Phone(Protocol):
    """The user's device. ``settings`` are the lines of the channel in the gateway's file."""

    settings: str
    gateway: GatewayProcess
    """The gateway, which only the websocket needs to know."""

    async def say(self, text: str, name: str) -> None:
        """Send a message once. ``name`` is that of the message on the websocket."""

    async def texts(self) -> list[str]:
        """Return the current texts of the bot's messages."""
        ...

    async def questions(self) -> list[Any]:
        """Return the messages with buttons, the oldest first."""
        ...

    async def press(self, question: Any, label: str, value: str) -> None:
        """Press a button, by its label or its value."""


class TelegramPhone:
    """A private chat on Telegram."""

    gateway: GatewayProcess

    def __init__(self, fake: FakeTelegram) -> None:
        self._fake = fake
        self._chat = fake.private("Ada")
        self.settings = toml(
            {"telegram": {"allow": "*", "token": fake.token, "api_base_url": fake.url, "envelope": "off"}}
        )

    async def say(self, text: str, name: str) -> None:
        self._fake.say(self._chat, text, "Ada")

    async def texts(self) -> list[str]:
        return self._fake.answers(self._chat)

    async def questions(self) -> list[Any]:
        return [one.id for one in self._fake.messages(self._chat) if one.buttons]

    async def press(self, question: Any, label: str, value: str) -> None:
        self._fake.press(self._chat, question, label, "Ada")


class DiscordPhone:
    """A direct chat on Discord."""

    gateway: GatewayProcess

    def __init__(self, fake: FakeDiscord) -> None:
        self._fake = fake
        self._chat = fake.dm("ada")
        self.settings = toml(
            {"discord": {"allow": "*", "token": fake.token, "api_base_url": fake.api_url, "envelope": "off"}}
        )

    async def say(self, text: str, name: str) -> None:
        self._fake.say(self._chat, text)

    async def texts(self) -> list[str]:
        return self._fake.answers(self._chat)

    async def questions(self) -> list[Any]:
        return [one.id for one in self._fake.messages(self._chat) if one.components]

    async def press(self, question: Any, label: str, value: str) -> None:
        shown = self._fake.message(self._chat, question)
        buttons = [one for row in shown.components for one in row["components"]]
        (button,) = (one["custom_id"] for one in buttons if one["label"] == label)
        self._fake.press(self._chat, question, button)


class SlackPhone:
    """A direct chat on Slack."""

    gateway: GatewayProcess

    def __init__(self, fake: FakeSlack) -> None:
        self._fake = fake
        self.settings = toml(
            {
                "slack": {
                    "allow": "*",
                    "bot_token": fake.bot_token,
                    "app_token": fake.app_token,
                    "api_base_url": fake.api_url,
                    "envelope": "off",
                }
            }
        )

    async def say(self, text: str, name: str) -> None:
        # Slack keeps a text that begins with a slash to itself, unless a space is in front.
        self._fake.say("@ada", f" {text}")

    async def texts(self) -> list[str]:
        return self._fake.answers("@ada")

    async def questions(self) -> list[Any]:
        return [
            one.ts
            for one in self._fake.messages("@ada")
            if any(block["type"] == "actions" for block in one.raw.get("blocks", ()))
        ]

    async def press(self, question: Any, label: str, value: str) -> None:
        self._fake.press("@ada", question, label)


class PagePhone:
    """A conversation on the websocket, whose connections break, and who tries again."""

    settings = ""
    gateway: GatewayProcess

    async def say(self, text: str, name: str) -> None:
        async def say(client: SocketClient) -> None:
            ack = await client.say(text, session="s", client_msg_id=name)
            assert ack["type"] == "ack", ack

        await self._repeat(say)

    async def texts(self) -> list[str]:
        while True:
            try:
                url = f"{self.gateway.url}/api/sessions/s/messages"
                async with aiohttp.ClientSession() as http, http.get(url) as response:
                    body = await response.json()
                log = [one["message"] for one in body.get("messages", ())]
                return [_text(one) for one in log if one["role"] == "assistant"]
            except (aiohttp.ClientError, OSError, ValueError):
                await asyncio.sleep(0.05)

    async def questions(self) -> list[Any]:
        found: list[Any] = []

        async def look(client: SocketClient) -> None:
            await client.send(type="resume", session="s", after=0)
            await client.until("replayed")
            found[:] = [one["approval_id"] for one in client.frames if one["type"] == "approval_request"]

        await self._repeat(look)
        return found

    async def press(self, question: Any, label: str, value: str) -> None:
        async def press(client: SocketClient) -> None:
            await client.send(type="approval", session="s", approval_id=question, decision=value)
            await client.send(type="ping")
            await client.until("pong")

        await self._repeat(press)

    async def _repeat(self, step: Callable[[SocketClient], Awaitable[None]]) -> None:
        """Do a step, again from its beginning if the connection breaks."""
        while True:
            try:
                async with self.gateway.client() as client:
                    await step(client)
                    return
            except (aiohttp.ClientError, OSError):
                await asyncio.sleep(0.05)


def _text(message: dict[str, Any]) -> str:
    return "\n".join(part["content"] for part in message["parts"] if part["type"] == "text")


@asynccontextmanager
async def phone_on(channel: str) -> AsyncGenerator[Phone]:
    """Run the platform of a channel, with a user on it."""
    match channel:
        case "telegram":
            async with FakeTelegram() as telegram:
                yield TelegramPhone(telegram)
        case "discord":
            async with FakeDiscord() as discord:
                yield DiscordPhone(discord)
        case "slack":
            async with FakeSlack() as slack:
                yield SlackPhone(slack)
        case _:
            yield PagePhone()
