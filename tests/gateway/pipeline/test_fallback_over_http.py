"""Failures of an HTTP provider in a turn: another vendor finishes it as one answer, which is paid once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway import ErrorPart, Message, Plugin, ToolResultPart
from gateway.contract.messages import ImagePart, TextPart, is_notice
from gateway.contract.tool import Tool, tool_from
from gateway.testing.chat import Chat, chatting
from gateway.testing.fake_models.script import Bytes, Cut, Gate, Refusal, Reply, Say, Think, Tokens, Use
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import until


class Clock(Plugin):
    """A tool that counts its runs."""

    name = "clock"
    runs = 0

    def tools(self) -> list[Tool]:
        async def clock() -> str:
            """Tell the time."""
            self.runs += 1
            return "noon"

        return [tool_from(clock, read_only=True)]


def settings(first: FakeModels, second: FakeModels, **facts: Any) -> dict[str, Any]:
    """OpenAI's protocol first, then Anthropic's, with these facts of the second model."""
    prices = {"input_price": 1_000, "output_price": 1_000}
    return {
        "model": "desk/a",
        "fallback": ["house/b"],
        "providers": {
            "desk": {"base_url": first.openai_url, "max_retries": 0},
            "house": {"base_url": second.anthropic_url, "like": "anthropic", "api_key": "k" * 20},
        },
        "models": {"desk/a": prices, "house/b": {**prices, **facts}},
        "permissions": {"clock": "allow"},
    }


def said(answer: Message) -> str:
    return "".join(p.content for p in answer.parts if isinstance(p, TextPart) and not is_notice(p))


async def paid(chat: Chat) -> dict[str, tuple[int, int]]:
    """The calls and the output tokens of each provider."""
    rows = await chat.gateway.parts.spending.ledger.usage_by("provider", 0, 2**60)
    return {row.key: (row.calls, row.output_tokens) for row in rows}


OVERLOADED = Bytes(b'data: {"error": {"message": "overloaded", "code": 503}}\n\n')
PAGE = {"Content-Type": "text/html"}
FAILURES: dict[str, Reply | Refusal] = {
    "after some text": Reply((Say("Half a sent"), Cut())),
    "in the arguments of a call": Reply((Say("Let me see. "), Use("clock", '{"zone": "Eu'), Cut())),
    "with an error event": Reply((Say("Half"), OVERLOADED)),
    "with nothing": Refusal(200, body=b""),
    "with a page": Refusal(200, body=b"<html>Please log in</html>", headers=PAGE),
    "overloaded": Refusal(529, "Overloaded"),
    "for a day": Refusal(429, "quota for today", {"retry-after": "86400"}),
    "until a date": Refusal(429, "later", {"retry-after": "Fri, 31 Dec 2100 23:59:59 GMT"}),
    "without credit": Refusal(402, "This request requires more credits, or fewer max_tokens."),
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES.keys())
async def test_004_35_another_vendor_gives_the_whole_answer(failure: Reply | Refusal, tmp_path: Path) -> None:
    clock = Clock()
    async with FakeModels() as first, FakeModels() as second:
        first.then(failure)
        second.then(Reply((Use("clock"),), "tools"), Reply((Say("It is noon."),), tokens=Tokens(20, 7)))
        async with chatting(tmp_path, clock, **settings(first, second)) as chat:
            answer = await chat.say("What time is it?")
            spent = await paid(chat)
    assert said(answer) == "It is noon."
    assert not [part for part in answer.parts if isinstance(part, ErrorPart)]
    assert [part.output for part in answer.parts if isinstance(part, ToolResultPart)] == ["noon"]
    assert (len(first.requests), len(second.requests), clock.runs) == (1, 2, 1)
    assert spent.pop("house") == (2, 5 + 7)
    assert [calls for calls, _ in spent.values()] == [1] * isinstance(failure, Reply), (
        "begun answers are paid"
    )


async def test_004_35_a_failure_after_a_tool_call_runs_no_tool_twice(tmp_path: Path) -> None:
    clock = Clock()
    called = Reply((Say("Let me look. "), Use("clock", id="odd id!")), "tools")
    async with FakeModels() as first, FakeModels() as second:
        first.then(called, Reply((Say("It is"), Cut())))
        second.then(Reply((Say("It is noon."),)))
        async with chatting(tmp_path, clock, **settings(first, second)) as chat:
            answer = await chat.say("What time is it?")
            await chat.say("Thanks")
    assert (said(answer), clock.runs) == ("Let me look. It is noon.", 1)
    assert second.requests[0].results == ("noon",)
    assert len(first.requests) == 3, "the next turn begins with the first model again"


async def test_004_35_a_smaller_window_gets_a_shorter_conversation(tmp_path: Path) -> None:
    async with (
        FakeModels() as first,
        FakeModels() as second,
        chatting(tmp_path, Clock(), **settings(first, second, context_window=8_000)) as chat,
    ):
        for number in range(6):
            first.then(Reply((Say(f"{number} " + "word " * 2_000),)))
            await chat.say(f"Question {number}")
        first.then(Refusal(529, "Overloaded"))
        second.then(Reply((Say("Short."),)))
        answer = await chat.say("And now?")
        first.then(Reply((Say("Whole again."),)))
        await chat.say("Go on")
    assert said(answer) == "Short."
    sent = str(second.requests[0].body["messages"])
    assert len(sent) < 8_000 * 4 < len(str(first.requests[-1].body["messages"]))
    assert "And now?" in sent


async def test_004_35_a_picture_is_not_sent_to_a_model_that_cannot_see(tmp_path: Path) -> None:
    picture = ImagePart("iVBORw0KGgo=", "image/png")
    async with FakeModels() as first, FakeModels() as second:
        first.then(Refusal(529, "Overloaded"))
        async with chatting(tmp_path, Clock(), **settings(first, second, images=False)) as chat:
            answer = await chat.say("What is this?", parts=(TextPart("What is this?"), picture))
    [error] = [part for part in answer.parts if isinstance(part, ErrorPart)]
    assert "house/b" in error.message
    assert "does not accept images" in error.message
    assert not second.requests


@pytest.mark.parametrize("thought", ["Hm.", f"The key is {'k' * 20}."])
async def test_reasoning_survives_a_restart_and_stays_with_its_model(thought: str, tmp_path: Path) -> None:
    secret = thought != "Hm."
    async with FakeModels() as first, FakeModels() as second:
        given = {**settings(first, second), "model": "house/b", "fallback": ["desk/a"]}
        given["providers"]["house"]["max_retries"] = 0
        second.then(Reply((Think(thought), Use("clock")), "tools"), Reply((Gate(asyncio.Event()),)))
        async with chatting(tmp_path, Clock(), limits={"drain_seconds": 0}, **given) as chat:
            left = await chat.accept("What time is it?")
            await until(lambda: len(second.requests) == 2)
        second.then(Refusal(529, "Overloaded"))
        first.then(Reply((Say("It is noon."),)))
        async with chatting(tmp_path, Clock(), **given) as chat:
            answer = await chat.answer(left)
            await chat.say("And now?")
            shown = await chat.gateway.parts.sessions.read("s")
        sent = [str(request.body) for request in (*second.requests[1:], *first.requests)]
    # Within the turn, after the restart, and in the next turn; the fallback and people never get it. A
    # thought with a secret is not kept: its signature does not fit the masked text.
    assert ["'signature'" in body for body in sent] == [not secret, not secret, not secret, False]
    assert answer.text == "It is noon."
    assert "k" * 20 not in str((sent, answer))
    assert "ReasoningState(" not in str(shown)
