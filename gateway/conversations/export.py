"""Export of a session: Markdown to read, or JSON with all its data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import assert_never

import msgspec

from gateway.contract.messages import (
    ErrorPart,
    FilePart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from gateway.conversations.changes import ChangeSummary
from gateway.conversations.titles import one_line
from gateway.session.log import ChildSession, SessionRow

_NAMES = {"user": "User", "assistant": "Assistant", "system": "System"}


def as_markdown(
    row: SessionRow, messages: Sequence[Message], children: Sequence[ChildSession] = ()
) -> Iterator[str]:
    """Yield the session as Markdown, one heading per message; nested runs are quoted below their calls."""
    yield f"# {row.title or row.id}\n\nSession `{row.id}`, {row.messages} messages, ${row.cost:.4f}\n"
    if row.parent is not None:
        yield f"Fork of session `{row.parent}` after message `{row.parent_message}`\n"
    yield from _messages(messages, children)


def _messages(messages: Sequence[Message], children: Sequence[ChildSession]) -> Iterator[str]:
    for message in messages:
        pieces: list[str] = []
        left = [child for child in children if child.session.parent_message == message.id]
        for part in message.parts:
            pieces.append(_part(part))
            if isinstance(part, ToolCallPart):
                called = [child for child in left if child.session.call_id == part.tool_call_id]
                left = [child for child in left if child.session.call_id != part.tool_call_id]
                pieces += map(_child, called)
        # A tool that itself calls tools has no part for each of its calls.
        pieces += map(_child, left)
        body = "\n\n".join(filter(None, pieces))
        yield f"\n## {_author(message)}, {_moment(message.created_at)}\n\n{body}\n"


def _child(child: ChildSession) -> str:
    row = child.session
    head = f"**Task session** {one_line(row.title)}\n\nSession `{row.id}`, {row.messages} messages"
    if child.omitted:
        head += f"; {child.omitted} earlier ones are not in this export"
    return _quoted("\n".join([head, *_messages(child.messages, child.children)]).rstrip("\n"))


def _author(message: Message) -> str:
    origin = message.origin
    if origin is None:
        return _NAMES[message.role]
    return f"{one_line(origin.author)} (context)" if origin.context else one_line(origin.author)


def as_json_lines(
    row: SessionRow,
    messages: Sequence[Message],
    changes: ChangeSummary,
    children: Sequence[ChildSession] = (),
) -> Iterator[str]:
    """Yield the session as one JSON object, one message or nested run per line.

    Its keys are ``session``, ``messages``, ``children`` and ``changes``.
    """
    encode = msgspec.json.Encoder().encode
    yield f'{{"session": {encode(row).decode()},\n"messages": ['
    for index, message in enumerate(messages):
        yield f"{',' if index else ''}\n{encode(message).decode()}"
    yield '\n],\n"children": ['
    for index, child in enumerate(children):
        yield f"{',' if index else ''}\n{encode(child).decode()}"
    yield f'\n],\n"changes": {encode(changes).decode()}}}\n'


def _part(part: Part) -> str:
    match part:
        case TextPart(kind="text"):
            return part.content.strip("\n")
        case TextPart(kind="summary"):
            return f"**Summary of the earlier conversation**\n\n{_quoted(part.content.strip())}"
        case TextPart():
            return _quoted(part.content.strip("\n"))
        case ToolCallPart():
            arguments = part.invalid_arguments or msgspec.json.encode(part.arguments).decode()
            return f"**Tool** `{part.tool_name}`\n\n{_fenced(arguments, 'json')}"
        case ToolResultPart():
            return f"**{'Tool failed' if part.is_error else 'Result'}**\n\n{_fenced(part.output)}"
        case ErrorPart():
            return f"**{part.error_name}**: {part.message}"
        case ImagePart():
            return f"![{part.alt_text or 'picture'}](data:{part.mime_type};base64,{part.data})"
        case FilePart():
            return f"**File** `{part.path}`\n\n{_fenced(part.content or '', part.language or '')}"
        case _:
            assert_never(part)


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.split("\n"))


def _fenced(text: str, language: str = "") -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000).astimezone().strftime("%Y-%m-%d %H:%M")
