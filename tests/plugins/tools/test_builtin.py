"""The tools that are always there."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.contract.errors import ToolError
from gateway.contract.tool import ToolContext, ToolOutput, as_output
from plugins.tools.builtin import tools


async def never(task: str, **_: object) -> str:
    raise AssertionError(f"no tool here begins a run of its own: {task}")


async def alone(tool: str, _arguments: object) -> ToolOutput:
    raise AssertionError(f"no tool here calls another one: {tool}")


async def mute(title: str, **_: object) -> None:
    raise AssertionError(f"no tool here asks: {title}")


def unchanged(_changes: object) -> Any:
    raise AssertionError("no tool here changes files")


async def run(name: str, progress: list[str] | None = None, **arguments: Any) -> str:
    (tool,) = [tool for tool in tools() if tool.name == name]
    show = [] if progress is None else progress
    context = ToolContext(
        session="s",
        message_id="m",
        call_id="c",
        key="k",
        user="u",
        progress=show.append,
        run_nested=never,
        call_tool=alone,
        ask=mute,
        changing=unchanged,
        watching=unchanged,
    )
    return as_output(await tool.execute(arguments, context)).content


def test_there_are_three_and_each_says_what_it_does() -> None:
    assert [tool.name for tool in tools()] == ["utc_time", "calculator", "slow_count"]
    for tool in tools():
        assert tool.definition.description
        assert tool.definition.parameters["type"] == "object"
        assert tool.idempotent
        assert "context" not in tool.definition.parameters["properties"]


async def test_the_time_is_returned_for_a_zone() -> None:
    assert (await run("utc_time")).endswith("UTC (UTC+0000)")
    assert "Asia/Kolkata (UTC+0530)" in await run("utc_time", zone="Asia/Kolkata")


@pytest.mark.parametrize("zone", ["Nowhere/Land", "../../etc/passwd", "Europe", "", "\0"])
async def test_a_zone_that_does_not_exist_is_an_error(zone: str) -> None:
    with pytest.raises(ToolError, match="unknown time zone"):
        await run("utc_time", zone=zone)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("12 * (3 + 4)", "84"),
        (" 7 // 2 % 2 ", "1"),
        ("-2 ** 2", "-4"),
        ("2 ** -1", "0.5"),
        ("0.1 + 0.2", "0.30000000000000004"),
        ("2 ** 4000 % 10", "6"),
        ("1e3", "1000.0"),
        ("0 ** 0", "1"),
        ("4 ** 0.5", "2.0"),
    ],
)
async def test_sums_are_worked_out(expression: str, value: str) -> None:
    assert await run("calculator", expression=expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "1 +",
        "__import__('os').system('true')",
        "a + 1",
        "'a' * 9",
        "True + 1",
        "[1][0]",
        "1 if 2 else 3",
        "1j * 1j",
        "1 / 0",
        "0 ** -1",
        "(-8) ** 0.5",
        "9 ** 9 ** 9",
        "10.0 ** 400",
        "1" * 201,
        "-" * 199 + "1" + "0" * 10,
        "(" * 95 + "1" + ")" * 95 + "," * 5,
        "1\0",
        "2 ** 4095 * 2 ** 4095",
        "2 ** 4000 * 1.5",
    ],
)
async def test_anything_else_is_an_error_and_nothing_is_run(expression: str) -> None:
    with pytest.raises(ToolError):
        await run("calculator", expression=expression)


async def test_counting_shows_each_number_as_it_comes() -> None:
    shown: list[str] = []

    assert await run("slow_count", shown, n=3, delay_ms=0) == "Counted to 3."
    assert shown == ["1 of 3\n", "2 of 3\n", "3 of 3\n"]


@pytest.mark.parametrize("arguments", [{"n": 0}, {"n": 101}, {"delay_ms": 5001}, {"n": "many"}, {"to": 3}])
async def test_counting_is_bounded(arguments: dict[str, Any]) -> None:
    with pytest.raises(ToolError, match="wrong arguments"):
        await run("slow_count", **arguments)
