"""Edits of text: exact replacement, then one that tolerates other white space.

Everything here is pure. Line numbers count from 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gateway import ToolError

_MOST_PLACES = 10


def replace(text: str, old: str, new: str, *, every: bool = False) -> str:
    """Return the text with ``old`` replaced. Raises ToolError if it is not found, or in several places.

    Where the exact text does not occur, lines that differ only in white space are replaced.
    """
    old, new = old.replace("\r\n", "\n"), new.replace("\r\n", "\n")
    if not old:
        raise ToolError("the old text is empty; use write for a new file")
    if old == new:
        raise ToolError("the old and the new text are the same")
    found = [*_occurrences(text, old)]
    if found:
        if len(found) > 1 and not every:
            raise _ambiguous([text.count("\n", 0, at) + 1 for at in found])
        return text.replace(old, new)
    lines, wanted = text.split("\n"), old.strip("\n").split("\n")
    starts = find_lines(lines, wanted)
    if not starts:
        raise ToolError("the old text does not occur in the file; read the file again and copy it exactly")
    if len(starts) > 1 and not every:
        raise _ambiguous([at + 1 for at in starts])
    for at in reversed(_without_overlaps(starts, len(wanted))):
        lines[at : at + len(wanted)] = _indented_like(lines[at : at + len(wanted)], wanted, new.strip("\n"))
    return "\n".join(lines)


def find_lines(
    lines: Sequence[str], wanted: Sequence[str], start: int = 0, *, exact: bool = False
) -> list[int]:
    """Return every index from ``start`` on where the lines occur; white space counts only if ``exact``."""
    bare = [line if exact else " ".join(line.split()) for line in wanted]
    if not exact and not any(bare):
        return []
    # Searched as one text, which takes linear time; comparing line by line would not.
    whole = "\n" + "\n".join(line if exact else " ".join(line.split()) for line in lines[start:]) + "\n"
    found: list[int] = []
    line, counted = start, 0
    for at in _occurrences(whole, "\n" + "\n".join(bare) + "\n"):
        line += whole.count("\n", counted, at)
        counted = at
        found.append(line)
    return found


def split_lines(text: str) -> list[str]:
    """Return the lines of a text; an end of line at its end begins no further line."""
    return text.removesuffix("\n").split("\n") if text else []


def _occurrences(text: str, wanted: str) -> Iterator[int]:
    at = text.find(wanted)
    while at >= 0:
        yield at
        # Occurrences that overlap count as well: they make an edit ambiguous.
        at = text.find(wanted, at + 1)


def _without_overlaps(starts: Sequence[int], length: int) -> list[int]:
    kept: list[int] = []
    for at in starts:
        if not kept or at >= kept[-1] + length:
            kept.append(at)
    return kept


def _ambiguous(lines: Sequence[int]) -> ToolError:
    shown = ", ".join(map(str, lines[:_MOST_PLACES])) + (", …" if len(lines) > _MOST_PLACES else "")
    return ToolError(
        f"the old text occurs {len(lines)} times, at lines {shown}; add lines around it, or replace all"
    )


def _indented_like(found: Sequence[str], wanted: Sequence[str], new: str) -> list[str]:
    """Return the new lines with the indentation of the lines in the file."""
    pairs = zip(found, wanted, strict=True)
    there, given = next(((_indent(a), _indent(b)) for a, b in pairs if a.strip()), ("", ""))
    return [
        there + line.removeprefix(given) if line.strip() and line.startswith(given) else line
        for line in (new.split("\n") if new else ())
    ]


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]
