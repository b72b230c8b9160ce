"""A conversation as Gemini wants it: contents of parts, by user and model."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway import (
    ChatOptions,
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
)

UNSIGNED = "skip_thought_signature_validator"
"""What stands in for the signature of a call that this model did not make, or before a restart."""

MODEL_FIRST = b'{"role":"model"'
OPENING = msgspec.json.encode({"role": "user", "parts": [{"text": "(the conversation goes on)"}]}) + b","
"""A conversation begins with the user here, also when its first messages are out of the window."""

KINDS = frozenset({"image/png", "image/jpeg", "image/webp", "image/heic", "image/heif"})
"""The kinds of pictures that Gemini can be shown."""

_MOST_SIGNATURES = 10_000


class Signatures:
    """What the models signed their calls with: newer ones want it back with the call."""

    def __init__(self, most: int = _MOST_SIGNATURES) -> None:
        self._most = most
        self._kept: dict[str, str] = {}

    def keep(self, call_id: str, signature: str) -> None:
        """Remember one; the oldest is forgotten when there are too many."""
        self._kept[call_id] = signature
        if len(self._kept) > self._most:
            del self._kept[next(iter(self._kept))]

    def of(self, call_id: str) -> str:
        """The signature of a call; empty if none is known."""
        return self._kept.get(call_id, "")


class Contents:
    """Encodes messages. ``signed`` says that the models refuse calls without a signature.

    ``images`` says whether they are shown pictures, or told of them.
    """

    def __init__(self, signatures: Signatures, *, signed: bool, images: bool) -> None:
        self._signatures = signatures
        self._signed = signed
        self._images = images

    def encode(self, message: Message) -> bytes:
        """The contents of one message, joined by commas; empty if there is nothing to send."""
        if not message.for_model or message.role == "system":
            return b""
        if message.role == "assistant":
            items = [item for step in steps_of(message) for item in self._step(step)]
        else:
            parts = _parts(message, images=self._images)
            items = [{"role": "user", "parts": parts}] if parts else []
        return b",".join(map(msgspec.json.encode, items))

    def _step(self, step: Step) -> list[dict[str, Any]]:
        said: list[dict[str, Any]] = [{"text": step.text}] if step.text else []
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
        items: list[dict[str, Any]] = [{"role": "model", "parts": [*said, *calls]}]
        if step.calls:
            answers = [
                part
                for call, result in zip(step.calls, step.results, strict=True)
                for part in _answer(call.tool_name, result, images=self._images)
            ]
            items.append({"role": "user", "parts": answers})
        return items

    def _signature(self, call_id: str) -> dict[str, str]:
        signature = self._signatures.of(call_id)
        return {"thoughtSignature": signature} if signature else {}


def system(texts: tuple[str, ...]) -> bytes:
    """The system prompt."""
    return msgspec.json.encode({"parts": [{"text": text} for text in texts]})


def tools(definitions: tuple[ToolDefinition, ...]) -> bytes:
    """The tools that are offered."""
    declared = [
        {"name": tool.name, "description": tool.description, "parametersJsonSchema": mended(tool.parameters)}
        for tool in definitions
    ]
    return msgspec.json.encode([{"functionDeclarations": declared}])


def system_texts(messages: tuple[Message, ...], options: ChatOptions) -> tuple[str, ...]:
    """The system prompt, then the system messages of the conversation: the protocol keeps them apart."""
    own = (m.text for m in messages if m.role == "system" and m.for_model)
    return tuple(text for text in (options.system_prompt, *own) if text.strip())


def _parts(message: Message, *, images: bool) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for part in message.parts:
        if images and is_shown(part, KINDS):
            parts.append(_image(part.mime_type, part.data))
        elif text := told(part):
            parts.append({"text": text})
    return parts


def _image(mime_type: str, data: str) -> dict[str, Any]:
    return {"inlineData": {"mimeType": mime_type, "data": data}}


def _answer(name: str, result: ToolResultPart, *, images: bool) -> list[dict[str, Any]]:
    kinds = KINDS if images else ()
    response = {"error" if result.is_error else "output": output_text(result, kinds)}
    said = {"functionResponse": {"id": result.tool_call_id, "name": name, "response": response}}
    shown = pictures(result.attachments, kinds)
    return [said, *(_image(picture.mime_type, picture.data) for picture in shown)]
