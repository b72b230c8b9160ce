"""Calls of the bot: read from a form, JSON, a multipart body or the query, checked against ``schema.json``.

The schema is the Bot API as JSON Schema. A parameter ``bytes`` of a schema limits the length of a string in
bytes: ``[least, most]``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, cast

import msgspec
from aiohttp import web
from msgspec import Struct

from gateway.testing.fake_platform import Finding, Refusal, Schemas


class Refused(Refusal):
    """An error response: ``ok: false``.

    ``parameters`` are the platform's hints: ``retry_after`` in seconds, ``migrate_to_chat_id``.
    """

    is_counted = True
    """The call counts against the rate limits of its chat."""

    def __init__(
        self, description: str, code: int = 400, problem: str | None = None, **parameters: int
    ) -> None:
        super().__init__(description, problem)
        self.description = description
        self.code = code
        self.parameters = parameters


class NotReached(Refused):
    """Refusal by the Bot API server before the call reaches the chat and its rate limits, such as of an
    unknown message."""

    is_counted = False


def bad(text: str) -> Refused:
    """Return the refusal of a well-formed request for something that does not exist or is not allowed."""
    return Refused(f"Bad Request: {text}")


def mistaken(text: str, rule: str | None = None) -> Refused:
    """Return the refusal of a request that breaks a rule; ``rule`` names it if ``text`` does not."""
    return Refused(f"Bad Request: {text}", problem=rule or text)


def forbidden(text: str) -> Refused:
    """Return the refusal of an action that the bot may not do."""
    return Refused(f"Forbidden: {text}", 403)


MAX_BYTES = 50 * 1024 * 1024
"""Maximum size of the uploads in one request."""


class Upload(Struct, frozen=True):
    """A file in a request, with the client's ``name`` for it."""

    name: str
    data: bytes
    mime: str


class Request(Struct, frozen=True):
    """A call whose arguments have the types of its method.

    ``remarks`` are rules that it breaks although the platform accepts it, such as an unknown parameter.
    """

    method: str
    arguments: Mapping[str, Any]
    uploads: Mapping[str, Upload] = {}
    remarks: tuple[str, ...] = ()

    def get(self, name: str, otherwise: Any = None) -> Any:
        """Return an argument, or ``otherwise`` if it is not given."""
        return self.arguments.get(name, otherwise)

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]


async def read(request: web.Request) -> tuple[dict[str, str], dict[str, Upload]]:
    """Return the arguments of an HTTP request as text, and its files. Raises Refused."""
    texts = dict(request.query)
    uploads: dict[str, Upload] = {}
    try:
        if request.content_type == "application/json":
            return texts | from_json(await request.read()), uploads
        for name, value in (await request.post()).items():
            if isinstance(value, web.FileField):
                uploads[name] = Upload(value.filename, value.file.read(), value.content_type)
            else:
                texts[name] = value if isinstance(value, str) else value.decode()
    except web.HTTPRequestEntityTooLarge:
        raise Refused("Request Entity Too Large", 413, problem="more than 50 MB in one request") from None
    if sum(len(upload.data) for upload in uploads.values()) > MAX_BYTES:
        raise Refused("Request Entity Too Large", 413, problem="more than 50 MB in one request")
    return texts, uploads


def from_json(body: bytes) -> dict[str, str]:
    """Return the arguments of a JSON body as text, as in a form. Raises Refused."""
    try:
        given = msgspec.json.decode(body, type=dict[str, Any]) if body.strip() else {}
    except msgspec.DecodeError:
        raise mistaken("can't parse JSON object") from None
    return {name: _as_text(value) for name, value in given.items() if value is not None}


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


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
    """Keyword ``bytes`` of a schema."""

    def __init__(self, _parent: object, value: Any, _path: object) -> None:
        self._least, self._most = value

    def validate(self, instance: object) -> None:
        """Raise ValueError for a string that is too short or too long."""
        length = len(instance.encode()) if isinstance(instance, str) else self._least
        if not self._least <= length <= self._most:
            raise ValueError(f"{length} bytes, not {self._least} to {self._most}")


@cache
def schemas() -> Schemas:
    """Return the schema of the Bot API."""
    return Schemas.beside(__file__, keywords={"bytes": _Bytes})


@cache
def method_names() -> Mapping[str, str]:
    """Return the names of all methods by their lower case; the platform ignores case."""
    return {name.lower(): name for name in schemas().at("methods")}


def parse_call(method: str, texts: Mapping[str, str], uploads: Mapping[str, Upload] | None = None) -> Request:
    """Return a call with its arguments in the types of the method. Raises Refused."""
    uploads = uploads or {}
    name = method_names().get(method.lower())
    if name is None:
        raise Refused("Not Found: method not found", 404, f"there is no method {method}")
    schema = schemas().at("methods", name)
    arguments: dict[str, Any] = {}
    remarks: list[str] = []
    for key, field in schema["properties"].items():
        if key in uploads and "contentMediaType" in field:
            arguments[key] = f"attach://{key}"
        elif texts.get(key, "") != "":
            arguments[key] = _parse_value(key, field, texts[key])
            remarks += _check(name, key, arguments[key], is_formatted="parse_mode" in schema["properties"])
        elif key in schema.get("required", ()):
            raise _missing(key, field)
    known = {*schema["properties"], "method"}
    remarks += [f"{method} has no parameter {key}" for key in texts if key not in known]
    return Request(name, arguments, uploads, tuple(remarks))


def problems(kind: str, value: Mapping[str, Any]) -> list[str]:
    """Return the errors of an object of a type, for tests of what the fake sends."""
    return [describe(found, kind) for found in schemas().check(_without_nulls(value), "$defs", kind)]


def _parse_value(name: str, schema: Mapping[str, Any], text: str) -> Any:
    """Convert a text to one of the types that a parameter may have."""
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
            raise mistaken(f"{name} is not a number") from None
    if "string" in kinds:
        return text
    if "integer" in kinds:
        raise mistaken(_EMPTY.get(name, f"{name} is not an integer"), f"{name} is not an integer: {text}")
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        raise mistaken(f"can't parse {_LABELS.get(name, name)} JSON object") from None


def _check(method: str, name: str, value: Any, *, is_formatted: bool) -> list[str]:
    """Return remarks about an argument that the platform accepts. Raises Refused for one that it refuses."""
    if name in ("text", "caption") and is_formatted:
        return []  # the length is checked after the entities were parsed
    remarks: list[str] = []
    for found in schemas().check(_without_nulls(value), "methods", method, "properties", name):
        is_album = name == "media" and not found.at and found.keyword in _LENGTHS
        is_caption = found.field == "caption" and found.owner.startswith("InputMedia")
        if (is_album and len(value) != 1) or is_caption:
            continue  # refused later, with its own error
        # The platform sends an album of one file as a single message.
        if not (is_album or found.keyword == "unknown"):
            raise mistaken(_platform_error(found), describe(found, name))
        remarks.append(describe(found, name))
    return remarks


def _explain(found: Finding) -> str:
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


def describe(found: Finding, name: str) -> str:
    """Return a finding with its path in the value ``name``, for the transcript."""
    spot = found.at[:-1] if found.keyword == "required" else found.at
    place = name + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in spot)
    return f"{place}: {_explain(found)}"


def _platform_error(found: Finding) -> str:
    """Return a finding in the platform's words."""
    code = _CODES.get((found.owner, found.field))
    if code and found.keyword != "required":
        return code
    says = "invalid button style specified" if found.field == "style" else _explain(found)
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
    """Return a value without the fields that are null, which mean the same as missing ones."""
    if isinstance(value, dict):
        fields = cast(dict[str, Any], value)
        return {key: _without_nulls(inner) for key, inner in fields.items() if inner is not None}
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in cast(list[Any], value)]
    return value
