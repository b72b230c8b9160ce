"""``${NAME}``, ``{env:NAME}`` and ``{file:path}`` inside the strings of settings.

A reference to something that is not there is an error: an empty secret found out at the first message is
worse than a refused start. ``$${`` and ``{{env:`` (or ``{{file:``) stand for themselves, with one sign less.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from msgspec import structs

from gateway.errors import SettingsError
from gateway.settings.entries import Entry

_REFERENCE = re.compile(
    r"\$(?P<escaped>\$)(?=\{)|\{(?P<brace>\{)(?=env:|file:)"
    r"|\$\{(?P<name>\w+)\}|\{env:(?P<env>[^{}]+)\}|\{file:(?P<file>[^{}]+)\}"
)


def resolved(entry: Entry, environ: Mapping[str, str]) -> Entry:
    """Replace the references in an entry's strings. Raises SettingsError when one leads nowhere."""
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
        return file.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SettingsError(
            f"{entry.place}: {entry.key} needs the file {name}, which cannot be read: {why}; "
            f"write it to {file}, or remove the line"
        ) from None
