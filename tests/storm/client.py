"""The websocket clients of a storm, which retry until the end.

A client repeats a message until it is acknowledged, and resumes after each disconnection. It checks the
sequence numbers of events at once, and its whole view at the end.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec
from files import text_of_file
from model import ASK, BELL, FILE, FORBID, GIVE, TOOL, choice_in, is_long, word_in

_AGAIN = 0.03
_ALLOW = "once"
_LEAVES = 0.004
"""Probability that a client drops its connection at a frame."""
_STOPS = 0.06
"""Probability that a client stops an answer that begins."""
_RINGS = 0.06
"""Probability that a message asks for a tool that needs an approval."""
_TOOLS = 0.25
"""Probability that it asks for that tool, or for one without approval."""
_GIVES = 0.06
"""Probability that it asks for a nested run."""
_ASKS = 0.06
"""Probability that it makes the model ask the user a question."""
_FORBIDS = 0.04
"""Probability that it asks for a tool call that a plugin blocks."""
_BY_HTTP = 0.5
"""Probability that an approval is given over HTTP."""


@dataclass
class Sent:
    """A message as its sender knows it, or a new revision of one (``revises``); the ids are set once it is
    acknowledged. ``file`` names the file that goes with it. ``replaced``: there is a newer revision.
    ``deleted``: its sender deleted it.
    """

    word: str
    text: str
    file: str | None = None
    message_id: str | None = None
    answer_id: str | None = None
    revises: Sent | None = None
    replaced: bool = False
    deleted: bool = False

    @property
    def is_plain(self) -> bool:
        """Return whether it was neither edited nor deleted."""
        return not (self.revises or self.replaced or self.deleted)


@dataclass
class Stop:
    """A stop that a client asked for: the answers it may be about, and whether it was acknowledged."""

    answers: list[str]
    acknowledged: bool = False
    at: float = 0.0
    """When it was acknowledged, in monotonic seconds."""


@dataclass
class View:
    """The client's copy of its session: messages by id, their texts by part, in the order first seen."""

    last: int = 0
    replaying: bool = True
    roles: dict[str, str] = field(default_factory=dict)
    parts: dict[str, dict[int, str]] = field(default_factory=dict)
    files: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    """The names of the files that tools handed over, by message and part."""
    complete: set[str] = field(default_factory=set)
    anomalies: list[str] = field(default_factory=list)

    def take(self, frame: Mapping[str, Any]) -> None:
        """Apply an event of the session."""
        self._check_number(frame)
        match frame["type"]:
            case "message":
                message = frame["message"]
                self.roles.setdefault(message["id"], message["role"])
                self.parts[message["id"]] = {
                    i: _said(part) for i, part in enumerate(message.get("parts", ()))
                }
                self.files[message["id"]] = {
                    i: _handed(part) for i, part in enumerate(message.get("parts", ()))
                }
                self.complete.add(message["id"])
            case "turn_start":
                self.roles.setdefault(frame["message_id"], "assistant")
                self.parts[frame["message_id"]] = {}
                self.files[frame["message_id"]] = {}
            case "text_delta" if "content" in frame:
                parts = self.parts.setdefault(frame["message_id"], {})
                parts[frame["part_index"]] = parts.get(frame["part_index"], "") + frame["content"]
            case "part":
                index, part = frame["part_index"], frame["part"]
                self.parts.setdefault(frame["message_id"], {})[index] = _said(part)
                self.files.setdefault(frame["message_id"], {})[index] = _handed(part)
            case "complete":
                self.complete.add(frame["message_id"])
            case _:
                pass

    def text(self, message_id: str) -> str:
        """Return the text of a message, errors included."""
        return "".join(text for _, text in sorted(self.parts.get(message_id, {}).items()))

    def files_of(self, message_id: str) -> list[str]:
        """Return the names of the files of a message."""
        return [name for _, names in sorted(self.files.get(message_id, {}).items()) for name in names]

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


def _handed(part: Mapping[str, Any]) -> list[str]:
    return [file["name"] for file in part.get("attachments", ())] if part["type"] == "tool_result" else []


@dataclass
class Hooks:
    """Callbacks of a client: a message was acknowledged, an answer began, a stop or an approval was
    acknowledged.

    ``wants_stop`` says whether the storm waits for a stop, ``wants_decision`` whether for an approval.
    """

    acked: Callable[[], None]
    began: Callable[[], None]
    stopped: Callable[[], None]
    decided: Callable[[], None]
    wants_stop: Callable[[], bool]
    wants_decision: Callable[[], bool]


class Client:
    """One websocket client with one session. ``files`` is the probability that a message is about a file.

    ``decided`` has the words of its acknowledged approvals, each with the question's id; ``chosen`` those
    of its acknowledged answers to the model; ``asked_again`` those about which it was asked again after
    that.
    """

    def __init__(self, number: int, url: str, dice: random.Random, hooks: Hooks, files: float) -> None:
        self.session = f"storm-{number}"
        self.activity = 1.0
        self.sent: list[Sent] = []
        self.view = View()
        self.refusals: list[str] = []
        self._number = number
        self._url = url
        self._dice = dice
        self._hooks = hooks
        self._news = asyncio.Event()
        self._files = files
        self._allowed: list[tuple[str, str]] = []
        self._to_decide: list[tuple[str, str, str]] = []
        self.decided: dict[str, str] = {}
        self.chosen: dict[str, str] = {}
        self.asked_again: list[str] = []
        self.stops: list[Stop] = []
        self._to_stop = False

    @property
    def satisfied(self) -> bool:
        """Return whether all its messages were acknowledged and show an answer."""
        return all(sent.answer_id is not None and sent.answer_id in self.view.complete for sent in self.sent)

    async def write(self, pace: Callable[[], float], until: Callable[[], bool]) -> None:
        """Write messages, one every ``pace`` seconds on average."""
        while not until():
            await think(self._dice.uniform(0, 2 * pace()), lambda: until() or self._rings_at_once())
            rings = self._hooks.wants_decision()
            self.sent.append(next_message(self._number, len(self.sent), self._dice, self._files, rings=rings))
            self._news.set()

    def _rings_at_once(self) -> bool:
        """Return whether its next message should lead to a question, because the storm waits for one."""
        return self._hooks.wants_decision() and self.satisfied

    async def live(self) -> None:
        """Connect, and reconnect until cancelled."""
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
        self._to_stop = False
        async with asyncio.TaskGroup() as tasks:
            writer = tasks.create_task(self._send(socket))
            async for message in socket:
                if message.type is not aiohttp.WSMsgType.TEXT or self._dice.random() < _LEAVES:
                    break
                frame = msgspec.json.decode(message.data)
                self._take(frame)
                if self._to_stop:
                    self._to_stop = False
                    tasks.create_task(self._stop())
                while self._to_decide:
                    tasks.create_task(self._decide(*self._to_decide.pop()))
                if frame["type"] == "error" and "client_msg_id" in frame:
                    break  # reconnect, and send again from there, in order
            writer.cancel()

    async def _stop(self) -> None:
        """Stop the running answer: the first one without an end, or one that follows it by then."""
        open_ones = [s.answer_id for s in self.sent if s.answer_id and s.answer_id not in self.view.complete]
        stop = Stop([answer for answer in open_ones if answer][:3])
        self.stops.append(stop)
        url = f"{self._url.removesuffix('/ws')}/api/sessions/{self.session}/abort"
        try:
            async with aiohttp.ClientSession() as http, http.post(url) as response:
                stop.acknowledged = response.status == 200 and (await response.json())["aborted"]
        except (aiohttp.ClientError, ConnectionError):
            return
        if stop.acknowledged:
            stop.at = time.monotonic()
            self._hooks.stopped()

    async def _decide(self, word: str, approval: str, decision: str) -> None:
        """Answer the open questions, and wait for the acknowledgements."""
        base = self._url.removesuffix("/ws")
        url = f"{base}/api/sessions/{self.session}/approvals/{approval}"
        try:
            async with (
                aiohttp.ClientSession() as http,
                http.post(url, json={"decision": decision}) as response,
            ):
                acknowledged = response.status == 200
        except (aiohttp.ClientError, ConnectionError):
            return
        if acknowledged:
            (self.decided if decision == _ALLOW else self.chosen)[word] = approval
            self._hooks.decided()

    async def _send(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Send the unacknowledged messages in order, then new ones."""
        at = next((i for i, sent in enumerate(self.sent) if sent.message_id is None), len(self.sent))
        try:
            while True:
                self._news.clear()
                for sent in self.sent[at:]:
                    frame = {"type": "message", "client_msg_id": sent.word, "text": sent.text}
                    parts = [file_part(sent.file)] if sent.file else []
                    await socket.send_json(frame | {"session": self.session, "parts": parts})
                    at += 1
                while self._allowed:
                    approval, decision = self._allowed.pop()
                    word = {"type": "approval", "approval_id": approval, "decision": decision}
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
                if word := choice_in(frame.get("title", "")):
                    self._asked(word, frame["approval_id"], frame["choices"][0]["value"])
                else:
                    self._asked(word_in(str(frame["arguments"])), frame["approval_id"], _ALLOW)
            case "turn_start":
                self.view.take(frame)
                self._hooks.began()
                self._to_stop = self._dice.random() < _STOPS or self._hooks.wants_stop()
            case _ if "seq" in frame:
                self.view.take(frame)
            case _:
                pass

    def _asked(self, word: str, approval: str, decision: str) -> None:
        """Answer a question: over HTTP, whose response acknowledges it, or over the socket without that."""
        if (self.decided | self.chosen).get(word, approval) != approval:
            self.asked_again.append(word)
        if self._hooks.wants_decision() or self._dice.random() < _BY_HTTP:
            self._to_decide.append((word, approval, decision))
        else:
            self._allowed.append((approval, decision))
            self._news.set()


async def think(seconds: float, until: Callable[[], bool]) -> None:
    """Wait for some seconds, or until the faults end."""
    end = asyncio.get_running_loop().time() + seconds
    while not until() and (left := end - asyncio.get_running_loop().time()) > 0:
        await asyncio.sleep(min(left, 0.25))


def next_message(
    number: int, index: int, dice: random.Random, files: float, *, asks: bool = True, rings: bool = False
) -> Sent:
    """Return the next message of a person: every fourth asks for a tool, some for one that needs an approval.

    ``files`` is the share of messages that carry a file, and of those that ask for one. Where the bot
    ``asks`` people, a message asks for the bell if it ``rings``.
    """
    word, chance = f"q{number}x{index}", dice.random()
    file = f"file-{number}-{index}.txt" if dice.random() < files else None
    if asks and (rings or chance < _RINGS):
        wish = BELL
    elif chance < _TOOLS:
        wish = TOOL
    elif chance < _TOOLS + files:
        wish = FILE
    else:
        wish = GIVE if chance > 1 - _GIVES and not is_long(word) else "please"
        wish = ASK if asks and 1 - _GIVES - _ASKS < chance < 1 - _GIVES else wish
        wish = FORBID if 1 - _GIVES - _ASKS - _FORBIDS < chance < 1 - _GIVES - _ASKS else wish
    return Sent(word, f"{word}, {wish}", file)


def file_part(name: str) -> dict[str, str]:
    """Return a file as a part of a message."""
    return {"type": "file", "path": name, "content": text_of_file(name)}
