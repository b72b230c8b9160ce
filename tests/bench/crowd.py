"""A fake platform in its own process, with a crowd of people who write to the bot there.

What to do comes line by line as JSON on standard input: ``{"do": "settings"}`` says what the gateway has to
be told of the platform, anything else is an ``Ask``, whose ``Answered`` goes out as one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import uvloop

from channels.discord.fake import FakeDiscord, relaxed
from channels.slack.fake import FakeSlack
from channels.telegram.fake import FakeTelegram

PLATFORMS = ("telegram", "discord", "slack")
_STAMP = re.compile(r"@\u2060?([0-9]+\.[0-9]{6});")
"""A token that says when the model sent it; the gateway keeps it from being read as a name."""


@dataclass
class Ask:
    """Everybody writes at once; who is answered writes again, so many ``messages`` each.

    ``mode`` is what is asked of the model. Rooms of another ``town`` are other rooms. ``every`` is how often
    it is looked whether an answer is there, in seconds.
    """

    mode: str = "p40"
    chats: int = 100
    messages: int = 1
    town: str = "a"
    every: float = 0.004
    patience: float = 120.0


@dataclass
class Answered:
    """What the crowd saw. Seconds: how long each answer took, and when it was there, since the beginning."""

    took: list[float] = field(default_factory=list)
    there: list[float] = field(default_factory=list)
    asked: list[float] = field(default_factory=list)
    """Seconds until the model began to answer."""
    refused: int = 0
    """Calls of the bot that the platform refused, because they were too many or for any other reason."""
    calls: int = 0
    """Calls of the bot that show something; asking for news is none."""
    late: list[float] = field(default_factory=list)
    """How old tokens were when the chat first showed them; only those that say it, and only on Telegram."""


class Platform(Protocol):
    """What a crowd needs of a platform."""

    fake: Any

    def settings(self) -> dict[str, str]:
        """The gateway's settings for the channel."""
        ...

    def say(self, room: str, text: str) -> None:
        """The person of a room, a private chat with the bot, writes."""
        ...

    def newest(self, room: str) -> str:
        """The text that stands last in a room."""
        ...


class Telegram:
    """Private chats."""

    def __init__(self, *, limits: bool) -> None:
        self.fake = FakeTelegram(limits=limits)

    def settings(self) -> dict[str, str]:
        """The gateway's settings for the channel."""
        return {"token": self.fake.token, "api_base_url": self.fake.url}

    def say(self, room: str, text: str) -> None:
        """The person of a room writes."""
        self.fake.say(self.fake.private(room), text)

    def newest(self, room: str) -> str:
        """The text that stands last in a room."""
        messages = self.fake.chat(self.fake.private(room)).messages
        return next(reversed(messages.values())).text


class Discord:
    """Direct messages."""

    def __init__(self, *, limits: bool) -> None:
        self.fake = FakeDiscord(figures=None if limits else relaxed())
        self._rooms: dict[str, int] = {}

    def settings(self) -> dict[str, str]:
        """The gateway's settings for the channel."""
        return {"token": self.fake.token, "api_base_url": self.fake.api_url}

    def say(self, room: str, text: str) -> None:
        """The person of a room writes."""
        if room not in self._rooms:
            self._rooms[room] = self.fake.dm(room)
        self.fake.say(self._rooms[room], text, room)

    def newest(self, room: str) -> str:
        """The text that stands last in a room."""
        return self.fake.messages(self._rooms[room])[-1].content


class Slack:
    """Direct messages."""

    def __init__(self, *, limits: bool) -> None:
        self.fake = FakeSlack()
        self.fake.switches.limited = limits

    def settings(self) -> dict[str, str]:
        """The gateway's settings for the channel."""
        fake = self.fake
        return {"bot_token": fake.bot_token, "app_token": fake.app_token, "api_base_url": fake.api_url}

    def say(self, room: str, text: str) -> None:
        """The person of a room writes."""
        self.fake.say(f"@{room}", text, room)

    def newest(self, room: str) -> str:
        """The text that stands last in a room."""
        messages = self.fake.chat(f"@{room}").messages
        return next(reversed(messages.values())).get("text", "")


KINDS: dict[str, Callable[..., Platform]] = {"telegram": Telegram, "discord": Discord, "slack": Slack}


class Crowd:
    """The people, and what they wait for."""

    def __init__(self, platform: Platform, ask: Ask) -> None:
        self._platform = platform
        self._ask = ask
        self._tokens = int(ask.mode[1:])
        self._left: dict[str, int] = {f"{ask.town}{number}": ask.messages for number in range(ask.chats)}
        self._asked: dict[str, float] = {}
        self._seen = Answered()

    async def measure(self) -> Answered:
        """Write, and wait until everybody is answered. Raises TimeoutError."""
        calls = self._platform.fake.transcript.calls
        before, begun = len(calls), time.monotonic()
        for room in self._left:
            self._say(room)
        async with asyncio.timeout(self._ask.patience):
            while self._left:
                await asyncio.sleep(self._ask.every)
                for room in [room for room in self._left if self._is_answered(room)]:
                    self._took(room, begun)
        self._seen.refused = sum(call.status >= 400 for call in calls[before:])
        shown = [call for call in calls[before:] if call.method != "getUpdates"]
        self._seen.calls = len(shown)
        newest: dict[object, float] = {}
        for call in shown:
            sent = [float(stamp) for stamp in _STAMP.findall(call.arguments.get("text", ""))]
            chat = call.arguments.get("chat_id")
            self._seen.late += [call.at - stamp for stamp in sent if stamp > newest.get(chat, 0.0)]
            newest[chat] = max([*sent, newest.get(chat, 0.0)])
        return self._seen

    def _say(self, room: str) -> None:
        self._asked[room] = time.monotonic()
        self._platform.say(room, f"#!{self._ask.mode} hello")

    def _is_answered(self, room: str) -> bool:
        """Whether the last text there is the whole answer of the model."""
        text = self._platform.newest(room)
        return text.startswith("@") and text.count("word") + text.count(";") == self._tokens

    def _took(self, room: str, begun: float) -> None:
        now = time.monotonic()
        model_began = float(self._platform.newest(room).partition(";")[0].strip("@\u2060"))
        self._seen.asked.append(model_began - self._asked[room])
        self._seen.took.append(now - self._asked[room])
        self._seen.there.append(now - begun)
        self._left[room] -= 1
        if self._left[room]:
            self._say(room)
        else:
            del self._left[room]


async def main(kind: str, options: Sequence[str]) -> None:
    """Be a platform until standard input ends; the first line of the output is the address."""
    platform = KINDS[kind](limits="limits" in options)
    async with platform.fake as fake:
        print(f"ready: {fake.url}", flush=True)
        while line := await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline):
            asked = json.loads(line)
            if asked.get("do") == "settings":
                print(json.dumps(platform.settings()), flush=True)
            else:
                print(json.dumps(asdict(await Crowd(platform, Ask(**asked)).measure())), flush=True)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2:]))
