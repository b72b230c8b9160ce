"""Plan mode: a session in which nothing is changed until a user agrees to the plan."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway import Plugin, PluginContext, Tool, ToolResultPart, tool_from
from gateway.testing.chat import Chat, chatting
from gateway.testing.fake_models.script import Reply, Use

PLAN = "1. Write the file.\n2. Check it."


class Writer(Plugin):
    """A tool that changes something, and one that claims to change nothing."""

    name = "writer"

    def __init__(self) -> None:
        self.written: list[str] = []

    def tools(self) -> Sequence[Tool]:
        async def write(text: str) -> str:
            """Write."""
            self.written.append(text)
            return "written"

        async def peek() -> str:
            """Look."""
            return "seen"

        return (tool_from(write), tool_from(peek, read_only=True))


class Answers(Plugin):
    """Puts a user who says yes or no into the place of the one that plan mode asks."""

    name = "answers"

    def __init__(self, answer: bool) -> None:
        self.answer = answer
        self.asked: list[tuple[str, str]] = []

    async def activate(self, ctx: PluginContext) -> None:
        plan = ctx.get_plugin("plan_mode")
        assert plan is not None
        plan._ui = self  # type: ignore[attr-defined]

    async def confirm(self, title: str, message: str) -> bool:
        """Answer."""
        self.asked.append((title, message))
        return self.answer


def offered(chat: Chat) -> set[str]:
    """The tools of the last request."""
    return {tool.name for tool in chat.model.calls[-1].options.tools}


async def results(chat: Chat, *calls: Use) -> list[str]:
    """Let the model make calls, and return their results."""
    for call in calls:
        chat.model.then(Reply((call,), "tools"))
    answer = await chat.say("go")
    return [part.output for part in answer.parts if isinstance(part, ToolResultPart)]


def use(name: str, **arguments: Any) -> Use:
    return Use(name, json.dumps(arguments))


async def test_004_t04_plan_mode_neither_offers_nor_runs_tools_that_change_something(tmp_path: Path) -> None:
    writer = Writer()
    async with chatting(tmp_path, writer) as chat:
        await chat.say("hi")
        assert {"write", "peek", "enter_plan_mode"} <= offered(chat)
        assert "exit_plan_mode" not in offered(chat)
        assert "Plan mode is on" in (await chat.say("/plan")).text
        assert "mode `plan`" in (await chat.say("/status")).text
        [refused] = await results(chat, use("write", text="x"))
        assert refused.startswith("Error: Unknown tool: write")
        assert offered(chat) == {"calculator", "utc_time", "slow_count", "question", "exit_plan_mode", "task"}
        assert "Plan mode" in chat.model.calls[-1].options.system_prompt
        assert "Plan mode is off" in (await chat.say("/plan off")).text
        assert await results(chat, use("write", text="x")) == ["written"]
        assert writer.written == ["x"]
        assert "Use /plan" in (await chat.say("/plan now")).text


async def test_plan_mode_survives_a_restart(tmp_path: Path) -> None:
    async with chatting(tmp_path, Writer()) as chat:
        await chat.say("/plan")
    async with chatting(tmp_path, Writer()) as chat:
        await chat.say("hi")
        assert "write" not in offered(chat)


async def test_004_t04_an_agreed_plan_is_carried_out_in_the_same_turn(tmp_path: Path) -> None:
    writer, user = Writer(), Answers(True)
    async with chatting(tmp_path, writer, user) as chat:
        await chat.say("/plan")
        agreed, written = await results(chat, use("exit_plan_mode", plan=PLAN), use("write", text="x"))
        assert user.asked == [("Carry out this plan?", PLAN)]
        assert agreed.endswith(f"carry out the plan now:\n\n{PLAN}")
        assert (written, writer.written) == ("written", ["x"])
        assert "exit_plan_mode" not in offered(chat)


async def test_004_t04_without_agreement_plan_mode_continues(tmp_path: Path) -> None:
    writer, user = Writer(), Answers(False)
    async with chatting(tmp_path, writer, user) as chat:
        await chat.say("/plan")
        refused, unknown = await results(chat, use("exit_plan_mode", plan=PLAN), use("write", text="x"))
        assert refused.startswith("The user did not agree")
        assert unknown.startswith("Error: Unknown tool: write")
        assert writer.written == []


@pytest.mark.parametrize("agrees", [True, False])
async def test_004_t04_a_model_may_ask_to_plan_first(tmp_path: Path, agrees: bool) -> None:
    writer, user = Writer(), Answers(agrees)
    async with chatting(tmp_path, writer, user) as chat:
        _, wrote = await results(chat, use("enter_plan_mode", reason="It is large."), use("write", text="x"))
        assert user.asked == [("Plan first?", "It is large.")]
        assert wrote.startswith("Error: Unknown tool: write" if agrees else "written")
    async with chatting(tmp_path, Writer()) as chat:
        await chat.say("hi")
        assert ("write" in offered(chat)) is not agrees


async def test_without_anybody_to_ask_the_mode_stays(tmp_path: Path) -> None:
    async with chatting(tmp_path, Writer(), limits={"approval_timeout_ms": 50}) as chat:
        await chat.say("/plan")
        [refused] = await results(chat, use("exit_plan_mode", plan=PLAN))
        assert refused.startswith("The user did not agree to this plan, or gave no answer.")
        assert "write" not in offered(chat)


async def test_004_t04_an_agent_may_only_plan(tmp_path: Path) -> None:
    agents = {"careful": {"mode": "plan", "system_prompt": "Look first."}}
    async with chatting(tmp_path, Writer(), agents=agents) as chat:
        await chat.say("/agent careful")
        await chat.say("hi")
        assert offered(chat) == {"calculator", "utc_time", "slow_count", "question", "task"}
        prompt = chat.model.calls[-1].options.system_prompt
        assert prompt == "Look first.\n\nYou can read and search, and change nothing."


async def test_004_t03_built_in_agents_can_be_picked_and_replaced(tmp_path: Path) -> None:
    async with chatting(tmp_path, Writer(), agents={"general": {"system_prompt": "Mine."}}) as chat:
        listed = (await chat.say("/agent")).text
        assert all(f"`{name}`" in listed for name in ("main", "plan", "general", "explore"))
        await chat.say("/agent plan")
        await chat.say("hi")
        assert "write" not in offered(chat)
        assert "change nothing" in chat.model.calls[-1].options.system_prompt
        await chat.say("/agent general")
        await chat.say("hi")
        assert chat.model.calls[-1].options.system_prompt == "Mine."
