"""How a message reads to a model: steps that every backend accepts, and parts in words."""

from __future__ import annotations

import pytest

from gateway import Attachment, ErrorPart, FilePart, ImagePart, Part, TextPart, ToolCallPart, ToolResultPart
from gateway import Step as S
from gateway.testing.talk import assistant
from gateway.wire.transcript import ABORTED, output_text, pictures, steps_of, told


def call(name: str) -> ToolCallPart:
    """A call whose id is its name."""
    return ToolCallPart(name, "tool", {})


def result(name: str, output: str = "ok") -> ToolResultPart:
    """The result of a call."""
    return ToolResultPart(name, output)


def aborted(name: str) -> ToolResultPart:
    """What stands for a result that never came."""
    return ToolResultPart(name, ABORTED, is_error=True)


@pytest.mark.parametrize(
    ("parts", "steps"),
    [
        ([], []),
        ([TextPart("a"), TextPart("b")], [S("a\n\nb")]),
        ([TextPart("hm", "reasoning"), TextPart("a"), ErrorPart("X", "m")], [S("a")]),
        ([TextPart("  "), TextPart("s", "summary")], [S("s")]),
        (
            [TextPart("a"), call("1"), result("1"), TextPart("b")],
            [S("a", (call("1"),), (result("1"),)), S("b")],
        ),
        (
            [call("1"), call("2"), result("2"), result("1")],
            [S("", (call("1"), call("2")), (result("1"), result("2")))],
        ),
        ([call("1"), result("1"), call("2"), result("2")], [S("", (call(n),), (result(n),)) for n in "12"]),
        ([call("1"), call("2"), result("2")], [S("", (call("1"), call("2")), (aborted("1"), result("2")))]),
        ([call("1"), TextPart("a")], [S("a", (call("1"),), (aborted("1"),))]),
        ([result("lost"), TextPart("a")], [S("a")]),
        ([call("1"), result("1", "old"), result("1", "new")], [S("", (call("1"),), (result("1", "new"),))]),
        (
            [call("1"), call("1"), result("1")],
            [S("", (call("1"),), (aborted("1"),)), S("", (call("1"),), (result("1"),))],
        ),
    ],
)
def test_an_assistant_message_is_cut_into_steps(parts: list[Part], steps: list[S]) -> None:
    assert steps_of(assistant(*parts)) == steps


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (TextPart("hi"), "hi"),
        (TextPart("hm", "reasoning"), ""),
        (ImagePart("", "image/png"), "(image attached)"),
        (ImagePart("", "image/png", "a cat"), "(image attached: a cat)"),
        (FilePart("a.py"), "File a.py"),
        (FilePart("a.py", "x = 1", "python", (3, 4)), "File a.py, lines 3 to 4:\n```python\nx = 1\n```"),
        (ErrorPart("X", "m"), ""),
    ],
)
def test_a_part_is_told_in_words(part: Part, words: str) -> None:
    assert told(part) == words


def test_attachments_are_shown_or_named() -> None:
    picture, paper = Attachment("image/png", "aGk="), Attachment("application/pdf", "aGk=", "a.pdf")
    given = ToolResultPart("c", "done", attachments=(picture, paper, Attachment("text/csv", "aGk=")))
    assert pictures(given.attachments) == [picture]
    assert output_text(given) == "done\n[attached: a.pdf (application/pdf)]\n[attached: file (text/csv)]"
    assert output_text(ToolResultPart("c", "done")) == "done"
