"""The plugin ``batch``: several calls at the same time, each with its own permission."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gateway import Plugin, Tool, ToolError, ToolResultPart, tool_from
from gateway.testing.chat import Chat, chatting
from gateway.testing.fake_models.script import Reply, Use
from plugins.batch import Batch


class Meeting(Plugin):
    """Tools that only end together, and one that fails."""

    name = "meeting"

    def __init__(self) -> None:
        self.there = asyncio.Barrier(2)

    def tools(self) -> Sequence[Tool]:
        async def meet(name: str) -> str:
            """Wait for the other one."""
            async with asyncio.timeout(60):
                await self.there.wait()
            return f"{name} was there"

        async def fail() -> str:
            """Fail."""
            raise ToolError("the disk is full")

        return (tool_from(meet), tool_from(fail))


async def batch(chat: Chat, *calls: tuple[str, dict[str, Any]]) -> ToolResultPart:
    """Let the model ask for a batch, and return its result."""
    arguments = {"calls": [{"tool": tool, "arguments": given} for tool, given in calls]}
    chat.model.then(Reply((Use("batch", json.dumps(arguments)),), "tools"))
    answer = await chat.say("go")
    [result] = [part for part in answer.parts if isinstance(part, ToolResultPart)]
    return result


async def test_004_t14_the_calls_of_a_batch_run_at_the_same_time(tmp_path: Path) -> None:
    async with chatting(tmp_path, Batch(), Meeting()) as chat:
        result = await batch(chat, ("meet", {"name": "Ada"}), ("MEET", {"name": "Bob"}))
        assert result.output == "[1] meet\nAda was there\n\n[2] MEET\nBob was there"
        assert not result.is_error


async def test_004_t14_failures_of_a_batch_are_reported_one_by_one(tmp_path: Path) -> None:
    async with chatting(tmp_path, Batch(), Meeting()) as chat:
        calls: list[tuple[str, dict[str, Any]]] = [
            ("fail", {}),
            ("calculator", {"expression": "6 * 7"}),
            ("calculator", {"expresion": "1"}),
            ("teleport", {}),
            ("batch", {"calls": []}),
        ]
        result = await batch(chat, *calls)
        sections = result.output.split("\n\n")
        assert sections[:2] == ["[1] fail (failed)\nError: the disk is full", "[2] calculator\n42"]
        assert "did you mean expression?" in sections[2]
        assert sections[3].startswith("[4] teleport (failed)\nError: Unknown tool: teleport.")
        assert sections[4] == "[5] batch (failed)\nError: a batch cannot contain another batch."
        assert not result.is_error
        assert (await batch(chat, ("fail", {}))).is_error, "nothing of it worked"


async def test_a_batch_has_at_most_ten_calls(tmp_path: Path) -> None:
    async with chatting(tmp_path, Batch()) as chat:
        result = await batch(chat, *[("utc_time", {})] * 11)
        assert result.is_error
        assert "at most 10 items" in result.output


async def test_each_call_of_a_batch_needs_its_own_permission(tmp_path: Path) -> None:
    rules = {"fail": "deny", "meet": "ask", "*": "allow"}
    async with chatting(tmp_path, Batch(), Meeting(), permissions=rules) as chat:
        await chat.say("hi")
        answering = asyncio.create_task(batch(chat, ("fail", {}), ("meet", {"name": "Ada"})))
        asked = await chat.decide("deny")
        assert (asked.tool_name, asked.arguments) == ("meet", {"name": "Ada"})
        refused, denied = (await answering).output.split("\n\n")
        assert refused == "[1] fail (failed)\nError: Tool 'fail' denied by the permissions."
        assert denied == "[2] meet (failed)\nError: Tool 'meet' denied by user."
