"""Turning entries into a model, or into one error that lists everything wrong with them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import structs
from pydantic import BaseModel, ValidationError

from gateway.errors import SettingsError
from gateway.settings.entries import Entry, KeyPath, dotted, tree
from gateway.settings.masking import without_passwords
from gateway.settings.spelling import spelled, suggestion

M = TypeVar("M", bound=BaseModel)

_LONGEST_SHOWN = 60


def in_our_spelling(
    model: type[BaseModel], entries: Iterable[Entry], under: str = ""
) -> tuple[list[Entry], list[str]]:
    """Sort entries into those whose key exists, in snake_case, and complaints about the others.

    ``under`` is what a complaint puts before each key, when the model is not the whole of the settings.
    """
    known: list[Entry] = []
    complaints: list[str] = []
    for entry in entries:
        found = spelled(model, entry.path, table=entry.value == {})
        if found.wrong is None:
            known.append(structs.replace(entry, path=found.path))
        else:
            key = dotted(entry.path[: found.wrong + 1])
            hint = suggestion(model, found.path, found.wrong, under)
            complaints.append(f"{entry.place}: {under}{key} is not a setting; {hint}")
    return known, complaints


def validated(model: type[M], entries: Sequence[Entry], complaints: Sequence[str] = (), under: str = "") -> M:
    """Build a model from entries. Raises SettingsError with every complaint, the given ones first."""
    try:
        made = model(**tree(entries))
    except ValidationError as error:
        raise wrong([*complaints, *_complaints(model, entries, error, under)]) from None
    if complaints:
        raise wrong(complaints)
    return made


def wrong(complaints: Sequence[str]) -> SettingsError:
    """One error for all that is wrong."""
    unique = list(dict.fromkeys(complaints))
    if len(unique) == 1:
        return SettingsError(unique[0])
    return SettingsError("\n".join([f"{len(unique)} settings are wrong:", *(f"  {line}" for line in unique)]))


def _complaints(
    model: type[BaseModel], entries: Sequence[Entry], error: ValidationError, under: str
) -> list[str]:
    """One line per wrong value; where several types were allowed, the line says so for each."""
    by_entry = {entry.path: entry for entry in entries}
    reasons: dict[KeyPath, list[str]] = {}
    values: dict[KeyPath, Any] = {}
    for detail in error.errors(include_url=False, include_context=False):
        path = _written_path(detail["loc"], by_entry)
        reasons.setdefault(path, []).append(_reason(detail["msg"]))
        values.setdefault(path, detail["input"])
    return [
        f"{_place(path, by_entry)}: {under}{_told(model, path, values[path], by_entry)} "
        + " or ".join(dict.fromkeys(texts)).replace(" or must be ", " or ")
        for path, texts in reasons.items()
    ]


def _told(model: type[BaseModel], path: KeyPath, value: Any, by_entry: Mapping[KeyPath, Entry]) -> str:
    """The key with its value, unless that is a secret; of a reference only its name is told."""
    key = dotted(path)
    entry = by_entry.get(path)
    if entry is None or spelled(model, path).secret:
        return key
    return f"{key} = {entry.written or _shown(value)}"


def _written_path(loc: Sequence[int | str], by_entry: Mapping[KeyPath, Entry]) -> KeyPath:
    """The key that a place inside a model belongs to: as much of it as was written."""
    path = tuple(str(part) for part in loc)
    for length in range(len(path), 0, -1):
        if any(written[:length] == path[:length] for written in by_entry):
            return path[:length]
    return path


def _place(path: KeyPath, by_entry: Mapping[KeyPath, Entry]) -> str:
    """Where a key stands, or where the section begins that lacks it."""
    for length in range(len(path), 0, -1):
        for written, entry in by_entry.items():
            if written[:length] == path[:length]:
                return entry.place
    return "settings"


def _reason(message: str) -> str:
    """Pydantic's words, as the end of a sentence about a key."""
    message = message.removeprefix("Value error, ").replace("Input should be", "must be")
    message = message.replace("a valid tuple", 'a list, like ["a", "b"]')
    message = re.sub(r"a valid integer.*", "a whole number", message)
    message = re.sub(r"a valid boolean.*", "true or false", message)
    message = re.sub(r"a valid number.*", "a number", message)
    message = re.sub(r"a valid dictionary( or instance of \w+)?", "a table", message)
    return message[:1].lower() + message[1:]


def _shown(value: Any) -> str:
    text = without_passwords(json.dumps(value, default=str, ensure_ascii=False))
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"
