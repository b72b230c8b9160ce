"""Undo and redo on platforms: delivered answers are deleted or marked, and placed again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway import Plugin, PluginContext
from gateway.app import Gateway
from gateway.channel import Address, OutboundMessage, Placed
from gateway.contract.channel import PlacementRefused
from gateway.conversations import Command
from gateway.server import Server
from gateway.testing.fake_models.script import ModelRequest, Reply, Say
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.fake_platform import Fault
from gateway.testing.polling_channel import PollingChannel, text_of
from gateway.testing.polling_platform import PollingPlatform
from tests.e2e.test_placing import gateway_on, settled
from tests.e2e.town import Town, town, until

UNDONE = "Undone. `/redo` shows it again, until you write a new message."
REDONE = "Redone. The model sees it again."


def shown(platforms: Town) -> list[list[str]]:
    """The answers in the chats, without the markup of the platforms."""
    return [[text.replace("`", "") for text in answers] for answers in platforms.answers()]


async def say(gateway: Gateway, platforms: Town, text: str, wanted: list[str]) -> None:
    """Write on each platform, and wait until its chat has these answers and nothing is left to do."""
    platforms.say(text)
    await until(lambda: shown(platforms), [[one.replace("`", "") for one in wanted]] * 3)
    await until(lambda: gateway.parts.dispatcher.waiting, 0)


async def test_004_t09_every_platform_loses_the_answer_and_gets_it_again(tmp_path: Path) -> None:
    one, two = "You said: one", "You said: two"
    async with town() as platforms, FakeModels() as models:
        settings = platforms.settings(tmp_path, models)
        gateway = Gateway(settings)
        async with gateway.running():
            await until(lambda: [name for name, (ok, _) in gateway.health().items() if not ok], [])
            await say(gateway, platforms, "one", [one])
            await say(gateway, platforms, "two", [one, two])
            await say(gateway, platforms, "/undo", [one, UNDONE])
            await say(gateway, platforms, "/undo", [UNDONE, UNDONE])
            await say(gateway, platforms, "/redo", [UNDONE, UNDONE, REDONE, one])
        # What was undone can be redone after a restart, and undone again.
        gateway = Gateway(settings)
        async with gateway.running():
            await until(lambda: [name for name, (ok, _) in gateway.health().items() if not ok], [])
            await say(gateway, platforms, "/redo", [UNDONE, UNDONE, REDONE, one, REDONE, two])
            await say(gateway, platforms, "/undo", [UNDONE, UNDONE, REDONE, one, REDONE, UNDONE])
            platforms.say("three")
            await until(lambda: [answers[-1] for answers in platforms.answers()], ["You said: three"] * 3)
            await until(lambda: gateway.parts.dispatcher.waiting, 0)
        asked = [one["content"] for one in models.requests[-1].body["messages"] if one["role"] == "user"]
        assert asked == ["one", "three"]
        platforms.check()


async def test_all_pages_of_a_long_answer_go_and_come_back(tmp_path: Path) -> None:
    paragraphs = "\n\n".join(f"{number} " + "word " * 300 for number in range(4))

    def answer(_request: ModelRequest) -> Reply:
        return Reply((Say(paragraphs),))

    async with town() as platforms, FakeModels(answer) as models:
        gateway = Gateway(platforms.settings(tmp_path, models))
        async with gateway.running():
            await until(lambda: [name for name, (ok, _) in gateway.health().items() if not ok], [])
            platforms.say("much")
            await until(lambda: [answers != [] for answers in platforms.answers()], [True] * 3)
            await until(lambda: gateway.parts.dispatcher.waiting, 0)
            before = shown(platforms)
            assert sum(len(answers) > 1 for answers in before) > 1
            await say(gateway, platforms, "/undo", [UNDONE])
            platforms.say("/redo")
            undone = UNDONE.replace("`", "")
            await until(lambda: shown(platforms), [[undone, REDONE, *answers] for answers in before])
            await until(lambda: gateway.parts.dispatcher.waiting, 0)
        platforms.check()


async def test_clients_of_the_websocket_read_the_log_again(tmp_path: Path) -> None:
    async with town() as platforms, FakeModels() as models:
        gateway = Gateway(platforms.settings(tmp_path, models))
        async with (
            gateway.running(),
            Server(gateway) as server,
            aiohttp.ClientSession() as http,
            http.ws_connect(f"{server.url}/ws") as socket,
        ):
            log: dict[str, str] = {}

            async def send(text: str) -> None:
                """Send a message, and follow the log until its answer is complete."""
                await socket.send_json(
                    {"type": "message", "client_msg_id": text, "session": "s-talk", "text": text}
                )
                answer = ""
                while True:
                    frame = await socket.receive_json()
                    assert frame["type"] != "error"
                    if frame["type"] == "ack":
                        answer = frame["answer_id"]
                    elif frame["type"] == "log_changed":
                        assert frame["seq"] == 0
                        log.clear()
                    elif frame["type"] == "message":
                        message = frame["message"]
                        log[message["id"]] = "".join(part["content"] for part in message["parts"])
                    elif frame["type"] == "text_delta":
                        log[frame["message_id"]] = log.get(frame["message_id"], "") + frame["content"]
                    elif frame["type"] == "complete" and frame["message_id"] == answer:
                        return

            for text in ("one", "two"):
                await send(text)
            await send("/undo")
            assert [*log.values()] == ["one", "You said: one", "/undo", UNDONE]
            await send("/redo")
            assert [*log.values()][:4] == ["one", "You said: one", "two", "You said: two"]
            assert [*log.values()][4:] == ["/undo", UNDONE, "/redo", REDONE]


class Eraser(Plugin):
    """Gives the line the abilities to delete and to edit, as far as a test wants it."""

    name = "eraser"

    def __init__(self, url: str, *, deletes: bool, edits: bool, refuses: bool = False) -> None:
        self._url = url
        self._abilities = {
            **({"delete": self.delete} if deletes else {}),
            **({"edit": self.edit} if edits else {}),
        }
        self._refuses = refuses

    async def activate(self, ctx: PluginContext) -> None:
        assert ctx.channels is not None
        line: Any = ctx.channels.get("line")
        line.__class__ = type("ErasingLine", (PollingChannel,), self._abilities)

    async def delete(self, placed: Placed, address: Address) -> None:
        if self._refuses:
            raise PlacementRefused("too old")
        async with aiohttp.ClientSession() as http:
            gone = {"chat": address.chat, "id": int(placed.platform_id)}
            await http.post(f"{self._url}/remove", json=gone, raise_for_status=True)

    async def edit(self, placed: Placed, outbound: OutboundMessage) -> None:
        change = {
            "chat": outbound.address.chat,
            "id": int(placed.platform_id),
            "text": text_of(outbound.message),
        }
        async with aiohttp.ClientSession() as http:
            await http.post(f"{self._url}/edit", json=change, raise_for_status=True)


async def undo_in(gateway: Gateway) -> bool:
    """Undo, and return whether the chat keeps the answer."""
    session = await gateway.parts.sessions.find("line:bot:kitchen")
    await until(lambda: gateway.parts.dispatcher.waiting, 0)
    return (await gateway.parts.conversations.undo.undo(session, Command(""))).remains


@pytest.mark.parametrize(
    ("deletes", "edits", "refuses", "left"),
    [
        (True, False, False, []),
        (True, True, False, []),
        (True, True, True, ["↩ undone"]),
        (False, True, False, ["↩ undone"]),
        (False, False, False, ["You said: hello"]),
        (True, False, True, ["You said: hello"]),
    ],
)
async def test_an_answer_is_deleted_or_marked_as_the_channel_can(
    tmp_path: Path, *, deletes: bool, edits: bool, refuses: bool, left: list[str]
) -> None:
    async with PollingPlatform() as platform:
        eraser = Eraser(platform.url, deletes=deletes, edits=edits, refuses=refuses)
        async with gateway_on(tmp_path, platform.url, eraser) as gateway:
            platform.say("kitchen", "hello")
            await settled(gateway, "done")
            assert await undo_in(gateway) is not (deletes or edits)
            await until(lambda: gateway.parts.dispatcher.waiting, 0)
            assert platform.answers("kitchen") == left


async def test_a_chat_that_keeps_the_answer_gets_a_notice(tmp_path: Path) -> None:
    async with PollingPlatform() as platform, gateway_on(tmp_path, platform.url) as gateway:
        platform.say("kitchen", "hello")
        await settled(gateway, "done")
        platform.say("kitchen", "/undo")
        await until(lambda: len(platform.answers("kitchen")), 2)
        assert "stays in view" in platform.answers("kitchen")[1]
        platform.say("kitchen", "/redo")
        await until(lambda: platform.answers("kitchen")[2:], [REDONE])


@pytest.mark.parametrize("fault", ["slow_down", "fail_before", "fail_after", "drop_before", "drop_after"])
async def test_a_redone_answer_whose_delivery_goes_wrong_is_not_doubled(tmp_path: Path, fault: Fault) -> None:
    async with PollingPlatform() as platform:
        eraser = Eraser(platform.url, deletes=True, edits=False)
        async with gateway_on(tmp_path, platform.url, eraser) as gateway:
            platform.say("kitchen", "hello")
            await settled(gateway, "done")
            await undo_in(gateway)
            await until(lambda: platform.answers("kitchen"), [])
            await until(lambda: gateway.parts.dispatcher.waiting, 0)
            platform.then(fault, fault)
            session = await gateway.parts.sessions.find("line:bot:kitchen")
            await gateway.parts.conversations.undo.redo(session, Command(""))
            await until(lambda: gateway.parts.dispatcher.waiting, 0)
            assert platform.answers("kitchen") == ["You said: hello"]


async def test_a_restart_finishes_what_was_undone_and_redone(tmp_path: Path) -> None:
    async with PollingPlatform() as platform:
        eraser = Eraser(platform.url, deletes=True, edits=False)
        async with gateway_on(tmp_path, platform.url, eraser) as gateway:
            platform.say("kitchen", "hello")
            await settled(gateway, "done")
            gateway.parts.dispatcher.stopping = True  # as if it died right after the commit
            await undo_in(gateway)
        assert platform.answers("kitchen") == ["You said: hello"]
        async with gateway_on(tmp_path, platform.url, eraser) as gateway:
            await until(lambda: platform.answers("kitchen"), [])
            await until(lambda: gateway.parts.dispatcher.waiting, 0)
            gateway.parts.dispatcher.stopping = True
            session = await gateway.parts.sessions.find("line:bot:kitchen")
            await gateway.parts.conversations.undo.redo(session, Command(""))
        assert platform.answers("kitchen") == []
        async with gateway_on(tmp_path, platform.url, eraser) as gateway:
            await until(lambda: platform.answers("kitchen"), ["You said: hello"])
            await until(lambda: gateway.parts.dispatcher.waiting, 0)
