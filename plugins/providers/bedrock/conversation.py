"""Conversations in the format of Converse: user and assistant in turns, each with a list of blocks."""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec

from gateway import Message, ToolCallPart, ToolResultPart
from gateway.provider_http import (
    ASSISTANT_TURN,
    USER_TURN,
    Returned,
    Step,
    ToolDefinition,
    join_turns,
    normalize_tool_schema,
    output_text,
    split_steps,
    wire_id,
    without_large_images,
)
from plugins.providers.protocol import (
    EMPTY_OUTPUT,
    OPENING,
    Block,
    Turn,
    content_blocks,
    encode_turns,
    result_images,
)

MOST_IMAGE_CHARACTERS = 5 * 1024 * 1024
"""Largest image in base64."""
FORM = "converse"
"""The form in which reasoning is kept and returned."""
CACHE_POINT = b'{"cachePoint":{"type":"default"}}'

_ROLES = {USER_TURN: b'{"role":"user","content":[', ASSISTANT_TURN: b'{"role":"assistant","content":['}
_FORMATS = {"image/png": "png", "image/jpeg": "jpeg", "image/gif": "gif", "image/webp": "webp"}


def encoder(*, images: bool) -> Callable[[Message], bytes]:
    """Make an encoder of one message to blocks with a mark before each turn; empty if nothing is sent.

    ``join_messages`` joins the turns by their marks.
    """
    types = _FORMATS if images else {}

    def encode(message: Message) -> bytes:
        if not message.for_model or message.role == "system":
            return b""
        message = without_large_images(message, MOST_IMAGE_CHARACTERS)
        if message.role == "assistant":
            turns = [turn for step in split_steps(message, FORM) for turn in _step(step, message.id, types)]
        else:
            blocks = content_blocks(message, _text, _image, types)
            turns = [(USER_TURN, blocks)] if blocks else []
        return encode_turns(turns)

    return encode


def join_messages(history: bytes) -> bytes:
    """Join a marked history to messages with alternating roles, beginning with the user."""
    return join_turns(history, _ROLES, msgspec.json.encode(_text(OPENING)))


def with_cache_point(history: bytes) -> bytes:
    """Append a cache point to the last message: the backend caches everything before it."""
    return history.removesuffix(b"]}") + b"," + CACHE_POINT + b"]}"


def encode_system(given: tuple[tuple[str, ...], bool]) -> bytes:
    """Encode the system texts, and a cache point after them if the second value is True."""
    texts, cached = given
    blocks = [msgspec.json.encode(_text(text)) for text in texts]
    return b"[" + b",".join([*blocks, CACHE_POINT] if cached else blocks) + b"]"


def encode_tools(definitions: tuple[ToolDefinition, ...]) -> bytes:
    """Encode the offered tools."""
    specs = [
        {
            "toolSpec": {
                "name": tool.name,
                "description": tool.description or tool.name,
                "inputSchema": {"json": normalize_tool_schema(tool.parameters)},
            }
        }
        for tool in definitions
    ]
    return msgspec.json.encode({"tools": specs})


def _text(text: str) -> Block:
    return {"text": text}


def _image(mime_type: str, data: str) -> Block:
    return {"image": {"format": _FORMATS[mime_type], "source": {"bytes": data}}}


def _step(step: Step, message_id: str, types: Collection[str]) -> list[Turn]:
    said = [_said(each, message_id) for each in step.said]
    if not step.results:
        return [(ASSISTANT_TURN, said)]
    results = [_result(result, message_id, types) for result in step.results]
    images = result_images(step.results, _image, types)
    return [(ASSISTANT_TURN, said), (USER_TURN, [*results, *images])]


def _said(said: str | ToolCallPart | Returned, message_id: str) -> Block:
    match said:
        case str():
            return _text(said)
        case Returned():
            return {"reasoningContent": said.data}
        case ToolCallPart():
            call_id = wire_id(said.tool_call_id, message_id)
            return {"toolUse": {"toolUseId": call_id, "name": said.tool_name, "input": said.arguments}}


def _result(result: ToolResultPart, message_id: str, types: Collection[str]) -> Block:
    said: Block = {
        "toolUseId": wire_id(result.tool_call_id, message_id),
        "content": [{"text": output_text(result, types).strip() or EMPTY_OUTPUT}],
    }
    return {"toolResult": {**said, "status": "error"} if result.is_error else said}
