"""How a message reads to a model: an assistant's parts cut into steps, and parts told in words.

An assistant message may hold several calls of a model with tool results between them. Every adapter
translates these steps to its vendor's roles, so the repair of interrupted calls is done once, here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from typing import TypeGuard

import msgspec
from msgspec import Struct

from gateway.messages import (
    Attachment,
    FilePart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from gateway.provider import ToolDefinition

ABORTED = "Aborted: the tool was stopped before it gave a result."
"""What a model is told of a call that has no result."""

PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""The kinds of pictures that most models can be shown; what is of another kind they are told of."""

NO_TOOL = ToolDefinition("unavailable", "Never call this.", {"type": "object", "properties": {}})
"""Offered where a conversation has calls and there is no tool any more: some backends refuse it without."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9_-]")
_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
_COUNTED = 16
"""Letters below which an id may be a mere number, which other messages have too."""


class Step(Struct, frozen=True):
    """What an assistant said in one go, the tools it asked for, and one result for each call, in order."""

    text: str
    calls: tuple[ToolCallPart, ...] = ()
    results: tuple[ToolResultPart, ...] = ()


class _Draft:
    __slots__ = ("calls", "results", "texts")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.calls: dict[str, ToolCallPart] = {}
        self.results: dict[str, ToolResultPart] = {}

    def finish(self) -> Step:
        results = (
            self.results.get(call_id) or ToolResultPart(call_id, ABORTED, is_error=True)
            for call_id in self.calls
        )
        return Step("\n\n".join(self.texts), tuple(self.calls.values()), tuple(results))


def steps_of(message: Message) -> list[Step]:
    """Cut an assistant message into steps that every backend accepts, with names that all of them know.

    Text or a call after a result begins a new step. A call without a result gets one that says it was
    aborted; a result without a call is left out, as are reasoning and errors. Empty steps are dropped.
    """
    drafts = [_Draft()]
    for part in message.parts:
        if isinstance(part, ToolResultPart):
            _place(part, drafts)
            continue
        if isinstance(part, ToolCallPart):
            draft = _open(drafts, part.tool_call_id)
            draft.calls[part.tool_call_id] = _named(part)
        elif text := told(part):
            _open(drafts).texts.append(text)
    finished = (draft.finish() for draft in drafts)
    return [step for step in finished if step.text or step.calls]


def _open(drafts: list[_Draft], call_id: str = "") -> _Draft:
    if drafts[-1].results or call_id in drafts[-1].calls:
        drafts.append(_Draft())
    return drafts[-1]


def _place(result: ToolResultPart, drafts: list[_Draft]) -> None:
    for draft in reversed(drafts):
        if result.tool_call_id in draft.calls:
            draft.results[result.tool_call_id] = result
            return


def wire_id(call_id: str, message_id: str = "") -> str:
    """A call's id in letters and a length that every protocol takes, and always the same for the same one.

    Where no two calls of a conversation may have the same id, ``message_id`` tells them apart.
    """
    if message_id and len(call_id) < _COUNTED:
        call_id = f"{call_id}_{message_id[-12:]}"
    if _ID.fullmatch(call_id):
        return call_id
    return f"call_{hashlib.sha256(call_id.encode('utf-8', 'replace')).hexdigest()[:24]}"


def _named(call: ToolCallPart) -> ToolCallPart:
    """A call of a tool that protocols know by another name, as those of coding programs: ``codex:shell``."""
    if _NAME.fullmatch(call.tool_name):
        return call
    name = _NOT_IN_NAME.sub("_", call.tool_name)
    name = name if _NAME.match(name) else f"_{name}"
    return msgspec.structs.replace(call, tool_name=name[:64])


def told(part: Part) -> str:
    """A part in words, for a model that reads only text here; empty for what is not sent."""
    match part:
        case TextPart():
            return part.content if part.kind != "reasoning" and part.content.strip() else ""
        case FilePart():
            return _file(part)
        case ImagePart():
            return f"(image attached: {part.alt_text})" if part.alt_text else "(image attached)"
        case _:
            return ""


def is_shown(part: Part, kinds: Collection[str] = PICTURES) -> TypeGuard[ImagePart]:
    """Whether a part is a picture of a kind that a model can be shown."""
    return isinstance(part, ImagePart) and part.mime_type in kinds


def pictures(attachments: tuple[Attachment, ...], kinds: Collection[str] = PICTURES) -> list[Attachment]:
    """The attachments that a model can look at."""
    return [attachment for attachment in attachments if attachment.mime_type in kinds]


def output_text(result: ToolResultPart, kinds: Collection[str] = PICTURES) -> str:
    """A result's text, with a line for each attachment that cannot be shown to a model."""
    names = [
        f"[attached: {attachment.name or 'file'} ({attachment.mime_type})]"
        for attachment in result.attachments
        if attachment.mime_type not in kinds
    ]
    return "\n".join((result.output, *names)) if names else result.output


def _file(part: FilePart) -> str:
    lines = "" if part.line_range is None else f", lines {part.line_range[0]} to {part.line_range[1]}"
    header = f"File {part.path}{lines}"
    if part.content is None:
        return header
    return f"{header}:\n```{part.language or ''}\n{part.content}\n```"
