"""Checks of calls against ``schema.json``: methods, arguments, and the platform's words for errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from msgspec import Struct

from channels.slack.fake.calls import RefusalError, invalid
from channels.slack.fake.state import Json
from gateway.testing.fake_platform import Finding, Schemas

UNDOCUMENTED = frozenset({"client_msg_id", "team_id"})
"""Arguments that official clients send although no description names them."""

_BAD_JSON = {
    "blocks": "invalid_blocks_format",
    "chunks": "invalid_chunks",
    "metadata": "invalid_metadata_format",
    "attachments": "invalid_attachments",
}
_TRUE, _FALSE = (1, "1", "true", "True"), (0, "0", "false", "False", "")
_KINDS = {"string": "a string", "boolean": "a boolean", "array": "an array"}


class Method(Struct, frozen=True):
    """A method: its rate tier (5 is special), whether it takes a JSON body, its scopes and its errors."""

    tier: int
    json: bool
    scopes: tuple[str, ...]
    errors: frozenset[str]


@cache
def schemas() -> Schemas:
    """Return the published schemas of the methods."""
    return Schemas.beside(__file__)


@cache
def methods() -> Mapping[str, Method]:
    """Return all methods by name."""
    return {
        name: Method(facts["tier"], facts["json"], tuple(facts["scopes"]), frozenset(facts["errors"]))
        for name, facts in schemas().at("methods").items()
    }


def arguments(name: str, given: Mapping[str, Any], notes: list[str]) -> Json:
    """Return the arguments of a call in the types of its method.

    The names of unknown arguments go to ``notes``, because the platform ignores them. Raises RefusalError.
    """
    schema = schemas().at("methods", name, "arguments")
    known = schema["properties"]
    notes += [f"unknown argument {key}" for key in given if key not in known and key not in UNDOCUMENTED]
    missing = [key for key in schema.get("required", ()) if given.get(key) is None]
    if missing:
        raise invalid(f"missing required field: {missing[0]}")
    return values(name, given)


def values(name: str, given: Mapping[str, Any]) -> Json:
    """Return those arguments that a method knows, in its types. Raises RefusalError."""
    known = schemas().at("methods", name, "arguments", "properties")
    found: Json = {}
    for key, value in given.items():
        if key in known and value is not None:
            found[key] = _value(key, known[key].get("type"), value)
            place = ("methods", name, "arguments", "properties", key)
            for finding in schemas().check(found[key], *place):
                raise invalid(f"{_words(finding)} [json-pointer:/{key}]")
    return found


def _value(name: str, kind: str | None, value: object) -> object:
    """Return the value that an argument of a form or of JSON stands for; itself if it fits no type."""
    match kind:
        case None | "array":
            return _parsed(name, value)
        case "boolean" if not isinstance(value, bool) and value in _TRUE:
            return True
        case "boolean" if not isinstance(value, bool) and value in _FALSE:
            return False
        case "integer" | "number" if isinstance(value, str):
            try:
                return int(value)
            except ValueError:
                return value
        case _:
            return value


def _parsed(name: str, value: object) -> object:
    if not isinstance(value, str) or (name == "file_ids" and not value.startswith("[")):
        return value
    try:
        return json.loads(value)
    except ValueError:
        error = _BAD_JSON.get(name, "invalid_arguments")
        raise RefusalError(error, f"{name} holds no JSON") from None


def _words(found: Finding) -> str:
    """Return a finding as the platform words it."""
    schema = found.schema
    match found.keyword:
        case "type" if not found.at:
            return f"must provide {_KINDS.get(schema['type'], 'a number')}"
        case "enum":
            return f"must be one of: {', '.join(schema['enum'])}"
        case "minLength":
            return f"must be more than {schema['minLength'] - 1} characters"
        case "minItems" | "maxItems":
            return f"no more than {schema['maxItems']} items allowed"
        case "minimum":
            return f"must be at least {schema['minimum']}"
        case "maximum":
            return f"must be at most {schema['maximum']}"
        case _:
            return f"must be less than {schema['maxLength'] + 1} characters"
