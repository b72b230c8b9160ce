"""A conversation as Converse wants it: user and assistant in turns, each with a list of blocks."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from gateway import (
    Message,
    Step,
    ToolDefinition,
    ToolResultPart,
    is_shown,
    mended,
    output_text,
    pictures,
    steps_of,
    told,
    wire_id,
)

NOTHING = "(no output)"
"""A text may not be blank."""
CACHE_POINT = b'{"cachePoint":{"type":"default"}}'
OPENING = msgspec.json.encode({"text": "(the conversation goes on)"})
"""A conversation begins with the user here, also when its first messages are out of the window."""

_USER, _ASSISTANT = b"\x01", b"\x02"
_TURN = re.compile(rb",?([\x01\x02])")
_ROLES = {_USER: b'{"role":"user","content":[', _ASSISTANT: b'{"role":"assistant","content":['}
_FORMATS = {"image/png": "png", "image/jpeg": "jpeg", "image/gif": "gif", "image/webp": "webp"}


def encoder(*, images: bool) -> Callable[[Message], bytes]:
    """What makes the blocks of one message, with a mark before each turn; empty if there is nothing to send.

    The marks are control characters, which JSON never holds as they are: so ``turns`` can tell turns apart.
    """

    def encode(message: Message) -> bytes:
        if not message.for_model or message.role == "system":
            return b""
        if message.role == "assistant":
            turns = [turn for step in steps_of(message) for turn in _step(step, message.id, images=images)]
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


def remembered(history: bytes) -> bytes:
    """The messages with a mark behind the last block: all before it is to be remembered."""
    return history.removesuffix(b"]}") + b"," + CACHE_POINT + b"]}"


def system(given: tuple[tuple[str, ...], bool]) -> bytes:
    """The system prompt, and whether it is to be remembered apart from the conversation."""
    texts, cached = given
    blocks = [msgspec.json.encode({"text": text}) for text in texts]
    return b"[" + b",".join([*blocks, CACHE_POINT] if cached else blocks) + b"]"


def tools(definitions: tuple[ToolDefinition, ...]) -> bytes:
    """The tools that are offered."""
    specs = [
        {
            "toolSpec": {
                "name": tool.name,
                "description": tool.description or tool.name,
                "inputSchema": {"json": mended(tool.parameters)},
            }
        }
        for tool in definitions
    ]
    return msgspec.json.encode({"tools": specs})


def _blocks(message: Message, *, images: bool) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    for part in message.parts:
        if images and is_shown(part, _FORMATS):
            blocks.append(_image(part.mime_type, part.data))
        elif text := told(part):
            blocks.append({"text": text})
    return blocks


def _image(mime_type: str, data: str) -> dict[str, Any]:
    return {"image": {"format": _FORMATS[mime_type], "source": {"bytes": data}}}


def _step(step: Step, message_id: str, *, images: bool) -> list[tuple[bytes, list[dict[str, Any]]]]:
    said: list[dict[str, Any]] = [{"text": step.text}] if step.text else []
    said += [
        {
            "toolUse": {
                "toolUseId": wire_id(call.tool_call_id, message_id),
                "name": call.tool_name,
                "input": call.arguments,
            }
        }
        for call in step.calls
    ]
    if not step.results:
        return [(_ASSISTANT, said)]
    kinds = _FORMATS if images else ()
    results = [_result(result, message_id, kinds) for result in step.results]
    shown = [p for result in step.results for p in pictures(result.attachments, kinds)]
    return [(_ASSISTANT, said), (_USER, [*results, *(_image(p.mime_type, p.data) for p in shown)])]


def _result(result: ToolResultPart, message_id: str, kinds: Collection[str]) -> dict[str, Any]:
    said: dict[str, Any] = {
        "toolUseId": wire_id(result.tool_call_id, message_id),
        "content": [{"text": output_text(result, kinds).strip() or NOTHING}],
    }
    return {"toolResult": {**said, "status": "error"} if result.is_error else said}
