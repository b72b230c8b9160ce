"""Sessions written down: as Markdown to read, as JSON to work with."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from gateway.cli.drawing import moment
from gateway.messages import (
    ErrorPart,
    FilePart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from gateway.session.log import SessionRow

_NAMES = {"user": "User", "assistant": "Assistant", "system": "System"}


def as_markdown(row: SessionRow, messages: Sequence[Message]) -> Iterator[str]:
    """The session as Markdown, a heading per message."""
    yield f"# {row.title or row.id}\n\nSession `{row.id}`, {row.messages} messages, ${row.cost:.4f}\n"
    for message in messages:
        body = "\n\n".join(filter(None, map(_part, message.parts)))
        yield f"\n## {_NAMES[message.role]}, {moment(message.created_at)}\n\n{body}\n"


def as_json_lines(row: SessionRow, messages: Sequence[Message]) -> Iterator[str]:
    """The session as one JSON object ``{"session": …, "messages": […]}``, a message per line."""
    encode = msgspec.json.Encoder().encode
    yield f'{{"session": {encode(row).decode()},\n"messages": ['
    for index, message in enumerate(messages):
        yield f"{',' if index else ''}\n{encode(message).decode()}"
    yield "\n]}\n"


def write(file: Path, pieces: Iterable[str], count: int, *, replace: bool) -> None:
    """Write the pieces (``count`` of them or so) to a file that is whole or not there.

    Shows how far it is when a person watches. Raises FileExistsError, unless it may ``replace``.
    """
    from rich.console import Console
    from rich.progress import track

    if file.exists() and not replace:
        raise FileExistsError(file)
    draft = file.with_name(f".{file.name}.part")
    watched = Console(stderr=True)
    try:
        with draft.open("w", encoding="utf-8") as out:
            for piece in track(
                pieces,
                "exporting",
                total=count,
                console=watched,
                transient=True,
                disable=not sys.stderr.isatty(),
            ):
                out.write(piece)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


def _part(part: Part) -> str:
    match part:
        case TextPart(kind="text"):
            return part.content.strip("\n")
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


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.split("\n"))


def _fenced(text: str, language: str = "") -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
