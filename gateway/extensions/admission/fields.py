"""Readers of the fields of a manifest: each checks a node, and raises an error with the correction."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from gateway.extensions.admission.yaml_tree import Complaint, Node

_LONGEST_SHOWN = 60
_INVISIBLE = ("Cc", "Cf", "Co", "Cs", "Zl", "Zp")
"""Categories of characters that a terminal or an editor does not show, or that reorder others."""
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Characters of other categories that look like nothing."""
_SELECTORS = range(0xE0100, 0xE01F0)
"""Variation selectors that no writing system of today needs; they can carry a hidden text."""


class Wrong(Exception):
    """A value that cannot be used; the text completes a sentence that begins with the key."""


class Report:
    """The complaints about one file."""

    def __init__(self, complaints: list[Complaint]) -> None:
        self.complaints = complaints

    def add(self, line: int, key: str, text: str) -> None:
        """Add a complaint about a key."""
        self.complaints.append((line, f"{key}: {text}"))

    def lines(self, shown: str) -> list[str]:
        """Return the complaints in the order of the file, each with the place."""
        return [f"{shown}:{line}: {text}" for line, text in sorted(set(self.complaints))]


Reader = Callable[[Report, Node, str], Any]
"""Returns the value of a node at a key. Raises Wrong."""


def invisible(text: str, allowed: str = "\n\t") -> str | None:
    """Return the first character of a text that is not shown or reorders others, as ``U+202E``, or None."""
    return next((f"U+{ord(each):04X}" for each in text if each not in allowed and _is_invisible(each)), None)


def hidden(data: bytes) -> Iterable[tuple[int, str]]:
    """Yield a complaint for each line with text that is not UTF-8 or that a reader cannot see."""
    for number, line in enumerate(data.split(b"\n"), 1):
        try:
            character = invisible(line.decode("utf-8").removesuffix("\r"), "\t")
        except UnicodeDecodeError:
            yield number, "is not UTF-8 text"
            continue
        if character:
            yield number, f"has the invisible character {character}; remove it"


def _is_invisible(each: str) -> bool:
    return unicodedata.category(each) in _INVISIBLE or each in _BLANK or ord(each) in _SELECTORS


def shown(node: Node) -> str:
    """Return a value as it is quoted in complaints."""
    value = node.plain() if node.text is None or isinstance(node.value, int | float) else node.text
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"


def text(pattern: str = "", what: str = "text", *, most: int = 2_000, lines: bool = False) -> Reader:
    """Return a reader of text that matches a pattern; ``what`` describes it."""

    def read(_report: Report, node: Node, _key: str) -> str:
        if node.text is None or node.value is None:
            raise Wrong(f"must be {what}")
        if isinstance(node.value, bool):
            raise Wrong(f'must be {what}; write "{node.text}" in quotes')
        found = node.text.strip()
        if hidden := invisible(found, "\n" if lines else ""):
            raise Wrong(f"has the invisible character {hidden}; remove it")
        if len(found) > most:
            raise Wrong(f"has {len(found)} characters; at most {most} are allowed")
        if pattern and not re.fullmatch(pattern, found):
            raise Wrong(f"{shown(node)} must be {what}")
        return found

    return read


def flag(_report: Report, node: Node, _key: str) -> bool:
    """Read true or false."""
    if not isinstance(node.value, bool):
        raise Wrong(f"{shown(node)} must be true or false")
    return node.value


def number(least: float, most: float, *, whole: bool = True) -> Reader:
    """Return a reader of a number in a range."""

    def read(_report: Report, node: Node, _key: str) -> float:
        kinds = (int,) if whole else (int, float)
        if (
            not isinstance(node.value, kinds)
            or isinstance(node.value, bool)
            or not least <= node.value <= most
        ):
            kind = "a whole number" if whole else "a number"
            raise Wrong(f"{shown(node)} must be {kind} from {least:g} to {most:g}")
        return node.value

    return read


def choice(names: Collection[str], what: str) -> Reader:
    """Return a reader of one of some names."""

    def read(_report: Report, node: Node, _key: str) -> str:
        if node.text is None or node.text not in names:
            raise Wrong(f"{shown(node)} is not {what}; {nearest(node.text or '', names)}")
        return node.text

    return read


def listed(item: Reader, *, most: int = 200) -> Reader:
    """Return a reader of a list without repeats."""

    def read(report: Report, node: Node, key: str) -> tuple[Any, ...]:
        if node.items is None:
            if node.text and node.value is not None:
                raise Wrong(f"{shown(node)} must be in a list; write [{shown(node)}]")
            raise Wrong("must be a list")
        if len(node.items) > most:
            raise Wrong(f"has {len(node.items)} items; at most {most} are allowed")
        found: list[Any] = []
        for each in node.items:
            try:
                found.append(item(report, each, key))
            except Wrong as error:
                report.add(each.line, key, str(error))
        return tuple(value for at, value in enumerate(found) if value not in found[:at])

    return read


def table(readers: Mapping[str, Reader], make: Callable[..., Any], required: Collection[str] = ()) -> Reader:
    """Return a reader of a table, which ``make`` gets as keyword arguments."""

    def read(report: Report, node: Node, key: str) -> Any:
        if node.table is None:
            raise Wrong(f"must be a table with {', '.join(readers)}")
        found = fields(report, node, readers, f"{key}.")
        missing = [name for name in required if name not in node.table]
        for name in missing:
            report.add(node.line, f"{key}.{name}", "is missing")
        return None if any(name not in found for name in required) else make(**found)

    return read


def fields(
    report: Report, node: Node, readers: Mapping[str, Reader], under: str = "", *, of: str = "a manifest"
) -> dict[str, Any]:
    """Return the correct values of a table; complain about the others and about unknown keys."""
    found: dict[str, Any] = {}
    for name, value in (node.table or {}).items():
        key, line = f"{under}{name}", node.lines[name]
        reader = readers.get(name)
        if reader is None:
            report.add(line, key, f"is not a key of {of}; {nearest(name, readers)}")
            continue
        try:
            found[name] = reader(report, value, key)
        except Wrong as error:
            report.add(value.line if value.text is not None else line, key, str(error))
    return found


def nearest(name: str, names: Collection[str]) -> str:
    """Return a hint with the nearest of the names, or with all of them."""
    near = get_close_matches(name.lower(), names, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
