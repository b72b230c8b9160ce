"""A conversation as a program is told of it: what is wanted now, and what was said before."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway import ImagePart, Message, ToolCallPart, ToolResultPart
from gateway.provider_http import part_as_text
from plugins.cli_backends.talk import Picture

BUDGET = 20_000
"""Characters of what was said before; the newest counts."""

GO_ON = "The user has seen the beginning of the answer above. Go on from there; do not repeat it."
"""What a program is told that continues an answer."""

NONE = "-"
"""The answer before the first one."""


def without_answer(messages: Sequence[Message], message_id: str) -> tuple[Sequence[Message], Message | None]:
    """Return the conversation, and apart from it what the answer ``message_id`` holds already.

    That is there when another provider began the answer and this program stands in for it.
    """
    if len(messages) > 1 and messages[-1].role == "assistant" and messages[-1].id == message_id:
        return messages[:-1], messages[-1]
    return messages, None


def so_far(answer: Message | None) -> str:
    """Return what was said and done for the answer already, for a program that goes on with it."""
    if answer is None:
        return ""
    results = {part.tool_call_id: part for part in answer.parts if isinstance(part, ToolResultPart)}
    steps = [
        _used(part, results.get(part.tool_call_id)) if isinstance(part, ToolCallPart) else part_as_text(part)
        for part in answer.parts
    ]
    whole = "\n".join(filter(None, steps))
    if len(whole) > BUDGET:
        whole = f"[the beginning is left out]\n{whole[-BUDGET:]}"
    return f"<answer_so_far>\n{whole}\n</answer_so_far>\n\n{GO_ON}" if whole else ""


def _used(call: ToolCallPart, result: ToolResultPart | None) -> str:
    output = "no result" if result is None else result.output
    return f"[used {call.tool_name} {msgspec.json.encode(call.arguments).decode()}: {output}]"


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
        f"[used {part.tool_name}]" if isinstance(part, ToolCallPart) else part_as_text(part)
        for part in message.parts
        if with_pictures or not isinstance(part, ImagePart)
    )
    return "\n".join(filter(None, parts))
