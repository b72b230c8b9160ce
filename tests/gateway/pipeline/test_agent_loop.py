"""A plugin's own agent loop in the place of the built-in one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

from gateway import (
    AgentEvent,
    ContentEvent,
    ErrorPart,
    LoopRun,
    Plugin,
    ReasoningEvent,
    TextDelta,
    TextPart,
    ToolCall,
    ToolCallPart,
    ToolResultPart,
    TurnEndEvent,
    TurnResult,
)
from gateway.testing.chat import chatting
from gateway.testing.fake_models.script import Reply, Say, Think, Tokens, Use, UseTogether

Run = Callable[[LoopRun], AsyncGenerator[AgentEvent]]


class Looping(Plugin):
    """A plugin whose loop is the function it is given."""

    name = "looping"

    def __init__(self, run: Run) -> None:
        class Loop:
            name = "own"

            def run(self, run: LoopRun) -> AsyncGenerator[AgentEvent]:
                return outer(run)

        outer = run
        self.agent_loop = Loop()


async def test_002_18_a_loop_of_a_plugin_replaces_the_built_in_one(tmp_path: Path) -> None:
    async def run(loop: LoopRun) -> AsyncGenerator[AgentEvent]:
        yield ReasoningEvent("hm")
        yield ContentEvent("Hello")
        yield ContentEvent(f"Hello, {loop.messages[-1].text}")
        yield TurnEndEvent()
        yield ContentEvent("Bye")

    async with chatting(tmp_path, Looping(run)) as chat:
        watcher_id = await chat.accept("Ada")
        answer = await chat.answer(watcher_id)
        assert answer.parts == (TextPart("hm", "reasoning"), TextPart("Hello, Ada"), TextPart("Bye"))
        assert chat.model.calls == []


async def test_002_18_its_cumulative_texts_are_shown_piece_by_piece(tmp_path: Path) -> None:
    async def run(loop: LoopRun) -> AsyncGenerator[AgentEvent]:
        yield ContentEvent("a")
        yield ContentEvent("abc")

    async with chatting(tmp_path, Looping(run)) as chat:
        await chat.say("hi")
        watcher = await chat.watch()
        await chat.say("hi again")
        await watcher.until(lambda frame: isinstance(frame, TextDelta) and frame.accumulated_length == 3)
        assert [frame.content for frame in watcher.frames if isinstance(frame, TextDelta)] == ["a", "bc"]


async def test_002_18_a_loop_calls_the_model_and_tools_with_their_hooks(tmp_path: Path) -> None:
    given: list[TurnResult] = []

    async def run(loop: LoopRun) -> AsyncGenerator[AgentEvent]:
        given.append(await loop.call_model(loop.messages))
        output = await loop.call_tool(given[0].tool_calls[0])
        yield TurnEndEvent()
        yield ContentEvent(f"The tool said {output.content}")

    class Shouting(Looping):
        async def after_tool_exec(self, call: ToolCall, result: str, ctx: Any) -> str:
            return f"{result}!"

    async with chatting(tmp_path, Shouting(run)) as chat:
        add = Use("calculator", '{"expression": "2 + 2"}')
        chat.model.then(Reply((Say("Let me see."), add), "tools", Tokens(7, 3, 2)))
        answer = await chat.say("2 + 2?")
        assert [type(part) for part in answer.parts] == [TextPart, ToolCallPart, ToolResultPart, TextPart]
        assert answer.text == "Let me see.\n\nThe tool said 4!"
        [result] = [part for part in answer.parts if isinstance(part, ToolResultPart)]
        assert result.output == "4!"
        call = ToolCall("call_1", "calculator", {"expression": "2 + 2"})
        assert given == [TurnResult("Let me see.", "", (call,), 10, 2)]
        assert answer.metadata.input_tokens == 7


async def test_002_18_a_call_the_model_did_not_make_is_shown_with_its_result(tmp_path: Path) -> None:
    async def run(loop: LoopRun) -> AsyncGenerator[AgentEvent]:
        await loop.call_tool(ToolCall("mine", "calculator", {"expression": "1 + 1"}))
        yield ContentEvent("Two.")

    async with chatting(tmp_path, Looping(run)) as chat:
        call, result, text = (await chat.say("1 + 1?")).parts
        assert call == ToolCallPart("mine", "calculator", {"expression": "1 + 1"})
        assert isinstance(result, ToolResultPart)
        assert (result.tool_call_id, result.output) == ("mine", "2")
        assert text == TextPart("Two.")


async def test_002_18_a_call_with_broken_arguments_is_answered_and_runs_nothing(tmp_path: Path) -> None:
    async def run(loop: LoopRun) -> AsyncGenerator[AgentEvent]:
        made = await loop.call_model(loop.messages)
        await loop.call_tool(made.tool_calls[0])
        yield ContentEvent("Done.")

    async with chatting(tmp_path, Looping(run)) as chat:
        chat.model.then(Reply((Use("utc_time", '{"zone": "Eur'),), "tools"))
        call, result, _ = (await chat.say("What time is it?")).parts
        assert isinstance(call, ToolCallPart)
        assert call.invalid_arguments == '{"zone": "Eur'
        assert isinstance(result, ToolResultPart)
        assert (result.output, result.is_error) == ("Error: Invalid JSON arguments", True)


async def test_a_loop_that_raises_is_a_named_error_after_what_it_said(tmp_path: Path) -> None:
    async def run(loop: LoopRun) -> AsyncGenerator[AgentEvent]:
        yield ContentEvent("I was about to")
        raise ValueError("no idea")

    async with chatting(tmp_path, Looping(run)) as chat:
        text, error = (await chat.say("hi")).parts
        assert text == TextPart("I was about to")
        assert isinstance(error, ErrorPart)
        assert error.error_name == "PluginError"
        assert "own" in error.message


async def test_002_02_what_a_hook_makes_of_an_answer_is_what_is_kept_and_run(tmp_path: Path) -> None:
    """The hook thinks aloud differently, rewrites the first call, drops the second, and adds words."""

    class Editing(Plugin):
        name = "editing"

        async def after_llm_call(self, result: TurnResult, ctx: Any) -> TurnResult | None:
            if not result.tool_calls:
                return None
            first = ToolCall("c1", "calculator", {"expression": "2 + 2"})
            return TurnResult("Let me see.", "hm!", (first,), result.usage)

    async with chatting(tmp_path, Editing()) as chat:
        wrong = UseTogether(
            (Use("calculator", '{"expression": "1"}', "c1"), Use("calculator", '{"expression": "9"}', "c2"))
        )
        chat.model.then(Reply((Think("hm"), wrong), "tools"), Reply((Say("Four."),)))
        answer = await chat.say("2 + 2?")
    kinds = [part for part in answer.parts if not isinstance(part, ToolResultPart)]
    assert kinds == [
        TextPart("hm!", "reasoning"),
        ToolCallPart("c1", "calculator", {"expression": "2 + 2"}),
        TextPart("Let me see."),
        TextPart("Four."),
    ]
    assert [part.output for part in answer.parts if isinstance(part, ToolResultPart)] == ["4"]
