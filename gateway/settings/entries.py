"""Entries: single values of settings with the place where each was written.

Settings are merged as flat entries, not as trees, because every value must keep its place: an error names
file and line, and ``trunkline config show`` prints the source of each value.

A value may refer to ``${NAME}``, ``{env:NAME}`` or ``{file:path}``. A reference without a target is an error:
a refused start is better than an empty secret that is noticed with the first message. ``$${`` and ``{{env:``
(or ``{{file:``) are literal, without their first character.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, cast

from msgspec import Struct, structs

from gateway.contract.errors import SettingsError

KeyPath = tuple[str, ...]

ENABLED: KeyPath = ("plugins", "enabled")
JOINED: frozenset[KeyPath] = frozenset({ENABLED, ("plugins", "disabled")})
"""Lists that are joined across layers without repeats; any other value replaces the one of a lower layer."""


_BARE = re.compile(r"[\w<>*-]+")


Layer = Literal[
    "default", "organization", "personal", "project", "trusted project", "operator", "environment", "flags"
]
"""A source of settings; each overrides those before it. Files of projects that are not trusted are
``project``.
"""


class Entry(Struct, frozen=True, kw_only=True):
    """A value at a key. ``place`` is ``file:line``, the name of a variable, or ``command line``.

    ``base`` is the directory for relative ``{file:…}`` references. ``written`` is the text with its
    references, once they are resolved. ``layers`` has several layers only for a list that was joined.
    """

    path: KeyPath
    value: Any
    place: str
    base: Path
    written: str | None = None
    layers: tuple[Layer, ...] = ("default",)

    @property
    def key(self) -> str:
        """The key in TOML notation."""
        return dotted(self.path)


def dotted(path: KeyPath) -> str:
    """Return a key in TOML notation: with dots, and with quotes where a name needs them."""
    return ".".join(part if _BARE.fullmatch(part) else json.dumps(part, ensure_ascii=False) for part in path)


def flat(tree: Mapping[str, Any], path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield each leaf of a tree with its path; empty tables and lists are leaves."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flat(cast("Mapping[str, Any]", value), (*path, key))
        else:
            yield (*path, key), value


def tree(entries: Iterable[Entry]) -> dict[str, Any]:
    """Build the nested mapping of the entries."""
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
    """Merge entries, the last one first: tables merge; other values replace the value at their key or below
    it.
    """
    kept: dict[KeyPath, Entry] = {}
    for entry in entries:
        if entry.value == {}:
            kept.setdefault(entry.path, entry)
            continue
        for path in [path for path in kept if _replaces(entry, kept[path])]:
            del kept[path]
        kept[entry.path] = _joined(kept.get(entry.path), entry)
    return list(kept.values())


def split_plugin_entry(entry: Entry) -> list[Entry]:
    """Split a plugin listed with settings, ``{ name = "x", config = { … } }``, into its name and
    ``[plugins.x]``.

    Raises SettingsError for any other table in the list.
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
        if "optional" in item:
            settings.append(
                structs.replace(entry, path=("plugins", name, "optional"), value=item["optional"])
            )
    return [structs.replace(entry, value=names), *settings]


def _named(entry: Entry, item: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    name, config = item.get("name"), cast("object", item.get("config") or {})
    if (
        not isinstance(name, str)
        or not isinstance(config, Mapping)
        or item.keys() - {"name", "config", "optional"}
    ):
        raise SettingsError(
            f"{entry.place}: {entry.key} must list plugin names, "
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
    return Entry(
        path=new.path,
        value=unique,
        place=f"{old.place}, {new.place}",
        base=new.base,
        layers=tuple(dict.fromkeys((*old.layers, *new.layers))),
    )


_REFERENCE = re.compile(
    r"\$(?P<escaped>\$)(?=\{)|\{(?P<brace>\{)(?=env:|file:)"
    r"|\$\{(?P<name>\w+)\}|\{env:(?P<env>[^{}]+)\}|\{file:(?P<file>[^{}]+)\}"
)


def references(value: Any) -> Iterator[tuple[str, str]]:
    """Yield each reference in a value as its kind, ``env`` or ``file``, and its target."""
    if isinstance(value, str):
        for match in _REFERENCE.finditer(value):
            if match["file"]:
                yield "file", match["file"]
            elif name := match["name"] or match["env"]:
                yield "env", name
    elif isinstance(value, list | dict):
        items = cast("list[Any] | dict[str, Any]", value)
        for item in items.values() if isinstance(items, dict) else items:
            yield from references(item)


def resolved(entry: Entry, environ: Mapping[str, str]) -> Entry:
    """Replace the references in an entry's strings. Raises SettingsError for a missing target."""
    value = _replaced(entry.value, entry, environ)
    if value == entry.value:
        return entry
    return structs.replace(entry, value=value, written=str(entry.value))


def _replaced(value: Any, entry: Entry, environ: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return _REFERENCE.sub(lambda match: _target(match, entry, environ), value)
    if isinstance(value, list):
        return [_replaced(item, entry, environ) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        return {key: _replaced(item, entry, environ) for key, item in table.items()}
    return value


def _target(match: re.Match[str], entry: Entry, environ: Mapping[str, str]) -> str:
    if match["file"]:
        return _file(match["file"], entry)
    name = match["name"] or match["env"]
    if not name:
        return match["escaped"] or match["brace"]
    if name not in environ:
        raise SettingsError(
            f"{entry.place}: {entry.key} needs the environment variable {name}, which is not set; "
            f"export {name}=… before the start, or remove the line"
        )
    return environ[name]


def _file(name: str, entry: Entry) -> str:
    file = entry.base / Path(name).expanduser()
    try:
        return file.read_text(encoding="utf-8-sig").rstrip("\r\n")
    except (OSError, ValueError) as error:  # a UnicodeDecodeError, or a zero byte in the name
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SettingsError(
            f"{entry.place}: {entry.key} needs the file {name}, which cannot be read: {why}; "
            f"write it to {file}, or remove the line"
        ) from None
