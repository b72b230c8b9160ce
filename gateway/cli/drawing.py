"""How pieces of messages look in a terminal. Nothing a chat says can steer the terminal: control codes go."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import datetime

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markdown import Markdown
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text

from gateway.cli.conversation import Piece, Prose, Said, ToolRun, Whole
from gateway.messages import ErrorPart, FilePart, ImagePart, Message, Part, ToolResultPart

_CONTROL = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f"  # control codes, but for tab and newline
    "\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"  # marks of direction, lone surrogates
)
_OUTPUT_LINES = 6
_ARGUMENTS_LENGTH = 100


def plain(text: str) -> str:
    """The text without what could steer a terminal or turn the order of its letters around."""
    return _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def moment(milliseconds: int) -> str:
    """A point in time, as this machine's clock would show it."""
    return datetime.fromtimestamp(milliseconds / 1000).astimezone().strftime("%Y-%m-%d %H:%M")


def drawn(piece: Piece) -> RenderableType:
    """A piece as rich draws it."""
    match piece:
        case Prose(kind="text"):
            return Trimmed(Markdown(plain(piece.source), hyperlinks=False))
        case Prose():
            return Padding(Text(plain(piece.source), style="dim italic"), (0, 0, 0, 2), expand=False)
        case Said():
            return Text(f"> {plain(piece.text)}", style="bold")
        case ToolRun():
            return _tool(piece)
        case Whole():
            return _part(piece.part)


def footer(message: Message) -> Text | None:
    """What an answer took, in one line; None if nothing is known."""
    known = message.metadata
    facts: list[str] = []
    if known.model:
        facts.append(f"{known.provider}/{known.model}" if known.provider else known.model)
    if known.input_tokens is not None and known.output_tokens is not None:
        facts.append(f"{known.input_tokens:,} + {known.output_tokens:,} tokens")
    if known.cost:
        facts.append(f"${known.cost:.4f}")
    if known.duration_ms is not None:
        facts.append(f"{known.duration_ms / 1000:.1f} s")
    if known.stop_reason in ("cancelled", "max_tokens"):
        facts.append({"cancelled": "stopped", "max_tokens": "cut at max_tokens"}[known.stop_reason])
    return Text(plain(" · ".join(facts)), style="dim") if facts else None


class Trimmed:
    """A renderable without the empty lines around it, and without the blanks that fill its lines up."""

    def __init__(self, renderable: RenderableType) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [_trimmed(line) for line in console.render_lines(self._renderable, options, pad=False)]
        while lines and not lines[0]:
            lines.pop(0)
        while lines and not lines[-1]:
            lines.pop()
        for line in lines:
            yield from line
            yield Segment.line()


class Cropped:
    """The last lines of some renderables: as many as fit on the screen."""

    def __init__(self, renderables: Iterable[RenderableType]) -> None:
        self._group = Group(*renderables)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = max(1, console.size.height - 2)
        lines = console.render_lines(self._group, options.update(height=None), pad=False)
        for line in lines[-room:]:
            yield from line
            yield Segment.line()


def _trimmed(line: list[Segment]) -> list[Segment]:
    """The line without the blanks at its end that show nothing."""
    end = len(line)
    while end and _shows_nothing(line[end - 1]):
        end -= 1
    if end == 0 or _coloured(line[end - 1]):
        return line[:end]
    text, style, control = line[end - 1]
    return [*line[: end - 1], Segment(text.rstrip(" "), style, control)]


def _shows_nothing(segment: Segment) -> bool:
    return not segment.text.strip() and not _coloured(segment)


def _coloured(segment: Segment) -> bool:
    return segment.style is not None and segment.style.bgcolor is not None


def _tool(run: ToolRun) -> RenderableType:
    result = run.result
    mark, style = ("…", "yellow") if run.running else ("✓", "green")
    if not run.running and (result is None or result.is_error):
        mark, style = "✗", "red"
    title = Text.assemble((f"{mark} ", style), (plain(run.call.tool_name), "bold"), (_arguments(run), "dim"))
    duration = result.metadata.duration_ms if result is not None and result.metadata is not None else None
    if duration is not None:
        title.append(f"  {duration / 1000:.2f} s", style="dim")
    return Group(title, *_output(result))


def _arguments(run: ToolRun) -> str:
    call = run.call
    text = call.invalid_arguments or ", ".join(
        f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in call.arguments.items()
    )
    text = plain(text).replace("\n", " ")
    return f"({text if len(text) <= _ARGUMENTS_LENGTH else text[: _ARGUMENTS_LENGTH - 1] + '…'})"


def _output(result: ToolResultPart | None) -> list[RenderableType]:
    lines = plain(result.output).rstrip("\n").split("\n") if result is not None and result.output else []
    hidden = len(lines) - _OUTPUT_LINES
    shown = [*lines[:_OUTPUT_LINES], f"… {hidden} more lines"] if hidden > 1 else lines
    return [Padding(Text("\n".join(shown), style="dim"), (0, 0, 0, 2), expand=False)] if shown else []


def _part(part: Part) -> RenderableType:
    match part:
        case ErrorPart():
            return Text(f"✗ {plain(part.error_name)}: {plain(part.message)}", style="red")
        case ImagePart():
            size = f" {part.width}x{part.height}" if part.width and part.height else ""
            return Text(f"[picture: {plain(part.alt_text or part.mime_type)}{size}]", style="dim")
        case FilePart():
            return Group(Text(f"[file: {plain(part.path)}]", style="dim"), Text(plain(part.content or "")))
        case ToolResultPart():
            return Group(*_output(part))
        case _:
            return Text("")
