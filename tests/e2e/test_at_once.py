"""Commands that only read act while an answer of their conversation is being made, and after a kill."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import pytest

from channels.telegram.fake import FakeTelegram
from gateway import Plugin, Transform
from gateway.contract.plugin import TurnContext
from gateway.session.frames import MessageFrame
from gateway.testing.chat import chatting
from gateway.testing.fake_models.script import Gate, Reply, Say, Use
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import Frame, SocketClient, serving
from tests.channels.telegram.lab import lab, until
from tests.e2e.gateway_process import GatewayProcess
from tests.gateway.pipeline.test_interruptions import Launching, asked

pytestmark = pytest.mark.slow


@pytest.fixture
async def fake() -> AsyncGenerator[FakeTelegram]:
    async with FakeTelegram() as platform:
        yield platform


def reply_to(answer_id: str, frame: Frame) -> bool:
    return frame["type"] == "message" and frame["message"]["id"] == answer_id


async def command(client: SocketClient, text: str) -> tuple[str, str]:
    """Send a command, and return its reply and the id of that."""
    ack = await client.say(text, session="s")
    found = await client.until(lambda frame: reply_to(ack["answer_id"], frame))
    return found["message"]["parts"][0]["content"], ack["answer_id"]


async def test_commands_that_read_are_answered_over_a_socket_while_an_answer_is_made(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with serving(tmp_path) as served, served.socket() as client:
        served.models.then(Reply((Say("one "), Gate(gate), Say("two"))))
        ack = await client.say("count", session="s")
        await client.until("text_delta")
        told, _ = await command(client, f"/why {ack['message_id']}")
        status, _ = await command(client, "/status")
        usage, _ = await command(client, "/usage")
        listed, last = await command(client, "/help")
        assert told.startswith("**Being answered: model openai/fake-small for ")
        assert status.endswith("- waiting 0\n- an answer is being made")
        assert "this conversation" in usage
        assert "`/why`" in listed
        # The answer is not finished, and goes on as if nothing had happened.
        assert not [frame for frame in client.frames if frame["type"] == "complete"]
        gate.set()
        done = await client.until("complete")
        assert done["message_id"] == ack["answer_id"]
        assert [frame["type"] for frame in client.frames].count("turn_start") == 1
        _, kept = await served.ask("GET", "/api/sessions/s/messages")
        ids = [one["message"]["id"] for one in kept["messages"]]
        assert len(ids) == 10
        assert (ids[0], *ids[-2:]) == (ack["message_id"], last, ack["answer_id"])
        assert len(served.models.requests) == 1
        async with served.socket() as later:
            await later.send(type="resume", session="s", after=0)
            await later.until("replayed")
            assert [f["message"]["id"] for f in later.frames if f["type"] == "message"] == ids


async def test_a_command_that_reads_is_answered_on_a_platform_while_an_answer_is_made(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    group, gate = fake.group("Lab", "Ada", admin=True), asyncio.Event()
    async with lab(tmp_path, fake, groups="always") as running:
        running.models.then(Reply((Say("Once upon"), Gate(gate), Say(" a time"))))
        fake.say(group, "a story", "Ada")
        await until(lambda: fake.answers(group) == ["Once upon"])
        fake.say(group, "/status", "Ada")
        await until(lambda: len(fake.answers(group)) == 2)
        assert "waiting 0" in fake.answers(group)[1]
        status = fake.answers(group)[1]
        gate.set()
        await running.answers(group, "Once upon a time", status)
        assert await running.states() == ["done", "done"]
    fake.transcript.check()


async def test_a_command_is_placed_once_on_a_platform_though_the_gateway_dies(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    chat = fake.private()
    async with lab(tmp_path, fake, streaming=False) as running:
        running.models.then(Reply((Gate(asyncio.Event()),)))
        fake.say(chat, "a story")
        await until(lambda: running.models.requests)
        fake.then("drop_after", method="sendMessage")
        fake.say(chat, "/help")
        await until(lambda: fake.answers(chat))
        running.gateway.parts.dispatcher.cancel()
    async with lab(tmp_path, fake, streaming=False) as running:
        gate = asyncio.Event()
        running.models.then(Reply((Gate(gate), Say("Once"))))
        await until(lambda: running.gateway.parts.dispatcher.waiting == 1)
        [listed] = fake.answers(chat)
        gate.set()
        await running.answers(chat, listed, "Once")
    fake.transcript.check()


@pytest.mark.parametrize("pause", [0.0, 0.005, 0.05])
async def test_a_command_is_answered_once_and_at_once_after_a_kill(tmp_path: Path, pause: float) -> None:
    async with FakeModels() as models, GatewayProcess(tmp_path, models.openai_url) as gateway:
        assert await gateway.start()
        async with gateway.client() as client:
            models.then(Reply((Gate(asyncio.Event()),)))
            question = await client.say("count", session="s")
            await until(lambda: models.requests)
            ack = await client.say("/status", session="s")
            await asyncio.sleep(pause)
            await gateway.stop(signal.SIGKILL)
        gate = asyncio.Event()
        models.then(Reply((Gate(gate), Say("one"))))
        assert await gateway.start()
        async with gateway.client() as client:
            await client.send(type="resume", session="s", after=0)
            await client.until(lambda frame: reply_to(ack["answer_id"], frame))
            # The question runs again, and its answer is not there yet.
            assert not [frame for frame in client.frames if frame["type"] == "complete"]
            gate.set()
            await client.until(lambda f: f["type"] == "complete" and f["message_id"] == question["answer_id"])
            await client.send(type="resume", session="s", after=0)
        async with gateway.client() as later:
            await later.send(type="resume", session="s", after=0)
            await later.until("replayed")
            ids = [frame["message"]["id"] for frame in later.frames if frame["type"] == "message"]
        assert sorted(ids) == sorted(
            one[key] for one in (question, ack) for key in ("message_id", "answer_id")
        )


async def test_the_model_sees_nothing_of_a_command_beside_its_answer(tmp_path: Path) -> None:
    launching = Launching()
    async with chatting(tmp_path, launching) as chat:
        chat.model.then(Reply((Use("launch"),), "tools"))
        answer = await chat.accept("go")
        await until(lambda: launching.launches)
        assert "- session `s`" in (await chat.say("/status")).text
        launching.gate.set()
        await chat.answer(answer)
        sent = [part for message in chat.model.calls[1].messages for part in message.parts]
        assert [type(part).__name__ for part in sent] == ["TextPart", "ToolCallPart", "ToolResultPart"]
        # What is undone is the exchange around the command.
        await chat.say("/undo")
        session = await chat.gateway.parts.sessions.find("s")
        assert not {"go", "You said: go"} & {message.text for message in session.messages()}
        assert answer not in {message.id for message in session.messages()}


class Rewording(Plugin):
    """Makes a question of the command /status."""

    name = "rewording"

    async def transform_user_input(self, text: str, ctx: TurnContext) -> Transform:
        return Transform("how are you" if text == "/status" else text)


async def test_a_command_that_a_hook_makes_a_question_of_waits_for_the_running_answer(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with chatting(tmp_path, Rewording()) as chat:
        chat.model.then(Reply((Gate(gate), Say("one"))))
        first = await chat.accept("go", order=1)
        await asked(chat)
        second = await chat.accept("/status", order=2)
        watcher = await chat.watch()
        assert (await chat.say("/help", order=3)).text
        assert len(chat.model.calls) == 1
        gate.set()
        assert (await chat.answer(first)).text == "one"
        assert (await chat.answer(second)).text == "You said: how are you"
        shown: Sequence[str] = [f.message.text for f in watcher.frames if isinstance(f, MessageFrame)]
        assert shown.count("how are you") <= 1


async def test_a_command_that_changes_something_waits_for_the_running_answer(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with chatting(tmp_path) as chat:
        chat.model.then(Reply((Gate(gate), Say("one"))))
        first = await chat.accept("go", order=1)
        await asked(chat)
        new = await chat.accept("/new", order=2)
        await chat.say("/help", order=3)
        session = await chat.gateway.parts.sessions.find("s")
        assert new not in {message.id for message in session.messages()}
        gate.set()
        await chat.answer(first)
        await chat.answer(new)
