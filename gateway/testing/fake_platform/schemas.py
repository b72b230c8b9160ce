"""JSON Schemas of a platform's requests, and what they find wrong with a value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import jsonschema_rs
import msgspec
from msgspec import Struct

Schema = dict[str, Any]
Spot = tuple[str | int, ...]
"""A place in a value: the keys and indices that lead to it."""

_UNIONS = ("anyOf", "oneOf")
_MISFITS = ("type", "pattern", "format")


class Finding(Struct, frozen=True, kw_only=True):
    """A rule that a value breaks.

    ``at`` is where; for a field that is missing or unknown, where the field would be. ``keyword`` is the
    keyword of JSON Schema, or ``unknown`` for a field that the schema does not have, or ``union`` where the
    constants of a value select no member of a union; ``allowed`` are then the constants. ``schema`` is the
    schema with the rule, ``owner`` the name of its definition, ``field`` the name of its field.
    """

    at: Spot
    keyword: str
    value: Any
    schema: Schema
    owner: str = ""
    field: str = ""
    allowed: tuple[Any, ...] = ()
    message: str = ""


class Schemas:
    """A document of schemas by group and name, with the definitions that they refer to under ``$defs``.

    ``keywords`` and ``formats`` are rules of the platform's own, as ``jsonschema_rs`` takes them.
    """

    def __init__(
        self,
        document: Mapping[str, Any],
        *,
        keywords: Mapping[str, Any] | None = None,
        formats: Mapping[str, Callable[[str], bool]] | None = None,
    ) -> None:
        self.document = document
        self._keywords = dict(keywords or {})
        self._formats = dict(formats or {})
        self._validators: dict[tuple[str, ...], jsonschema_rs.Validator] = {}

    @classmethod
    def beside(cls, module: str, **rules: Any) -> Schemas:
        """Return the schemas of ``schema.json`` in the folder of a module."""
        return cls(msgspec.json.decode(Path(module).with_name("schema.json").read_bytes()), **rules)

    def at(self, *place: str) -> Schema:
        """Return the schema at a place in the document. Raises KeyError."""
        found: Any = self.document
        for key in place:
            found = found[key]
        return found

    def check(self, value: object, *place: str) -> list[Finding]:
        """Return what is wrong with a value by the schema at a place."""
        root = {**self.at(*place), "$defs": self.document.get("$defs", {})}
        validator = self._validators.get(place)
        if validator is None:
            validator = self._validators[place] = jsonschema_rs.Draft202012Validator(
                root, keywords=self._keywords, formats=self._formats, validate_formats=bool(self._formats)
            )
        owner = place[1] if place[0] == "$defs" else ""
        field = place[-1] if "properties" in place[-2:-1] else ""
        return list(_findings(validator.iter_errors(cast(Any, value)), root, owner, field))


def _findings(
    errors: Iterable[jsonschema_rs.ValidationError], root: Schema, owner: str, field: str
) -> Iterator[Finding]:
    for error in errors:
        at, keyword = tuple(error.instance_path), error.kind.name
        if keyword in _UNIONS:
            context = cast(Any, error.kind).context
            yield from _meant([list(_findings(branch, root, owner, field)) for branch in context], at)
            continue
        path = [str(key) for key in error.schema_path]
        schema = root
        for key in error.schema_path[:-1]:
            schema = schema[cast(str, key)]
        found = Finding(
            at=at,
            keyword=keyword,
            value=error.instance,
            schema=schema,
            owner=path[1] if path[0] == "$defs" else owner,
            field=next(
                (path[n + 1] for n in reversed(range(len(path) - 1)) if path[n] == "properties"), field
            ),
            message=error.message,
        )
        if keyword == "required":
            name = cast(Any, error.kind).property
            yield msgspec.structs.replace(found, at=(*at, name), field=name)
        elif keyword == "additionalProperties":
            for name in cast(Any, error.kind).unexpected:
                yield msgspec.structs.replace(found, at=(*at, name), field=name, keyword="unknown")
        else:
            yield found


def _meant(branches: Sequence[list[Finding]], at: Spot) -> list[Finding]:
    """Return the findings of the member of a union that a value was meant as.

    That is one whose constants the value has, and else the one with the fewest findings.
    """
    others = [next((one for one in branch if _selects(one, at)), None) for branch in branches]
    if all(other is not None for other in others):
        wrong = [cast(Finding, other) for other in others]
        allowed = {value: None for one in wrong for value in _constants(one.schema)}
        return [msgspec.structs.replace(wrong[0], keyword="union", allowed=tuple(allowed))]
    fitting = [branch for branch, other in zip(branches, others, strict=True) if other is None]

    def weight(branch: list[Finding]) -> tuple[bool, int, int, int]:
        wrong = [one for one in branch if one.keyword != "unknown"]
        other_type = any(one.keyword == "type" and one.at == at for one in wrong)
        misfits = sum(one.keyword in _MISFITS for one in wrong)
        return other_type, len(wrong), misfits, len(branch)

    return min(fitting, key=weight)


def _selects(found: Finding, at: Spot) -> bool:
    """Return whether a finding is that a value is another member of the union at a place."""
    inside = len(found.at) == len(at) + 1 and found.at[:-1] == at
    return inside and (found.keyword == "const" or (found.keyword == "enum" and found.field == "type"))


def _constants(schema: Schema) -> Sequence[Any]:
    return [schema["const"]] if "const" in schema else schema["enum"]
