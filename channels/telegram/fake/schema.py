"""The Bot API as data: ``schema.json``, and what it says about a request or an update.

A line of ``schema.json`` lists the fields of a method or a type, each ``name=kinds{low..high}``; a ``!``
behind the name marks it as required. Kinds are alternatives with ``|`` between: ``I`` integer, ``S`` string,
``B`` boolean, ``F`` float, ``File`` an upload, ``"word"`` that very word, ``[kind]`` a list, anything else
the name of a type. Limits count characters, or items of a list; ``b`` behind them means bytes. A type that is
not listed holds anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

_FIELD = re.compile(
    r"(?P<name>\w+)(?P<needed>!?)=(?P<kinds>.+?)(?:\{(?P<low>\d+)\.\.(?P<high>\d+)(?P<bytes>b?)\})?$"
)
_NAMES = {"I": "Number", "S": "String", "B": "Boolean", "F": "Number"}


class Field(Struct, frozen=True):
    """A parameter of a method, or a field of a type. ``high`` is None where there is no limit."""

    name: str
    needed: bool
    kinds: tuple[str, ...]
    low: int = 0
    high: int | None = None
    in_bytes: bool = False


Fields = dict[str, Field]


class Finding(Struct, frozen=True):
    """A rule that a value breaks. ``at`` is where, ``owner`` the type that has the rule; ``says`` is the
    platform's word.

    ``ignored`` is what the platform silently lets pass.
    """

    at: str
    says: str
    owner: str = ""
    field: str = ""
    ignored: bool = False

    def __str__(self) -> str:
        return f"{self.at}: {self.says}" if self.at else self.says


class Schema:
    """Methods and types. Names of methods are known in any case, as on the platform."""

    def __init__(self, document: Mapping[str, Mapping[str, str]]) -> None:
        self.methods = {name.lower(): _fields(line) for name, line in document["methods"].items()}
        self.spelling = {name.lower(): name for name in document["methods"]}
        self.types: dict[str, Fields] = {}
        self.unions: dict[str, tuple[str, ...]] = {}
        for name, line in document["types"].items():
            if "=" in line or not line:
                self.types[name] = _fields(line)
            else:
                self.unions[name] = tuple(line.split("|"))

    def of_object(self, owner: str, value: Mapping[str, Any], at: str = "") -> Iterator[Finding]:
        """What is wrong with an object of a type."""
        fields = self.types[owner]
        for name, field in fields.items():
            if value.get(name) is None:
                if field.needed:
                    yield Finding(at, f'Can\'t find field "{name}"', owner, name)
            else:
                yield from self.of_field(field, value[name], _under(at, name), owner)
        for name in value.keys() - fields.keys():
            yield Finding(_under(at, name), f"{owner} has no field {name}", owner, name, ignored=True)

    def of_field(self, field: Field, value: Any, at: str, owner: str = "") -> Iterator[Finding]:
        """What is wrong with the value of a field, its length included."""
        found = list(self.of_kinds(field.kinds, value, at, owner, field.name))
        yield from found
        length = None if found else _length(value, field)
        if length is not None and field.high is not None and not field.low <= length <= field.high:
            unit = "bytes" if field.in_bytes else "items" if isinstance(value, list) else "characters"
            yield Finding(at, f"{length} {unit}, not {field.low} to {field.high}", owner, field.name)

    def of_kinds(
        self, kinds: tuple[str, ...], value: Any, at: str, owner: str = "", name: str = ""
    ) -> Iterator[Finding]:
        """What is wrong with a value that may be of several kinds: nothing if it fits one of them."""
        words = [kind[1:-1] for kind in kinds if kind.startswith('"')]
        if words:
            if value not in words:
                yield Finding(at, f"{value!r} is none of {', '.join(words)}", owner, name)
            return
        attempts = [list(self._of_kind(kind, value, at, owner, name)) for kind in self._members(kinds, value)]
        yield from min(attempts, key=_weight, default=())

    def _of_kind(self, kind: str, value: Any, at: str, owner: str, name: str) -> Iterator[Finding]:
        if kind.startswith("["):
            if not isinstance(value, list):
                yield Finding(at, f'Field "{name}" must be of type Array', owner, name)
                return
            for index, item in enumerate(value):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
                yield from self.of_kinds(_kinds(kind[1:-1]), item, f"{at}[{index}]", owner, name)
        elif kind in _NAMES:
            if not _is(kind, value):
                yield Finding(at, f'Field "{name}" must be of type {_NAMES[kind]}', owner, name)
        elif kind in self.types:
            if isinstance(value, dict):
                yield from self.of_object(kind, value, at)  # pyright: ignore[reportUnknownArgumentType]
            else:
                yield Finding(at, "expected an Object", kind)
        elif kind == "File":
            yield Finding(at, "there is no such file in the request", owner, name)

    def _members(self, kinds: tuple[str, ...], value: Any) -> list[str]:
        """The kinds that come into question, unions resolved; by the constant fields where there are any."""
        flat = [member for kind in kinds for member in self.unions.get(kind, (kind,))]
        if not isinstance(value, dict):
            return flat
        telling = [kind for kind in flat if kind in self.types and self._is_constant(kind, value)]  # pyright: ignore[reportUnknownArgumentType]
        return telling or flat

    def _is_constant(self, kind: str, value: Mapping[str, Any]) -> bool:
        """Whether an object has all the words that make it one of this type."""
        words = [
            f
            for f in self.types[kind].values()
            if f.needed and len(f.kinds) == 1 and f.kinds[0].startswith('"')
        ]
        return bool(words) and all(value.get(field.name) == field.kinds[0][1:-1] for field in words)


@cache
def schema() -> Schema:
    """The Bot API, as committed."""
    return Schema(msgspec.json.decode(Path(__file__).with_name("schema.json").read_bytes()))


def problems(kind: str, value: Mapping[str, Any]) -> list[str]:
    """What is wrong with an object that the platform itself made: also fields that do not exist."""
    return [str(finding) for finding in schema().of_object(kind, value, kind)]


def _fields(line: str) -> Fields:
    found = [match for word in line.split() if (match := _FIELD.match(word))]
    return {match["name"]: _field(match) for match in found}


def _field(match: re.Match[str]) -> Field:
    high = match["high"]
    return Field(
        name=match["name"],
        needed=bool(match["needed"]),
        kinds=_kinds(match["kinds"]),
        low=int(match["low"] or 0),
        high=int(high) if high else None,
        in_bytes=bool(match["bytes"]),
    )


@cache
def _kinds(text: str) -> tuple[str, ...]:
    """Alternatives; a bar inside brackets belongs to the items of a list."""
    return tuple(re.findall(r"(?:\[.*\]|[^|])+", text))


def _is(kind: str, value: Any) -> bool:
    match kind:
        case "S":
            return isinstance(value, str)
        case "B":
            return isinstance(value, bool)
        case "I":
            return isinstance(value, int) and not isinstance(value, bool)
        case _:
            return isinstance(value, int | float) and not isinstance(value, bool)


def _length(value: Any, field: Field) -> int | None:
    if isinstance(value, str):
        return len(value.encode()) if field.in_bytes else len(value)
    return len(value) if isinstance(value, list) else None  # pyright: ignore[reportUnknownArgumentType]


def _weight(findings: list[Finding]) -> tuple[int, int]:
    """The attempt with the fewest objections is the one that was meant."""
    return sum(not finding.ignored for finding in findings), len(findings)


def _under(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name
