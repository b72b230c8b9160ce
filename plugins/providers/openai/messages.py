"""Messages as chat completions want them, with the peculiarities of each service."""

from __future__ import annotations

import hashlib
import string
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from gateway import (
    PICTURES,
    Capabilities,
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
from plugins.providers.openai.profiles import Profile

JSON_ONLY = "Answer with a single JSON object and nothing else."

_LETTERS = string.ascii_letters + string.digits
_RESULT_THEN_USER = b'"role":"tool"},{"role":"user"'
_RESULT_ANSWER_USER = b'"role":"tool"},{"role":"assistant","content":"(seen)"},{"role":"user"'


def encoder(profile: Profile, capabilities: Capabilities) -> Callable[[Message], bytes]:
    """What makes the wire messages of one message, joined by commas; empty if there is nothing to send."""

    def encode(message: Message) -> bytes:
        if not message.for_model:
            return b""
        if message.role == "assistant":
            items = [item for step in steps_of(message) for item in _step(step, profile, capabilities)]
        else:
            content = _content(message, images=capabilities.images)
            items = [{"role": message.role, "content": content}] if content else []
        return b",".join(map(msgspec.json.encode, items))

    return encode


def answered(history: bytes) -> bytes:
    """The history with a word of the assistant wherever the user speaks right after a tool's result.

    Within a JSON text every quote is escaped, so these bytes only ever stand between two messages.
    """
    return history.replace(_RESULT_THEN_USER, _RESULT_ANSWER_USER)


def system(text: str) -> bytes:
    """The system prompt."""
    return msgspec.json.encode({"role": "system", "content": text})


def tools(definitions: tuple[ToolDefinition, ...]) -> bytes:
    """The tools that are offered."""
    offered = [
        {"name": tool.name, "description": tool.description, "parameters": mended(tool.parameters)}
        for tool in definitions
    ]
    return msgspec.json.encode([{"type": "function", "function": tool} for tool in offered])


def call_id(given: str, length: int) -> str:
    """A call's id where its length is fixed: the same one, or always the same one in its place."""
    if not length:
        return wire_id(given)
    if len(given) == length and given.isascii() and given.isalnum():
        return given
    digest = hashlib.sha256(given.encode("utf-8", "replace")).digest()
    return "".join(_LETTERS[byte % len(_LETTERS)] for byte in digest[:length])


def _content(message: Message, *, images: bool) -> str | list[dict[str, Any]]:
    texts: list[str] = []
    shown: list[dict[str, Any]] = []
    for part in message.parts:
        if images and is_shown(part):
            shown.append(_image(part.mime_type, part.data))
        elif text := told(part):
            texts.append(text)
    if not shown or message.role == "system":
        return "\n\n".join(texts)
    return [{"type": "text", "text": "\n\n".join(texts) or "(image attached)"}, *shown]


def _image(mime_type: str, data: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:{mime_type};base64,{data}"}}


def _step(step: Step, profile: Profile, capabilities: Capabilities) -> list[dict[str, Any]]:
    said: dict[str, Any] = {"role": "assistant", "content": step.text}
    if step.calls:
        said["tool_calls"] = [
            {
                "id": call_id(call.tool_call_id, profile.id_length),
                "type": "function",
                "function": {
                    "name": call.tool_name,
                    "arguments": msgspec.json.encode(call.arguments).decode(),
                },
            }
            for call in step.calls
        ]
    items = [said, *_results(step, profile, PICTURES if capabilities.images else ())]
    return [*items, *_shown(step.results)] if capabilities.images else items


def _results(step: Step, profile: Profile, kinds: Collection[str]) -> list[dict[str, Any]]:
    """The role stands last, so that ``answered`` knows where a result ends."""
    results: list[dict[str, Any]] = []
    for call, result in zip(step.calls, step.results, strict=True):
        item = {"tool_call_id": call_id(result.tool_call_id, profile.id_length)}
        if profile.names_results:
            item["name"] = call.tool_name
        results.append({**item, "content": output_text(result, kinds), "role": "tool"})
    return results


def _shown(results: Sequence[ToolResultPart]) -> list[dict[str, Any]]:
    """Pictures that tools made: a tool message holds only text, so a user message shows them."""
    images = [
        _image(picture.mime_type, picture.data)
        for result in results
        for picture in pictures(result.attachments)
    ]
    text = {"type": "text", "text": "(images from the tools above)"}
    return [{"role": "user", "content": [text, *images]}] if images else []
