"""Messages in the format of Chat Completions, with the peculiarities of each service."""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Callable, Collection
from typing import Any, Literal, assert_never

import msgspec

from gateway import Capabilities, Message
from gateway.provider_http import (
    IMAGE_TYPES,
    Step,
    output_text,
    split_steps,
    wire_id,
)
from plugins.providers.openai.profiles import Profile
from plugins.providers.protocol import (
    GEMINI_SIGNED,
    OPENING,
    UNSIGNED,
    Block,
    Signatures,
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

Returned = Literal["nothing", "reasoning", "signatures"]
"""The additions to a model's earlier answers without which it refuses a conversation with tool calls."""


def returned_to(model: str, profile: Profile) -> Returned:
    """Return what goes back to a model with its earlier answers."""
    if profile.signs_calls and GEMINI_SIGNED.search(model):
        return "signatures"
    return "reasoning" if profile.reasoning and _NEEDS_REASONING.search(model) else "nothing"


def encoder(
    profile: Profile, capabilities: Capabilities, signatures: Signatures, returned: Returned
) -> Callable[[Message], bytes]:
    """Make an encoder of one message to wire messages joined by commas; empty if nothing is sent."""
    types = IMAGE_TYPES if capabilities.images else frozenset[str]()

    def more(step: Step) -> Block:
        match returned:
            case "reasoning":
                return _reasoning(step, profile)
            case "signatures":
                return _signatures(step, signatures)
            case "nothing":
                return {}
            case _:
                assert_never(returned)

    def encode(message: Message) -> bytes:
        if not message.for_model:
            return b""
        if message.role == "assistant":
            items = [
                item for step in split_steps(message) for item in _step(step, profile, types, more(step))
            ]
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


def _reasoning(step: Step, profile: Profile) -> Block:
    # Calls without reasoning, such as those of another model, would be refused, too.
    reasoning = step.reasoning or (" " if step.calls else "")
    return {profile.reasoning: reasoning} if reasoning else {}


def _signatures(step: Step, signatures: Signatures) -> Block:
    """Return the signatures of calls as OpenRouter's ``reasoning_details``."""
    ids = [call.tool_call_id for call in step.calls]
    signed = {given: signature for given in ids if (signature := signatures.of(given))}
    details = [
        {
            "type": "reasoning.encrypted",
            "data": signature,
            "id": wire_id(given),
            "format": "google-gemini-v1",
            "index": index,
        }
        for index, (given, signature) in enumerate((signed or dict.fromkeys(ids[:1], UNSIGNED)).items())
    ]
    return {"reasoning_details": details} if details else {}


def _step(step: Step, profile: Profile, types: Collection[str], more: Block) -> list[Block]:
    said: Block = {"role": "assistant", "content": step.text, **more}
    if step.calls:
        said["tool_calls"] = [
            function_call(call, call_id(call.tool_call_id, profile.id_length)) for call in step.calls
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
