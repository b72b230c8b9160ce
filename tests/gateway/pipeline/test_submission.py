"""Submitting from inside: the whole way of a channel's message, and the reply handed back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway import ErrorPart, ImagePart, Intercept, NotFoundError, Plugin, TextDelta, Transform
from gateway.channel import Audio, InboundMessage, OverloadedError
from gateway.contract.errors import InvalidStateError
from gateway.contract.provider import TurnOptions
from gateway.provider_http import ServerFailedError
from gateway.store.inbox import Inbox
from gateway.testing.chat import chatting, written
from gateway.testing.fake_models.script import Cut, Gate, Reply, Say


class Texts:
    """A responder that takes text and nothing else."""

    def __init__(self) -> None:
        self.got: list[tuple[str, str]] = []

    async def send_text(self, text: str) -> None:
        self.got.append(("text", text))


class Everything(Texts):
    """A responder with every ability."""

    async def send_voice(self, text: str) -> None:
        self.got.append(("voice", text))

    async def send_ack(self, text: str) -> None:
        self.got.append(("ack", text))

    async def send_error(self, text: str) -> None:
        self.got.append(("error", text))


class Hearing(Plugin):
    """Writes down what is heard, as a plugin for speech recognition would."""

    name = "hearing"

    def __init__(self) -> None:
        self.heard: list[InboundMessage] = []

    async def transform_user_input(self, text: str, ctx: Any) -> Transform:
        self.heard.append(ctx.inbound)
        return Transform(f"heard {ctx.inbound.audio.file_path}" if ctx.inbound.audio else text)


async def test_002_33_a_responder_gets_the_reply_in_the_way_that_was_asked_for(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        texts, everything = Texts(), Everything()
        for responder in (texts, everything):
            await chat.host.submit(written("hi", response_mode="voice"), responder)
            await chat.host.submit(written("ho"), responder)
    assert texts.got == [("text", "You said: hi"), ("text", "You said: ho")]
    kinds = [kind for kind, _ in everything.got]
    assert kinds == ["ack", "voice", "ack", "text"]


async def test_002_33_the_receipt_comes_when_the_message_is_durable_and_before_the_answer(
    tmp_path: Path,
) -> None:
    async with chatting(tmp_path) as chat, asyncio.TaskGroup() as tasks:
        gate, responder = asyncio.Event(), Everything()
        await chat.say("hi")
        watcher = await chat.watch(after=10**9)
        chat.model.then(Reply((Say("On "), Gate(gate), Say("it."))))
        submitted = tasks.create_task(chat.host.submit(written("go"), responder))
        await watcher.until(lambda frame: isinstance(frame, TextDelta))
        [(kind, message_id)] = responder.got
        gate.set()
        answer = await submitted
        assert answer is not None
        stored = [message.id for _, message in await chat.gateway.parts.sessions.read("s")]
    assert (kind, stored[2:]) == ("ack", [message_id, answer.id])


async def test_002_33_failures_go_to_the_responder(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        texts, everything = Texts(), Everything()
        for responder in (texts, everything):
            chat.model.then(Reply((Say("Half"), Cut())))
            await chat.host.submit(written("hi"), responder)
    assert texts.got == [("text", "Half"), ("text", "the script cut the stream")]
    assert everything.got[1:] == [("text", "Half"), ("error", "the script cut the stream")]


async def test_002_33_a_voice_message_is_answered_by_what_a_plugin_hears(tmp_path: Path) -> None:
    plugin = Hearing()
    audio = Audio(mime_type="audio/ogg", file_path="/tmp/hello.ogg")
    async with chatting(tmp_path, plugin) as chat:
        answer = await chat.say("", kind="audio", audio=audio, raw={"update_id": 7})
    assert answer.text == "You said: heard /tmp/hello.ogg"
    [inbound] = plugin.heard
    assert (inbound.kind, inbound.audio, inbound.raw) == ("audio", audio, {"update_id": 7})


async def test_002_33_a_voice_message_without_a_transcriber_is_answered_too(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        answer = await chat.say("", kind="audio", audio=Audio(mime_type="audio/ogg"))
        assert "cannot listen" in answer.text
        assert chat.model.calls == []
        said = (await chat.gateway.parts.sessions.find("s")).messages()[0]
        assert said.text == "[voice message]"


async def test_a_model_learns_of_a_voice_message_that_was_not_transcribed(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("and this?", kind="audio", audio=Audio(mime_type="audio/ogg"))
        picture = ImagePart("aGk=", "image/png")
        await chat.say("", kind="audio", audio=Audio(mime_type="audio/ogg"), parts=(picture,))
        said = [message.text for message in chat.model.calls[-1].messages if message.role == "user"]
    assert said == ["and this?\n\n[voice message, not heard]", "[voice message, not heard]"]


async def test_the_words_of_a_voice_message_are_enough(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        assert (await chat.say("hello", kind="audio")).text == "You said: hello"


async def test_submitting_runs_hooks_and_commands(tmp_path: Path) -> None:
    class Guard(Plugin):
        name = "guard"

        async def transform_user_input(self, text: str, ctx: Any) -> Intercept | None:
            return Intercept("Not you.") if ctx.sender.id == "mallory" else None

    async with chatting(tmp_path, Guard()) as chat:
        assert (await chat.say("hi", user="mallory")).text == "Not you."
        assert "`/help`" in (await chat.say("/help")).text


async def test_an_error_of_the_model_is_part_of_the_answer(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        chat.model.then(ServerFailedError("it burns", provider="script"))
        [part] = (await chat.say("hi")).parts
        assert isinstance(part, ErrorPart)
        assert part.message == "it burns"


async def test_the_same_message_twice_has_one_answer(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        first = await chat.host.submit(written("hi", dedup_key="k"))
        again = await chat.host.submit(written("hi", dedup_key="k"))
        assert first == again
        assert len(chat.model.calls) == 1


async def test_a_repeated_message_without_an_answer_has_none_again(tmp_path: Path) -> None:
    class Mute(Plugin):
        name = "mute"

        async def transform_user_input(self, text: str, ctx: Any) -> Intercept:
            return Intercept()

    async with chatting(tmp_path, Mute()) as chat:
        for _ in range(2):
            assert await chat.host.submit(written("hi", dedup_key="k")) is None


async def test_a_message_that_ended_without_an_answer_before_anybody_looked_has_none(tmp_path: Path) -> None:
    class Mute(Plugin):
        name = "mute"

        async def transform_user_input(self, text: str, ctx: Any) -> Intercept | Transform:
            return Intercept() if text == "hush" else Transform(text)

    class Slow(Texts):
        async def send_ack(self, text: str) -> None:
            async with asyncio.timeout(60):
                while await Inbox(chat.gateway.parts.store, 1).is_open(text):
                    await asyncio.sleep(0)
            await chat.host.submit(written("another", dedup_key="another"))

    async with chatting(tmp_path, Mute()) as chat, asyncio.timeout(60):
        assert await chat.host.submit(written("hush"), Slow()) is None
        gate = asyncio.Event()
        chat.model.then(Reply((Say("On "), Gate(gate), Say("it."))))
        await chat.accept("go")
        assert await chat.host.submit(written("hush", "other"), Slow()) is None
        gate.set()


async def test_an_exclusive_message_is_refused_while_the_session_answers(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        gate = asyncio.Event()
        chat.model.then(Reply((Say("On "), Gate(gate), Say("it."))))
        answer_id = await chat.accept("go")
        with pytest.raises(InvalidStateError, match="already running a turn"):
            await chat.host.submit(written("and this"), exclusive=True)
        elsewhere = await chat.host.submit(written("and this", "other"), exclusive=True)
        assert elsewhere is not None
        gate.set()
        assert (await chat.answer(answer_id)).text == "On it."
        assert await chat.host.submit(written("now"), exclusive=True) is not None


async def test_who_waits_for_an_answer_is_let_go_when_the_gateway_stops(tmp_path: Path) -> None:
    async def waiting() -> None:
        with pytest.raises(OverloadedError, match="answered after the restart"):
            await chat.host.submit(written("go"))

    async with asyncio.TaskGroup() as tasks:
        async with chatting(tmp_path, limits={"drain_seconds": 0}) as chat:
            await chat.say("hi")
            watcher = await chat.watch(after=10**9)
            chat.model.then(Reply((Say("On "), Gate(asyncio.Event()))))
            waiter = tasks.create_task(waiting())
            await watcher.until(lambda frame: isinstance(frame, TextDelta))
        await waiter
    async with chatting(tmp_path) as chat:
        await chat.say("and now?")
        stored = [message.text for _, message in await chat.gateway.parts.sessions.read("s")]
    assert stored[2:] == ["go", "You said: go", "and now?", "You said: and now?"]


async def test_who_does_not_wait_yet_when_the_gateway_stops_is_let_go(tmp_path: Path) -> None:
    class Late(Texts):
        async def send_ack(self, text: str) -> None:
            accepted.set()
            await stopping.wait()

    accepted, stopping = asyncio.Event(), asyncio.Event()
    async with chatting(tmp_path, limits={"drain_seconds": 0}) as chat, asyncio.timeout(60):
        chat.model.then(Reply((Say("On "), Gate(asyncio.Event()))))
        waiter = asyncio.create_task(chat.host.submit(written("go"), Late()))
        await accepted.wait()
        chat.gateway.parts.submission.close()
        stopping.set()
        with pytest.raises(OverloadedError, match="answered after the restart"):
            await waiter


async def test_002_31_a_turn_has_its_own_model_agent_and_options(tmp_path: Path) -> None:
    agents: dict[str, Any] = {"clerk": {"temperature": 0.1, "max_tokens": 50, "stop_sequences": ("END",)}}
    async with chatting(tmp_path, agents=agents) as chat:
        options = TurnOptions(temperature=0.9, top_p=0.5, seed=7, max_tokens=99, response_format="json")
        await chat.host.submit(written("hi"), model="script/other", agent="clerk", options=options)
        asked = chat.model.calls[-1].options
        assert (asked.model, asked.temperature, asked.top_p, asked.seed) == ("other", 0.9, 0.5, 7)
        assert (asked.max_tokens, asked.response_format) == (50, "json"), "the agent's bound stays"
        assert asked.stop_sequences == ("END",)
        await chat.host.submit(written("hi", agent="clerk", options=TurnOptions(stop_sequences=("FIN",))))
        asked = chat.model.calls[-1].options
        assert (asked.temperature, asked.stop_sequences, asked.top_p) == (0.1, ("FIN",), None)
        await chat.host.submit(written("hi"))
        asked = chat.model.calls[-1].options
        assert (asked.temperature, asked.stop_sequences) == (None, ()), "the next turn is as usual"


async def test_002_31_an_agent_that_there_is_not_is_refused(tmp_path: Path) -> None:
    async with chatting(tmp_path, agents={"clerk": {}}) as chat:
        with pytest.raises(NotFoundError, match="unknown agent 'clark'; configured agents: clerk"):
            await chat.host.submit(written("hi"), agent="clark")
        assert chat.model.calls == []
