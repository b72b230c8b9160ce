"""Messages as models read them: assistant messages split into steps, and parts as text.

An assistant message may hold several model calls with tool results between them. Every adapter translates
the steps to its vendor's roles, so interrupted calls are repaired once, here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeGuard, assert_never

import msgspec
from msgspec import Struct

from gateway.contract.messages import (
    ABORTED,
    Attachment,
    ErrorPart,
    FilePart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    has_results,
    is_said,
)
from gateway.contract.provider import ToolDefinition

IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""The MIME types of images that most models accept; other images are described as text."""

PLACEHOLDER_TOOL = ToolDefinition("unavailable", "Never call this.", {"type": "object", "properties": {}})
"""Offered if a conversation has calls but no tools are offered: some backends refuse it otherwise."""

USER_TURN, ASSISTANT_TURN = b"\x01", b"\x02"
"""Marks before the turns of a history. JSON escapes control characters, so they occur nowhere else."""

_TURN = re.compile(rb",?([\x01\x02])")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9_-]")
_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
_SHORT_ID = 16
"""Characters below which a call id may be a counter, so that other messages have the same id."""


class Returned(Struct, frozen=True):
    """Reasoning that its model gets back: ``data`` as the adapter gave it to ``AnswerWriter.state``."""

    data: Any


class Step(Struct, frozen=True):
    """The text of one model call, its tool calls, and one result for each tool call, in order.

    Few backends accept the ``reasoning``; some require it with the calls. ``said`` has the texts, the calls
    and what the model gets back of its reasoning, in the order in which it made them.
    """

    text: str
    calls: tuple[ToolCallPart, ...] = ()
    results: tuple[ToolResultPart, ...] = ()
    reasoning: str = ""
    said: tuple[str | ToolCallPart | Returned, ...] = ()

    @property
    def returned(self) -> list[Any]:
        """The reasoning that the model gets back, in order."""
        return [each.data for each in self.said if isinstance(each, Returned)]


class _Draft:
    __slots__ = ("calls", "reasoning", "results", "said")

    def __init__(self) -> None:
        self.said: list[str | ToolCallPart | Returned] = []
        self.reasoning: list[str] = []
        self.calls: dict[str, ToolCallPart] = {}
        self.results: dict[str, ToolResultPart] = {}

    def finish(self) -> Step:
        results = (
            self.results.get(call_id) or ToolResultPart(call_id, ABORTED, is_error=True)
            for call_id in self.calls
        )
        calls, reasoning = tuple(self.calls.values()), "".join(self.reasoning)
        text = "\n\n".join(each for each in self.said if isinstance(each, str))
        said = tuple(self.said)
        if not any(isinstance(each, Returned) for each in said):
            # Backends expect the calls last; only a model's own answer has to keep its order.
            said = (text, *calls) if text else calls
        return Step(text, calls, tuple(results), reasoning, said)


def split_steps(message: Message, form: str = "") -> list[Step]:
    """Split an assistant message into steps that every backend accepts, with portable tool names.

    Reasoning is returned in one form, because the settings may give a provider's name to another protocol.
    Text, reasoning or a call after a result begins a new step. A call without a result gets an aborted one; a
    result without a call is dropped, as are errors and steps of reasoning only.
    """
    if len(message.parts) == 1 and isinstance(message.parts[0], TextPart):
        text = part_as_text(message.parts[0])
        return [Step(text, said=(text,))] if text else []
    drafts = [_Draft()]
    for part in message.parts:
        if isinstance(part, ToolResultPart):
            _add_result(part, drafts)
            continue
        if isinstance(part, ToolCallPart):
            draft = _current(drafts, part.tool_call_id)
            call = draft.calls[part.tool_call_id] = _with_portable_name(part)
            draft.said.append(call)
        elif isinstance(part, TextPart) and part.state is not None:
            returned: dict[str, Any] = msgspec.json.decode(part.state.data)
            _current(drafts).said += [Returned(returned[form])] if form in returned else []
        elif isinstance(part, TextPart) and part.kind == "reasoning":
            _current(drafts).reasoning.append(part.content)
        elif text := part_as_text(part):
            _current(drafts).said.append(text)
    finished = (draft.finish() for draft in drafts)
    return [step for step in finished if step.text or step.calls]


def _current(drafts: list[_Draft], call_id: str = "") -> _Draft:
    if drafts[-1].results or call_id in drafts[-1].calls:
        drafts.append(_Draft())
    return drafts[-1]


def _add_result(result: ToolResultPart, drafts: list[_Draft]) -> None:
    for draft in reversed(drafts):
        if result.tool_call_id in draft.calls:
            draft.results[result.tool_call_id] = result
            return


def wire_id(call_id: str, message_id: str = "") -> str:
    """Return a call id with characters and a length that every protocol accepts; the same for the same id.

    Pass ``message_id`` for protocols that require unique ids within a conversation.
    """
    if message_id and len(call_id) < _SHORT_ID:
        call_id = f"{call_id}_{message_id[-12:]}"
    if _ID.fullmatch(call_id):
        return call_id
    return f"call_{hashlib.sha256(call_id.encode('utf-8', 'replace')).hexdigest()[:24]}"


def _with_portable_name(call: ToolCallPart) -> ToolCallPart:
    """Replace characters that protocols refuse in a tool name, as in ``codex:shell``."""
    if _NAME.fullmatch(call.tool_name):
        return call
    name = _NOT_IN_NAME.sub("_", call.tool_name)
    name = name if _NAME.match(name) else f"_{name}"
    return msgspec.structs.replace(call, tool_name=name[:64])


def join_turns(history: bytes, heads: Mapping[bytes, bytes], opening: bytes) -> bytes:
    """Join a marked history to messages with alternating roles, beginning with the user.

    Each turn is ``USER_TURN`` or ``ASSISTANT_TURN`` and JSON values joined by commas; ``heads`` has the
    opening bytes of a message of either role, up to the list of the values. If the history begins with the
    assistant, because older messages are out of the window, a user message with ``opening`` precedes it.
    """
    pieces = _TURN.split(history)
    messages: list[bytes] = []
    side = b""
    if pieces[1:2] == [ASSISTANT_TURN]:
        messages.append(heads[USER_TURN] + opening)
    for mark, values in zip(pieces[1::2], pieces[2::2], strict=True):
        if mark == side:
            messages[-1] += b"," + values
        else:
            messages.append(heads[mark] + values)
            side = mark
    return b",".join(message + b"]}" for message in messages)


def part_as_text(part: Part) -> str:
    """Return a part as text for places where only text is allowed; empty if the part is not sent."""
    match part:
        case TextPart():
            return part.content if is_said(part.kind) and part.content.strip() else ""
        case FilePart():
            return _file(part)
        case ImagePart():
            return f"(image attached: {part.alt_text})" if part.alt_text else "(image attached)"
        case ToolCallPart() | ToolResultPart() | ErrorPart():
            return ""
        case _:
            assert_never(part)


def is_supported_image(part: Part, kinds: Collection[str] = IMAGE_TYPES) -> TypeGuard[ImagePart]:
    """Return whether a part is an image of a type that the model accepts."""
    return isinstance(part, ImagePart) and part.mime_type in kinds


def image_attachments(
    attachments: tuple[Attachment, ...], kinds: Collection[str] = IMAGE_TYPES
) -> list[Attachment]:
    """Return the attachments that are images of an accepted type."""
    return [attachment for attachment in attachments if attachment.mime_type in kinds]


def output_text(result: ToolResultPart, kinds: Collection[str] = IMAGE_TYPES) -> str:
    """Return a result's text, with a line for each attachment that is not sent as an image."""
    names = [
        f"[attached: {attachment.name or 'file'} ({attachment.mime_type})]"
        for attachment in result.attachments
        if attachment.mime_type not in kinds
    ]
    return "\n".join((result.output, *names)) if names else result.output


def without_large_images(message: Message, most: int) -> Message:
    """Replace images of more than ``most`` characters in base64 by text.

    For APIs with such a limit: a single image would make them refuse every later request, too.
    """
    parts = tuple(_without_large(part, most) for part in message.parts)
    return message if parts == message.parts else msgspec.structs.replace(message, parts=parts)


def _without_large(part: Part, most: int) -> Part:
    if isinstance(part, ImagePart) and len(part.data) > most:
        return TextPart(f"{part_as_text(part)[:-1]}, but it is too large for this model)")
    if isinstance(part, ToolResultPart):
        large = [each for each in part.attachments if len(each.data) > most]
        kept = tuple(each for each in part.attachments if each not in large)
        notes = [f"[attached: {each.name or 'file'}, which is too large for this model]" for each in large]
        if large:
            return msgspec.structs.replace(part, output="\n".join((part.output, *notes)), attachments=kept)
    return part


def _file(part: FilePart) -> str:
    lines = "" if part.line_range is None else f", lines {part.line_range[0]} to {part.line_range[1]}"
    header = f"File {part.path}{lines}"
    if part.content is None:
        return header
    return f"{header}:\n```{part.language or ''}\n{part.content}\n```"


def with_results(messages: Sequence[Message]) -> Sequence[Message]:
    """Move tool results that clients sent, in user messages, to the assistant messages with their calls.

    A result without a call, or with a call that has a result already, is dropped.
    """
    if not any(map(has_results, messages)):
        return messages
    found: list[Message] = []
    for message in messages:
        if not has_results(message):
            found.append(message)
            continue
        for part in message.parts:
            if isinstance(part, ToolResultPart):
                _answer(found, part)
        rest = tuple(part for part in message.parts if not isinstance(part, ToolResultPart))
        if rest:
            found.append(msgspec.structs.replace(message, parts=rest))
    return found


def _answer(messages: list[Message], result: ToolResultPart) -> None:
    """Add a result to the newest message with its call, after the parallel calls."""
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if message.role != "assistant":
            continue
        same = [part for part in message.parts if getattr(part, "tool_call_id", None) == result.tool_call_id]
        if any(isinstance(part, ToolCallPart) for part in same):
            if not any(isinstance(part, ToolResultPart) for part in same):
                messages[index] = msgspec.structs.replace(message, parts=(*message.parts, result))
            return
