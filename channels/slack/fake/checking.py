"""Holds every call against ``schema.json``: the method, its arguments and their types."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
from msgspec import Struct

from channels.slack.fake.asking import RefusalError, invalid
from channels.slack.fake.workspace import Json

UNDOCUMENTED = frozenset({"client_msg_id", "team_id"})
"""Arguments that official clients send although no description names them."""

_BAD_JSON = {
    "blocks": "invalid_blocks_format",
    "chunks": "invalid_chunks",
    "metadata": "invalid_metadata_format",
    "attachments": "invalid_attachments",
}


class Argument(Struct, frozen=True, rename="camel"):
    """An argument: ``json`` is JSON in a string, or the value itself. Lengths are in characters."""

    type: Literal["string", "boolean", "integer", "number", "json"]
    required: bool = False
    enum: tuple[str, ...] = ()
    minimum: int | None = None
    maximum: int | None = None
    min_length: int | None = None
    max_length: int | None = None
    min_items: int | None = None
    max_items: int | None = None
    item_length: int | None = None


class Method(Struct, frozen=True):
    """A method: its rate tier (5 is special), whether it takes a JSON body, its scopes, arguments, errors."""

    tier: int
    json: bool
    scopes: tuple[str, ...]
    args: Mapping[str, Argument]
    errors: frozenset[str]


class Schema(Struct, frozen=True):
    """All methods, and the errors that any of them may answer."""

    errors: frozenset[str]
    methods: Mapping[str, Method]


@cache
def schema() -> Schema:
    """The schema beside this file."""
    return msgspec.json.decode((Path(__file__).parent / "schema.json").read_bytes(), type=Schema)


def arguments(name: str, given: Mapping[str, Any], notes: list[str]) -> Json:
    """The arguments of a call as values of their types. Unknown ones go to ``notes``, as the platform ignores
    them. Raises RefusalError ``invalid_arguments``, or the name of what is no JSON.
    """
    known = schema().methods[name].args
    notes += [f"unknown argument {key}" for key in given if key not in known and key not in UNDOCUMENTED]
    missing = [key for key, facts in known.items() if facts.required and given.get(key) is None]
    if missing:
        raise invalid(f"missing required field: {missing[0]}")
    return values(name, given)


def values(name: str, given: Mapping[str, Any]) -> Json:
    """Those of some arguments that a method knows, as values of their types. Raises RefusalError."""
    known = schema().methods[name].args
    return {
        key: _value(key, known[key], value)
        for key, value in given.items()
        if key in known and value is not None
    }


def _value(name: str, facts: Argument, value: object) -> object:
    if facts.type == "json":
        return _items(name, facts, _json(name, value))
    if facts.type == "boolean":
        return _boolean(name, value)
    if facts.type in ("integer", "number"):
        return _number(name, facts, value)
    if not isinstance(value, str):
        raise invalid(f"must provide a string [json-pointer:/{name}]")
    if facts.enum and value not in facts.enum:
        raise invalid(f"must be one of: {', '.join(facts.enum)} [json-pointer:/{name}]")
    if facts.max_length is not None and len(value) > facts.max_length:
        raise invalid(f"must be less than {facts.max_length + 1} characters [json-pointer:/{name}]")
    if facts.min_length is not None and len(value) < facts.min_length:
        raise invalid(f"must be more than {facts.min_length - 1} characters [json-pointer:/{name}]")
    return value


def _json(name: str, value: object) -> object:
    if not isinstance(value, str) or (name == "file_ids" and not value.startswith("[")):
        return value
    try:
        return json.loads(value)
    except ValueError:
        error = _BAD_JSON.get(name, "invalid_arguments")
        raise RefusalError(error, f"{name} holds no JSON") from None


def _items(name: str, facts: Argument, value: object) -> object:
    if facts.max_items is None:
        return value
    if not isinstance(value, list):
        raise invalid(f"must provide an array [json-pointer:/{name}]")
    items = cast(list[object], value)
    if not (facts.min_items or 0) <= len(items) <= facts.max_items:
        raise invalid(f"no more than {facts.max_items} items allowed [json-pointer:/{name}]")
    longest = facts.item_length
    if longest is not None and any(not isinstance(one, str) or len(one) > longest for one in items):
        raise invalid(f"must be less than {longest + 1} characters [json-pointer:/{name}]")
    return items


def _boolean(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    if value in (1, "1", "true", "True"):
        return True
    if value in (0, "0", "false", "False", ""):
        return False
    raise invalid(f"must provide a boolean [json-pointer:/{name}]")


def _number(name: str, facts: Argument, value: object) -> int:
    try:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError
        number = int(value)
    except ValueError:
        raise invalid(f"must provide a number [json-pointer:/{name}]") from None
    if facts.minimum is not None and number < facts.minimum:
        raise invalid(f"must be at least {facts.minimum} [json-pointer:/{name}]")
    if facts.maximum is not None and number > facts.maximum:
        raise invalid(f"must be at most {facts.maximum} [json-pointer:/{name}]")
    return number
