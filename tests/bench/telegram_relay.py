"""The floor of a bot on Telegram: aiohttp passes a message to the model, and the answer back to the chat.

As the gateway does, it shows a draft when the answer begins and once a second while it grows, and then places
the message. No store, no session, no hook, no rendering.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import aiohttp
import msgspec
import uvloop

DRAFTS_SECONDS = 1.0
_POLL_SECONDS = 25


class Delta(msgspec.Struct):
    """What an event adds."""

    content: str = ""


class Choice(msgspec.Struct):
    """One of one."""

    delta: Delta = msgspec.field(default_factory=Delta)


class Chunk(msgspec.Struct):
    """An event of the model."""

    choices: list[Choice] = []


_read = msgspec.json.Decoder(Chunk).decode


class Bot:
    """One bot."""

    def __init__(self, client: aiohttp.ClientSession, model: str, api: str) -> None:
        self._client = client
        self._model = model
        self._api = api

    async def run(self) -> None:
        """Answer everybody until cancelled."""
        offset = 0
        async with asyncio.TaskGroup() as tasks:
            while True:
                for update in await self._call("getUpdates", offset=offset, timeout=_POLL_SECONDS):
                    offset = update["update_id"] + 1
                    message = update["message"]
                    tasks.create_task(self._answer(message["chat"]["id"], message["text"]))

    async def _answer(self, chat: int, asked: str) -> None:
        body = {"model": "fake", "stream": True, "messages": [{"role": "user", "content": asked}]}
        text, due, draft = "", 0.0, None
        url = self._model + "/v1/chat/completions"
        async with self._client.post(url, data=msgspec.json.encode(body)) as response:
            rest = b""
            async for piece in response.content.iter_any():
                *events, rest = (rest + piece).split(b"\n\n")
                text += "".join(self._text(event) for event in events)
                now = time.monotonic()
                if text and now >= due and (draft is None or draft.done()):
                    due = now + DRAFTS_SECONDS
                    draft = asyncio.create_task(
                        self._call("sendMessageDraft", chat_id=chat, draft_id=1, text=text)
                    )
        if draft is not None:
            await draft
        await self._call("sendMessage", chat_id=chat, text=text)

    @staticmethod
    def _text(event: bytes) -> str:
        if event == b"data: [DONE]":
            return ""
        return "".join(choice.delta.content for choice in _read(event[6:]).choices)

    async def _call(self, method: str, **arguments: object) -> Any:
        headers = {"Content-Type": "application/json"}
        data = msgspec.json.encode(arguments)
        async with self._client.post(f"{self._api}/{method}", data=data, headers=headers) as response:
            response.raise_for_status()
            return msgspec.json.decode(await response.read())["result"]


async def main(model: str, api: str) -> None:
    """Answer until the process is ended."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as client:
        print(f"ready: {api}", flush=True)
        await Bot(client, model, api).run()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
