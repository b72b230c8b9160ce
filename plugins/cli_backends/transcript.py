"""A conversation as a program is told of it: what is wanted now, and what was said before."""

from __future__ import annotations

from collections.abc import Sequence

from gateway import Message, ToolCallPart, told

BUDGET = 20_000
"""Characters of what was said before; the newest counts."""

NONE = "-"
"""The answer before the first one."""


def wanted(messages: Sequence[Message]) -> str:
    """What the user says now: everything since the last answer."""
    return "\n\n".join(filter(None, map(_text, messages[_since(messages) :])))


def last_answer(messages: Sequence[Message]) -> str:
    """The id of the last answer."""
    since = _since(messages)
    return messages[since - 1].id if since else NONE


def earlier(messages: Sequence[Message]) -> str:
    """What was said up to the last answer, for a program that was not there; empty if nothing was."""
    said: list[str] = []
    room = BUDGET
    for message in reversed(messages[: _since(messages)]):
        text = _text(message)
        if not text:
            continue
        line = f"{message.role}: {text}"
        room -= len(line)
        if room < 0:
            said.append("[the beginning is left out]")
            break
        said.append(line)
    whole = "\n\n".join(reversed(said))
    return f"<conversation_so_far>\n{whole}\n</conversation_so_far>" if whole else ""


def _since(messages: Sequence[Message]) -> int:
    """The index behind the last answer."""
    for index in range(len(messages), 0, -1):
        if messages[index - 1].role == "assistant":
            return index
    return 0


def _text(message: Message) -> str:
    if not message.for_model:
        return ""
    parts = (
        f"[used {part.tool_name}]" if isinstance(part, ToolCallPart) else told(part) for part in message.parts
    )
    return "\n".join(filter(None, parts))
