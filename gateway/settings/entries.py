"""One value of one setting, together with where it was written.

Settings are merged as flat entries and not as trees, because every value must keep its place: an error
names the file and line, and ``trunkline config show`` says where each value came from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from msgspec import Struct

KeyPath = tuple[str, ...]

JOINED: frozenset[KeyPath] = frozenset({("plugins", "enabled"), ("plugins", "disabled")})
"""Lists that grow from layer to layer, without repeats; every other value replaces the one below it."""


class Entry(Struct, frozen=True, kw_only=True):
    """A value at a key. ``place`` is ``file:line``, a variable's name, or ``command line``.

    ``base`` is the directory that a ``{file:…}`` in the value is relative to. ``written`` is the text with
    its references, once they are resolved.
    """

    path: KeyPath
    value: Any
    place: str
    base: Path
    written: str | None = None

    @property
    def key(self) -> str:
        """The key as a person writes it, with dots."""
        return ".".join(self.path)


def flat(tree: Mapping[str, Any], path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield each leaf of a tree with its path; an empty table is a leaf, and so is a list."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flat(cast("Mapping[str, Any]", value), (*path, key))
        else:
            yield (*path, key), value


def tree(entries: Iterable[Entry]) -> dict[str, Any]:
    """Build the nested mapping that the entries describe."""
    root: dict[str, Any] = {}
    for entry in entries:
        *parents, leaf = entry.path
        table = root
        for key in parents:
            table = table.setdefault(key, {})
        if entry.value == {}:
            table.setdefault(leaf, {})
        else:
            table[leaf] = entry.value
    return root


def merged(entries: Iterable[Entry]) -> list[Entry]:
    """Let later entries win: a table merges, anything else replaces what stood at its key or below it."""
    kept: dict[KeyPath, Entry] = {}
    for entry in entries:
        if entry.value == {}:
            kept.setdefault(entry.path, entry)
            continue
        for path in [path for path in kept if _replaces(entry, kept[path])]:
            del kept[path]
        kept[entry.path] = _joined(kept.get(entry.path), entry)
    return list(kept.values())


def _replaces(new: Entry, old: Entry) -> bool:
    inside = len(old.path) > len(new.path) and old.path[: len(new.path)] == new.path
    above = len(old.path) < len(new.path) and new.path[: len(old.path)] == old.path
    return inside or (above and old.value != {})


def _joined(old: Entry | None, new: Entry) -> Entry:
    if (
        old is None
        or new.path not in JOINED
        or not isinstance(old.value, list)
        or not isinstance(new.value, list)
    ):
        return new
    both = [*cast("list[Any]", old.value), *cast("list[Any]", new.value)]
    unique = [value for index, value in enumerate(both) if value not in both[:index]]
    return Entry(path=new.path, value=unique, place=f"{old.place}, {new.place}", base=new.base)
