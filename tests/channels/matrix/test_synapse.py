"""The channel with a real homeserver: the contract suite, and what only a real one shows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gateway.app import Gateway
from gateway.testing.contracts.channel_contract import (
    ChannelCheck,
    a_kill_after_placing_leaves_one_message,
    checks_for,
)
from gateway.testing.contracts.channel_platform import Platform, freeze_after_placing, settled, trial, until
from gateway.testing.fake_models.script import Gate, Reply, Say
from tests.channels.matrix.synapse import Synapse
from tests.channels.matrix.test_channel import inbox

pytestmark = pytest.mark.slow


class SynapsePlatform(Platform):
    """Ada's direct chat with the bot, and a room of Ada, Ben and the bot."""

    name = "matrix"
    longest = 40_000
    lacks: ClassVar[Any] = {
        "reordering": "the order of a sync timeline is the order of the room",
        "events": "Synapse refuses malformed events, and sends each event once",
        "sending": "a real server has no faults on request",
    }

    def __init__(self, server: Synapse) -> None:
        self.server = server

    async def __aenter__(self) -> SynapsePlatform:
        self.bot, self.ada, self.ben = map(self.server.register, ("bot", "ada", "ben"))
        self.token = self.bot.token
        self.direct = self.ada.create(self.bot, direct=True)
        self.room = self.ada.create(self.bot, self.ben, name="Team")
        self.ben.call("POST", f"rooms/{self.room}/join", {})
        return self

    async def __aexit__(self, *failure: Any) -> None:
        pass

    def settings(self) -> Mapping[str, Any]:
        allowed = [self.ada.user]
        return {"homeserver": self.server.url, "access_token": self.token, "allow": allowed, "pace": 1000}

    async def connected(self, gateway: Gateway, url: str) -> None:
        rooms = (self.direct, self.room)
        await until(lambda: all(self.ada.membership(room, self.bot.user) == "join" for room in rooms))
        await until(lambda: gateway.health()["matrix"][0])

    def write(self, text: str) -> str:
        return self.ada.say(self.direct, text)

    def shown(self) -> Sequence[str]:
        return [str(one["body"]) for one in self.ada.shown(self.direct, self.bot.user)]

    def check(self) -> None:
        """Synapse refuses what breaks its rules."""

    def edit(self, key: str, text: str) -> None:
        self.ada.edit(self.direct, key, text)

    def delete(self, key: str) -> None:
        self.ada.redact(self.direct, key)

    def write_in_room(self, text: str, *, addressed: bool, file: bytes | None = None) -> str:
        content: dict[str, Any] = {"m.mentions": {"user_ids": [self.bot.user]} if addressed else {}}
        if file is not None:
            uri = self.ada.upload("minutes.txt", file)
            content |= {"msgtype": "m.file", "filename": "minutes.txt", "url": uri}
        return self.ada.say(self.room, text, **content)

    def shown_in_room(self) -> Sequence[str]:
        return [str(one["body"]) for one in self.ada.shown(self.room, self.bot.user)]

    def downloads(self) -> int:
        done = f"{self.bot.user}}} Processed"
        lines = (line for line in self.server.log.read_text().splitlines() if done in line)
        return sum("/media/download/" in line for line in lines)


@pytest.fixture(scope="module")
def synapse(synapse_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Synapse]:
    """One server for all tests of the module; each has its own users and rooms."""
    server = Synapse(synapse_python, tmp_path_factory.mktemp("synapse"))
    server.start()
    yield server
    server.stop()


_CHECKS = (*checks_for(SynapsePlatform), ChannelCheck(a_kill_after_placing_leaves_one_message))


@pytest.mark.parametrize("check", _CHECKS, ids=str)
async def test_the_contract(check: ChannelCheck, synapse: Synapse, tmp_path: Path) -> None:
    await check(SynapsePlatform(synapse), tmp_path)


async def test_a_gap_is_paged_to_its_begin(synapse: Synapse, tmp_path: Path) -> None:
    """Messages beyond a limited timeline come page by page, in order and without a limit of pages."""
    platform = SynapsePlatform(synapse)
    said = [f"note {number}" for number in range(260)]
    async with trial(platform, tmp_path) as made:
        async with made.gateway():
            platform.write("one")
            await made.shows("You said: one")
        for text in said:
            platform.write(text)
        made.models.then(Reply((Say("never"), Gate(asyncio.Event()))))
        backlog = {"session_backlog": 5000, "sender_backlog": 5000}
        async with made.gateway(limits=backlog) as gateway:
            await until(lambda: gateway.parts.dispatcher.waiting == len(said))
        assert [one["text"] for one in inbox(tmp_path)] == ["one", *said]


async def test_an_answer_is_found_with_another_access_token(synapse: Synapse, tmp_path: Path) -> None:
    """Another token is another device, which knows no transaction ids of the first."""
    platform = SynapsePlatform(synapse)
    async with trial(platform, tmp_path) as made:
        async with made.gateway() as gateway:
            placed = freeze_after_placing(gateway, "matrix")
            platform.write("one")
            async with asyncio.timeout(60):
                await placed.wait()
            gateway.parts.dispatcher.cancel()
        platform.token = platform.bot.sign_in_again()
        async with made.gateway() as gateway:
            await made.shows("You said: one")
            await settled(gateway)
            platform.write("two")
            await made.shows("You said: one", "You said: two")


async def test_a_thread_and_an_edit_of_a_reply(synapse: Synapse, tmp_path: Path) -> None:
    platform = SynapsePlatform(synapse)
    async with trial(platform, tmp_path) as made, made.gateway(envelope="off") as gateway:
        root = platform.ben.say(platform.room, "lunch?")
        thread = {"m.relates_to": {"rel_type": "m.thread", "event_id": root, "is_falling_back": True}}
        asked = platform.ada.say(platform.room, f"{platform.bot.user} yes", **thread)
        await until(lambda: platform.shown_in_room() == ["You said: yes"])
        await settled(gateway)
        assert "lunch?" in str(made.models.requests[0].body)
        platform.ada.edit(platform.room, asked, f"{platform.bot.user} no")
        await until(lambda: "You said: no" in platform.shown_in_room())
        platform.ada.say(platform.room, "and now?", **thread)
        await until(lambda: platform.shown_in_room()[-1] == "You said: and now?")
        answers = platform.ada.shown(platform.room, platform.bot.user)
        assert {one["m.relates_to"]["event_id"] for one in answers} == {root}


async def test_a_long_answer_is_uploaded_as_a_file(synapse: Synapse, tmp_path: Path) -> None:
    platform = SynapsePlatform(synapse)
    async with trial(platform, tmp_path) as made, made.gateway(pages=1):
        words = " ".join(f"word{number}" for number in range(8_000))
        made.models.then(Reply((Say(words),)))
        platform.write("recite")
        await until(lambda: len(platform.shown()) == 2)
        file = platform.ada.shown(platform.direct, platform.bot.user)[1]
        path = f"/_matrix/client/v1/media/download/{file['url'].removeprefix('mxc://')}"
        assert synapse.download(path, platform.ada.token).decode() == words


async def test_an_invitation_of_another_person_is_refused(synapse: Synapse, tmp_path: Path) -> None:
    platform = SynapsePlatform(synapse)
    async with trial(platform, tmp_path) as made, made.gateway():
        room = platform.ben.create(platform.bot, direct=True)
        await until(lambda: platform.ben.membership(room, platform.bot.user) == "leave")
