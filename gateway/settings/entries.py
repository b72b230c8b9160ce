"""One value of one setting, together with where it was written.

Settings are merged as flat entries and not as trees, because every value must keep its place: an error
names the file and line, and ``trunkline config show`` says where each value came from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from msgspec import Struct, structs

from gateway.errors import SettingsError

KeyPath = tuple[str, ...]

ENABLED: KeyPath = ("plugins", "enabled")
JOINED: frozenset[KeyPath] = frozenset({ENABLED, ("plugins", "disabled")})
"""Lists that grow from layer to layer, without repeats; every other value replaces the one below it."""


_BARE = re.compile(r"[\w<>*-]+")


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
        return dotted(self.path)


def dotted(path: KeyPath) -> str:
    """A key as a person writes it in TOML: with dots, and quotes where a name needs them."""
    return ".".join(part if _BARE.fullmatch(part) else json.dumps(part, ensure_ascii=False) for part in path)


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


def apart(entry: Entry) -> list[Entry]:
    """A plugin listed with its settings, ``{ name = "x", config = { … } }``, as its name and ``[plugins.x]``.

    Raises SettingsError for a table in the list that is anything else.
    """
    if entry.path != ENABLED or not isinstance(entry.value, list):
        return [entry]
    names: list[Any] = []
    settings: list[Entry] = []
    for item in cast("list[Any]", entry.value):
        if not isinstance(item, dict):
            names.append(item)
            continue
        name, config = _named(entry, cast("dict[str, Any]", item))
        names.append(name)
        settings += [
            structs.replace(entry, path=("plugins", name, *path), value=value) for path, value in flat(config)
        ]
    return [structs.replace(entry, value=names), *settings]


def _named(entry: Entry, item: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    name, config = item.get("name"), cast("object", item.get("config") or {})
    if not isinstance(name, str) or not isinstance(config, Mapping) or item.keys() - {"name", "config"}:
        raise SettingsError(
            f"{entry.place}: {entry.key} lists names of plugins, "
            'or tables like { name = "reminders", config = { hour = 9 } }'
        )
    return name, cast("Mapping[str, Any]", config)


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
