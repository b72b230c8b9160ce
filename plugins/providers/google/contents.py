"""Conversations in the format of Gemini: contents of parts, by user and model."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from gateway import Message, ToolResultPart
from gateway.provider_http import (
    ASSISTANT_TURN,
    USER_TURN,
    Step,
    ToolDefinition,
    join_turns,
    output_text,
    split_steps,
)
from plugins.providers.protocol import (
    OPENING,
    Block,
    Turn,
    content_blocks,
    encode_turns,
    result_images,
    tool_specs,
)

UNSIGNED = "skip_thought_signature_validator"
"""The signature of a call that another model made, or that was made before a restart."""

_ROLES = {USER_TURN: b'{"role":"user","parts":[', ASSISTANT_TURN: b'{"role":"model","parts":['}

IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/webp", "image/heic", "image/heif"})
"""The MIME types of images that Gemini accepts."""

_MAX_SIGNATURES = 10_000


class Signatures:
    """The signatures of tool calls: newer models require them when the call is sent back."""

    def __init__(self, limit: int = _MAX_SIGNATURES) -> None:
        self._limit = limit
        self._kept: dict[str, str] = {}

    def keep(self, call_id: str, signature: str) -> None:
        """Store a signature; drop the oldest beyond the limit."""
        self._kept[call_id] = signature
        if len(self._kept) > self._limit:
            del self._kept[next(iter(self._kept))]

    def of(self, call_id: str) -> str:
        """Return the signature of a call; empty if unknown."""
        return self._kept.get(call_id, "")


class Contents:
    """Encodes messages. ``signed``: the model requires signatures; ``images``: the model accepts images."""

    def __init__(self, signatures: Signatures, *, signed: bool, images: bool) -> None:
        self._signatures = signatures
        self._signed = signed
        self._types = IMAGE_TYPES if images else frozenset[str]()

    def encode(self, message: Message) -> bytes:
        """Encode the parts of one message with a mark before each turn; empty if nothing is sent."""
        if not message.for_model or message.role == "system":
            return b""
        if message.role == "assistant":
            turns = [turn for step in split_steps(message) for turn in self._step(step)]
        else:
            parts = content_blocks(message, _text, _image, self._types)
            turns = [(USER_TURN, parts)] if parts else []
        return encode_turns(turns)

    def _step(self, step: Step) -> list[Turn]:
        said = [_text(step.text)] if step.text else []
        calls = [
            {
                "functionCall": {
                    "id": call.tool_call_id,
                    "name": call.tool_name,
                    "args": call.arguments,
                },
                **self._signature(call.tool_call_id),
            }
            for call in step.calls
        ]
        if calls and self._signed and not any("thoughtSignature" in call for call in calls):
            calls[0]["thoughtSignature"] = UNSIGNED
        turns: list[Turn] = [(ASSISTANT_TURN, [*said, *calls])]
        if step.calls:
            answers = [
                part
                for call, result in zip(step.calls, step.results, strict=True)
                for part in _response(call.tool_name, result, self._types)
            ]
            turns.append((USER_TURN, answers))
        return turns

    def _signature(self, call_id: str) -> dict[str, str]:
        signature = self._signatures.of(call_id)
        return {"thoughtSignature": signature} if signature else {}


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


def _response(name: str, result: ToolResultPart, types: Collection[str]) -> list[Block]:
    response = {"error" if result.is_error else "output": output_text(result, types)}
    said: Block = {"functionResponse": {"id": result.tool_call_id, "name": name, "response": response}}
    return [said, *result_images([result], _image, types)]
