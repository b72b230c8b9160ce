"""Checks of files: those that people sent, in the messages of their session, and those of answers.

The content of rooms is compared piece by piece with the log, like the text of answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from client import Sent
from files import file_for, text_of_file
from model import FILE, TOOLS, is_whole
from record import text_of, word_of
from verdict import Verdict

from gateway.contract.messages import FilePart, Message, ToolCallPart, ToolResultPart

_TOOL = TOOLS[FILE]
_UNREAD = 20
"""One of so many files may be named without its bytes: the gateway asks three times, and each may fail."""


def check_received(verdict: Verdict, log: Sequence[Message], sent: Sequence[Sent]) -> None:
    """Check that each message of a person has the file that was sent with it, whole and once."""
    files = {one.word: one.file for one in sent}
    unread: list[str] = []
    for message in log:
        word = word_of(message)
        if message.role != "user" or word not in files:
            continue
        name = files[word]
        found = [part for part in message.parts if isinstance(part, FilePart)]
        if name is None:
            if found:
                verdict.add("wrong", f"{word} came without a file, and has {found[0].path}")
        elif _is_unread(message, name, found):
            unread.append(name)
        elif not found:
            verdict.add("lost", f"the file of {word} is missing")
        elif len(found) > 1:
            verdict.add("duplicate", f"the file of {word} is there {len(found)} times")
        elif (found[0].path, found[0].content) != (name, text_of_file(name)):
            verdict.add("wrong", f"the file of {word} is {found[0].path} with {found[0].content!r}")
    if len(unread) > max(1, sum(name is not None for name in files.values()) // _UNREAD):
        verdict.add("lost", f"files could not be read: {', '.join(unread)}")


def _is_unread(message: Message, name: str, found: Sequence[FilePart]) -> bool:
    """Return whether a message says of its file only that it could not be read."""
    if not found:
        return f"[{name}: " in text_of(message)
    content = found[0].content
    return len(found) == 1 and (content is None or content.startswith("[This file was not read"))


def check_handed(verdict: Verdict, log: Sequence[Message], sent: Sequence[Sent]) -> None:
    """Check that each answer that needs a file has it, whole and once."""
    asked = {one.word for one in sent if FILE in one.text}
    for message in log:
        word = word_of(message)
        if message.role != "assistant" or not word:
            continue
        results = _results(message)
        if word in asked and is_whole(text_of(message)) and not results:
            verdict.add("lost", f"the answer to {word} handed no file over")
        for result in results:
            wanted = () if result.is_error else (file_for(word),)
            if Counter(result.attachments) != Counter(wanted):
                kind = "duplicate" if len(result.attachments) > len(wanted) else "lost"
                names = [file.name for file in result.attachments]
                verdict.add(kind, f"the answer to {word} has the files {names}")
        if len(results) > 1:
            verdict.add("duplicate", f"the answer to {word} handed {len(results)} files over")


def _results(answer: Message) -> list[ToolResultPart]:
    calls = {
        part.tool_call_id
        for part in answer.parts
        if isinstance(part, ToolCallPart) and part.tool_name == _TOOL
    }
    return [part for part in answer.parts if isinstance(part, ToolResultPart) and part.tool_call_id in calls]


def names_handed(answer: Message) -> list[str]:
    """Return the names of the files of an answer."""
    return [
        file.name for part in answer.parts if isinstance(part, ToolResultPart) for file in part.attachments
    ]


def compare_names(verdict: Verdict, where: str, found: Sequence[str], wanted: Sequence[str]) -> None:
    """Compare the files that a client holds with those of the log."""
    for name in (Counter(wanted) - Counter(found)).elements():
        verdict.add("lost", f"{where}: its client lacks {name}")
    for name in (Counter(found) - Counter(wanted)).elements():
        verdict.add("duplicate", f"{where}: its client has {name} once more")
