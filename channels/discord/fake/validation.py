"""Checks of calls and gateway payloads against ``schema.json``, and the platform's words for errors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from channels.discord.fake.calls import INVALID_FORM, ApiCall, ApiError
from gateway.testing.fake_platform import Finding, Schemas

_SNOWFLAKE: Final = re.compile(r"0|[1-9][0-9]{0,19}")
_SCHEMES: Final = ("http", "https", "discord", "attachment")
_MISFITS: Final = ("type", "pattern", "format")
_KINDS: Final = {
    "object": ("DICT_TYPE_CONVERT", "Only dictionaries may be used in a DictType"),
    "array": ("LIST_TYPE_CONVERT", "Only iterables may be used in a ListType"),
    "boolean": ("BOOLEAN_TYPE_CONVERT", "Must be either true or false."),
}


class Wrong(Struct, frozen=True):
    """A thing that is wrong: its place, and the platform's code and sentence for it."""

    path: tuple[str, ...]
    code: str
    message: str


class Findings(Struct, frozen=True):
    """The result of a check. ``unknown`` are parameters that the platform ignores."""

    wrong: tuple[Wrong, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def problem(self) -> str | None:
        """All findings in one line; None if there are none."""
        said = [f"{'.'.join(wrong.path) or 'body'}: {wrong.message}" for wrong in self.wrong]
        said += [f"{name}: no such parameter" for name in self.unknown]
        return "; ".join(said) or None


@cache
def schemas() -> Schemas:
    """Return the published schemas of what bots send."""
    return Schemas.beside(__file__, formats=FORMATS)


def check_call(call: ApiCall) -> str | None:
    """Return the parameters that the platform ignores, as a problem. Raises ApiError for what is wrong."""
    taken = schemas().at("calls", call.name)
    query, body = Findings(), Findings()
    if "query" in taken:
        fields = taken["query"]["properties"]
        given = {name: _from_text(fields.get(name, {}), value) for name, value in call.query.items()}
        query = check(schemas(), given, "calls", call.name, "query")
    elif call.query:
        query = Findings(unknown=tuple(call.query))
    if "body" in taken:
        body = check(schemas(), call.body, "calls", call.name, "body")
    elif call.body not in (None, {}):
        body = Findings(unknown=("a body",))
    found = Findings((*query.wrong, *body.wrong), (*query.unknown, *body.unknown))
    if found.wrong:
        raise ApiError(INVALID_FORM, found.problem, {"errors": error_tree(found.wrong)})
    return found.problem


def check_payload(op: int, data: object) -> Findings:
    """Check what was sent over the gateway under an opcode."""
    known = str(op) in schemas().at("ops")
    return check(schemas(), data, "ops", str(op)) if known else Findings()


def check(document: Schemas, value: object, *place: str) -> Findings:
    """Check a value against the schema at a place."""
    found = document.check(value, *place)
    unfit = {one.at for one in found if one.keyword in _MISFITS}
    # A value of another type breaks no further rule.
    said = [one for one in found if one.at not in unfit or one.keyword in _MISFITS]
    return Findings(
        tuple(dict.fromkeys(_wrong(one) for one in said if one.keyword != "unknown")),
        tuple(".".join(map(str, one.at)) for one in said if one.keyword == "unknown"),
    )


def error_tree(wrong: Iterable[Wrong]) -> dict[str, Any]:
    """Return the ``errors`` of the platform's answer, which are nested as the body is."""
    tree: dict[str, Any] = {}
    for one in wrong:
        at = tree
        for key in one.path:
            at = at.setdefault(key, {})
        at.setdefault("_errors", []).append({"code": one.code, "message": one.message})
    return tree


def _wrong(found: Finding) -> Wrong:
    return Wrong(tuple(map(str, found.at)), *_words(found))


def _words(found: Finding) -> tuple[str, str]:
    """Return the platform's code and sentence for a finding."""
    schema, value = found.schema, found.value
    if found.keyword == "required" or value is None:
        return "BASE_TYPE_REQUIRED", "This field is required"
    if schema.get("format") == "snowflake":
        return "NUMBER_TYPE_COERCE", f'Value "{value}" is not snowflake.'
    match found.keyword:
        case "type" | "pattern":
            return _unfit(schema, value)
        case "enum":
            choices = ", ".join(repr(choice) for choice in schema["enum"] if choice is not None)
            return "BASE_TYPE_CHOICES", f"Value must be one of {{{choices}}}."
        case "union":
            kinds = tuple(sorted(found.allowed))
            return "UNION_TYPE_CHOICES", f'Value of field "type" must be one of {kinds}.'
        case "minimum":
            least = f"greater than or equal to {schema['minimum']}"
            return "NUMBER_TYPE_MIN", f"{_number(schema)} value should be {least}."
        case "maximum":
            most = f"less than or equal to {schema['maximum']}"
            return "NUMBER_TYPE_MAX", f"{_number(schema)} value should be {most}."
        case "uniqueItems":
            return "SET_TYPE_ALREADY_CONTAINS_VALUE", "The set already contains this value"
        case "format":
            return _bad_link(value)
        case _:
            return _bad_length(schema, "Items" if "minItems" in schema or "maxItems" in schema else "Length")


def _unfit(schema: Mapping[str, Any], value: object) -> tuple[str, str]:
    kinds = schema["type"]
    kind = kinds if isinstance(kinds, str) else next(kind for kind in kinds if kind != "null")
    if kind in _KINDS:
        return _KINDS[kind]
    if kind == "string":
        return "STRING_TYPE_CONVERT", f'Could not interpret "{value}" as string.'
    return "NUMBER_TYPE_COERCE", f'Value "{value}" is not {_number(schema)}.'


def _number(schema: Mapping[str, Any]) -> str:
    return "int" if "integer" in schema["type"] else "float"


def _bad_length(schema: Mapping[str, Any], size: str) -> tuple[str, str]:
    least, most = schema.get(f"min{size}", 0), schema.get(f"max{size}")
    if least and most is not None:
        return "BASE_TYPE_BAD_LENGTH", f"Must be between {least} and {most} in length."
    if most is not None:
        return "BASE_TYPE_MAX_LENGTH", f"Must be {most} or fewer in length."
    return "BASE_TYPE_MIN_LENGTH", f"Must be {least} or more in length."


def _bad_link(value: str) -> tuple[str, str]:
    scheme = urlsplit(value).scheme
    if scheme in _SCHEMES:
        return "URL_TYPE_INVALID_URL", "Not a well formed URL."
    schemes = "('http', 'https', 'discord')"
    message = f'Scheme "{scheme}" is not supported. Scheme must be one of {schemes}.'
    return "URL_TYPE_INVALID_SCHEME", message


def _is_link(text: str) -> bool:
    parts = urlsplit(text)
    return not text or (parts.scheme in _SCHEMES and bool(parts.netloc))


def _is_snowflake(text: str) -> bool:
    return _SNOWFLAKE.fullmatch(text) is not None


FORMATS: Final = {"uri": _is_link, "snowflake": _is_snowflake}


def _from_text(schema: Mapping[str, Any], text: str) -> object:
    """Return what a parameter of the query means by its schema; the text itself if it fits no type."""
    kinds = schema.get("type", ())
    if "boolean" in kinds:
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
    if "integer" in kinds and schema.get("format") != "snowflake" and re.fullmatch(r"-?[0-9]+", text):
        return int(text)
    return text
