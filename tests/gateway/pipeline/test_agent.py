"""What a turn does between the question and the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway import (
    ContentEvent,
    DisplayHints,
    ErrorPart,
    ImagePart,
    Plugin,
    ReasoningEvent,
    TextDelta,
    TextPart,
    Tool,
    ToolCallPart,
    ToolContext,
    ToolResultPart,
    TurnContext,
    TurnEndEvent,
    TurnResult,
    tool_from,
)
from gateway.contract.deltas import ToolResultStart
from gateway.contract.events import Activity, AgentEvent, MessagesEvent, UsageEvent
from gateway.provider_http import RateLimitError
from gateway.testing.chat import chatting
from gateway.testing.fake_models.script import Cut, Gate, Reply, Say, Think, Tokens, Use, UseTogether
from gateway.testing.fake_models.server import FakeModels

ADD = Use("calculator", '{"expression": "2 + 2"}', "call_1")


class Waiting(Plugin):
    """A tool that begins, says so, and waits for its gate."""

    name = "waiting"

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.gate = asyncio.Event()

        async def wait(context: ToolContext) -> str:
            """Wait until the test opens the gate."""
            context.progress("begun; ")
            self.begun.set()
            await self.gate.wait()
            return "open"

        self._tools = [tool_from(wait)]

    def tools(self) -> Sequence[Tool]:
        return self._tools


def results(parts: Sequence[Any]) -> list[ToolResultPart]:
    """The tool results among parts."""
    return [part for part in parts if isinstance(part, ToolResultPart)]


async def test_002_17_a_run_tells_content_reasoning_usage_messages_and_turn_ends(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("hi")
        events: list[AgentEvent] = []
        unsubscribe = (await chat.gateway.parts.sessions.find("s")).subscribe(events.append)
        chat.model.then(
            Reply((Think("hm"), Think("m"), Say("Let me "), Say("see."), ADD), "tools", Tokens(7, 3, 2)),
            Reply((Say("Fo"), Say("ur.")), tokens=Tokens(9, 1)),
        )
        await chat.say("2 + 2?")
        told = [event for event in events if not isinstance(event, MessagesEvent)]
        assert told == [
            ReasoningEvent("hm"),
            ReasoningEvent("hmm"),
            ContentEvent("Let me "),
            ContentEvent("Let me see."),
            UsageEvent(10, 2),
            TurnEndEvent(),
            ContentEvent("Fo"),
            ContentEvent("Four."),
            UsageEvent(10, 0),
        ]
        transcripts = [event.messages for event in events if isinstance(event, MessagesEvent)]
        assert [len(messages) for messages in transcripts] == [4, 4, 4]
        assert [len(results(messages[-1].parts)) for messages in transcripts] == [0, 1, 1]
        unsubscribe()
        events.clear()
        await chat.say("bye")
        assert events == []


async def test_002_19_cached_tokens_are_counted_and_nothing_where_none_are_reported(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        chat.model.then(
            Reply((ADD,), "tools", Tokens(10, 5, 4)),
            Reply((Say("4"),), tokens=Tokens(20, 5, 6)),
            Reply((Say("."),)),
        )
        metadata = (await chat.say("2 + 2?")).metadata
        assert (metadata.input_tokens, metadata.output_tokens, metadata.cached_tokens) == (30, 10, 10)
        assert (await chat.say("hm")).metadata.cached_tokens is None


async def test_002_19_hooks_and_listeners_get_the_cached_tokens_and_zero_where_none_are_reported(
    tmp_path: Path,
) -> None:
    class Watching(Plugin):
        name = "watching"

        def __init__(self) -> None:
            self.cached: list[int] = []

        async def after_llm_call(self, result: TurnResult, ctx: TurnContext) -> None:
            self.cached.append(result.cached_tokens)

    plugin = Watching()
    async with chatting(tmp_path, plugin) as chat:
        chat.model.then(*(Reply((Say("."),), tokens=Tokens(20, 5, cached)) for cached in (0, 6)))
        await chat.say("one")
        told: list[AgentEvent] = []
        (await chat.host.sessions.find("s")).subscribe(told.append)
        await chat.say("two")
        assert plugin.cached == [0, 6]
        assert [event.cached_tokens for event in told if isinstance(event, UsageEvent)] == [6]


async def test_002_35_runs_and_tools_are_emitted_on_the_activity_bus(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        told: list[Activity] = []

        def broken(_activity: Activity) -> None:
            raise ValueError("a bad listener")

        chat.gateway.activity.subscribe(broken)
        unsubscribe = chat.gateway.activity.subscribe(told.append)
        chat.model.then(Reply((ADD,), "tools"))
        await chat.say("2 + 2?")
        assert [(activity.kind, activity.source) for activity in told] == [
            ("agent_start", "main"),
            ("tool_start", "calculator"),
            ("tool_end", "calculator"),
            ("agent_end", "main"),
        ]
        assert [activity.id for activity in told] == [1, 2, 3, 4]
        unsubscribe()
        await chat.say("hi")
        assert len(told) == 4


async def test_002_38_pictures_reach_the_provider(tmp_path: Path) -> None:
    async with FakeModels() as fake:
        providers = {"openai": {"base_url": fake.openai_url, "api_key": "k"}}
        async with chatting(tmp_path, model="openai/fake-small", providers=providers) as chat:
            await chat.say("What is this?", parts=(ImagePart("aGVsbG8=", "image/png"),))
        content = fake.requests[0].body["messages"][-1]["content"]
        assert [part["type"] for part in content] == ["text", "image_url"]
        assert content[1]["image_url"]["url"] == "data:image/png;base64,aGVsbG8="


async def test_tools_run_one_after_another_and_the_model_is_asked_again(tmp_path: Path) -> None:
    calls = (ADD, Use("calculator", '{"expression": "3 * 3"}', "call_2"))
    async with chatting(tmp_path) as chat:
        chat.model.then(Reply((UseTogether(calls),), "tools"), Reply((Say("4 and 9."),)))
        answer = await chat.say("sums")
        assert [result.output for result in results(answer.parts)] == ["4", "9"]
        assert answer.text == "4 and 9."
        seen = results(chat.model.calls[1].messages[-1].parts)
        assert [result.tool_call_id for result in seen] == ["call_1", "call_2"]


async def test_a_turn_ends_after_the_configured_number_of_calls(tmp_path: Path) -> None:
    async with chatting(tmp_path, limits={"max_llm_calls": 3, "approval_timeout_ms": 50}) as chat:
        chat.model.then(*[Reply((ADD,), "tools")] * 5)
        answer = await chat.say("loop")
        assert len(chat.model.calls) == 3
        assert isinstance(answer.parts[-1], ErrorPart)
        assert "3 model calls" in answer.parts[-1].message


@pytest.mark.parametrize("aborted", [True, False])
async def test_an_answer_that_is_cut_off_is_kept_as_far_as_it_came(tmp_path: Path, aborted: bool) -> None:
    async with chatting(tmp_path) as chat:
        chat.model.then(Reply((Say("I think"), Gate(asyncio.Event()) if aborted else Cut())))
        answer_id = await chat.accept("hi")
        if aborted:
            watcher = await chat.watch()
            await watcher.until(lambda frame: isinstance(frame, TextDelta))
            assert await chat.host.abort("s")
        answer = await chat.answer(answer_id)
        assert answer.text == "I think"
        assert answer.metadata.stop_reason == "cancelled"
        await chat.say("and now?")
        assert [message.text for message in chat.model.calls[1].messages] == ["hi", "I think", "and now?"]


async def test_a_provider_error_is_a_named_part_of_the_answer(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        chat.model.then(RateLimitError("slow down", provider="script", status=429))
        answer = await chat.say("hi")
        [part] = answer.parts
        assert isinstance(part, ErrorPart)
        assert (part.error_name, part.message) == ("RateLimitError", "slow down")
        assert part.metadata is not None
        assert (part.metadata.code, part.metadata.retryable) == ("429", True)
        assert (await chat.say("again")).text == "You said: again"


@pytest.mark.parametrize("mistake", [KeyError("choices"), asyncio.CancelledError(), SystemExit(1)], ids=repr)
async def test_a_provider_with_a_mistake_in_it_does_not_end_the_gateway(
    tmp_path: Path, mistake: BaseException
) -> None:
    async with chatting(tmp_path) as chat:
        chat.model.then(mistake)
        [part] = (await chat.say("hi")).parts
        assert isinstance(part, ErrorPart)
        assert (await chat.say("again")).text == "You said: again"


async def test_stop_ends_a_tool_at_once_and_the_next_turn_is_accepted_by_the_provider(tmp_path: Path) -> None:
    async with FakeModels() as fake:
        plugin, providers = Waiting(), {"openai": {"base_url": fake.openai_url, "api_key": "k"}}
        settings: dict[str, Any] = {"model": "openai/fake-small", "providers": providers}
        async with chatting(tmp_path, plugin, **settings) as chat:
            calls = (Use("wait", "{}", "call_1"), Use("calculator", '{"expression": "1"}', "call_2"))
            fake.then(Reply((UseTogether(calls),), "tools"))
            await chat.accept("wait")
            await plugin.begun.wait()
            assert (await chat.say("/stop")).text == "Stopped."
            assert (await chat.say("go on")).text == "You said: go on"
        told = [m for m in fake.requests[-1].body["messages"] if m["role"] == "tool"]
        assert [message["tool_call_id"] for message in told] == ["call_1", "call_2"]
        assert told[0]["content"].startswith("Aborted: ")
        assert "Aborted" in told[1]["content"]


async def test_stop_goes_before_what_waits_and_says_when_there_is_nothing(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        chat.model.then(Reply((Say("Well"), Gate(asyncio.Event()))))
        await chat.accept("first")
        watcher = await chat.watch()
        await watcher.until(lambda frame: isinstance(frame, TextDelta))
        second = await chat.accept("second")
        assert (await chat.say("/stop")).text == "Stopped."
        assert (await chat.answer(second)).text == "You said: second"
        assert (await chat.say("/stop")).text == "Nothing is running."
        assert [m.text for m in chat.model.calls[-1].messages] == ["first", "Well", "second"]


async def test_a_message_during_a_turn_waits_for_its_end(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with chatting(tmp_path) as chat:
        chat.model.then(Reply((Say("one"), Gate(gate), Say(" two"))))
        await chat.accept("first")
        await chat.accept("second")
        third = await chat.accept("third")
        gate.set()
        await chat.answer(third)
        session = await chat.gateway.parts.sessions.find("s")
        assert [message.text for message in session.messages()] == [
            "first",
            "one two",
            "second",
            "You said: second",
            "third",
            "You said: third",
        ]


@pytest.mark.parametrize("steer", [True, False])
async def test_with_steer_a_message_ends_the_turn_at_the_next_boundary(tmp_path: Path, steer: bool) -> None:
    plugin = Waiting()
    async with chatting(tmp_path, plugin, steer=steer) as chat:
        chat.model.then(Reply((Use("wait"),), "tools"))
        first = await chat.accept("wait")
        await plugin.begun.wait()
        second = await chat.accept("never mind")
        await chat.accept("/usage")
        plugin.gate.set()
        assert (await chat.answer(first)).metadata.stop_reason == ("tool_use" if steer else "end_turn")
        await chat.answer(second)
        assert len(chat.model.calls) == (2 if steer else 3)
        seen = chat.model.calls[-1].messages
        assert seen[-1].text == "never mind"
        assert [result.output for result in results(seen[1].parts)] == ["open"]


async def test_a_command_does_not_steer(tmp_path: Path) -> None:
    plugin = Waiting()
    async with chatting(tmp_path, plugin, steer=True) as chat:
        chat.model.then(Reply((Use("wait"),), "tools"), Reply((Say("Finished."),)))
        first = await chat.accept("wait")
        await plugin.begun.wait()
        await chat.accept("/status")
        plugin.gate.set()
        assert (await chat.answer(first)).metadata.stop_reason == "end_turn"


async def test_002_13_display_hints_reach_the_reader(tmp_path: Path) -> None:
    async def patch(file: str) -> str:
        """Change a file."""
        return "+ hello"

    hints = DisplayHints(verb="patching", kind="diff", fields={"path": "file"})

    class Patches(Plugin):
        name = "patches"

        def tools(self) -> Sequence[Tool]:
            return [tool_from(patch, display=hints)]

    async with chatting(tmp_path, Patches()) as chat:
        await chat.say("hi")
        watcher = await chat.watch()
        chat.model.then(Reply((Use("patch", '{"file": "a.txt"}'),), "tools"))
        answer = await chat.say("go")
        start = await watcher.until(lambda frame: isinstance(frame, ToolResultStart))
        assert (start.title, start.display) == ("patching", hints)
        [result] = results(answer.parts)
        assert (result.title, result.display) == ("patching", hints)
    async with chatting(tmp_path, Patches()) as chat:
        [(_, stored)] = await chat.gateway.parts.sessions.read("s", last=1)
        assert results(stored.parts)[0].display == hints


async def test_a_call_with_broken_arguments_is_a_result_and_no_end(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        chat.model.then(Reply((Use("calculator", '{"expression": '),), "tools"), Reply((Say("Sorry."),)))
        answer = await chat.say("sum")
        [call] = [part for part in answer.parts if isinstance(part, ToolCallPart)]
        assert call.invalid_arguments == '{"expression": '
        [result] = results(answer.parts)
        assert (result.output, result.is_error) == ("Error: Invalid JSON arguments", True)
        assert answer.parts[-1] == TextPart("Sorry.")
