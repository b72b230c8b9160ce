"""The websocket clients of a storm, which never give up.

A client sends, sends again until it is acknowledged, and resumes where it stopped whenever it is cut off.
What it sees it checks at once: numbers that go back or repeat, and what it holds in the end.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec
from model import BELL, TOOL

_AGAIN = 0.03
_LEAVES = 0.004
"""How likely a client loses its own connection with any frame it reads."""
_RINGS = 0.06
"""How likely somebody asks for what they are asked about in turn."""


@dataclass
class Sent:
    """A message as its sender knows it, or a new wording of one (``revises``); the ids are there once it is
    acknowledged. ``replaced``: it has a newer wording. ``deleted``: its sender took it away.
    """

    word: str
    text: str
    message_id: str | None = None
    answer_id: str | None = None
    revises: Sent | None = None
    replaced: bool = False
    deleted: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether it stands as it was written first."""
        return not (self.revises or self.replaced or self.deleted)


@dataclass
class View:
    """What a client holds of its session: messages by id, their texts by part, in the order first seen."""

    last: int = 0
    replaying: bool = True
    roles: dict[str, str] = field(default_factory=dict)
    parts: dict[str, dict[int, str]] = field(default_factory=dict)
    complete: set[str] = field(default_factory=set)
    anomalies: list[str] = field(default_factory=list)

    def take(self, frame: Mapping[str, Any]) -> None:
        """One event of the session."""
        self._check_number(frame)
        match frame["type"]:
            case "message":
                message = frame["message"]
                self.roles.setdefault(message["id"], message["role"])
                self.parts[message["id"]] = {i: _said(part) for i, part in enumerate(message["parts"])}
                self.complete.add(message["id"])
            case "turn_start":
                self.roles.setdefault(frame["message_id"], "assistant")
                self.parts[frame["message_id"]] = {}
            case "text_delta" if "content" in frame:
                parts = self.parts.setdefault(frame["message_id"], {})
                parts[frame["part_index"]] = parts.get(frame["part_index"], "") + frame["content"]
            case "part":
                self.parts.setdefault(frame["message_id"], {})[frame["part_index"]] = _said(frame["part"])
            case "complete":
                self.complete.add(frame["message_id"])
            case _:
                pass

    def text(self, message_id: str) -> str:
        """The text of a message, errors included."""
        return "".join(text for _, text in sorted(self.parts.get(message_id, {}).items()))

    def _check_number(self, frame: Mapping[str, Any]) -> None:
        seq: int = frame["seq"]
        if seq < self.last or (seq == self.last and not self.replaying):
            self.anomalies.append(f"{frame['type']} has seq {seq} after {self.last}")
        self.last = max(self.last, seq)
        if frame["type"] == "replayed":
            self.replaying = False


def _said(part: Mapping[str, Any]) -> str:
    match part["type"]:
        case "text":
            return part["content"]
        case "error":
            return f"[{part['error_name']}]"
        case _:
            return ""


@dataclass
class Hooks:
    """What a client tells the storm: that it was acknowledged, and that an answer began."""

    acked: Callable[[], None]
    began: Callable[[], None]


class Client:
    """One websocket client with one session."""

    def __init__(self, number: int, url: str, dice: random.Random, hooks: Hooks) -> None:
        self.session = f"storm-{number}"
        self.zeal = 1.0
        self.sent: list[Sent] = []
        self.view = View()
        self.refusals: list[str] = []
        self._number = number
        self._url = url
        self._dice = dice
        self._hooks = hooks
        self._news = asyncio.Event()
        self._allowed: list[str] = []

    @property
    def satisfied(self) -> bool:
        """Whether everything was acknowledged, and answered as far as it can see."""
        return all(sent.answer_id is not None and sent.answer_id in self.view.complete for sent in self.sent)

    async def write(self, pace: Callable[[], float], until: Callable[[], bool]) -> None:
        """Think of messages, one after ``pace`` seconds or so."""
        while not until():
            await think(self._dice.uniform(0, 2 * pace()), until)
            word = f"q{self._number}x{len(self.sent)}"
            self.sent.append(Sent(word, question(word, self._dice)))
            self._news.set()

    async def live(self) -> None:
        """Be connected, again and again, until cancelled."""
        async with aiohttp.ClientSession() as http:
            while True:
                try:
                    async with http.ws_connect(self._url, protocols=("trunkline.v1",)) as socket:
                        await self._converse(socket)
                except (aiohttp.ClientError, ConnectionError):
                    pass
                await asyncio.sleep(_AGAIN)

    async def _converse(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.view.replaying = True
        if self.view.last or any(sent.message_id for sent in self.sent):
            await socket.send_json({"type": "resume", "session": self.session, "after": self.view.last})
        async with asyncio.TaskGroup() as tasks:
            writer = tasks.create_task(self._send(socket))
            async for message in socket:
                if message.type is not aiohttp.WSMsgType.TEXT or self._dice.random() < _LEAVES:
                    break
                frame = msgspec.json.decode(message.data)
                self._take(frame)
                if frame["type"] == "error" and "client_msg_id" in frame:
                    break  # come back, and send again from there, in order
            writer.cancel()

    async def _send(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Send in order what is not acknowledged, then what comes."""
        at = next((i for i, sent in enumerate(self.sent) if sent.message_id is None), len(self.sent))
        try:
            while True:
                self._news.clear()
                for sent in self.sent[at:]:
                    frame = {"type": "message", "client_msg_id": sent.word, "text": sent.text}
                    await socket.send_json(frame | {"session": self.session})
                    at += 1
                while self._allowed:
                    word = {"type": "approval", "approval_id": self._allowed.pop(), "decision": "once"}
                    await socket.send_json(word | {"session": self.session})
                await self._news.wait()
        except (aiohttp.ClientError, ConnectionError):
            return

    def _take(self, frame: Mapping[str, Any]) -> None:
        match frame["type"]:
            case "ack":
                sent = self.sent[int(frame["client_msg_id"].split("x")[1])]
                if sent.answer_id not in (None, frame["answer_id"]):
                    self.view.anomalies.append(f"{sent.word} was acknowledged with two answers")
                sent.message_id, sent.answer_id = frame["message_id"], frame["answer_id"]
                self._hooks.acked()
            case "error":
                self.refusals.append(f"{frame['error_name']}: {frame['message']}")
            case "approval_request":
                self.view.take(frame)
                self._allowed.append(frame["approval_id"])
                self._news.set()
            case "turn_start":
                self.view.take(frame)
                self._hooks.began()
            case _ if "seq" in frame:
                self.view.take(frame)
            case _:
                pass


async def think(seconds: float, until: Callable[[], bool]) -> None:
    """Wait so long, or until it is over."""
    end = asyncio.get_running_loop().time() + seconds
    while not until() and (left := end - asyncio.get_running_loop().time()) > 0:
        await asyncio.sleep(min(left, 0.5))


def question(word: str, dice: random.Random, *, asked_back: bool = True) -> str:
    """A question that carries its word; every fourth asks for a tool, some for one that has to be allowed."""
    chance = dice.random()
    if chance < _RINGS and asked_back:
        return f"{word}, {BELL}"
    return f"{word}, {TOOL}" if chance < 0.25 else f"{word}, please"
