"""A typed, documented function becomes a tool: its schema, and how calls of it are checked."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from gateway import PluginError, Tool, ToolContext, ToolError, ToolOutput, tool_from
from gateway.contract.tool import as_output


class Place(BaseModel):
    """Where."""

    city: str
    country: str = "NO"


async def weather(
    place: Place,
    days: Annotated[int, Field(description="How many", ge=1, le=7)] = 1,
    unit: Literal["C", "F"] = "C",
    *,
    context: ToolContext,
) -> str:
    """Tell the weather.

    It is a guess.
    """
    return f"{place.city}/{place.country} {days} {unit} for {context.user}"


def context(**fields: Any) -> ToolContext:
    """What a running tool is given."""

    async def nest(task: str, **_more: Any) -> str:
        return task

    async def call(tool: str, arguments: Any) -> ToolOutput:
        return ToolOutput(f"{tool} {arguments}")

    async def ask(title: str, **_more: Any) -> None:
        return None

    def change(_changes: Any) -> Any:
        raise AssertionError("no tool here changes files")

    known = {"session": "s", "message_id": "m", "call_id": "c", "key": "k", "user": "ada"}
    return ToolContext(
        **known,
        progress=lambda _text: None,
        run_nested=nest,
        call_tool=call,
        ask=ask,
        changing=change,
        watching=change,
        **fields,
    )


async def run(tool: Tool, **arguments: Any) -> Any:
    """Run a tool with the arguments a model gave."""
    return await tool.execute(arguments, context())


def test_002_15_name_docstring_and_annotations_are_what_the_model_gets() -> None:
    definition = tool_from(weather).definition
    assert (definition.name, definition.description) == ("weather", "Tell the weather.\n\nIt is a guess.")
    properties = definition.parameters["properties"]
    assert set(properties) == {"place", "days", "unit"}, "the context is not told"
    days = {"default": 1, "description": "How many", "maximum": 7, "minimum": 1}
    assert days.items() <= properties["days"].items()
    assert properties["unit"]["enum"] == ["C", "F"]
    assert definition.parameters["required"] == ["place"]
    assert definition.parameters["additionalProperties"] is False
    assert definition.parameters["type"] == "object"


async def test_arguments_arrive_as_they_are_annotated_and_the_context_with_them() -> None:
    tool = tool_from(weather)
    assert await run(tool, place={"city": "Oslo"}) == "Oslo/NO 1 C for ada"
    assert await run(tool, place={"city": "Rome", "country": "IT"}, days="3") == "Rome/IT 3 C for ada"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "place: Field required"),
        ({"place": {"city": "Oslo"}, "days": 9}, "days: Input should be less than or equal to 7"),
        ({"place": {}}, "place.city: Field required"),
        ({"place": {"city": "Oslo"}, "colour": 1}, "colour: Extra inputs are not permitted"),
        ({"place": {"city": "Oslo"}, "context": {}}, "context: Extra inputs are not permitted"),
    ],
)
async def test_wrong_arguments_are_reported_by_name(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ToolError, match="wrong arguments for weather") as caught:
        await run(tool_from(weather), **arguments)
    assert told in str(caught.value)


async def test_a_method_is_a_tool_too() -> None:
    class Counter:
        count = 0

        async def step(self, by: int = 1) -> str:
            """Count on."""
            self.count += by
            return str(self.count)

    tool = tool_from(Counter().step, idempotent=True, match_key=lambda arguments: str(arguments["by"]))
    assert [await run(tool), await run(tool, by=2)] == ["1", "3"]
    assert (tool.name, tool.idempotent) == ("step", True)
    assert tool.match_key is not None
    assert tool.match_key({"by": 2}) == "2"


async def undocumented() -> str:
    return ""


def not_async() -> str:
    """Return at once."""
    return ""


async def bare(text) -> str:  # type: ignore[no-untyped-def]
    """Say something."""
    return text


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (undocumented, "'undocumented' must be an async function with a docstring"),
        (not_async, "'not_async' must be an async function with a docstring"),
        (bare, "'bare': parameter 'text' has no annotation"),
    ],
)
def test_what_is_not_a_tool_is_refused_by_name(function: Any, told: str) -> None:
    with pytest.raises(PluginError, match=told):
        tool_from(function)


@pytest.mark.parametrize(("text", "is_error"), [("fine", False), ("Error: no", True), ("error: no", False)])
def test_002_12_text_is_an_error_by_its_beginning(text: str, is_error: bool) -> None:
    assert as_output(text) == ToolOutput(text, is_error=is_error)
    assert as_output(ToolOutput(text)).is_error is False
