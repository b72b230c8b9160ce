"""The rival: a NoneBot2 bot that answers with a model's stream, as one would write it, without any store.

A websocket client is a bot's connection, as with the adapters of real platforms: each message becomes an
event, a matcher answers it, and every event of the model's stream is sent through the bot. It runs in its own
environment (``requirements.txt`` beside this file).
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Iterable
from typing import Any

import aiohttp
import nonebot
import uvicorn
from nonebot.adapters import Adapter as BaseAdapter
from nonebot.adapters import Bot as BaseBot
from nonebot.adapters import Event as BaseEvent
from nonebot.adapters import Message as BaseMessage
from nonebot.adapters import MessageSegment as BaseSegment
from nonebot.drivers import URL, ASGIMixin, WebSocket, WebSocketServerSetup
from nonebot.exception import WebSocketClosed
from nonebot.message import handle_event


class Segment(BaseSegment["Text"]):
    """A piece of text."""

    @classmethod
    def get_message_class(cls) -> type[Text]:
        return Text

    def is_text(self) -> bool:
        return True

    def __str__(self) -> str:
        return self.data["text"]


class Text(BaseMessage[Segment]):
    """A message of nothing but text."""

    @classmethod
    def get_segment_class(cls) -> type[Segment]:
        return Segment

    @staticmethod
    def _construct(msg: str) -> Iterable[Segment]:
        yield Segment("text", {"text": msg})


class Said(BaseEvent):
    """A message of a user."""

    session: str
    text: str

    def get_type(self) -> str:
        return "message"

    def get_event_name(self) -> str:
        return "said"

    def get_event_description(self) -> str:
        return self.text

    def get_user_id(self) -> str:
        return self.session

    def get_session_id(self) -> str:
        return self.session

    def get_message(self) -> Text:
        return Text(self.text)

    def is_tome(self) -> bool:
        return True


class Bot(BaseBot):
    """One connected client."""

    socket: WebSocket

    async def send(self, event: BaseEvent, message: str | BaseMessage | BaseSegment, **kwargs: Any) -> Any:
        return await self.call_api("send", text=str(message))


class Adapter(BaseAdapter):
    """Serves websocket clients, each as a bot."""

    def __init__(self, driver: nonebot.drivers.Driver, **kwargs: Any) -> None:
        super().__init__(driver, **kwargs)
        self._tasks: set[asyncio.Task[None]] = set()
        self._count = 0
        self.setup_websocket_server(WebSocketServerSetup(URL("/ws"), self.get_name(), self._serve))

    @classmethod
    def get_name(cls) -> str:
        return "bench"

    async def _serve(self, websocket: WebSocket) -> None:
        await websocket.accept()
        self._count += 1
        bot = Bot(self, str(self._count))
        bot.socket = websocket
        self.bot_connect(bot)
        try:
            while True:
                asked = json.loads(await websocket.receive())
                event = Said(session=asked["session"], text=asked["text"])
                task = asyncio.create_task(handle_event(bot, event))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        except WebSocketClosed:
            pass
        finally:
            self.bot_disconnect(bot)

    async def _call_api(self, bot: BaseBot, api: str, **data: Any) -> Any:
        assert isinstance(bot, Bot)
        await bot.socket.send(data["text"])


def answering(model: str) -> None:
    """Register the matcher that asks the model."""
    matcher = nonebot.on_message()
    driver = nonebot.get_driver()
    clients: list[aiohttp.ClientSession] = []

    @driver.on_startup
    async def _() -> None:
        clients.append(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))

    @matcher.handle()
    async def _(bot: Bot, event: Said) -> None:
        body = {
            "model": "fake",
            "stream": True,
            "messages": [{"role": "user", "content": event.get_plaintext()}],
        }
        async with clients[0].post(f"{model}/v1/chat/completions", json=body) as response:
            async for line in response.content:
                if line.startswith(b"data: "):
                    await bot.send(event, line[6:-1].decode())


def main(model: str) -> None:
    """Serve until the process is ended; the first line of the output is the address."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    nonebot.init(driver="~fastapi", log_level=os.environ.get("LOG_LEVEL", "WARNING"))
    driver = nonebot.get_driver()
    assert isinstance(driver, ASGIMixin)
    driver.register_adapter(Adapter)
    answering(model)

    @driver.on_startup
    async def _() -> None:
        print(f"ready: http://127.0.0.1:{listener.getsockname()[1]}", flush=True)

    config = uvicorn.Config(driver.asgi, log_level="warning", ws_per_message_deflate=False)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main(sys.argv[1])
