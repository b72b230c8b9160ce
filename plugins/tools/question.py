"""The tool ``question``: the model asks the user, with options to choose from or for a free text."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from gateway import Choice, DisplayHints, Tool, ToolContext, ToolError, tool_from

_DECLINED = "declined"
_DECLINE = Choice(_DECLINED, "Decline", style="bad")


class Option(BaseModel):
    """An answer to choose."""

    model_config = ConfigDict(extra="forbid")

    label: Annotated[str, Field(min_length=1, max_length=60, description="The answer in a few words")]
    description: Annotated[str, Field(max_length=200, description="What choosing it means")] = ""


class Asked(BaseModel):
    """One question to the user."""

    model_config = ConfigDict(extra="forbid")

    question: Annotated[str, Field(min_length=1, max_length=500, description="The whole question")]
    header: Annotated[str, Field(min_length=1, max_length=12, description="A very short label")]
    options: Annotated[
        list[Option], Field(max_length=10, description="Answers to choose; none for a free text")
    ] = []
    multiple: Annotated[bool, Field(description="Several options may be chosen")] = False
    custom: Annotated[bool, Field(description="The user may also answer with a text of their own")] = True


async def question(
    context: ToolContext,
    questions: Annotated[list[Asked], Field(min_length=1, max_length=4, description="Asked in this order")],
) -> str:
    """Ask the user one to four questions in the chat and wait for the answers.

    Use it when you need a decision of the user to continue.
    """
    answers: list[str] = []
    for asked in questions:
        labels = {str(number): option.label for number, option in enumerate(asked.options, 1)}
        answer = await context.ask(
            asked.question,
            choices=[
                *(
                    Choice(number, option.label, option.description)
                    for number, option in zip(labels, asked.options, strict=True)
                ),
                _DECLINE,
            ],
            multiple=asked.multiple and bool(asked.options),
            free_text=asked.custom or not asked.options,
        )
        if answer is None:
            raise ToolError("the user cannot be asked here; continue without an answer")
        if answer.state != "answered":
            raise ToolError(f"the user did not answer {asked.header!r} in time; continue without an answer")
        if _DECLINED in answer.values:
            raise ToolError(f"the user declined to answer {asked.header!r}; do not ask it again")
        chosen = ", ".join(labels.get(value, value) for value in answer.values)
        answers.append(f"{asked.header}: {chosen}")
    return "\n".join(answers)


def question_tool() -> Tool:
    """Return the tool. It changes nothing, and a repeated call does not ask answered questions again."""
    return tool_from(
        question,
        display=DisplayHints(verb="asking"),
        idempotent=True,
        read_only=True,
    )
