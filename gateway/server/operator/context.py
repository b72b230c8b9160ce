"""The context of a question: the message and calls that led to it, and the changes of files.

All of it comes from rows: the message in the inbox, the trail of its turn, and the arguments in the question,
in which the configured secrets are masked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec
from msgspec import Struct
from sqlalchemy import Connection, and_, select

from gateway.contract.questions import visible_text
from gateway.contract.tool import unified_diff
from gateway.store import schema as t
from gateway.trail import State, read_path

_MOST_TEXT = 500
"""Characters of the message that are shown."""
_MOST_STEPS = 20
MOST_LINES = 200
MOST_BYTES = 16_384
_LONGEST_LINE = 1_000
_DEEPEST = 6

# The names that tools and coding programs use: for a path, for a replaced text, for a diff, for a whole file.
_PATHS = ("path", "file_path", "filePath", "file", "notebook_path")
_REPLACED = (("old", "new"), ("old_string", "new_string"), ("old_str", "new_str"), ("oldText", "newText"))
_DIFFS = ("diff", "patch", "unified_diff")
_WHOLE = ("content", "file_text", "new_source")


class EarlierCall(Struct, frozen=True):
    """A tool that was called earlier in the turn. ``at`` is in milliseconds, ``took`` in microseconds."""

    name: str
    state: State
    at: int
    took: int


class QuestionContext(Struct, frozen=True):
    """The message and calls that led to a question, and the changes of files if it is allowed.

    ``asked`` is the beginning of the message whose turn asks; ``calls`` are the latest tools that the turn
    called before. ``difference`` are lines of a diff, in which only the parts that the call names are
    compared; ``more_lines`` are left out. All of it is empty if it is not known or does not apply.
    """

    asked: str = ""
    calls: list[EarlierCall] = []
    difference: str = ""
    more_lines: int = 0


class Difference(NamedTuple):
    """Lines of a diff, and the number of those that were left out."""

    text: str = ""
    more_lines: int = 0


class _Text(Struct):
    text: str = ""


_text_of = msgspec.json.Decoder(_Text).decode


def read_led(connection: Connection, inbox_id: str, before: int) -> tuple[str, list[EarlierCall]]:
    """Return the beginning of a message, and the tools that its turn had called before a time (ms)."""
    i, original = t.inbox.c, t.inbox.alias("original")
    o = original.c
    same = and_(o.channel == i.channel, o.account == i.account, o.dedup_key == i.original)
    query = select(i.payload, i.interrupted, o.interrupted.label("withdrawn"))
    row = connection.execute(
        query.join_from(t.inbox, original, same, isouter=True).where(i.id == inbox_id)
    ).first()
    # A deletion is stored at the original of the revisions of a message.
    if row is None or "withdrawn" in (row.interrupted, row.withdrawn):
        return "", []
    asked = " ".join(_text_of(row.payload).text[: 4 * _MOST_TEXT].split())
    if len(asked) > _MOST_TEXT:
        asked = f"{asked[: _MOST_TEXT - 1]}…"
    steps = [
        step for step in read_path(connection, inbox_id).steps if step.kind == "tool" and step.at < before
    ]
    calls = [EarlierCall(step.name, step.state, step.at, step.took) for step in steps[-_MOST_STEPS:]]
    return visible_text(asked), calls


def difference_of(arguments: Mapping[str, Any]) -> Difference:
    """Return what a call changes in files, as far as its arguments say, with invisible characters escaped."""
    shown: list[str] = []
    left, more = MOST_BYTES, 0
    for line in _lines(arguments, shown):
        cut = visible_text(line[:_LONGEST_LINE]) + ("…" if len(line) > _LONGEST_LINE else "")
        size = len(cut.encode(errors="replace")) + 1
        if more or len(shown) >= MOST_LINES or size > left:
            more += 1
        else:
            shown.append(cut)
            left -= size
    return Difference("\n".join(shown), more)


def _lines(value: object, shown: Sequence[str], path: str = "", depth: int = 0) -> Iterator[str]:
    """Yield the lines of the differences in a value. What comes after the ``shown`` lines is only counted."""
    if depth > _DEEPEST:
        return
    if isinstance(value, list | tuple):
        for each in cast("Sequence[object]", value):
            yield from _lines(each, shown, path, depth + 1)
    if not isinstance(value, Mapping):
        return
    fields = cast("Mapping[str, object]", value)
    own = _first(fields, _PATHS)
    # On one line, because it must not look like a line of the diff.
    path = own.replace("\n", "\\n") or path
    head = [f"@@ {path} @@"] if path else []
    pair = next(((old, new) for old, new in _REPLACED if isinstance(fields.get(new), str)), None)
    if pair is not None:
        old, new = (str(fields.get(name) or "") for name in pair)
        yield from head
        yield from _compared(old, new, is_counted=len(shown) >= MOST_LINES)
    elif diff := _first(fields, _DIFFS):
        yield from [] if diff.startswith(("--- ", "*** ", "diff ")) else head
        yield from diff.removesuffix("\n").split("\n")
    elif own and (whole := _first(fields, _WHOLE)):
        yield from head
        yield from (f"+{line}" for line in whole.removesuffix("\n").split("\n"))
    for each in fields.values():
        if isinstance(each, list | tuple | Mapping):
            yield from _lines(cast("object", each), shown, path, depth + 1)


def _compared(old: str, new: str, *, is_counted: bool) -> Iterator[str]:
    if is_counted:  # comparing takes quadratic time
        yield from old.split("\n")
        yield from new.split("\n")
        return
    # The numbers of its lines are those of the replaced text, not of the file.
    for line in unified_diff(old, new, "", "").text.split("\n")[2:]:
        if not line.startswith("@@ "):
            yield line


def _first(fields: Mapping[str, object], names: Sequence[str]) -> str:
    return next((found for name in names if isinstance(found := fields.get(name), str) and found), "")
