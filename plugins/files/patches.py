"""Patches: the unified format, and the one between ``*** Begin Patch`` and ``*** End Patch``.

``parse`` reads a patch, ``apply`` one file's part of it to a text. Both are pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from gateway import ToolError
from plugins.files.edits import find_lines, split_lines

BEGIN, END = "*** Begin Patch", "*** End Patch"
MOST_FILES = 100

_RANGE = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@ ?(.*)")
_HEADER = re.compile(r"\*\*\* (Add|Delete|Update) File: (.+)")
_NO_END = "\\ No newline at end of file"
_REFUSED = ("GIT binary patch", "Binary files ", "new file mode 12", "new file mode 16", "new mode 12")


class Hunk(Struct, frozen=True):
    """Lines that are replaced by others. ``line`` is their expected number, 0 if unknown; ``after`` is a line
    that comes before them. ``ends`` says whether the new file has an end of line at its end, if it is said.
    """

    old: tuple[str, ...]
    new: tuple[str, ...]
    line: int = 0
    after: str = ""
    ends: bool | None = None
    last: bool = False


class FilePatch(Struct, frozen=True):
    """The part of a patch for one file. ``old`` is None for a new file, ``new`` for a deleted one."""

    old: str | None
    new: str | None
    hunks: tuple[Hunk, ...] = ()

    @property
    def path(self) -> str:
        """The path that the part is named by in errors."""
        return self.old or self.new or ""


def parse(patch: str) -> list[FilePatch]:
    """Read a patch of either format. Raises ToolError."""
    lines = split_lines(patch.strip("\r\n").replace("\r\n", "\n"))
    is_marked = bool(lines) and lines[0].strip() == BEGIN
    found = [*(_parse_marked if is_marked else _parse_unified)(lines)]
    if not found:
        raise ToolError(f"the patch changes no file; write a unified diff, or begin it with {BEGIN}")
    if len(found) > MOST_FILES:
        raise ToolError(f"a patch may change at most {MOST_FILES} files; this one changes {len(found)}")
    return found


def paths_of(patch: str) -> list[str]:
    """Return the paths that a patch names. Raises ToolError."""
    names = [name for part in parse(patch) for name in (part.old, part.new) if name is not None]
    return list(dict.fromkeys(names))


def apply(part: FilePatch, text: str) -> str:
    """Return a text after the hunks of a part. Raises ToolError if a hunk does not fit in one place."""
    lines, ends = split_lines(text), text.endswith("\n") or not text
    cursor, moved = 0, 0
    for number, hunk in enumerate(part.hunks, 1):
        at = _place_of(hunk, lines, cursor, moved, f"{part.path}: hunk {number}")
        lines[at : at + len(hunk.old)] = hunk.new
        moved += len(hunk.new) - len(hunk.old)
        cursor = at + len(hunk.new)
        ends = ends if hunk.ends is None else hunk.ends
    return "\n".join(lines) + ("\n" if ends and lines else "")


def _place_of(hunk: Hunk, lines: Sequence[str], cursor: int, moved: int, name: str) -> int:
    """Return the index of the lines that a hunk replaces."""
    start = _start_of(hunk, lines, cursor, name)
    if not hunk.old:
        if hunk.line:
            return min(max(hunk.line + moved, start), len(lines))
        return start if hunk.after else len(lines)
    found = find_lines(lines, hunk.old, start, exact=True) or find_lines(lines, hunk.old, start)
    if hunk.last:
        found = [n for n in found if n + len(hunk.old) == len(lines)] or found
    if not found:
        raise ToolError(f"{name}: the lines to replace do not occur; read the file again\n{_first(hunk.old)}")
    expected = hunk.line - 1 + moved
    if hunk.line and expected in found:
        return expected
    if len(found) > 1 and not hunk.after:
        places = ", ".join(str(n + 1) for n in found[:10])
        raise ToolError(f"{name}: the lines to replace occur {len(found)} times, at lines {places}")
    return found[0]


def _start_of(hunk: Hunk, lines: Sequence[str], cursor: int, name: str) -> int:
    """Return the index after the line that a hunk names, or the ``cursor``."""
    if not hunk.after:
        return cursor
    for n in range(cursor, len(lines)):
        if lines[n].strip() == hunk.after.strip():
            return n + 1
    raise ToolError(f"{name}: the line {hunk.after!r} does not occur")


def _first(lines: Sequence[str]) -> str:
    return "\n".join(f"  {line[:200]}" for line in lines[:3])


def _parse_marked(lines: Sequence[str]) -> Iterator[FilePatch]:
    if lines[-1].strip() != END:
        raise ToolError(f"the patch does not end with {END}")
    body, at = lines[1:-1], 0
    while at < len(body):
        header = _HEADER.fullmatch(body[at].rstrip())
        if header is None:
            raise ToolError(
                f"the patch has {body[at][:100]!r} where *** Add, Update or Delete File: is expected"
            )
        kind, path = header[1], header[2].strip()
        end = next((n for n in range(at + 1, len(body)) if _HEADER.fullmatch(body[n].rstrip())), len(body))
        section, at = body[at + 1 : end], end
        if kind == "Add":
            if not all(line.startswith("+") for line in section):
                raise ToolError(f"{path}: every line of a new file begins with +")
            yield FilePatch(None, path, (Hunk((), tuple(line[1:] for line in section)),))
        elif kind == "Delete":
            if any(line.strip() for line in section):
                raise ToolError(f"{path}: a deletion has no lines")
            yield FilePatch(path, None)
        else:
            move = "*** Move to: "
            target = (
                section[0].removeprefix(move).strip() if section and section[0].startswith(move) else path
            )
            yield FilePatch(path, target, tuple(_marked_hunks(path, section[target != path :])))


def _marked_hunks(path: str, section: Sequence[str]) -> Iterator[Hunk]:
    after, old, new, last = "", list[str](), list[str](), False
    for line in (*section, "@@"):
        if line.startswith("@@"):
            if old or new:
                yield Hunk(tuple(old), tuple(new), after=after, last=last)
            after, old, new, last = line[2:].strip().removesuffix("@@").strip(), [], [], False
        elif line.strip() == "*** End of File":
            last = True
        elif line[:1] in ("-", "+", " ", ""):
            if line[:1] != "+":
                old.append(line[1:])
            if line[:1] != "-":
                new.append(line[1:])
        else:
            raise ToolError(f"{path}: {line[:100]!r} begins with neither a space, + nor -")


def _parse_unified(lines: Sequence[str]) -> Iterator[FilePatch]:
    at = 0
    renamed = ""
    while at < len(lines):
        line = lines[at]
        if line.startswith(_REFUSED):
            raise ToolError(f"the patch has {line[:60]!r}; only changes of text files can be applied")
        if line.startswith("rename from "):
            renamed = line.removeprefix("rename from ")
        elif line.startswith("rename to ") and not _has_hunks(lines, at):
            yield FilePatch(renamed, line.removeprefix("rename to "))
        elif line.startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ "):
            old, new = _names(line, lines[at + 1])
            hunks, at = _unified_hunks(lines, at + 2, old or new or "")
            if not hunks:
                raise ToolError(f"{old or new}: the patch has no hunk for this file")
            yield FilePatch(old, new, tuple(hunks))
            continue
        elif line.startswith("@@ "):
            raise ToolError("a hunk of the patch has no lines --- and +++ with its file before it")
        at += 1


def _has_hunks(lines: Sequence[str], at: int) -> bool:
    following = (line for line in lines[at + 1 :] if line.startswith(("--- ", "diff ")))
    return next(following, "").startswith("--- ")


def _names(old: str, new: str) -> tuple[str | None, str | None]:
    names = [line[4:].partition("\t")[0].strip() for line in (old, new)]
    known = [name for name in names if name != "/dev/null"]
    # Git puts a/ and b/ before the names.
    if all(name.startswith(("a/", "b/")) for name in known):
        names = [name if name == "/dev/null" else name[2:] for name in names]
    first, second = (None if name == "/dev/null" else name for name in names)
    return first, second


def _unified_hunks(lines: Sequence[str], at: int, path: str) -> tuple[list[Hunk], int]:
    hunks: list[Hunk] = []
    while at < len(lines) and (found := _RANGE.fullmatch(lines[at])):
        olds, news = int(found[2] or 1), int(found[3] or 1)
        at += 1
        old, new, ends = list[str](), list[str](), None
        while at < len(lines):
            line, full = lines[at], len(old) >= olds and len(new) >= news
            # Models often miscount: the numbers decide only where the lines alone are ambiguous.
            if full and (not line or line.startswith("--- ")):
                break
            if line == _NO_END:
                # It belongs to the line before it: the end of the old file, of the new one, or of both.
                ends = lines[at - 1].startswith("-")
            elif line[:1] in ("-", "+", " ", ""):
                if line[:1] != "+":
                    old.append(line[1:])
                if line[:1] != "-":
                    new.append(line[1:])
            else:
                break
            at += 1
        if not old and not new:
            raise ToolError(f"{path}: hunk {len(hunks) + 1} has no lines")
        hunks.append(Hunk(tuple(old), tuple(new), int(found[1]), ends=ends))
    return hunks, at
