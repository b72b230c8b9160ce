"""A conversation as a program is told of it: what is wanted now, and what was said before."""

from __future__ import annotations

from collections.abc import Sequence

from gateway import ImagePart, Message, ToolCallPart, told
from plugins.cli_backends.talk import Picture

BUDGET = 20_000
"""Characters of what was said before; the newest counts."""

NONE = "-"
"""The answer before the first one."""


def wanted(messages: Sequence[Message]) -> str:
    """What the user says now: everything since the last answer but the pictures, which go beside it."""
    said = (_text(message, with_pictures=False) for message in messages[_since(messages) :])
    return "\n\n".join(filter(None, said))


def shown(messages: Sequence[Message]) -> tuple[Picture, ...]:
    """The pictures among what the user says now."""
    return tuple(
        Picture(part.mime_type, part.data)
        for message in messages[_since(messages) :]
        for part in message.parts
        if isinstance(part, ImagePart) and message.for_model
    )


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


def _text(message: Message, *, with_pictures: bool = True) -> str:
    if not message.for_model:
        return ""
    parts = (
        f"[used {part.tool_name}]" if isinstance(part, ToolCallPart) else told(part)
        for part in message.parts
        if with_pictures or not isinstance(part, ImagePart)
    )
    return "\n".join(filter(None, parts))
