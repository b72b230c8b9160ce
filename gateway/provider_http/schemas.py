"""Tool schemas in the subset of JSON Schema that all backends accept.

In that subset the root is an object with properties and without alternatives, every array has ``items``, and
every required name is a property.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

_CHOICES = ("anyOf", "oneOf", "allOf")
_NOT_AT_ROOT = frozenset({*_CHOICES, "enum", "const", "not", "$schema", "$id", "$ref"})
_BELOW = ("properties", "$defs", "definitions", "patternProperties")

_MOST_REFERENCES = 5

Schema = Mapping[str, Any]


def normalize_tool_schema(schema: Schema) -> Schema:
    """Return a tool's parameters in the common subset; a schema that is already in it stays equal."""
    schema = _without_reference(schema)
    root = {name: value for name, value in schema.items() if name not in _NOT_AT_ROOT}
    variants = [variant for choice in _CHOICES for variant in _schemas(schema.get(choice))]
    properties = dict(_table(schema.get("properties")))
    for variant in variants:
        for name, value in _table(variant.get("properties")).items():
            properties.setdefault(name, value)
    root |= {"type": "object", "properties": properties}
    required = _required(schema)
    root["required"] = [name for name in required if name in properties]
    if not root["required"]:
        del root["required"]
    return cast("Schema", _with_items(root))


def _without_reference(schema: Schema) -> Schema:
    """Return a schema whose root is not ``{"$ref": "#/$defs/NAME"}``, as generators write recursive ones."""
    for _ in range(_MOST_REFERENCES):
        place = schema.get("$ref")
        path = place.split("/") if isinstance(place, str) else []
        if len(path) != 3 or path[0] != "#":
            break
        rest = {name: value for name, value in schema.items() if name != "$ref"}
        schema = {**_table(_table(schema.get(path[1])).get(path[2])), **rest}
    return schema


def _required(schema: Schema) -> list[str]:
    """Return the names required by the root, by any of ``allOf``, or by all of ``anyOf`` or ``oneOf``."""
    found = dict.fromkeys(_names(schema.get("required")))
    for part in _schemas(schema.get("allOf")):
        found |= dict.fromkeys(_names(part.get("required")))
    for choice in ("anyOf", "oneOf"):
        either = [set(_names(part.get("required"))) for part in _schemas(schema.get(choice))]
        found |= dict.fromkeys(sorted(set[str].intersection(*either)) if either else ())
    return list(found)


def _with_items(value: Any) -> Any:
    """Copy a schema, adding ``items`` to every array without them."""
    if isinstance(value, list):
        return [_with_items(item) for item in cast("list[Any]", value)]
    if not isinstance(value, Mapping):
        return value
    table = dict(cast("Schema", value))
    for name, inner in table.items():
        if name in _BELOW:
            table[name] = {key: _with_items(item) for key, item in _table(inner).items()}
        elif name in ("items", *_CHOICES):
            table[name] = _with_items(inner)
    kind: Any = table.get("type")
    if (kind == "array" or (isinstance(kind, list) and "array" in kind)) and "items" not in table:
        table["items"] = {}
    return table


def _table(value: Any) -> Schema:
    return cast("Schema", value) if isinstance(value, Mapping) else {}


def _schemas(value: Any) -> list[Schema]:
    items = cast("list[Any]", value) if isinstance(value, list | tuple) else []
    return [cast("Schema", item) for item in items if isinstance(item, Mapping)]


def _names(value: Any) -> list[str]:
    items = cast("list[Any]", value) if isinstance(value, list | tuple) else []
    return [item for item in items if isinstance(item, str)]
