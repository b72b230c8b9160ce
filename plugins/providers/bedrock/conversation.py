"""A conversation as Converse wants it: user and assistant in turns, each with a list of blocks."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from gateway import (
    Attachment,
    ImagePart,
    Message,
    Step,
    ToolDefinition,
    ToolResultPart,
    output_text,
    pictures,
    steps_of,
    told,
)

NOTHING = "(no output)"
"""A text may not be blank."""
OPENING = msgspec.json.encode({"text": "(the conversation goes on)"})
"""A conversation begins with the user here, also when its first messages are out of the window."""
NO_TOOL = ToolDefinition("unavailable", "Never call this.", {"type": "object", "properties": {}})
"""Offered where a conversation has calls but there is no tool any more: without any it is refused."""

_USER, _ASSISTANT = b"\x01", b"\x02"
_TURN = re.compile(rb",?([\x01\x02])")
_ROLES = {_USER: b'{"role":"user","content":[', _ASSISTANT: b'{"role":"assistant","content":['}
_FORMATS = {"image/png": "png", "image/jpeg": "jpeg", "image/gif": "gif", "image/webp": "webp"}
_NOT_IN_ID = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_ID = 64


def encoder(*, images: bool) -> Callable[[Message], bytes]:
    """What makes the blocks of one message, with a mark before each turn; empty if there is nothing to send.

    The marks are control characters, which JSON never holds as they are: so ``turns`` can tell turns apart.
    """

    def encode(message: Message) -> bytes:
        if not message.for_model or message.role == "system":
            return b""
        if message.role == "assistant":
            turns = [turn for step in steps_of(message) for turn in _step(step, images=images)]
        else:
            blocks = _blocks(message, images=images)
            turns = [(_USER, blocks)] if blocks else []
        return b",".join(mark + b",".join(map(msgspec.json.encode, blocks)) for mark, blocks in turns)

    return encode


def turns(history: bytes) -> bytes:
    """The messages of a marked history: turns of the same side are one message, and the user begins."""
    pieces = _TURN.split(history)
    messages: list[bytes] = []
    side = b""
    if pieces[1:2] == [_ASSISTANT]:
        messages.append(_ROLES[_USER] + OPENING)
    for mark, blocks in zip(pieces[1::2], pieces[2::2], strict=True):
        if mark == side:
            messages[-1] += b"," + blocks
        else:
            messages.append(_ROLES[mark] + blocks)
            side = mark
    return b",".join(message + b"]}" for message in messages)


def system(texts: tuple[str, ...]) -> bytes:
    """The system prompt."""
    return msgspec.json.encode([{"text": text} for text in texts])


def tools(definitions: tuple[ToolDefinition, ...]) -> bytes:
    """The tools that are offered."""
    specs = [
        {
            "toolSpec": {
                "name": tool.name,
                "description": tool.description or tool.name,
                "inputSchema": {"json": tool.parameters},
            }
        }
        for tool in definitions
    ]
    return msgspec.json.encode({"tools": specs})


def _blocks(message: Message, *, images: bool) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    for part in message.parts:
        if images and isinstance(part, ImagePart) and part.mime_type in _FORMATS:
            blocks.append(_image(part.mime_type, part.data))
        elif text := told(part):
            blocks.append({"text": text})
    return blocks


def _image(mime_type: str, data: str) -> dict[str, Any]:
    return {"image": {"format": _FORMATS[mime_type], "source": {"bytes": data}}}


def _step(step: Step, *, images: bool) -> list[tuple[bytes, list[dict[str, Any]]]]:
    said: list[dict[str, Any]] = [{"text": step.text}] if step.text else []
    said += [
        {
            "toolUse": {
                "toolUseId": _call_id(call.tool_call_id),
                "name": call.tool_name,
                "input": call.arguments,
            }
        }
        for call in step.calls
    ]
    if not step.results:
        return [(_ASSISTANT, said)]
    results = [_result(result) for result in step.results]
    shown = [_shown(picture) for result in step.results for picture in pictures(result.attachments)]
    return [(_ASSISTANT, said), (_USER, [*results, *(filter(None, shown) if images else ())])]


def _shown(picture: Attachment) -> dict[str, Any] | None:
    return _image(picture.mime_type, picture.data) if picture.mime_type in _FORMATS else None


def _result(result: ToolResultPart) -> dict[str, Any]:
    said: dict[str, Any] = {
        "toolUseId": _call_id(result.tool_call_id),
        "content": [{"text": output_text(result).strip() or NOTHING}],
    }
    return {"toolResult": {**said, "status": "error"} if result.is_error else said}


def _call_id(call_id: str) -> str:
    """A call's id in the letters this protocol allows; calls of other vendors may have others."""
    return _NOT_IN_ID.sub("_", call_id)[-_LONGEST_ID:] or "_"
