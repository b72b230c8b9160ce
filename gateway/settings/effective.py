"""The settings as they are in effect, fit to be shown: each with its source, secrets masked."""

from __future__ import annotations

import json
from typing import Any

from msgspec import Struct

from gateway.settings.entries import Entry, KeyPath, dotted, flat
from gateway.settings.masking import MASK, without_passwords
from gateway.settings.sections import Settings
from gateway.settings.spelling import spelled


class Effective(Struct, frozen=True):
    """One setting in effect. ``source`` is where it was written, or ``default``."""

    key: str
    value: Any
    source: str


def effective(settings: Settings) -> list[Effective]:
    """List every setting in effect, in the order of ``config/example.toml``; nothing secret is in it."""
    written = {entry.path: entry for entry in settings.entries}
    return [
        Effective(
            key=dotted(path), value=_masked(path, value, written.get(path)), source=_source(written, path)
        )
        for path, value in flat(settings.model_dump(mode="json"))
    ]


def _source(written: dict[KeyPath, Entry], path: KeyPath) -> str:
    entry = written.get(path)
    return entry.place if entry else "default"


def _masked(path: KeyPath, value: Any, entry: Entry | None) -> Any:
    """Mask what is secret by its type, name or form; elsewhere a reference is shown, not its target."""
    known = spelled(Settings, path)
    if value and (known.secret or value == MASK):
        return MASK
    if entry and entry.written and not known.typed:
        return entry.written
    return json.loads(without_passwords(json.dumps(value)))
