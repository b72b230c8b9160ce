"""Prompt commands of plugins: ``/name arguments`` sends a text of the plugin to the model.

A file in ``commands/`` is a command: ``NAME.md`` with the text, or ``NAME.yml`` with the text in ``prompt``.
``$ARGUMENTS`` stands for all words after the command, ``$1`` to ``$9`` for single ones, and ``$NAME`` for one
that ``arguments`` names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from gateway.contract.errors import PluginError
from gateway.extensions.admission import fields
from gateway.extensions.admission.fields import Reader, Report, hidden
from gateway.extensions.admission.yaml_tree import parse_yaml, split_text
from gateway.skills import read_below

COMMANDS = "commands"
"""Folder of prompt commands in a plugin."""
_SUFFIXES = (".md", ".yml")
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_PLACE = re.compile(r"\$(ARGUMENTS\b|[1-9]\b|[a-z][a-z0-9_]*)")
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
        found = [*_WORD.finditer(rest)]
        words = ["".join(filter(None, each.groups())) for each in found]
        if len(words) < len(self.arguments):
            return None
        values = {"ARGUMENTS": rest, **{str(at): word for at, word in enumerate(words, 1)}}
        if self.arguments:
            last = len(self.arguments) - 1
            values |= dict(zip(self.arguments, words, strict=False))
            values[self.arguments[last]] = rest[found[last].start() :] if words[last + 1 :] else words[last]

        def value(place: re.Match[str]) -> str:
            # $HOME and the like are text; a word that was not given is empty.
            name = place[1]
            return values.get(name, "" if name.isdigit() else place[0])

        # All at once, so that a word of the user which looks like a place stays as it is.
        text = _PLACE.sub(value, self.text)
        used = {place[1] for place in _PLACE.finditer(self.text)} & values.keys()
        return text if used or not rest else f"{text}\n\n{rest}"


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
