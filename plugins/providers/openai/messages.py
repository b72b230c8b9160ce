"""Messages in the format of Chat Completions, with the peculiarities of each service."""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

import msgspec

from gateway import Capabilities, Message
from gateway.provider_http import (
    IMAGE_TYPES,
    Step,
    output_text,
    split_steps,
    wire_id,
)
from plugins.providers.openai.parser import FORM, Kept
from plugins.providers.openai.profiles import Profile
from plugins.providers.protocol import (
    GEMINI_SIGNED,
    OPENING,
    UNSIGNED,
    Block,
    content_blocks,
    function_call,
    image_url,
    result_image_messages,
)

_MARKS = {"user": (b"\x01", b"\x02"), "assistant": (b"\x03", b"\x04")}
"""Control characters around each message; JSON escapes them, so they occur nowhere else."""
_RUN = re.compile(
    rb"\x01[^\x01-\x04]*\x02(?:,\x01[^\x01-\x04]*\x02)+|\x03[^\x01-\x04]*\x04(?:,\x03[^\x01-\x04]*\x04)+"
)
_BETWEEN = re.compile(rb"\x02,\x01|\x04,\x03")
_OPENING = msgspec.json.encode({"role": "user", "content": OPENING}) + b","

_LETTERS = string.ascii_letters + string.digits
_RESULT_THEN_USER = b'"role":"tool"},{"role":"user"'
_RESULT_ANSWER_USER = b'"role":"tool"},{"role":"assistant","content":"(seen)"},{"role":"user"'


_NEEDS_REASONING = re.compile(r"deepseek|kimi", re.IGNORECASE)

Required = Literal["nothing", "reasoning", "signatures"]
"""The additions to its calls without which a model refuses a conversation, also for those of other models."""


def required_by(model: str, profile: Profile) -> Required:
    """Return what a model requires with earlier calls."""
    if profile.signs_calls and GEMINI_SIGNED.search(model):
        return "signatures"
    return "reasoning" if profile.reasoning and _NEEDS_REASONING.search(model) else "nothing"


def encoder(profile: Profile, capabilities: Capabilities, required: Required) -> Callable[[Message], bytes]:
    """Make an encoder of one message to wire messages joined by commas; empty if nothing is sent."""
    types = IMAGE_TYPES if capabilities.images else frozenset[str]()

    def encode(message: Message) -> bytes:
        if not message.for_model:
            return b""
        if message.role == "assistant":
            steps = split_steps(message, FORM)
            items = [item for step in steps for item in _step(step, profile, types, required)]
        else:
            content = _content(message, types)
            items = [{"role": message.role, "content": content}] if content else []
        if profile.alternates:
            return b",".join(map(_marked, items))
        return b",".join(map(msgspec.json.encode, items))

    return encode


def _marked(item: dict[str, Any]) -> bytes:
    """Encode a wire message between the marks of its role, by which ``merge_turns`` finds runs."""
    begin, end = _MARKS.get(item["role"], (b"", b""))
    return begin + msgspec.json.encode(item) + end


def merge_turns(history: bytes) -> bytes:
    """Merge consecutive messages of one role in a marked history; the user begins."""
    if history.startswith(_MARKS["assistant"][0]):
        history = _OPENING + history
    if b"\x02,\x01" in history or b"\x04,\x03" in history:
        history = _RUN.sub(_merge, history)
    return history.translate(None, b"\x01\x02\x03\x04")


def _merge(run: re.Match[bytes]) -> bytes:
    items: list[dict[str, Any]] = [msgspec.json.decode(item) for item in _BETWEEN.split(run[0][1:-1])]
    contents = [item["content"] for item in items if item["content"]]
    if all(isinstance(content, str) for content in contents):
        content: Any = "\n\n".join(contents)
    else:
        texts = [[{"type": "text", "text": each}] if isinstance(each, str) else each for each in contents]
        content = [part for parts in texts for part in parts]
    mark = run[0][:1]
    # Only the last message of a run can have calls: tool results end a run.
    return mark + msgspec.json.encode({**items[-1], "content": content}) + run[0][-1:]


def separate_results(history: bytes) -> bytes:
    """Insert an assistant message where a user message follows a tool result."""
    # JSON escapes quotes within texts, so these bytes occur only between two messages.
    return history.replace(_RESULT_THEN_USER, _RESULT_ANSWER_USER)


def call_id(given: str, length: int) -> str:
    """Return a call id of a fixed length (0: any); always the same one for the same id."""
    if not length:
        return wire_id(given)
    if len(given) == length and given.isascii() and given.isalnum():
        return given
    digest = hashlib.sha256(given.encode("utf-8", "replace")).digest()
    return "".join(_LETTERS[byte % len(_LETTERS)] for byte in digest[:length])


def _content(message: Message, types: Collection[str]) -> str | list[Block]:
    blocks = content_blocks(message, _text, image_url, types)
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    images = [block for block in blocks if block["type"] != "text"]
    if not images or message.role == "system":
        return "\n\n".join(texts)
    return [_text("\n\n".join(texts) or "(image attached)"), *images]


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _thought(step: Step, profile: Profile, required: Required, kept: Sequence[Kept]) -> Block:
    """Return the fields of a message with its reasoning, if the model made it and gets it back."""
    fields: Block = {}
    for one in kept:
        fields |= one.fields
    own = next((one.reasoning for one in kept if one.reasoning), "")
    if details := fields.get("reasoning_details"):
        ids = {call.tool_call_id for call in step.calls}
        fields["reasoning_details"] = [
            {**each, "id": wire_id(each["id"])} if each.get("id") in ids else each for each in details
        ]
    elif step.calls and required == "signatures":
        unsigned = {"type": "reasoning.encrypted", "data": UNSIGNED, "format": "google-gemini-v1", "index": 0}
        fields["reasoning_details"] = [{**unsigned, "id": wire_id(step.calls[0].tool_call_id)}]
    if own == "content":
        thinking = {"type": "thinking", "thinking": [_text(step.reasoning)], "closed": True}
        fields["content"] = [thinking, *([_text(step.text)] if step.text else [])]
    elif own and not details and profile.reasoning and (step.calls or required == "reasoning"):
        fields[own] = step.reasoning
    elif step.calls and not details and required == "reasoning":
        # Calls without reasoning, such as those of another model, would be refused.
        fields[profile.reasoning] = " "
    return fields


def _step(step: Step, profile: Profile, types: Collection[str], required: Required) -> list[Block]:
    kept = [msgspec.convert(state, Kept) for state in step.returned]
    said: Block = {"role": "assistant", "content": step.text, **_thought(step, profile, required, kept)}
    if step.calls:
        extras = {given: extra for one in kept for given, extra in one.calls.items()}
        said["tool_calls"] = [
            function_call(call, call_id(call.tool_call_id, profile.id_length))
            | extras.get(call.tool_call_id, {})
            for call in step.calls
        ]
    return [said, *_results(step, profile, types), *result_image_messages(step.results, types)]


def _results(step: Step, profile: Profile, types: Collection[str]) -> list[Block]:
    results: list[Block] = []
    for call, result in zip(step.calls, step.results, strict=True):
        item = {"tool_call_id": call_id(result.tool_call_id, profile.id_length)}
        if profile.names_results:
            item["name"] = call.tool_name
        # The role is last: ``separate_results`` finds the end of a result by it.
        results.append({**item, "content": output_text(result, types), "role": "tool"})
    return results
