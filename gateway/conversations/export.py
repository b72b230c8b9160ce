"""Export of a session: Markdown to read, or JSON with all its data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from gateway.conversations.branches import HiddenVersion
from gateway.conversations.changes import ChangeSummary
from gateway.conversations.titles import one_line
from gateway.session.log import ChildSession, SessionRow

_NAMES = {"user": "User", "assistant": "Assistant", "system": "System"}


def as_markdown(
    row: SessionRow,
    messages: Sequence[Message],
    children: Sequence[ChildSession] = (),
    versions: Sequence[HiddenVersion] = (),
) -> Iterator[str]:
    """Yield the session as Markdown, one heading per message; nested runs are quoted below their calls.

    Each version that is not shown follows under its own heading. The first message of every version has
    a line with its number.
    """
    yield f"# {row.title or row.id}\n\nSession `{row.id}`, {row.messages} messages, ${row.cost:.4f}\n"
    if row.parent is not None:
        yield f"Fork of session `{row.parent}` after message `{row.parent_message}`\n"
    labels = _labels(messages, versions)
    yield from _messages(messages, children, labels)
    known = {message.id: message for message in _every(messages, versions)}
    for version in versions:
        before = known.get(version.after or "")
        where = "from the beginning" if before is None else f"after {_heading(before)}"
        yield f"\n---\n\n# {labels[version.id]}, {where}\n"
        yield from _messages(version.messages, children, labels)


def _labels(messages: Sequence[Message], versions: Sequence[HiddenVersion]) -> dict[str, str]:
    """Return the number of each version among those of its place, by the id of its first message."""
    # What follows the place of a version, in the log or the version that the place is in, is a version, too.
    next_of = {
        before and before.id: message
        for log in (messages, *(version.messages for version in versions))
        for before, message in zip((None, *log), log, strict=False)
        if before is not None or log is messages
    }
    labels: dict[str, str] = {}
    for after in {version.after for version in versions}:
        firsts = [version.messages[0] for version in versions if version.after == after and version.messages]
        firsts += [next_of[after]] if after in next_of else []
        ordered = sorted(firsts, key=lambda message: (message.created_at, message.id))
        labels |= {one.id: f"Version {n} of {len(ordered)}" for n, one in enumerate(ordered, 1)}
    return labels


def _every(messages: Sequence[Message], versions: Sequence[HiddenVersion]) -> Iterator[Message]:
    yield from messages
    for version in versions:
        yield from version.messages


def _heading(message: Message) -> str:
    return f"{_author(message)}, {_moment(message.created_at)}"


def _messages(
    messages: Sequence[Message], children: Sequence[ChildSession], labels: Mapping[str, str]
) -> Iterator[str]:
    for message in messages:
        pieces = [f"*{labels[message.id]}*"] if message.id in labels else []
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
        yield f"\n## {_heading(message)}\n\n{body}\n"


def _child(child: ChildSession) -> str:
    row = child.session
    head = f"**Task session** {one_line(row.title)}\n\nSession `{row.id}`, {row.messages} messages"
    if child.omitted:
        head += f"; {child.omitted} earlier ones are not in this export"
    return _quoted("\n".join([head, *_messages(child.messages, child.children, {})]).rstrip("\n"))


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
    versions: Sequence[HiddenVersion] | None = None,
) -> Iterator[str]:
    """Yield the session as one JSON object, one message, version or nested run per line.

    Its keys are ``session``, ``messages``, ``versions`` (unless it is None), ``children`` and ``changes``.
    """
    encode = msgspec.json.Encoder().encode
    yield f'{{"session": {encode(row).decode()},\n"messages": ['
    for index, message in enumerate(messages):
        yield f"{',' if index else ''}\n{encode(message).decode()}"
    if versions is not None:
        yield '\n],\n"versions": ['
        for index, version in enumerate(versions):
            yield f"{',' if index else ''}\n{encode(version).decode()}"
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
            return f"**Error**: {part.message}"
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
