"""Validation: check keys and values of entries against a model, and report all mistakes in one error."""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

from msgspec import Struct, structs
from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_core import ErrorDetails

from gateway.contract.errors import SettingsError
from gateway.settings.entries import Entry, KeyPath, dotted, tree
from gateway.settings.secrets import sounds_secret, without_passwords
from gateway.settings.section import MILLISECONDS

ANY_NAME = "<name>"
"""Placeholder for a name that the user chooses, in the list of known keys."""


class ResolvedKey(Struct, frozen=True):
    """A key path in snake_case.

    ``wrong`` is the index of the first unknown part. ``typed`` is whether the gateway defines the type.
    ``secret`` is derived from type and name, and true for variables and headers.
    """

    path: KeyPath
    wrong: int | None = None
    typed: bool = False
    secret: bool = False


def resolve_key(model: type[BaseModel], path: KeyPath, *, table: bool = False) -> ResolvedKey:
    """Look up a key path in a model; accept camelCase for snake_case. ``table`` marks the path of an empty
    table.
    """
    at: Any = model
    right: list[str] = []
    for index, key in enumerate(path):
        name = field_name(at, key) if _is_model(at) else key
        if name is None and not _accepts_unknown(at, table=table or len(path) > index + 1):
            return ResolvedKey((*right, *path[index:]), wrong=index)
        right.append(name or key)
        at = _type_at(at, right[-1:])
    # Plugins have tables of variables and headers, too, whose types are not known here.
    secret = _is_secret(at) or sounds_secret(right[-1]) or right[-2:-1] in (["env"], ["headers"])
    return ResolvedKey(tuple(right), typed=at is not None and at is not Any, secret=secret)


def field_name(model: type[BaseModel], key: str) -> str | None:
    """Return the field that a key denotes in either spelling, or None."""
    if key in model.model_fields:
        return key
    if "_" in key or not key[:1].islower() or key.islower():
        return None
    return next((name for name in model.model_fields if name.replace("_", "") == key.lower()), None)


def looks_like_seconds(model: type[BaseModel], path: KeyPath, value: object) -> bool:
    """Return whether a value looks like seconds where milliseconds are meant: a bare number below 1,000."""
    table = _type_at(model, path[:-1])
    field = table.model_fields.get(path[-1]) if _is_model(table) else None
    if field is None or MILLISECONDS not in field.metadata:
        return False
    bare = int(value) if isinstance(value, str) and value.isdecimal() else value
    return isinstance(bare, int) and 0 < bare < 1_000


def known_keys(model: type[BaseModel], prefix: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield every key of a model except tables; a name that the user chooses reads ``<name>``."""
    for name, field in model.model_fields.items():
        at: Any = field.annotation
        path = (*prefix, name)
        while not _is_model(at) and _value_type(at) is not None:
            at, path = _value_type(at), (*path, ANY_NAME)
        if _is_model(at):
            yield from known_keys(at, path)
        else:
            yield path


def hint(name: str, names: Collection[str]) -> str:
    """Return a hint with the closest of the names, and all of them."""
    near = get_close_matches(name, names, n=3)
    return "".join((f"did you mean {' or '.join(near)}? " if near else "", f"known: {', '.join(names)}"))


def suggestion(
    model: type[BaseModel], path: KeyPath, wrong: int, under: str = "", shared: Sequence[str] = ()
) -> str:
    """Return a hint with the likely key: one beside it, the same name elsewhere, or all keys of the table.

    ``shared`` are keys that the section has beside those of the model.
    """
    here = _type_at(model, path[:wrong])
    advice: str | None = getattr(here, "advice", {}).get(path[wrong])
    if advice is not None:
        return advice
    names = [*here.model_fields, *(shared if wrong == 0 else ())]
    near = get_close_matches(path[wrong].lower(), names, n=1, cutoff=0.65)
    if near:
        return f"did you mean {under}{dotted((*path[:wrong], near[0]))}?"
    elsewhere = [known for known in known_keys(model) if known[-1] == path[-1]]
    if elsewhere:
        return f"did you mean {under}{dotted(elsewhere[0])}?"
    other = f"; others are tables, like [{under}{dotted(path)}]" if getattr(here, "tables", None) else ""
    return f"known keys: {', '.join(names)}{other}" if names else "this table has no keys"


def _type_at(at: Any, path: Sequence[str]) -> Any:
    """Return the type at a key path below a type, or None where any value is accepted."""
    for key in path:
        if not _is_model(at):
            at = _value_type(at)
        elif key in at.model_fields:
            at = at.model_fields[key].annotation
        else:
            at = getattr(at, "tables", None)
    return at


def _is_model(annotation: Any) -> typing.TypeGuard[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _value_type(annotation: Any) -> Any:
    """Return the type of a mapping's values, or None for any other type."""
    origin = typing.get_origin(annotation)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return typing.get_args(annotation)[1]
    return None


def _accepts_unknown(model: type[BaseModel], *, table: bool) -> bool:
    """Return whether a model accepts unknown keys; where these are tables, a plain value is a mistake."""
    if model.model_config.get("extra") != "allow":
        return False
    return table or getattr(model, "tables", None) is None


def _is_secret(annotation: Any) -> bool:
    return annotation is SecretStr or SecretStr in typing.get_args(annotation)


M = TypeVar("M", bound=BaseModel)

_LONGEST_SHOWN = 60


def known_entries(
    model: type[BaseModel], entries: Iterable[Entry], under: str = "", shared: Sequence[str] = ()
) -> tuple[list[Entry], list[str]]:
    """Separate the entries with a known key, converted to snake_case, from complaints about the others.

    ``under`` is the prefix of the keys in complaints, if the model is a part of the settings; ``shared`` are
    keys that the section has beside those of the model.
    """
    known: list[Entry] = []
    complaints: list[str] = []
    for entry in entries:
        found = resolve_key(model, entry.path, table=entry.value == {})
        if found.wrong is None:
            known.append(structs.replace(entry, path=found.path))
        else:
            key = dotted(entry.path[: found.wrong + 1])
            advice = suggestion(model, found.path, found.wrong, under, shared)
            complaints.append(f"{entry.place}: {under}{key} is not a setting; {advice}")
    return known, complaints


def validated(model: type[M], entries: Sequence[Entry], complaints: Sequence[str] = (), under: str = "") -> M:
    """Build a model from entries. Raises SettingsError with all complaints, the given ones first."""
    try:
        made = model(**tree(entries))
    except ValidationError as error:
        raise settings_error([*complaints, *_complaints(model, entries, error, under)]) from None
    if complaints:
        raise settings_error(complaints)
    return made


def settings_error(complaints: Sequence[str]) -> SettingsError:
    """Return one error with all complaints."""
    unique = list(dict.fromkeys(complaints))
    if len(unique) == 1:
        return SettingsError(unique[0])
    return SettingsError("\n".join([f"{len(unique)} settings are wrong:", *(f"  {line}" for line in unique)]))


def _complaints(
    model: type[BaseModel], entries: Sequence[Entry], error: ValidationError, under: str
) -> list[str]:
    """Return one line per wrong value; it names each of several allowed types."""
    by_entry = {entry.path: entry for entry in entries}
    reasons: dict[KeyPath, list[str]] = {}
    values: dict[KeyPath, Any] = {}
    places: dict[KeyPath, str] = {}
    for detail in error.errors(include_url=False, include_context=False):
        path, place = _nearest_written(detail["loc"], entries)
        reasons.setdefault(path, []).append(_form(model, path, detail) or _reason(detail["msg"]))
        values.setdefault(path, detail["input"])
        places.setdefault(path, place)
    return [
        f"{places[path]}: {_assignment(model, path, values[path], by_entry, under)} "
        + " or ".join(dict.fromkeys(texts)).replace(" or must be ", " or ")
        for path, texts in reasons.items()
    ]


def _assignment(
    model: type[BaseModel], path: KeyPath, value: Any, by_entry: Mapping[KeyPath, Entry], under: str
) -> str:
    """Return the key with its value; without it for a secret, and with the name of a reference.

    An empty path is a mistake of the table as a whole.
    """
    key = under + dotted(path) if path else f"{under.rstrip('.')}:"
    entry = by_entry.get(path)
    if entry is None or resolve_key(model, path).secret:
        return key
    return f"{key} = {entry.written or _shown(value)}"


def _nearest_written(loc: Sequence[int | str], entries: Sequence[Entry]) -> tuple[KeyPath, str]:
    """Return the written part of a location in a model, with the place of the first entry at or below it."""
    path = tuple(str(part) for part in loc)
    for length in range(len(path), 0, -1):
        for entry in entries:
            if entry.path[:length] == path[:length]:
                return path[:length], entry.place
    return path, "settings"


def _form(model: type[BaseModel], path: KeyPath, detail: ErrorDetails) -> str | None:
    """Return what a text must look like, in place of a regular expression or of the word "string"."""
    if detail["type"] == "string_type":
        kind = next((name for known, name in _KINDS.items() if isinstance(detail["input"], known)), "")
        return f"must be text in quotes{kind and f', not {kind}'}"
    if detail["type"] != "string_pattern_mismatch":
        return None
    table = _type_at(model, path[:-1])
    field = table.model_fields.get(path[-1]) if _is_model(table) else None
    return f'must look like "{field.examples[0]}"' if field and field.examples else None


_KINDS: Mapping[type, str] = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "a list",
    tuple: "a list",
    Mapping: "a table",
}


def _reason(message: str) -> str:
    """Return a message of pydantic as the end of a sentence about a key."""
    message = message.removeprefix("Value error, ").replace("Input should be", "must be")
    message = message.replace("Field required", "is missing").replace("String should", "must")
    message = message.replace("a valid tuple", 'a list, like ["a", "b"]')
    message = re.sub(r"a valid integer.*", "a whole number", message)
    message = re.sub(r"a valid boolean.*", "true or false", message)
    message = re.sub(r"a valid number.*", "a number", message)
    message = re.sub(r"a valid dictionary( or instance of \w+)?", "a table", message)
    return message[:1].lower() + message[1:]


def _shown(value: Any) -> str:
    text = without_passwords(json.dumps(value, default=str, ensure_ascii=False))
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"
