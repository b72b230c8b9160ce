"""Checks of calls and updates against ``schema.json``: the Bot API as JSON Schema, and its words for errors.

A parameter ``bytes`` of a schema limits the length of a string in bytes: ``[least, most]``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, cast

import msgspec

from channels.telegram.fake.calls import Refused, Request, Upload, mistaken
from gateway.testing.fake_platform import Finding, Schemas

_NUMBER = re.compile(r"-?\d{1,19}")
_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no")
_KINDS = {"integer": "Number", "number": "Number", "string": "String", "boolean": "Boolean", "array": "Array"}
_LENGTHS = ("minLength", "maxLength", "minItems", "maxItems")
_EMPTY = {
    "chat_id": "chat_id is empty",
    "text": "message text is empty",
    "message_id": "message identifier is not specified",
    "message_ids": "message identifiers are not specified",
}
_LABELS = {
    "reply_markup": "reply keyboard markup",
    "reply_parameters": "reply parameters",
    "link_preview_options": "link preview options",
    "scope": "BotCommandScope",
    "reaction": "reaction types",
}
_PARSED = (
    ("InlineKeyboardButton", "inline keyboard button"),
    ("KeyboardButton", "keyboard button"),
    ("MessageEntity", "MessageEntity"),
    ("BotCommandScope", "BotCommandScope"),
    ("BotCommand", "BotCommand"),
    ("InputMedia", "InputMedia"),
    ("ReactionType", "ReactionType"),
)
_CODES = {
    ("InlineKeyboardButton", "callback_data"): "BUTTON_DATA_INVALID",
    ("BotCommand", "command"): "BOT_COMMAND_INVALID",
    ("BotCommand", "description"): "BOT_COMMAND_DESCRIPTION_INVALID",
    ("ReactionTypeEmoji", "emoji"): "REACTION_INVALID",
    ("", "name"): "TOPIC_TITLE_INVALID",
    ("", "message_ids"): "too many message identifiers specified",
    ("", "commands"): "BOT_COMMANDS_TOO_MUCH",
    ("", "text"): "MESSAGE_TOO_LONG",
    ("", "action"): "wrong parameter action in request",
}


class _Bytes:
    """The keyword ``bytes`` of a schema."""

    def __init__(self, _parent: object, value: Any, _path: object) -> None:
        self._least, self._most = value

    def validate(self, instance: object) -> None:
        """Raise ValueError for a string that is too short or too long."""
        length = len(instance.encode()) if isinstance(instance, str) else self._least
        if not self._least <= length <= self._most:
            raise ValueError(f"{length} bytes, not {self._least} to {self._most}")


@cache
def schemas() -> Schemas:
    """Return the Bot API, as committed."""
    return Schemas.beside(__file__, keywords={"bytes": _Bytes})


@cache
def spelling() -> Mapping[str, str]:
    """Return the names of all methods by their lower case: the platform takes them in any case."""
    return {name.lower(): name for name in schemas().at("methods")}


def understood(method: str, texts: Mapping[str, str], uploads: Mapping[str, Upload] | None = None) -> Request:
    """Return a call with its arguments in the types of the method. Raises Refused."""
    uploads = uploads or {}
    name = spelling().get(method.lower())
    if name is None:
        raise Refused("Not Found: method not found", 404, f"there is no method {method}")
    schema = schemas().at("methods", name)
    arguments: dict[str, Any] = {}
    remarks: list[str] = []
    for key, field in schema["properties"].items():
        if key in uploads and "contentMediaType" in field:
            arguments[key] = f"attach://{key}"
        elif texts.get(key, "") != "":
            arguments[key] = _value(key, field, texts[key])
            remarks += _checked(name, key, arguments[key], is_formatted="parse_mode" in schema["properties"])
        elif key in schema.get("required", ()):
            raise _missing(key, field)
    known = {*schema["properties"], "method"}
    remarks += [f"{method} has no parameter {key}" for key in texts if key not in known]
    return Request(name, arguments, uploads, tuple(remarks))


def problems(kind: str, value: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with an object of a type, for tests of what the fake sends."""
    return [line(found, kind) for found in schemas().check(_without_nulls(value), "$defs", kind)]


def _value(name: str, schema: Mapping[str, Any], text: str) -> Any:
    """Return what a text means by the types that a parameter may have."""
    kinds = schema.get("type", "string" if {"enum", "const"} & schema.keys() else ())
    if "integer" in kinds and _NUMBER.fullmatch(text):
        return int(text)
    if "boolean" in kinds:
        if text.lower() not in (*_TRUE, *_FALSE):
            raise mistaken(f"{name} is neither true nor false")
        return text.lower() in _TRUE
    if "number" in kinds:
        try:
            return float(text)
        except ValueError:
            raise mistaken(f"{name} is no number") from None
    if "string" in kinds:
        return text
    if "integer" in kinds:
        raise mistaken(_EMPTY.get(name, f"{name} is no integer"), f"{name} is no integer: {text}")
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        raise mistaken(f"can't parse {_LABELS.get(name, name)} JSON object") from None


def _checked(method: str, name: str, value: Any, *, is_formatted: bool) -> list[str]:
    """Return what is wrong with an argument although it passes. Raises Refused for what does not."""
    if name in ("text", "caption") and is_formatted:
        return []  # its length counts after its entities were read
    remarks: list[str] = []
    for found in schemas().check(_without_nulls(value), "methods", method, "properties", name):
        is_album = name == "media" and not found.at and found.keyword in _LENGTHS
        is_caption = found.field == "caption" and found.owner.startswith("InputMedia")
        if (is_album and len(value) != 1) or is_caption:
            continue  # refused later, in words of its own
        # The platform sends an album of one as no album.
        if not (is_album or found.keyword == "unknown"):
            raise mistaken(_words(found), line(found, name))
        remarks.append(line(found, name))
    return remarks


def _says(found: Finding) -> str:
    match found.keyword:
        case "required":
            return f'Can\'t find field "{found.field}"'
        case "unknown":
            return f"{found.owner} has no field {found.field}"
        case "const" | "enum":
            words = found.schema.get("enum", [found.schema.get("const")])
            return f"{found.value!r} is none of {', '.join(words)}"
        case "union":
            return f"{found.value!r} is none of {', '.join(found.allowed)}"
        case "type" if found.schema["type"] == "object":
            return "expected an Object"
        case "type":
            kinds = found.schema["type"]
            kind = _KINDS[kinds if isinstance(kinds, str) else kinds[0]]
            return f'Field "{found.field}" must be of type {kind}'
        case "pattern":
            return "there is no such file in the request"
        case keyword if keyword in _LENGTHS:
            unit, size = ("items", "Items") if keyword.endswith("Items") else ("characters", "Length")
            least, most = found.schema.get(f"min{size}", 0), found.schema[f"max{size}"]
            return f"{len(found.value)} {unit}, not {least} to {most}"
        case _:
            return found.message


def line(found: Finding, name: str) -> str:
    """Return a finding with its place in a value of this name, for the transcript."""
    spot = found.at[:-1] if found.keyword == "required" else found.at
    place = name + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in spot)
    return f"{place}: {_says(found)}"


def _words(found: Finding) -> str:
    """Return a finding as the platform words it."""
    code = _CODES.get((found.owner, found.field))
    if code and found.keyword != "required":
        return code
    says = "invalid button style specified" if found.field == "style" else _says(found)
    for owner, label in _PARSED:
        if found.owner.startswith(owner):
            return f"can't parse {label}: {says}"
    return says[:1].lower() + says[1:]


def _missing(name: str, schema: Mapping[str, Any]) -> Refused:
    rule = f"{name} is missing"
    if "contentMediaType" in schema:
        return mistaken(f"there is no {name} in the request", rule)
    return mistaken(_EMPTY.get(name, f'parameter "{name}" is required'), rule)


def _without_nulls(value: Any) -> Any:
    """Return a value without the fields that are null, which mean the same as fields that are missing."""
    if isinstance(value, dict):
        fields = cast(dict[str, Any], value)
        return {key: _without_nulls(inner) for key, inner in fields.items() if inner is not None}
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in cast(list[Any], value)]
    return value
