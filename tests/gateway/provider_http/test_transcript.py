"""How a message reads to a model: steps that every backend accepts, and parts in words."""

from __future__ import annotations

import re

import msgspec
import pytest

from gateway import Attachment, ErrorPart, FilePart, ImagePart, Part, TextPart, ToolCallPart, ToolResultPart
from gateway.contract.messages import ABORTED
from gateway.provider_http import Step as S
from gateway.provider_http.transcript import (
    image_attachments,
    output_text,
    part_as_text,
    split_steps,
    wire_id,
)
from gateway.testing.contracts.provider_calls import assistant


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
        (
            [TextPart("hm", "reasoning"), TextPart("a"), ErrorPart("X", "m")],
            [S("a", reasoning="hm")],
        ),
        (
            [call("1"), result("1"), TextPart("h", "reasoning"), TextPart("m", "reasoning"), call("2")],
            [S("", (call("1"),), (result("1"),)), S("", (call("2"),), (aborted("2"),), "hm")],
        ),
        ([TextPart("hm", "reasoning"), TextPart(" ")], []),
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
    found = [msgspec.structs.replace(step, said=()) for step in split_steps(assistant(*parts))]
    assert found == steps


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
def test_a_part_is_written_in_words(part: Part, words: str) -> None:
    assert part_as_text(part) == words


def test_attachments_are_shown_or_named() -> None:
    picture, paper = Attachment("image/png", "aGk="), Attachment("application/pdf", "aGk=", "a.pdf")
    given = ToolResultPart("c", "done", attachments=(picture, paper, Attachment("text/csv", "aGk=")))
    assert image_attachments(given.attachments) == [picture]
    assert output_text(given) == "done\n[attached: a.pdf (application/pdf)]\n[attached: file (text/csv)]"
    assert output_text(ToolResultPart("c", "done")) == "done"
    assert output_text(given, ()).startswith("done\n[attached: file (image/png)]\n[attached: a.pdf")
    assert image_attachments((Attachment("image/tiff", "aGk="),)) == []


@pytest.mark.parametrize(
    ("call_id", "message_id", "made"),
    [
        ("toolu_01A09q90qw90lq917835lq9", "", "toolu_01A09q90qw90lq917835lq9"),
        ("toolu_01A09q90qw90lq917835lq9", "of-a-message", "toolu_01A09q90qw90lq917835lq9"),
        ("call_0", "", "call_0"),
        ("call_0", "of-a-message", "call_0_of-a-message"),
    ],
)
def test_004_T13_an_id_that_every_protocol_takes_stays(call_id: str, message_id: str, made: str) -> None:
    assert wire_id(call_id, message_id) == made


@pytest.mark.parametrize("call_id", ["", "a:1", "ü", "x" * 41, "\ud800", "a b"])
def test_004_T13_an_id_that_some_protocol_refuses_is_replaced_and_always_alike(call_id: str) -> None:
    made = wire_id(call_id)
    assert re.fullmatch(r"call_[0-9a-f]{24}", made)
    assert wire_id(call_id) == made
    assert len({wire_id(other) for other in ("a:1", "a_1", "a.1", "a/1")}) == 4


@pytest.mark.parametrize(
    ("name", "told_as"),
    [
        ("clock", "clock"),
        ("codex:shell", "codex_shell"),
        ("9lives", "_9lives"),
        ("", "_"),
        ("ü.x", "__x"),
        ("-a", "_-a"),
        ("a" * 90, "a" * 64),
    ],
)
def test_004_T13_a_tool_has_a_name_that_every_protocol_knows(name: str, told_as: str) -> None:
    (step,) = split_steps(assistant(ToolCallPart("1", name, {})))
    assert step.calls[0].tool_name == told_as
