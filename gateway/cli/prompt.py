"""Asking a person at the terminal: line editing, history, completion of slash commands, several lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

try:
    import readline
except ImportError:  # a Python built without it still reads lines
    readline = None

FIRST, MORE = "> ", ". "


class Prompt:
    """Reads what a person types. ``open`` says that somebody may be typing right now."""

    def __init__(self) -> None:
        self.open = False
        self._shown = ""
        self._commands: Sequence[str] = ()
        if readline is not None:
            readline.set_completer_delims(" \n")
            readline.set_completer(self._complete)
            readline.parse_and_bind("tab: complete")

    def offer(self, commands: Sequence[str]) -> None:
        """Complete these words with the tab key."""
        self._commands = commands

    def remember(self, text: str) -> None:
        """Add something to the history, as if it had been typed."""
        if readline is not None and text:
            readline.add_history(text.split("\n", 1)[0])

    def read(self) -> str:
        """One message; a line that ends with a backslash goes on. Raises EOFError and KeyboardInterrupt."""
        lines = [self.ask(FIRST)]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(self.ask(MORE))
        return "\n".join(lines).strip()

    def ask(self, question: str) -> str:
        """One line."""
        self.open, self._shown = True, question
        try:
            return input(question)
        finally:
            self.open = False

    def aside(self, show: Callable[[], Any]) -> None:
        """Show something from another thread, above what is being typed."""
        if not self.open:
            show()
            return
        sys.stdout.write("\r\x1b[J")
        show()
        typed = readline.get_line_buffer() if readline is not None else ""
        sys.stdout.write(self._shown + typed)
        sys.stdout.flush()

    def _complete(self, text: str, state: int) -> str | None:
        fitting = [command for command in self._commands if text and command.startswith(text)]
        return f"{fitting[state]} " if state < len(fitting) else None
