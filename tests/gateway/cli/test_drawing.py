"""How messages look in a terminal, which nothing that a chat says can steer."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from gateway import ErrorPart, FilePart, ImagePart, Message, Metadata, TextPart, ToolCallPart, ToolResultPart
from gateway.channel import MessageFrame
from gateway.cli.chat.conversation import Conversation, Prose, Said, ToolRun, Whole
from gateway.cli.chat.screen import drawn, footer
from gateway.cli.output import plain
from gateway.contract.messages import ResultMetadata

EVIL = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202etxt.exe\rgone\x08\ud800"


def seen(piece: Any, width: int = 80) -> str:
    """What stands on a terminal without colours."""
    out = io.StringIO()
    Console(file=out, width=width, no_color=True).print(drawn(piece))
    return out.getvalue()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\nc", "a\tb\nc"),
        ("a\r\nb\rc", "a\nb\nc"),
        ("\x1b[31mred\x1b[0m", "[31mred[0m"),
        ("\u202eevil\u2066", "evil"),
        ("\x00\x07\x7f\x9b", ""),
        ("half \ud83d of it", "half  of it"),
        ("né 👋 中", "né 👋 中"),
    ],
)
def test_control_codes_and_turned_letters_are_gone(text: str, shown: str) -> None:
    assert plain(text) == shown


@pytest.mark.parametrize(
    ("piece", "shown"),
    [
        (Said("hi", "Alice (@alice)"), "> Alice (@alice): hi"),
        (Said("hi", "Bob", context=True), "> Bob: hi"),
        (Said("Reply to Bob\nhi", quoted=True), "  Reply to Bob\n  hi"),
    ],
)
def test_authors_and_quotes_are_shown(piece: Said, shown: str) -> None:
    assert "\n".join(line.rstrip() for line in seen(piece).splitlines()) == shown


@pytest.mark.parametrize(
    "piece",
    [
        Prose(EVIL),
        Prose(EVIL, "reasoning"),
        Prose(f"```\n{EVIL}\n```"),
        Said(EVIL),
        Said(EVIL, EVIL),
        Said(EVIL, quoted=True),
        ToolRun(ToolCallPart("c", EVIL, {EVIL[:5]: EVIL}), ToolResultPart("c", EVIL), running=False),
        ToolRun(ToolCallPart("c", "t", {}, EVIL), None, running=True),
        Whole(ErrorPart(EVIL, EVIL)),
        Whole(FilePart(EVIL, EVIL)),
        Whole(ImagePart("", EVIL, EVIL)),
        Whole(ToolResultPart("c", EVIL)),
    ],
    ids=lambda piece: type(piece).__name__,
)
def test_no_piece_brings_a_control_code_to_the_terminal(piece: Any) -> None:
    shown = seen(piece)
    assert not {char for char in shown if char != "\n" and not (char.isprintable() or char == "\t")}
    assert "\u202e" not in shown


def test_a_tool_shows_its_arguments_its_time_and_the_start_of_its_output() -> None:
    result = ToolResultPart("c", "\n".join("abcdefghij"), metadata=ResultMetadata(duration_ms=1500))
    shown = seen(ToolRun(ToolCallPart("c", "clock", {"zone": "UTC"}), result, running=False))
    assert '✓ clock(zone="UTC")  1.50 s' in shown
    assert "… 4 more lines" in shown
    failed = ToolRun(ToolCallPart("c", "clock", {}), ToolResultPart("c", "no", is_error=True), running=False)
    assert seen(failed).startswith("✗ clock()")
    assert seen(ToolRun(ToolCallPart("c", "clock", {}), None, running=True)).startswith("… clock()")


def test_markdown_is_drawn_and_what_a_user_wrote_is_not() -> None:
    assert "**" not in seen(Prose("**bold**"))
    assert seen(Said("**bold**")) == "> **bold**\n"


def test_the_footer_tells_what_an_answer_took() -> None:
    took = Metadata("m", "p", 1234, 5, cost=0.25, duration_ms=1500, stop_reason="cancelled")
    line = footer(Message(session_id="s", role="assistant", parts=(TextPart("x"),), metadata=took))
    assert str(line) == "p/m · 1,234 + 5 tokens · $0.2500 · 1.5 s · stopped"
    assert footer(Message(session_id="s", role="assistant")) is None
    command = Metadata(input_tokens=0, output_tokens=0, duration_ms=1500)
    assert str(footer(Message(session_id="s", role="assistant", metadata=command))) == "1.5 s"


def test_a_summary_of_a_conversation_is_marked_as_one() -> None:
    talk = Conversation("s")
    summary = Message(session_id="s", role="assistant", parts=(TextPart("## Goal\n\nA boat", "summary"),))
    entry = talk.take(MessageFrame(summary))
    assert entry is not None
    (piece,), _ = entry.pieces()
    assert seen(piece).split() == [
        "Summary",
        "of",
        "the",
        "earlier",
        "conversation:",
        "##",
        "Goal",
        "A",
        "boat",
    ]
