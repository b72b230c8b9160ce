"""Conversations in the format of Gemini: contents of parts, by user and model."""

from __future__ import annotations

import msgspec

from gateway import Message, ToolCallPart, ToolResultPart
from gateway.provider_http import (
    ASSISTANT_TURN,
    USER_TURN,
    Returned,
    Step,
    ToolDefinition,
    join_turns,
    output_text,
    split_steps,
)
from plugins.providers.protocol import (
    OPENING,
    UNSIGNED,
    Block,
    Turn,
    content_blocks,
    encode_turns,
    result_images,
    tool_specs,
)

_ROLES = {USER_TURN: b'{"role":"user","parts":[', ASSISTANT_TURN: b'{"role":"model","parts":['}

FORM = "gemini"
"""The form in which signatures are kept and returned."""

IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/webp", "image/heic", "image/heif"})
"""The MIME types of images that Gemini accepts."""


class Contents:
    """Encodes messages.

    ``signed``: the model requires signatures; ``images``: the model accepts images; ``ids``: the API accepts
    the ids of calls.
    """

    def __init__(self, *, signed: bool, images: bool, ids: bool) -> None:
        self._signed = signed
        self._ids = ids
        self._types = IMAGE_TYPES if images else frozenset[str]()

    def encode(self, message: Message) -> bytes:
        """Encode the parts of one message with a mark before each turn; empty if nothing is sent."""
        if not message.for_model or message.role == "system":
            return b""
        if message.role == "assistant":
            turns = [turn for step in split_steps(message, FORM) for turn in self._step(step)]
        else:
            parts = content_blocks(message, _text, _image, self._types)
            turns = [(USER_TURN, parts)] if parts else []
        return encode_turns(turns)

    def _step(self, step: Step) -> list[Turn]:
        said: list[Block] = []
        for each in step.said:
            if isinstance(each, Returned):
                # A signature follows the part to which it belongs.
                if said:
                    said[-1].setdefault("thoughtSignature", each.data)
            else:
                said.append(_text(each) if isinstance(each, str) else self._call(each))
        calls = [part for part in said if "functionCall" in part]
        if calls and self._signed and "thoughtSignature" not in calls[0]:
            calls[0]["thoughtSignature"] = UNSIGNED
        turns: list[Turn] = [(ASSISTANT_TURN, said)]
        if step.calls:
            answers = [
                part
                for call, result in zip(step.calls, step.results, strict=True)
                for part in self._response(call.tool_name, result)
            ]
            turns.append((USER_TURN, answers))
        return turns

    def _call(self, call: ToolCallPart) -> Block:
        function = {**self._id(call.tool_call_id), "name": call.tool_name, "args": call.arguments}
        return {"functionCall": function}

    def _id(self, call_id: str) -> dict[str, str]:
        return {"id": call_id} if self._ids else {}

    def _response(self, name: str, result: ToolResultPart) -> list[Block]:
        response = {"error" if result.is_error else "output": output_text(result, self._types)}
        said: Block = {
            "functionResponse": {**self._id(result.tool_call_id), "name": name, "response": response}
        }
        return [said, *result_images([result], _image, self._types)]


def join_contents(history: bytes) -> bytes:
    """Join a marked history to contents with alternating roles, beginning with the user."""
    return join_turns(history, _ROLES, msgspec.json.encode(_text(OPENING)))


def encode_system(texts: tuple[str, ...]) -> bytes:
    """Encode the system texts."""
    return msgspec.json.encode({"parts": [_text(text) for text in texts]})


def encode_tools(definitions: tuple[ToolDefinition, ...]) -> bytes:
    """Encode the offered tools."""
    return msgspec.json.encode([{"functionDeclarations": tool_specs(definitions, "parametersJsonSchema")}])


def _text(text: str) -> Block:
    return {"text": text}


def _image(mime_type: str, data: str) -> Block:
    return {"inlineData": {"mimeType": mime_type, "data": data}}
