"""How the websocket channel shows text on its page: Markdown as safe HTML, whole or block by block. Pure."""

from __future__ import annotations

from channels.websocket.blocks import Block, BlockRenderer
from channels.websocket.highlight import code_html, language_of
from channels.websocket.markdown_html import render_html
from gateway import FilePart, Message, TextPart

__all__ = ["Block", "BlockRenderer", "render_html", "render_message"]


def render_message(message: Message) -> list[tuple[int, str]]:
    """The parts of a finished message that are shown as HTML: (part index, HTML) for text and for files.

    What a person typed is shown as typed, so a user's text is left out.
    """
    rendered: list[tuple[int, str]] = []
    for index, part in enumerate(message.parts):
        match part:
            case TextPart() if message.role != "user":
                rendered.append((index, render_html(part.content)))
            case FilePart(content=str()):
                rendered.append((index, _file_html(part)))
            case _:
                pass
    return rendered


def _file_html(part: FilePart) -> str:
    """The file's text under its path, with the lines it is cut from."""
    lines = f":{part.line_range[0]}-{part.line_range[1]}" if part.line_range else ""
    return code_html(part.content or "", part.language or language_of(part.path), part.path + lines)
