"""Runs within a tool call: their tools, their rules, and what is told of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gateway import Plugin, Tool, ToolBlock, ToolCall, ToolContext, ToolResultPart, tool_from
from gateway.contract.events import SubAgentEvent
from gateway.session.frames import ApprovalAsked
from gateway.testing.chat import Chat, chatting
from gateway.testing.fake_models.script import Cut, Gate, Reply, Say, Tokens, Use

Delegate = Callable[[ToolContext], Any]


class Delegating(Plugin):
    """A tool, ``delegate``, which does what it is given."""

    name = "delegating"

    def __init__(self, work: Delegate) -> None:
        async def delegate(context: ToolContext) -> str:
            """Give the work to another agent."""
            return str(await work(context))

        self._tools = [tool_from(delegate)]

    def tools(self) -> Sequence[Tool]:
        return self._tools


DELEGATE = Reply((Use("delegate", id="call_0"),), "tools", Tokens(1, 1))
ADD = Reply((Use("calculator", '{"expression": "2 + 2"}'),), "tools", Tokens(1, 1))


async def delegated(chat: Chat, *replies: Any) -> ToolResultPart:
    """The result of the delegating call, when the model answers the nested run with ``replies``."""
    chat.model.then(DELEGATE, *replies)
    answer = await chat.say("go")
    return next(part for part in answer.parts if isinstance(part, ToolResultPart))


async def test_002_37_a_nested_run_uses_a_subset_of_the_tools_and_returns_its_last_words(
    tmp_path: Path,
) -> None:
    plugin = Delegating(lambda c: c.run_nested("2 + 2?", tools=["calculator"], system_prompt="Be exact."))
    async with chatting(tmp_path, plugin) as chat:
        result = await delegated(chat, ADD, Reply((Say("It is 4."),), tokens=Tokens(1, 1)))
        assert (result.output, result.is_error) == ("It is 4.", False)
        outer, first, second, last = chat.model.calls
        assert [tool.name for tool in first.options.tools] == ["calculator"]
        assert first.options.system_prompt == "Be exact."
        assert [message.text for message in first.messages] == ["2 + 2?"]
        assert second.messages[0].text == "2 + 2?"
        assert "delegate" in [tool.name for tool in outer.options.tools]
        assert last.messages[0].text == "go", "the session knows nothing of it but the result"


async def test_002_37_a_nested_run_cannot_use_other_tools_than_its_subset(tmp_path: Path) -> None:
    runs: list[str] = []

    async def work(context: ToolContext) -> str:
        runs.append(context.call_id)
        return await context.run_nested("go on", tools=["calculator"])

    async with chatting(tmp_path, Delegating(work)) as chat:
        again = Reply((Use("delegate", id="call_9"),), "tools", Tokens(1, 1))
        result = await delegated(chat, again, Reply((Say("I could not."),), tokens=Tokens(1, 1)))
        assert result.output == "I could not."
        assert runs == ["call_0"], "the tool that was not in the subset did not run"
        [refused] = [
            p for m in chat.model.calls[2].messages for p in m.parts if isinstance(p, ToolResultPart)
        ]
        assert (refused.is_error, refused.output) == (
            True,
            "Error: Unknown tool: delegate. The tools are calculator.",
        )


async def test_002_37_a_nested_run_has_the_permissions_of_its_parent(tmp_path: Path) -> None:
    async def work(context: ToolContext) -> str:
        return await context.run_nested("2 + 2?")

    async with chatting(tmp_path, Delegating(work), permissions={"*": "allow", "calculator": "deny"}) as chat:
        await delegated(chat, ADD, Reply((Say("I may not."),)))
        [refused] = [
            p for m in chat.model.calls[2].messages for p in m.parts if isinstance(p, ToolResultPart)
        ]
        assert "denied by the permissions" in refused.output


async def test_002_37_a_nested_run_asks_in_the_session_of_its_parent(tmp_path: Path) -> None:
    plugin = Delegating(lambda context: context.run_nested("2 + 2?"))
    async with chatting(tmp_path, plugin, permissions={"*": "allow", "calculator": "ask"}) as chat:
        chat.model.then(DELEGATE, ADD, Reply((Say("4"),)))
        answer_id = await chat.accept("go")
        watcher = await chat.watch()
        asked = await watcher.until(lambda frame: isinstance(frame, ApprovalAsked))
        late = await (await chat.watch()).until(lambda frame: isinstance(frame, ApprovalAsked))
        assert late.approval_id == asked.approval_id
        await chat.host.settle(asked.approval_id, "once", session="s")
        await chat.answer(answer_id)
        [result] = [p for m in chat.model.calls[2].messages for p in m.parts if isinstance(p, ToolResultPart)]
        assert result.output == "4"


async def test_002_37_a_nested_run_has_the_hooks_of_its_parent(tmp_path: Path) -> None:
    ended: list[tuple[str, str]] = []

    class Guarded(Delegating):
        async def before_tool_exec(self, call: ToolCall, ctx: Any) -> ToolBlock | None:
            return ToolBlock(f"not for {ctx.agent}") if call.name == "calculator" else None

        async def after_agent_run(self, reason: str, ctx: Any) -> None:
            ended.append((ctx.agent, reason))

    plugin = Guarded(lambda context: context.run_nested("2 + 2?", agent="clerk"))
    async with chatting(tmp_path, plugin) as chat:
        await delegated(chat, ADD, Reply((Say("No."),)))
        [blocked] = [
            p for m in chat.model.calls[2].messages for p in m.parts if isinstance(p, ToolResultPart)
        ]
        assert blocked.output == "not for clerk"
        assert ended == [("clerk", "complete"), ("main", "complete")]


async def test_002_35_nested_runs_are_emitted_step_by_step(tmp_path: Path) -> None:
    steps: list[SubAgentEvent] = []
    tasks: list[tuple[str, str]] = []
    plugin = Delegating(lambda context: context.run_nested("2 + 2?", agent="clerk"))
    async with chatting(tmp_path, plugin) as chat:
        chat.gateway.activity.subscribe_sub_agent(lambda event: 1 // 0)
        chat.gateway.activity.subscribe_sub_agent(steps.append)
        chat.gateway.activity.subscribe(lambda event: tasks.append((event.kind, event.source)))
        await delegated(chat, ADD, Reply((Say("It is "), Say("4."))))
        assert [step.kind for step in steps] == [
            "invocation_start",
            "tool_call_start",
            "tool_call_end",
            "text_delta",
            "text_delta",
            "message_end",
            "invocation_end",
        ]
        assert {step.agent_id for step in steps} == {"clerk"}
        assert {step.parent_run_id for step in steps} == {None}
        assert len({step.run_id for step in steps}) == 1
        assert steps[-2].data["content"] == "It is 4."
        assert steps[-1].data["outcome"] == "done"
        assert [task for task in tasks if task[1] == "clerk"] == [
            ("task_started", "clerk"),
            ("agent_start", "clerk"),
            ("agent_end", "clerk"),
            ("task_completed", "clerk"),
        ]


async def test_002_37_stopping_the_turn_stops_what_is_nested(tmp_path: Path) -> None:
    steps: list[SubAgentEvent] = []
    begun = asyncio.Event()

    def note(step: SubAgentEvent) -> None:
        steps.append(step)
        if step.kind == "text_delta":
            begun.set()

    async with chatting(tmp_path, Delegating(lambda context: context.run_nested("think"))) as chat:
        chat.gateway.activity.subscribe_sub_agent(note)
        chat.model.then(DELEGATE, Reply((Say("Hm"), Gate(asyncio.Event()))))
        await chat.accept("go")
        await begun.wait()
        assert (await chat.say("/stop")).text == "Stopped."
        assert (steps[-1].kind, steps[-1].data["outcome"]) == ("invocation_end", "aborted")
        assert (await chat.say("still there?")).text == "You said: still there?"


async def test_002_37_a_run_that_ends_with_its_turn_is_reported_as_aborted(tmp_path: Path) -> None:
    ended: list[tuple[str, str]] = []
    begun = asyncio.Event()

    class Observed(Delegating):
        async def after_agent_run(self, reason: str, ctx: Any) -> None:
            ended.append((ctx.agent, reason))

    async with chatting(tmp_path, Observed(lambda context: context.run_nested("think"))) as chat:
        chat.gateway.activity.subscribe_sub_agent(
            lambda step: begun.set() if step.kind == "text_delta" else None
        )
        chat.model.then(DELEGATE, Reply((Say("Hm"), Gate(asyncio.Event()))))
        await chat.accept("go")
        await begun.wait()
        assert (await chat.say("/stop")).text == "Stopped."
        assert ended == [("sub", "aborted"), ("main", "aborted")]


async def test_002_37_stopping_the_turn_stops_a_run_that_its_tool_does_not_wait_for(tmp_path: Path) -> None:
    begun, over = asyncio.Event(), asyncio.Event()
    left: list[asyncio.Task[str]] = []

    async def work(context: ToolContext) -> str:
        left.append(asyncio.create_task(context.run_nested("think")))
        return await asyncio.shield(left[0])

    def note(step: SubAgentEvent) -> None:
        if step.kind in ("text_delta", "invocation_end"):
            (begun if step.kind == "text_delta" else over).set()

    async with chatting(tmp_path, Delegating(work)) as chat:
        chat.gateway.activity.subscribe_sub_agent(note)
        chat.model.then(DELEGATE, Reply((Say("Hm"), Gate(asyncio.Event()))))
        await chat.accept("go")
        await begun.wait()
        assert (await chat.say("/stop")).text == "Stopped."
        async with asyncio.timeout(60):
            await over.wait()
            assert await left[0] == "Hm"


async def test_a_run_that_ends_together_with_its_turn_is_committed_once(tmp_path: Path) -> None:
    begun, goes_on = asyncio.Event(), asyncio.Event()
    left: list[asyncio.Task[str]] = []

    async def work(context: ToolContext) -> str:
        left.append(asyncio.create_task(context.run_nested("think")))
        await begun.wait()
        return "It goes on."

    async with chatting(tmp_path, Delegating(work)) as chat:
        chat.gateway.activity.subscribe_sub_agent(
            lambda step: begun.set() if step.kind == "text_delta" else None
        )
        sessions: Any = chat.gateway.parts.sessions
        read = sessions.unfinished

        async def unfinished(root: str) -> Any:
            """The run ends after it was read that it had not."""
            found = await read(root)
            goes_on.set()
            await left[0]
            return found

        sessions.unfinished = unfinished
        chat.model.then(DELEGATE, Reply((Say("Hm"), Gate(goes_on))), Reply((Say("Done."),)))
        assert (await chat.say("go")).text == "Done."
        assert await left[0] == "Hm"


async def test_a_nested_run_that_fails_is_an_error_result(tmp_path: Path) -> None:
    async with chatting(tmp_path, Delegating(lambda context: context.run_nested("think"))) as chat:
        result = await delegated(chat, Reply((Say("Hm"), Cut())))
        assert result.is_error
        assert result.output.startswith("Error: the nested run failed")
        silent = await delegated(chat, Reply(()))
        assert silent.output == "Error: the nested run gave no answer"


async def test_nesting_has_a_bottom(tmp_path: Path) -> None:
    async with chatting(tmp_path, Delegating(lambda context: context.run_nested("deeper"))) as chat:
        result = await delegated(chat, *[DELEGATE] * 3, *[Reply((Say("That was the bottom."),))] * 4)
        assert result.output == "That was the bottom."
        bottom = chat.model.calls[4].messages[-1].parts[-1]
        assert isinstance(bottom, ToolResultPart)
        assert bottom.output == "Error: runs may be nested 3 deep"


async def test_tools_of_a_run_within_a_run_are_never_more(tmp_path: Path) -> None:
    async def work(context: ToolContext) -> str:
        return await context.run_nested("deeper", tools=["delegate", "utc_time"])

    async with chatting(tmp_path, Delegating(work)) as chat:
        await delegated(chat, DELEGATE, Reply((Say("a"),)), Reply((Say("b"),)))
        assert [tool.name for tool in chat.model.calls[2].options.tools] == ["utc_time", "delegate"]

    async def narrow(context: ToolContext) -> str:
        return await context.run_nested("deeper", tools=["delegate"] if context.key.count(":") < 2 else None)

    async with chatting(tmp_path / "narrow", Delegating(narrow)) as chat:
        await delegated(chat, DELEGATE, Reply((Say("a"),)), Reply((Say("b"),)))
        assert [tool.name for tool in chat.model.calls[2].options.tools] == ["delegate"]


async def test_what_a_nested_run_takes_counts_for_the_answer(tmp_path: Path) -> None:
    async with chatting(tmp_path, Delegating(lambda context: context.run_nested("think"))) as chat:
        chat.model.then(
            DELEGATE, Reply((Say("a"),), tokens=Tokens(100, 10)), Reply((Say("b"),), tokens=Tokens(1, 1))
        )
        metadata = (await chat.say("go")).metadata
        assert (metadata.input_tokens, metadata.output_tokens) == (102, 12)
