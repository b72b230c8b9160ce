"""The terminal: what is final is printed once, what is still open is redrawn below it."""

from __future__ import annotations

from rich.console import Console
from rich.live import Live
from rich.text import Text

from gateway.cli.conversation import Entry, Piece, ToolRun
from gateway.cli.drawing import Cropped, drawn, footer, plain
from gateway.messages import Message


class Screen:
    """Draws entries. ``show`` may be called as often as something changed; it prints only what is new."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._printed: dict[str, list[Piece]] = {}
        self._closed: set[str] = set()
        self._after_tool = False

    def show(self, *entries: Entry) -> None:
        """Bring what is on the screen up to date with these entries."""
        open_: list[Piece] = []
        with self._console:
            for entry in entries:
                if entry.id not in self._closed:
                    open_ += self._entry(entry)
            self._redraw(open_)

    def skip(self, entry: Entry) -> None:
        """Count an entry as shown."""
        self._closed.add(entry.id)

    def has(self, entry: Entry) -> bool:
        """Whether an entry was shown to its end."""
        return entry.id in self._closed

    def note(self, text: str, style: str = "dim") -> None:
        """A line of our own between the messages."""
        self._console.print(Text(plain(text), style=style))

    def rest(self) -> None:
        """Take the open part off the screen, so that somebody may type."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _entry(self, entry: Entry) -> list[Piece]:
        """Print what is new and final of an entry; returns what is open."""
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
            self.note("The answer begins again:")
            same = 0
        self._make_room(final[same:])
        for piece in final[same:]:
            self._print(piece)
        self._printed[entry_id] = final

    def _make_room(self, pieces: list[Piece]) -> None:
        """Draw the open part anew below what is printed next, so that no line stands there twice."""
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
            self.rest()
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
        self._live.update(Cropped([Text(""), *map(drawn, open_)]), refresh=True)
