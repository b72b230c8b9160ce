"""Settings files: TOML or JSON with comments, with the line number of each key."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from gateway.contract.errors import SettingsError
from gateway.settings.agents import SUFFIX as AGENT
from gateway.settings.agents import agent_entries
from gateway.settings.entries import Entry, KeyPath, flat

SUFFIXES = (".toml", ".json", ".jsonc", ".json5")

_JSON_TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[{}\[\]:,]|[^\s{}\[\]:,"'/]+""", re.DOTALL
)
_KEY = re.compile(r"""\s*["']?([A-Za-z_][\w-]{0,30})["']?\s*[=:]\s*[^=\s]""")


def read_document(file: Path, shown: str) -> list[Entry]:
    """Read a settings file or an agent file. ``shown`` is its name in messages. Raises SettingsError."""
    text = _text(file, shown)
    if file.suffix == AGENT:
        return agent_entries(file, text, shown)
    if file.suffix == ".toml":
        tree, lines = _toml(text, shown), _toml_lines(text)
    elif file.suffix in SUFFIXES:
        tree, lines = _json(text, shown), _json_lines(text)
    else:
        raise SettingsError(f"{shown}: unknown file type; use one of {', '.join(SUFFIXES)}")
    return [
        Entry(path=path, value=value, place=f"{shown}:{_line(lines, path)}", base=file.parent)
        for path, value in flat(tree)
    ]


def _text(file: Path, shown: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{shown}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"{shown}: is not UTF-8 text (byte {error.start})") from None


def _toml(text: str, shown: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = str(error).replace("at end of document", _end(text))
        said, line, column = _position(message, r"\(at line (\d+), column (\d+)\)")
        raise _syntax(text, shown, said, line, column) from None


def _json(text: str, shown: str) -> dict[str, Any]:
    import json5  # only who writes JSON pays for its import

    try:
        tree: object = json5.loads(text)
    except ValueError as error:
        message = re.sub(r"^<string>:", "at line ", str(error))
        said, line, column = _position(message, r"at line (\d+)\D.* at column (\d+)")
        raise _syntax(text, shown, said or "not valid JSON", line, column) from None
    if not isinstance(tree, dict):
        raise SettingsError(f"{shown}:1: the file must hold one object, like {{ server: {{ port: 8080 }} }}")
    return cast("dict[str, Any]", tree)


def _end(text: str) -> str:
    lines = text.split("\n")
    return f"at line {len(lines)}, column {len(lines[-1]) + 1}"


def _position(message: str, pattern: str) -> tuple[str, int | None, int | None]:
    found = re.search(pattern, message)
    if found is None:
        return message, None, None
    return message.replace(found.group(), "").strip(), int(found[1]), int(found[2])


def _syntax(text: str, shown: str, said: str, line: int | None, column: int | None) -> SettingsError:
    """Build a syntax error. It quotes only the key, because the value may be a secret."""
    if line is None or column is None:
        return SettingsError(f"{shown}: {said}")
    key = _KEY.match("".join(text.split("\n")[line - 1 : line]))
    return SettingsError(f"{shown}:{line}:{column}: {said}" + (f", near `{key[1]}`" if key else ""))


def _line(lines: Mapping[KeyPath, int], path: KeyPath) -> int:
    """Return the line of a key, or of the nearest table above it."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return 1


def _toml_lines(text: str) -> dict[KeyPath, int]:
    """Return the line of each key by parsing the (valid) text statement by statement.

    A statement is complete as soon as its lines parse on their own, so strings and arrays of several lines
    need no grammar here.
    """
    lines: dict[KeyPath, int] = {}
    header: KeyPath = ()
    for number, statement in _statements(text):
        table = statement.lstrip().startswith("[")
        for path in _paths(tomllib.loads(statement)):
            lines.setdefault(path if table else (*header, *path), number)
            header = path if table else header
    return lines


def _statements(text: str) -> Iterator[tuple[int, str]]:
    pending: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        pending.append(line)
        statement = "\n".join(pending)
        try:
            tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue
        yield number - len(pending) + 1, statement
        pending = []


def _paths(tree: Mapping[str, Any], path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the path of every key in a tree, tables before their keys."""
    for key, value in tree.items():
        yield (*path, key)
        if isinstance(value, Mapping):
            yield from _paths(cast("Mapping[str, Any]", value), (*path, key))


def _json_lines(text: str) -> dict[KeyPath, int]:
    """Return the line of each key: the token before a colon is a key of the innermost open bracket."""
    lines: dict[KeyPath, int] = {}
    path: list[str] = []
    key, key_line = "", 1
    for match in _JSON_TOKEN.finditer(text):
        piece = match.group()
        if piece == ":" and path:
            path[-1] = key
            lines.setdefault(tuple(path), key_line)
        elif piece in "{[":
            path.append("")
        elif piece in "}]" and path:
            path.pop()
        elif not piece.startswith(("//", "/*")):
            key, key_line = piece.strip("\"'"), text.count("\n", 0, match.start()) + 1
    return lines
