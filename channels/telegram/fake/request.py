"""A call as it was meant: read from a form, JSON, a multipart body or the query, and checked against the Bot
API."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from aiohttp import web
from msgspec import Struct

from channels.telegram.fake.refusal import Refused, mistaken
from channels.telegram.fake.schema import Field, Finding, schema

MOST_BYTES = 50 * 1024 * 1024
"""What a bot may upload in one request."""

_NUMBER = re.compile(r"-?\d{1,19}")
_EMPTY = {"chat_id": "chat_id is empty", "text": "message text is empty"} | {
    "message_id": "message identifier is not specified",
    "message_ids": "message identifiers are not specified",
}
_LABELS = {"reply_markup": "reply keyboard markup", "reply_parameters": "reply parameters"} | {
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
_SHORT_WORDS = {
    ("InlineKeyboardButton", "callback_data"): "BUTTON_DATA_INVALID",
    ("BotCommand", "command"): "BOT_COMMAND_INVALID",
    ("BotCommand", "description"): "BOT_COMMAND_DESCRIPTION_INVALID",
    ("ReactionTypeEmoji", "emoji"): "REACTION_INVALID",
    ("", "name"): "TOPIC_TITLE_INVALID",
    ("", "message_ids"): "too many message identifiers specified",
    ("", "commands"): "BOT_COMMANDS_TOO_MUCH",
}


class Upload(Struct, frozen=True):
    """A file in a request. ``name`` is what the client calls it."""

    name: str
    data: bytes
    mime: str


class Request(Struct, frozen=True):
    """A call whose arguments have the types that the method wants.

    ``remarks`` is what the platform lets pass and is wrong all the same, such as a parameter that does not
    exist.
    """

    method: str
    arguments: Mapping[str, Any]
    uploads: Mapping[str, Upload] = {}
    remarks: tuple[str, ...] = ()

    def get(self, name: str, otherwise: Any = None) -> Any:
        """An argument, or what stands for it when it is not given."""
        return self.arguments.get(name, otherwise)

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]


async def read(request: web.Request) -> tuple[dict[str, str], dict[str, Upload]]:
    """All that came with an HTTP request: arguments as text, and files. Raises Refused (413) when it is too
    much."""
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
        raise Refused("Request Entity Too Large", 413, mistake="more than 50 MB in one request") from None
    if sum(len(upload.data) for upload in uploads.values()) > MOST_BYTES:
        raise Refused("Request Entity Too Large", 413, mistake="more than 50 MB in one request")
    return texts, uploads


def from_json(body: bytes) -> dict[str, str]:
    """The arguments of a JSON body as they would stand in a form. Raises Refused unless it is an object."""
    try:
        given = msgspec.json.decode(body, type=dict[str, Any]) if body.strip() else {}
    except msgspec.DecodeError:
        raise mistaken("can't parse JSON object") from None
    return {name: _as_text(value) for name, value in given.items() if value is not None}


def understood(method: str, texts: Mapping[str, str], uploads: Mapping[str, Upload] | None = None) -> Request:
    """A checked call. Raises Refused where the platform would refuse it."""
    uploads = uploads or {}
    fields = schema().methods.get(method.lower())
    if fields is None:
        raise Refused("Not Found: method not found", 404, mistake=f"there is no method {method}")
    arguments: dict[str, Any] = {}
    remarks: list[str] = []
    for name, field in fields.items():
        if name in uploads and "File" in field.kinds:
            arguments[name] = f"attach://{name}"
        elif texts.get(name, "") != "":
            arguments[name] = _value(field, texts[name])
            remarks += _checked(field, arguments[name], fields)
        elif field.needed:
            raise _missing(field)
    remarks += [
        f"{method} has no parameter {name}" for name in texts if name not in fields and name != "method"
    ]
    return Request(schema().spelling[method.lower()], arguments, uploads, tuple(remarks))


def _value(field: Field, text: str) -> Any:
    """What a text means, by the kinds that the parameter may be of."""
    kinds = field.kinds
    if "I" in kinds and _NUMBER.fullmatch(text):
        return int(text)
    if "B" in kinds:
        if text.lower() not in ("true", "1", "yes", "false", "0", "no"):
            raise mistaken(f"{field.name} is neither true nor false")
        return text.lower() in ("true", "1", "yes")
    if "F" in kinds:
        try:
            return float(text)
        except ValueError:
            raise mistaken(f"{field.name} is no number") from None
    if "S" in kinds or "File" in kinds or kinds[0].startswith('"'):
        return text
    if kinds == ("I",):
        raise mistaken(
            _EMPTY.get(field.name, f"{field.name} is no integer"), f"{field.name} is no integer: {text}"
        )
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        raise mistaken(f"can't parse {_LABELS.get(field.name, field.name)} JSON object") from None


def _checked(field: Field, value: Any, fields: Mapping[str, Field]) -> Iterable[str]:
    """What is wrong with an argument but passes. Raises Refused for what does not."""
    if field.name in ("text", "caption") and "parse_mode" in fields:
        return ()  # its length counts after its entities were read
    findings = [finding for finding in schema().of_field(field, value, field.name) if not _later(finding)]
    for finding in findings:
        if not finding.ignored and not _passes(finding):
            raise mistaken(_words(finding), str(finding))
    return [str(finding) for finding in findings]


def _later(finding: Finding) -> bool:
    """What counts after entities were read, or has words of its own elsewhere."""
    if finding.at == "media":
        return finding.says.endswith("2 to 10") and not _passes(finding)
    return finding.field == "caption" and finding.owner.startswith("InputMedia")


def _passes(finding: Finding) -> bool:
    """An album of one is sent, as no album."""
    return finding.at == "media" and finding.says.startswith("1 items")


def _words(finding: Finding) -> str:
    """How the platform says it."""
    word = _SHORT_WORDS.get((finding.owner, finding.field))
    if word and not finding.says.startswith("Can't find"):
        return word
    if finding.field == "action":
        return "wrong parameter action in request"
    if finding.field == "text" and not finding.owner:
        return "MESSAGE_TOO_LONG"
    says = "invalid button style specified" if finding.field == "style" else finding.says
    for owner, label in _PARSED:
        if finding.owner.startswith(owner):
            return f"can't parse {label}: {says}"
    return finding.says[:1].lower() + finding.says[1:]


def _missing(field: Field) -> Refused:
    rule = f"{field.name} is missing"
    if "File" in field.kinds:
        return mistaken(f"there is no {field.name} in the request", rule)
    return mistaken(_EMPTY.get(field.name, f'parameter "{field.name}" is required'), rule)


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()
