"""Payloads that are wrong in some way: what a platform's next version, a fault or an attacker might send."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from random import Random
from typing import Any
from urllib.parse import unquote

STRANGE: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    10**30,
    2**63,
    "",
    "\0",
    "x" * 50_000,
    [],
    [None],
    {},
    {"a": {"b": [1]}},
    [[[[]]]],
)

_DEEPEST = 5


class Inventor:
    """Makes up values of JSON Schemas; strings are among ``texts``."""

    def __init__(self, definitions: dict[str, Any], dice: Random, texts: Sequence[str]) -> None:
        self._definitions = definitions
        self._dice = dice
        self._texts = texts

    def value(self, schema: dict[str, Any], depth: int = 0) -> Any:
        """Return a value that a schema describes; the deeper, the fewer of its optional fields."""
        dice = self._dice
        if "$ref" in schema:
            return self.value(self._definitions[unquote(schema["$ref"].rpartition("/")[2])], depth)
        if "anyOf" in schema:
            return self.value(dice.choice(schema["anyOf"]), depth)
        if "const" in schema or "enum" in schema:
            return dice.choice(schema.get("enum", [schema.get("const")]))
        kinds = schema.get("type", "any")
        match dice.choice(kinds) if isinstance(kinds, list) else kinds:
            case "object":
                return self._object(schema, depth)
            case "array":
                return [self.value(schema.get("items", {}), depth + 1) for _ in range(dice.randrange(3))]
            case "string":
                digits = schema.get("format") == "snowflake" or "pattern" in schema
                return str(dice.randrange(2**62)) if digits else dice.choice(self._texts)
            case "integer" | "number":
                return dice.choice([dice.randrange(25), dice.randrange(-(2**40), 2**40)])
            case "boolean":
                return dice.random() < 0.5
            case "null":
                return None
            case _:
                return dice.choice([None, {}, [], "any", 1])

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        needed, fields = schema.get("required", ()), schema.get("properties", {})
        wanted = [key for key in fields if key in needed or (depth < _DEEPEST and self._dice.random() < 0.15)]
        return {key: self.value(fields[key], depth + 1) for key in wanted if depth < 2 * _DEEPEST}


def spoiled(payload: Any, dice: Random) -> Any:
    """A copy of a payload in which up to three places were changed, taken away or added to. It is JSON."""
    made = copy.deepcopy(payload)
    for _ in range(dice.randint(1, 3)):
        place = _somewhere(made, dice)
        if isinstance(place, dict):
            _spoil_object(place, dice)
        elif isinstance(place, list) and place:
            place[dice.randrange(len(place))] = strange(dice)
    return made


def strange(dice: Random) -> Any:
    """A value that is probably none of those expected."""
    return copy.deepcopy(dice.choice(STRANGE))


def _spoil_object(place: dict[str, Any], dice: Random) -> None:
    keys = [*place]
    match dice.randrange(4) if keys else 0:
        case 0:
            place[dice.choice(["future", "", "\0", "id", "type", "user"])] = strange(dice)
        case 1:
            del place[dice.choice(keys)]
        case _:
            place[dice.choice(keys)] = strange(dice)


def _somewhere(value: Any, dice: Random) -> Any:
    """An object or a list within a payload, mostly not the outermost."""
    inner = [one for one in _items(value) if isinstance(one, dict | list)]
    return _somewhere(dice.choice(inner), dice) if inner and dice.random() < 0.75 else value


def _items(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
