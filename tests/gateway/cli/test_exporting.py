"""Sessions written down: everything that was said, in a file that is whole or not there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway import ErrorPart, FilePart, ImagePart, Message, TextPart, ToolCallPart, ToolResultPart
from gateway.channel import Address
from gateway.cli.commands.sessions import write
from gateway.contract.messages import Origin
from gateway.conversations import ChangeSummary, as_json_lines, as_markdown
from gateway.session.log import SessionRow

ROW = SessionRow(id="s", channel="c", owner="o", address=Address("c"), title="A title", messages=2, cost=0.5)
MESSAGES = [
    Message(session_id="s", role="user", parts=(TextPart("*hi*"), ImagePart("aGk=", "image/png", "a cat"))),
    Message(
        session_id="s",
        role="assistant",
        parts=(
            TextPart("hm\nhm", "reasoning"),
            ToolCallPart("1", "shell", {"command": "ls"}),
            ToolResultPart("1", "```\na fence\n```", is_error=True),
            FilePart("a.py", "x = 1", "python"),
            TextPart("Done.\n"),
            ErrorPart("Broken", "it broke"),
        ),
    ),
]


def test_markdown_holds_every_part() -> None:
    text = "".join(as_markdown(ROW, MESSAGES))
    assert text.startswith("# A title\n\nSession `s`, 2 messages, $0.5000\n\n## User, ")
    for piece in (
        "*hi*\n\n![a cat](data:image/png;base64,aGk=)",
        "> hm\n> hm",
        '**Tool** `shell`\n\n```json\n{"command":"ls"}\n```',
        "**Tool failed**\n\n````\n```\na fence\n```\n````",
        "**File** `a.py`\n\n```python\nx = 1\n```",
        "Done.\n\n**Error**: it broke",
    ):
        assert piece in text


def test_the_members_of_a_room_are_named() -> None:
    alice = Origin(name="Alice", username="alice", group=True)
    quote = TextPart("Reply to Bob\nthe plan", "quote")
    messages = [
        Message(
            session_id="s", role="user", parts=(TextPart("red"),), origin=Origin(name="Bob", context=True)
        ),
        Message(session_id="s", role="user", parts=(quote, TextPart("why?")), origin=alice),
    ]
    text = "".join(as_markdown(ROW, messages))
    assert "## Bob (context), " in text
    assert "## Alice (@alice), " in text
    assert "> Reply to Bob\n> the plan\n\nwhy?" in text


@pytest.mark.parametrize("messages", [[], MESSAGES[:1], MESSAGES])
def test_json_is_one_object_with_a_message_on_each_line(messages: list[Message]) -> None:
    text = "".join(as_json_lines(ROW, messages, ChangeSummary(0, 0, 0, ())))
    whole = json.loads(text)
    assert whole["changes"]["files"] == 0
    assert whole["session"]["title"] == "A title"
    assert [message["id"] for message in whole["messages"]] == [message.id for message in messages]
    assert len(text.splitlines()) == len(messages) + 6


def test_a_file_that_could_not_be_finished_is_not_there(tmp_path: Path) -> None:
    def pieces() -> Iterator[str]:
        yield "half"
        raise OSError("the store is gone")

    file = tmp_path / "talk.md"
    with pytest.raises(OSError, match="the store is gone"):
        write(file, pieces(), 2, replace=False)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced_only_when_that_is_wanted(tmp_path: Path) -> None:
    file = tmp_path / "talk.md"
    file.write_text("before")
    with pytest.raises(FileExistsError):
        write(file, ["after"], 1, replace=False)
    assert file.read_text() == "before"
    write(file, ["after"], 1, replace=True)
    assert file.read_text() == "after"
    assert list(tmp_path.iterdir()) == [file]


def test_a_summary_of_a_conversation_is_marked_as_one() -> None:
    summary = Message(session_id="s", role="assistant", parts=(TextPart("## Goal\nA boat", "summary"),))
    text = "".join(as_markdown(ROW, [summary]))
    assert "**Summary of the earlier conversation**\n\n> ## Goal\n> A boat" in text
