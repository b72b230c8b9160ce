"""Messages and their six kinds of parts: frozen values, stored and sent as they stand here.

A tool's result lives in the assistant message that asked for it (there is no role ``tool``); adapters
translate to each provider's roles. Times are milliseconds since the epoch, costs US dollars.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, cast

import msgspec
from msgspec import Struct

from gateway.errors import InvalidPartTypeError, PartValidationError

Role = Literal["user", "assistant", "system"]
TextKind = Literal["text", "reasoning", "summary"]
DisplayKind = Literal["file-read", "file-write", "diff", "shell"]
T = TypeVar("T")

_random_bits = random.Random().getrandbits  # noqa: S311 - ids are no secrets
"""A source of its own: whoever sets the common one going again would make the same ids again."""
_VARIANTS = "89ab"
_MESSAGE_BYTES = 700
"""What a message takes besides what it says."""


def new_id() -> str:
    """A fresh UUID, version 7, as text: it begins with the time. It names things; it is no secret.

    What is stored together then lies together in an index, so a commit changes few pages.
    """
    digits = f"{time.time_ns() // 1_000_000:012x}{_random_bits(80):020x}"
    variant = _VARIANTS[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-7{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


def now_ms() -> int:
    """Wall-clock milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class Attachment(Struct, frozen=True, omit_defaults=True):
    """A file or picture that goes with a tool result. ``data`` is base64."""

    mime_type: str
    data: str
    name: str = ""


class DisplayHints(Struct, frozen=True, omit_defaults=True):
    """How a channel may show a tool's call: a verb, a known kind, and which argument holds which concept."""

    verb: str | None = None
    kind: DisplayKind | None = None
    fields: Mapping[str, str] = {}


class ResultMetadata(Struct, frozen=True, omit_defaults=True):
    """What is known about the run of a tool."""

    exit_code: int | None = None
    duration_ms: int | None = None
    bytes_read: int | None = None


class ErrorMetadata(Struct, frozen=True, omit_defaults=True):
    """Details of an error part; ``stack`` is for operators and is not sent to chats."""

    code: str | None = None
    retryable: bool | None = None
    stack: str | None = None


class TextPart(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="text"):
    """Markdown text. ``kind`` sets a model's reasoning and a compaction's summary apart from the answer."""

    content: str
    kind: TextKind = "text"


class ToolCallPart(Struct, frozen=True, omit_defaults=True, tag_field="type", tag="tool_call"):
    """The model asks for a tool. ``arguments`` is the parsed JSON object.

    When what the model wrote is no JSON object (or was cut off), ``arguments`` is empty and
    ``invalid_arguments`` keeps the text as it came.
    """

    tool_call_id: str
    tool_name: str
    arguments: dict[str, Any]
    invalid_arguments: str | None = None


class ToolResultPart(Struct, frozen=True, omit_defaults=True, tag_field="type", tag="tool_result"):
    """What the tool answered; ``tool_call_id`` pairs it with its call."""

    tool_call_id: str
    output: str
    title: str | None = None
    metadata: ResultMetadata | None = None
    attachments: tuple[Attachment, ...] = ()
    is_error: bool = False
    display: DisplayHints | None = None


class ErrorPart(Struct, frozen=True, omit_defaults=True, tag_field="type", tag="error"):
    """Something went wrong while the message was made."""

    error_name: str
    message: str
    metadata: ErrorMetadata | None = None


class ImagePart(Struct, frozen=True, omit_defaults=True, tag_field="type", tag="image"):
    """A picture. ``data`` is base64; ``width`` and ``height`` are pixels."""

    data: str
    mime_type: str
    alt_text: str | None = None
    width: int | None = None
    height: int | None = None


class FilePart(Struct, frozen=True, omit_defaults=True, tag_field="type", tag="file"):
    """A file by its path relative to the workspace; ``content`` may be cut. Lines count from 1."""

    path: str
    content: str | None = None
    language: str | None = None
    line_range: tuple[int, int] | None = None


Part = TextPart | ToolCallPart | ToolResultPart | ErrorPart | ImagePart | FilePart
PART_TYPES = ("text", "tool_call", "tool_result", "error", "image", "file")


class Metadata(Struct, frozen=True, gc=False, omit_defaults=True):
    """What an answer took. Tokens are counts, ``cost`` is USD, ``duration_ms`` the whole turn."""

    model: str | None = None
    provider: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cost: float | None = None
    duration_ms: int | None = None
    stop_reason: str | None = None


class Display(Struct, frozen=True, omit_defaults=True):
    """Hints for showing a message. ``hidden`` messages are kept and reach the model, but are not shown."""

    color: str | None = None
    prefix: str | None = None
    badge: str | None = None
    hidden: bool = False


class Message(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """One message of a session.

    ``custom_type`` routes it to a registered renderer; ``for_model`` is false for what is only shown;
    ``meta`` belongs to the plugin that made the message.
    """

    id: str = msgspec.field(default_factory=new_id)
    session_id: str
    role: Role
    parts: tuple[Part, ...] = ()
    created_at: int = msgspec.field(default_factory=now_ms)
    metadata: Metadata = Metadata()
    custom_type: str | None = None
    display: Display | None = None
    for_model: bool = True
    meta: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        """The visible text of the message: its text parts joined by blank lines, without reasoning."""
        return "\n\n".join(p.content for p in self.parts if isinstance(p, TextPart) and p.kind != "reasoning")


def size_of(message: Message) -> int:
    """About how many bytes a message takes in memory."""
    return _MESSAGE_BYTES + sum(map(_content_size, message.parts))


def _content_size(part: Part) -> int:
    match part:
        case TextPart():
            return len(part.content)
        case ToolCallPart():
            return sum(len(value) for value in part.arguments.values() if isinstance(value, str))
        case ToolResultPart():
            return len(part.output) + sum(len(attachment.data) for attachment in part.attachments)
        case ImagePart():
            return len(part.data)
        case FilePart():
            return len(part.content or "")
        case ErrorPart():
            return len(part.message)


_part_decoder = msgspec.json.Decoder(Part)
_encoder = msgspec.json.Encoder()
_SURROGATE = re.compile("[\ud800-\udfff]")


def to_json(value: object) -> bytes:
    """A value as JSON. Lone surrogates in its texts, which no wire takes, are written as U+FFFD."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(_mended(msgspec.to_builtins(value)))


def sound(value: T) -> T:
    """The value with U+FFFD for every lone surrogate in its texts; the value itself if there is none.

    File names and careless JSON readers bring such halves of characters; neither UTF-8 nor a database
    knows them. Lengths stay as they are.
    """
    try:
        _encoder.encode(value)
    except UnicodeEncodeError:
        return msgspec.convert(_mended(msgspec.to_builtins(value)), type(value))
    return value


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        entries = cast("dict[Any, Any]", value).items()
        return {_mended(key): _mended(item) for key, item in entries}
    if isinstance(value, list | tuple):
        return [_mended(item) for item in cast("list[Any]", value)]
    return value


def encode_part(part: Part) -> bytes:
    """The part as one JSON object: what the store keeps and the wire carries."""
    return to_json(part)


def checked_part(part: object) -> bytes:
    """A part as JSON that is sure to be readable again.

    Parts made in Python may hold anything. Raises InvalidPartTypeError for what is no part, and
    PartValidationError for a part with wrong fields.
    """
    if not isinstance(part, Part):
        raise InvalidPartTypeError(
            f"{type(part).__name__} is no part; the part types are {', '.join(PART_TYPES)}"
        )
    try:
        payload = to_json(part)
    except (TypeError, ValueError, RecursionError) as error:
        raise PartValidationError(f"a part of type {part.__struct_config__.tag}: {error}") from None
    decode_part(payload)
    return payload


def decode_part(payload: bytes | str) -> Part:
    """Read a part back. Raises PartValidationError or InvalidPartTypeError."""
    try:
        return _part_decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _part_error(error) from None


def part_from(value: object) -> Part:
    """A part from plain data of a client. Raises PartValidationError or InvalidPartTypeError."""
    try:
        return msgspec.convert(value, Part)
    except (msgspec.ValidationError, RecursionError) as error:
        raise _part_error(error) from None


def _part_error(error: Exception) -> InvalidPartTypeError | PartValidationError:
    text = str(error)
    if "Invalid value" in text and "$.type" in text:
        return InvalidPartTypeError(f"{text}; the part types are {', '.join(PART_TYPES)}")
    return PartValidationError(text)
