"""Rendering of whole messages for pages: the parts that are shown as HTML. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from gateway.contract.messages import (
    ErrorPart,
    FilePart,
    ImagePart,
    Message,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from gateway.server.pages.blocks import rendered_blocks
from gateway.server.pages.highlight import code_html, language_of


def render_message(message: Message) -> Iterator[tuple[int, str] | None]:
    """Yield the parts of a finished message that are shown as HTML: (part index, HTML) for text and files.

    A user's text is left out, because the page shows it as typed. Yields None where the caller may let other
    tasks run.
    """
    for index, part in enumerate(message.parts):
        match part:
            case TextPart() if message.role != "user":
                html: list[str] = []
                for block in rendered_blocks(part.content):
                    html += () if block is None else (block.html,)
                    yield None
                yield index, "".join(html)
            case FilePart(content=str()):
                yield index, _file_html(part)
            case TextPart() | FilePart() | ToolCallPart() | ToolResultPart() | ErrorPart() | ImagePart():
                pass
            case _:
                assert_never(part)


def _file_html(part: FilePart) -> str:
    """Return the file's text under its path, with the line numbers of the excerpt."""
    lines = f":{part.line_range[0]}-{part.line_range[1]}" if part.line_range else ""
    return code_html(part.content or "", part.language or language_of(part.path), part.path + lines)
