"""Agent files: one Markdown file for each agent, named after it.

The settings are between two lines of ``---``, one ``key: value`` each; a value is TOML or plain text. The
text after them is the system prompt. A file without such lines is all prompt::

    ---
    description: Answers customers
    model: fast
    tools: ["calculator"]
    ---
    You are the support desk of a shop for …
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gateway.contract.errors import SettingsError
from gateway.settings.entries import Entry
from gateway.settings.models import AgentSettings, checked_names
from gateway.settings.validation import known_entries, validated

SUFFIX = ".md"
FOLDER = "agents"
"""Folder of agent files beside a settings file."""

_FENCE = "---"
_KEY = re.compile(r"(\w+)\s*:\s*(.*)")
_REFERENCES = re.compile(r"\$(?=\{)|\{(?=env:|file:)")


def agent_files(folder: Path) -> list[Path]:
    """Return the agent files of a folder by name, without a README. Raises OSError if it cannot be read."""
    # Not Path.glob, which returns nothing for a folder that cannot be read.
    try:
        found = sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [file for file in found if file.suffix == SUFFIX and file.stem.lower() != "readme"]


def agent_entries(file: Path, text: str, shown: str) -> list[Entry]:
    """Read the settings of an agent. ``shown`` is the file name in messages. Raises SettingsError."""
    head, prompt, line = _split(text, shown)
    entries = [*_settings(head, shown)]
    if prompt:
        # Prompts may contain ${…} as text, so references in them are escaped.
        entries.append(("system_prompt", _REFERENCES.sub(lambda found: found[0] * 2, prompt), line))
    elif not entries:
        raise SettingsError(f"{shown}: an agent file needs settings between lines of {_FENCE}, or a prompt")
    return [
        Entry(path=("agents", file.stem, key), value=value, place=f"{shown}:{number}", base=file.parent)
        for key, value, number in entries
    ]


def read_agents(folder: Path) -> dict[str, AgentSettings]:
    """Read all agents of a folder, by name. Raises SettingsError with every mistake in one file."""
    agents = {file.stem: _agent(file) for file in agent_files(folder)}
    try:
        return checked_names(agents)
    except ValueError as error:
        raise SettingsError(f"{folder} {error}") from None


def _agent(file: Path) -> AgentSettings:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file}: cannot be read: {error}") from None
    return parse_agent(text, file)


def parse_agent(text: str, file: Path) -> AgentSettings:
    """Return the agent of a file with this text. Raises SettingsError with every mistake in it."""
    head, prompt, line = _split(text, str(file))
    given = [*_settings(head, str(file)), *([("system_prompt", prompt, line)] if prompt else [])]
    entries = [
        Entry(path=(key,), value=value, place=f"{file}:{number}", base=file.parent)
        for key, value, number in given
    ]
    known, complaints = known_entries(AgentSettings, entries)
    return validated(AgentSettings, known, complaints)


def _split(text: str, shown: str) -> tuple[list[str], str, int]:
    """Return the lines of the head, the prompt after it, and the first line number of the prompt."""
    lines = text.removeprefix("\ufeff").splitlines()
    if not lines or lines[0].strip() != _FENCE:
        return [], text.strip(), 1
    try:
        end = next(n for n, line in enumerate(lines[1:], 1) if line.strip() == _FENCE)
    except StopIteration:
        raise SettingsError(
            f"{shown}:1: the settings are not closed; end them with a line {_FENCE}"
        ) from None
    return lines[1:end], "\n".join(lines[end + 1 :]).strip(), end + 2


def _settings(head: list[str], shown: str) -> Iterator[tuple[str, Any, int]]:
    for number, line in enumerate(head, 2):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = _KEY.fullmatch(line.rstrip())
        if found is None:
            raise SettingsError(f"{shown}:{number}: not a setting; write lines like `model: fast`")
        yield found[1], _value(found[2]), number


def _value(written: str) -> Any:
    """Return a TOML value (a number, a list, true, false); anything else is text."""
    try:
        return tomllib.loads(f"value = {written}")["value"]
    except tomllib.TOMLDecodeError:
        return written
