"""The input line of the terminal chat: editing, history, completion, status line and shortcuts of plugins."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import DynamicKeyBindings, KeyBindings
from prompt_toolkit.styles import Style

from gateway.cli.chat.link import Command, Offer, Segment
from gateway.cli.output import plain

FIRST, MORE = "> ", ". "
_COLOURS = {"red": "ansired", "green": "ansigreen", "yellow": "ansiyellow"}
"""Colours of status segments; others are shown as plain text."""
_LONGEST_MENTION = 100
_STYLE = Style.from_dict({"bottom-toolbar": "noreverse"})

Complete = Callable[[str, str], Awaitable[Sequence[Offer]]]
"""Takes a trigger and the text after it; returns the completions that plugins offer."""


class Prompt:
    """Reads messages and answers of the user."""

    def __init__(self, complete: Complete, press: Callable[[str], None]) -> None:
        self._press = press
        self._words = _Words(complete)
        self._keys = KeyBindings()
        self._messages: PromptSession[str] = PromptSession(
            history=InMemoryHistory(),
            completer=self._words,
            key_bindings=DynamicKeyBindings(lambda: self._keys),
            style=_STYLE,
        )
        self._answers: PromptSession[str] = PromptSession(style=_STYLE)

    def offer_commands(self, commands: Iterable[Command]) -> None:
        """Complete these slash commands."""
        self._words.commands = tuple(commands)

    def contribute(
        self, status: Sequence[Segment], shortcuts: Iterable[str], triggers: Iterable[str]
    ) -> None:
        """Show this status line, pass these keys to plugins, and complete mentions after these triggers."""
        self._words.triggers = tuple(triggers)
        keys = KeyBindings()
        for name in shortcuts:
            _bind(keys, name, self._press)
        self._keys = keys
        for session in (self._messages, self._answers):
            # None hides the line; an empty text would leave a blank one.
            session.bottom_toolbar = status_text(status) or None
            session.app.invalidate()

    def remember(self, text: str) -> None:
        """Add a message to the history."""
        if text:
            self._messages.history.append_string(text)

    async def read(self) -> str:
        """Read one message; a backslash at the end continues a line. Raises EOFError, KeyboardInterrupt."""
        lines = [await self._line(self._messages, FIRST)]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(await self._line(self._messages, MORE))
        return "\n".join(lines).strip()

    async def ask(self, question: str) -> str:
        """Read the answer to a question. Raises EOFError and KeyboardInterrupt."""
        return await self._line(self._answers, question)

    async def print_above(self, show: Callable[[], Any]) -> None:
        """Print above the input line, if the user is typing."""
        if self._messages.app.is_running or self._answers.app.is_running:
            await run_in_terminal(show)
        else:
            show()

    async def _line(self, session: PromptSession[str], message: str) -> str:
        # In raw mode Ctrl-C is a key. Without this, the library would replace the handler of the chat.
        return await session.prompt_async(message, handle_sigint=False)


class _Words(Completer):
    """Completes slash commands, and the mentions of plugins."""

    def __init__(self, complete: Complete) -> None:
        self.commands: Sequence[Command] = ()
        self.triggers: Sequence[str] = ()
        self._complete = complete

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Return nothing: the prompt uses the asynchronous method."""
        return ()

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        """Yield the completions of the text before the cursor."""
        before = document.text_before_cursor
        if before.startswith("/") and not any(map(str.isspace, before)):
            for command in self.commands:
                if f"/{command.name}".startswith(before):
                    yield _completion(f"/{command.name}", "", command.description, len(before))
        for trigger in self.triggers:
            partial = mention(before, trigger)
            if partial is None:
                continue
            for offer in await self._complete(trigger, partial):
                typed = len(trigger) + len(partial)
                if offer.value != before[-typed:]:
                    yield _completion(offer.value, offer.label, offer.description, typed)
            return


def mention(before: str, trigger: str) -> str | None:
    """Return the text after a trigger at the start of a word, up to the cursor; None without one."""
    at = before.rfind(trigger)
    partial = before[at + len(trigger) :]
    starts_word = at == 0 or (at > 0 and before[at - 1].isspace())
    if not starts_word or any(map(str.isspace, partial)) or len(partial) > _LONGEST_MENTION:
        return None
    return partial


def status_text(segments: Sequence[Segment]) -> StyleAndTextTuples:
    """Return the status line of plugins as the library draws it."""
    parts: StyleAndTextTuples = []
    for segment in segments:
        colour = "ansibrightblack" if segment.dim else _COLOURS.get(segment.color or "", "")
        parts += [("", "  ")] if parts else []
        parts.append((colour, " ".join(plain(segment.text).split())))
    return parts


def library_keys(name: str) -> tuple[str, ...]:
    """Return a key of a plugin, such as ``ctrl+t``, in the names of the library.

    A terminal cannot report some combinations, such as Ctrl+Shift+T; the library rejects their names.
    """
    *held, key = name.split("+")
    short = "".join({"ctrl": "c-", "shift": "s-"}.get(one, "") for one in ("ctrl", "shift") if one in held)
    key = {"arrowup": "up", "arrowdown": "down", "arrowleft": "left", "arrowright": "right"}.get(key, key)
    plain_key = f"{short}{key}" if key != "space" or short else " "
    return ("escape", plain_key) if "alt" in held else (plain_key,)


def _bind(keys: KeyBindings, name: str, press: Callable[[str], None]) -> None:
    def pressed(_event: object) -> None:
        press(name)

    try:
        keys.add(*library_keys(name))(pressed)
    except ValueError:
        return  # a key that terminals do not report


def _completion(value: str, label: str, description: str, typed: int) -> Completion:
    return Completion(
        f"{value} ", -typed, display=plain(label or value), display_meta=" ".join(plain(description).split())
    )
