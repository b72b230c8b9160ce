"""Prompt commands of plugins: ``/name arguments`` sends a text of the plugin to the model.

A file in ``commands/`` is a command: ``NAME.md`` with the text, or ``NAME.yml`` with the text in ``prompt``.
``$ARGUMENTS`` stands for all words after the command, ``$1`` to ``$9`` for single ones, and ``$NAME`` for one
that ``arguments`` names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakSet

from msgspec import Struct

from gateway.contract.errors import PluginError
from gateway.contract.plugin import Intercept, SlashCommand, Transform, UserInput
from gateway.extensions.admission import fields
from gateway.extensions.admission.fields import Reader, Report, hidden
from gateway.extensions.admission.yaml_tree import parse_yaml, split_text
from gateway.session import Turn, running
from gateway.skills import read_below

COMMANDS = "commands"
"""Folder of prompt commands in a plugin."""
_SUFFIXES = (".md", ".yml")
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_PLACE = re.compile(r"\$(ARGUMENTS\b|[1-9]\b|[a-z][a-z0-9_]*)")
_COMMAND = re.compile(r"/(\S+)(?:\s+(.*))?", re.DOTALL)
_WORD = re.compile(r'"([^"]*)"|\'([^\']*)\'|(\S+)')


class PromptCommand(Struct, frozen=True):
    """A prompt command. ``arguments`` are the names of its words; the last one gets all that follow."""

    name: str
    text: str
    description: str = ""
    hint: str = ""
    arguments: tuple[str, ...] = ()

    @property
    def usage(self) -> str:
        """The command as a user types it."""
        shown = self.hint or " ".join(f"<{name}>" for name in self.arguments)
        return f"/{self.name} {shown}".strip()

    def expand(self, rest: str) -> str | None:
        """Return the text for what follows the command; None if a named argument is missing."""
        named = assigned(self.arguments, rest)
        if len(named) < len(self.arguments):
            return None
        words = (_word(each) for each in _WORD.finditer(rest))
        values = {"ARGUMENTS": rest, **{str(at): word for at, word in enumerate(words, 1)}, **named}

        def value(place: re.Match[str]) -> str:
            # $HOME and the like are text; a word that was not given is empty.
            name = place[1]
            return values.get(name, "" if name.isdigit() else place[0])

        # All at once, so that a word of the user which looks like a place stays as it is.
        text = _PLACE.sub(value, self.text)
        used = {place[1] for place in _PLACE.finditer(self.text)} & values.keys()
        return text if used or not rest else f"{text}\n\n{rest}"


class PromptTurns:
    """The turns that prompt commands began: in their answers tools ask as after content from outside."""

    def __init__(self) -> None:
        self._used = WeakSet[Turn]()

    def typed(self, text: str, commands: Sequence[SlashCommand]) -> tuple[int, str] | None:
        """Return which of these commands a user typed, and the rest; None if another plugin has its name."""
        typed, turn = _COMMAND.fullmatch(text.strip()), running.get()
        found = None if typed is None or turn is None else turn.plugins.find_command(typed[1])
        if typed is None or found is None:
            return None
        at = next((n for n, own in enumerate(commands) if own is found[0]), None)
        return None if at is None else (at, (typed[2] or "").strip())

    def answer(self, name: str, usage: str, text: str | None) -> UserInput:
        """Send the text of a command to the model, without one show the usage."""
        if text is None:
            return Intercept(f"Usage: {usage}")
        if text.lstrip().startswith("/"):
            return Intercept(f"/{name} cannot begin its text with a command.")
        if turn := running.get():
            self._used.add(turn)
        return Transform(text)

    def begin(self) -> None:
        """Let the tools of an answer ask if its question is the text of a command."""
        turn = running.get()
        if turn is not None and turn in self._used:
            turn.session.has_read_others = True


def assigned(names: Sequence[str], rest: str) -> dict[str, str]:
    """Give each name a word, in order; the last name gets all that follows."""
    found = [*_WORD.finditer(rest)]
    values = dict(zip(names, map(_word, found), strict=False))
    if names and len(found) > len(names):
        values[names[-1]] = rest[found[len(names) - 1].start() :]
    return values


def _word(found: re.Match[str]) -> str:
    return "".join(filter(None, found.groups()))


def read_prompts(folder: Path) -> list[PromptCommand]:
    """Return the prompt commands of a plugin's folder, by name. Raises PluginError with their mistakes."""
    base = folder / COMMANDS
    files = [file for file in sorted(base.glob("*")) if file.suffix in _SUFFIXES and file.stem != "README"]
    found = [parse_prompt(read_below(base, file.name), file.name, str(file)) for file in files]
    names = [each.name for each in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise PluginError(f"{base}: {twice}.md and {twice}.yml are one command; remove one")
    return found


def parse_prompt(data: bytes, file: str, shown: str) -> PromptCommand:
    """Return the command of a file with this name. Raises PluginError with every mistake and its line."""
    name, dot, suffix = file.rpartition(".")
    if not _NAME.fullmatch(name):
        raise PluginError(f"{shown}: a command is named by its file, with up to 32 of a-z, 0-9, _ and -")
    head, text = (data, "") if dot + suffix == ".yml" else split_text(data, shown)
    readers = {**_FIELDS, **(_PROMPT if suffix == "yml" else {})}
    report = Report([*hidden(data)])
    found: dict[str, Any] = {}
    if head is not None and head.strip():
        root, complaints = parse_yaml(head)
        report.complaints += complaints
        if root is not None and root.table is not None:
            found = fields.fields(report, root, readers, of="a command")
        elif not complaints:
            report.complaints.append((1, "must be a table, such as description: …"))
    text = found.pop("prompt", text).strip()
    if not text and not report.complaints:
        report.add(1, "prompt", "is missing; write the text for the model")
    if text.startswith("/"):
        report.add(1, "prompt", "must not begin with /, which would run a command; begin with another word")
    if report.complaints:
        raise PluginError("\n".join(report.lines(shown)))
    hint = found.pop("argument-hint", "")
    return PromptCommand(name, text, hint=hint, **found)


_FIELDS: Mapping[str, Reader] = {
    "description": fields.text(most=200),
    "argument-hint": fields.text(most=100),
    "arguments": fields.listed(fields.text(r"[a-z][a-z0-9_]{0,31}", "a name of a-z, 0-9 and _"), most=9),
}
_PROMPT: Mapping[str, Reader] = {"prompt": fields.text(most=64_000, lines=True)}
