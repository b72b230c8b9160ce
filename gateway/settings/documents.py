"""Settings files: TOML or JSON with comments, with the line number of each key.

A hostile file must not stop the start for long, so lines are found in one pass over the text.
"""

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
_TOML_TOKEN = re.compile(
    r"""#[^\n]*|\"{3}(?:\\.|[^\\])*?\"{3,5}|'{3}.*?'{3,5}|"(?:\\.|[^"\\])*"|'[^']*'|[\[\]{}\n]""", re.DOTALL
)
_KEY = re.compile(r"""\s*["']?([A-Za-z_][\w-]{0,30})["']?\s*[=:]\s*[^=\s]""")


def read_document(file: Path, shown: str) -> list[Entry]:
    """Read a settings file or an agent file. ``shown`` is its name in messages. Raises SettingsError."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise SettingsError(f"{shown}: cannot be read: {error.strerror}") from None
    text = decoded(data, shown)
    if file.suffix == AGENT:
        return agent_entries(file, text, shown)
    return parse_document(text, file.suffix, shown, file.parent)


def parse_document(text: str, suffix: str, shown: str, base: Path) -> list[Entry]:
    """Parse the text of a settings file of a type such as ``.toml``; ``base`` is its folder.

    Raises SettingsError.
    """
    text = text.removeprefix("\ufeff")  # editors on Windows write a byte order mark
    try:
        if suffix == ".toml":
            tree, lines = _toml(text, shown), _toml_lines(text)
        elif suffix in SUFFIXES:
            tree, lines = _json(text, shown), _json_lines(text)
        else:
            raise SettingsError(f"{shown}: unknown file type; use one of {', '.join(SUFFIXES)}")
        values = [*flat(tree)]
    except RecursionError:
        raise SettingsError(f"{shown}: is nested too deeply") from None
    return [
        Entry(path=path, value=value, place=f"{shown}:{_line(lines, path)}", base=base)
        for path, value in values
    ]


def decoded(data: bytes, shown: str) -> str:
    """Decode the bytes of a settings file. Raises SettingsError."""
    try:
        return data.decode("utf-8").replace("\r\n", "\n")
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
    """Return the line of each key by parsing the (valid) text statement by statement."""
    lines: dict[KeyPath, int] = {}
    header: KeyPath = ()
    for number, statement in _statements(text):
        table = statement.lstrip().startswith("[")
        for path in _paths(tomllib.loads(statement)):
            lines.setdefault(path if table else (*header, *path), number)
            header = path if table else header
    return lines


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield each statement with its first line number; it ends with a line where no bracket is open."""
    begin = depth = 0
    first = line = 1
    for token in _TOML_TOKEN.finditer(text):
        piece = token.group()
        depth += (piece in ("[", "{")) - (piece in ("]", "}"))
        line += piece.count("\n")
        if piece == "\n" and depth == 0:
            yield first, text[begin : token.start()]
            begin, first = token.end(), line
    yield first, text[begin:]


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
    line, counted = 1, 0
    for match in _JSON_TOKEN.finditer(text):
        piece = match.group()
        line += text.count("\n", counted, match.start())
        counted = match.start()
        if piece == ":" and path:
            path[-1] = key
            lines.setdefault(tuple(path), key_line)
        elif piece in "{[":
            path.append("")
        elif piece in "}]" and path:
            path.pop()
        elif not piece.startswith(("//", "/*")):
            key, key_line = piece.strip("\"'"), line
    return lines
