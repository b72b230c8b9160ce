"""The terminal view of messages: final pieces are printed once, open ones are redrawn below them.

Control characters of a chat are removed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import assert_never

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text

from gateway.cli.chat.conversation import Entry, Piece, Prose, Said, ToolRun, Whole
from gateway.cli.output import plain
from gateway.contract.messages import (
    DisplayHints,
    ErrorPart,
    FilePart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)

_OUTPUT_LINES = 6
_ARGUMENTS_LENGTH = 100
_CONCEPTS = ("command", "path", "file", "url", "query")
"""The kinds of arguments in display hints; the first one that a call has is shown."""
_DIFF = {"+": "green", "-": "red", "@": "cyan"}


def drawn(piece: Piece) -> RenderableType:
    """Return the rich renderable of a piece."""
    match piece:
        case Prose(kind="text"):
            return Trimmed(Markdown(plain(piece.source), hyperlinks=False))
        case Prose():
            return Padding(Text(plain(piece.source), style="dim italic"), (0, 0, 0, 2), expand=False)
        case Said(quoted=True):
            return Padding(Text(plain(piece.text), style="dim italic"), (0, 0, 0, 2), expand=False)
        case Said():
            text = f"{piece.author}: {piece.text}" if piece.author else piece.text
            return Text(f"> {plain(text)}", style="dim" if piece.context else "bold")
        case ToolRun():
            return _tool(piece)
        case Whole():
            return _part(piece.part)
        case _:
            assert_never(piece)


def footer(message: Message) -> Text | None:
    """Return model, tokens, cost and time of an answer in one line; None if none is known."""
    known = message.metadata
    facts: list[str] = []
    if known.model:
        facts.append(f"{known.provider}/{known.model}" if known.provider else known.model)
    # Commands call no model.
    if known.input_tokens or known.output_tokens:
        facts.append(f"{known.input_tokens or 0:,} + {known.output_tokens or 0:,} tokens")
    if known.cost:
        facts.append(f"${known.cost:.4f}")
    if known.duration_ms is not None:
        facts.append(f"{known.duration_ms / 1000:.1f} s")
    # A failed answer ends as "cancelled" too; its error part says why, and no person stopped it.
    if known.stop_reason == "cancelled" and not any(isinstance(part, ErrorPart) for part in message.parts):
        facts.append("stopped")
    if known.stop_reason == "max_tokens":
        facts.append("cut at max_tokens")
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
        rows = max(1, console.size.height - 2)
        lines = console.render_lines(self._group, options.update(height=None), pad=False)
        for line in lines[-rows:]:
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
    hints = result.display if result is not None and result.display is not None else DisplayHints()
    hint = _hint(run, hints)
    shown = _arguments(run) if hint is None else f"  {hint}"
    name = plain(hints.verb or run.call.tool_name)
    title = Text.assemble((f"{mark} ", style), (name, "bold"), (shown, "dim"))
    duration = result.metadata.duration_ms if result is not None and result.metadata is not None else None
    if duration is not None:
        title.append(f"  {duration / 1000:.2f} s", style="dim")
    return Group(title, *_output(result, hints.kind))


def _hint(run: ToolRun, hints: DisplayHints) -> str | None:
    """Return the argument that the display hints of a tool name, such as its command or path."""
    names = (hints.fields[concept] for concept in (*_CONCEPTS, *hints.fields) if concept in hints.fields)
    value = next((run.call.arguments[name] for name in names if name in run.call.arguments), None)
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return _shortened(f"$ {text}" if hints.kind == "shell" else text)


def _arguments(run: ToolRun) -> str:
    call = run.call
    text = call.invalid_arguments or ", ".join(
        f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in call.arguments.items()
    )
    return f"({_shortened(text)})"


def _shortened(text: str) -> str:
    text = plain(text).replace("\n", " ")
    return text if len(text) <= _ARGUMENTS_LENGTH else f"{text[: _ARGUMENTS_LENGTH - 1]}…"


def _output(result: ToolResultPart | None, kind: str | None = None) -> list[RenderableType]:
    lines = plain(result.output).rstrip("\n").split("\n") if result is not None and result.output else []
    hidden = len(lines) - _OUTPUT_LINES
    shown = [*lines[:_OUTPUT_LINES], f"… {hidden} more lines"] if hidden > 1 else lines
    if not shown:
        return []
    colours = _DIFF if kind == "diff" else {}
    text = Text("\n").join(Text(line, style=colours.get(line[:1], "dim")) for line in shown)
    return [Padding(text, (0, 0, 0, 2), expand=False)]


def _part(part: Part) -> RenderableType:
    match part:
        case ErrorPart():
            return Text(f"✗ {plain(part.message)}", style="red")
        case ImagePart():
            size = f" {part.width}x{part.height}" if part.width and part.height else ""
            return Text(f"[picture: {plain(part.alt_text or part.mime_type)}{size}]", style="dim")
        case FilePart():
            return Group(Text(f"[file: {plain(part.path)}]", style="dim"), Text(plain(part.content or "")))
        case ToolResultPart():
            return Group(*_output(part))
        case TextPart() | ToolCallPart():
            return Text("")
        case _:
            assert_never(part)


class Screen:
    """The drawn messages. ``show`` prints only what is new."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._printed: dict[str, list[Piece]] = {}
        self._closed: set[str] = set()
        self._after_tool = False
        self.status = Text()
        """The status line of plugins, drawn below an answer that is being streamed."""

    def show(self, *entries: Entry) -> None:
        """Update the screen with these messages."""
        open_: list[Piece] = []
        with self._console:
            for entry in entries:
                if entry.id not in self._closed:
                    open_ += self._entry(entry)
            self._redraw(open_)

    def skip(self, entry: Entry) -> None:
        """Treat a message as already shown."""
        self._closed.add(entry.id)

    def has(self, entry: Entry) -> bool:
        """Return whether a message was shown completely."""
        return entry.id in self._closed

    def note(self, text: str, style: str = "dim") -> None:
        """Print a line between the messages."""
        self._console.print(Text(plain(text), style=style))

    def close_open(self) -> None:
        """Erase the open part, so that the user can type."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _entry(self, entry: Entry) -> list[Piece]:
        """Print the new final pieces of a message. Return its open pieces."""
        message = entry.message
        if message is not None and message.display is not None and message.display.hidden:
            self._closed.add(entry.id)
            return []
        final, open_ = entry.pieces()
        self._print_new(entry.id, final)
        if message is not None:
            self._close(message)
        return open_

    def _print_new(self, entry_id: str, final: list[Piece]) -> None:
        printed = self._printed.setdefault(entry_id, [])
        same = 0
        while same < min(len(printed), len(final)) and printed[same] == final[same]:
            same += 1
        if same == len(final):
            return
        if same < len(printed):
            self.note("The answer starts again:")
            same = 0
        self._make_room(final[same:])
        for piece in final[same:]:
            self._print(piece)
        self._printed[entry_id] = final

    def _make_room(self, pieces: list[Piece]) -> None:
        """Erase the open part before printing, so that no line appears twice."""
        if self._live is not None and pieces:
            self._live.update(Text(""), refresh=True)

    def _print(self, piece: Piece) -> None:
        is_tool = isinstance(piece, ToolRun)
        if not (is_tool and self._after_tool):
            self._console.print()
        self._console.print(drawn(piece))
        self._after_tool = is_tool

    def _close(self, message: Message) -> None:
        self._closed.add(message.id)
        self._printed.pop(message.id, None)
        line = footer(message) if message.role == "assistant" else None
        if line is not None:
            self._console.print()
            self._console.print(line)
        self._after_tool = False

    def _redraw(self, open_: list[Piece]) -> None:
        if not open_:
            self.close_open()
            return
        if self._live is None:
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        status = [Text(""), self.status] if self.status else []
        self._live.update(Cropped([Text(""), *map(drawn, open_), *status]), refresh=True)
