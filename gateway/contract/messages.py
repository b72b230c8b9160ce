"""Messages and their six kinds of parts: frozen values, stored and sent in this form.

A tool's result lives in the assistant message that asked for it (there is no role ``tool``); adapters
translate to each provider's roles. Times are milliseconds since the epoch, costs US dollars.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, assert_never, cast

import msgspec
from msgspec import Struct

from gateway.contract.errors import InvalidPartTypeError, PartValidationError

Role = Literal["user", "assistant", "system"]
TextKind = Literal["text", "reasoning", "summary", "notice", "quote"]
DisplayKind = Literal["file-read", "file-write", "diff", "shell"]
T = TypeVar("T")

_random_bits = random.Random().getrandbits  # noqa: S311 - ids are not secret
"""A separate generator: seeding the shared one would repeat ids."""
_MESSAGE_BYTES = 700
"""Memory overhead of a message besides its content, in bytes."""


def new_id() -> str:
    """Return a new UUID, version 7, as text. It begins with the time and is not a secret.

    Rows stored together are adjacent in an index, so a commit changes few pages.
    """
    ms, bits = time.time_ns() // 1_000_000, _random_bits(74)
    high, low = ms >> 16, ms & 0xFFFF
    # One formatting of integers: every turn makes three ids.
    variant = 0x8000 | bits >> 48 & 0x3FFF
    return "%08x-%04x-7%03x-%04x-%012x" % (high, low, bits >> 62, variant, bits & 0xFFFFFFFFFFFF)  # noqa: UP031


def now_ms() -> int:
    """Return the wall-clock time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class Attachment(Struct, frozen=True, omit_defaults=True):
    """A file or image attached to a tool result. ``data`` is base64."""

    mime_type: str
    data: str
    name: str = ""


class DisplayHints(Struct, frozen=True, omit_defaults=True):
    """Hints for showing a tool call: a verb, a known kind, and argument names by concept."""

    verb: str | None = None
    kind: DisplayKind | None = None
    fields: Mapping[str, str] = {}


class ResultMetadata(Struct, frozen=True, omit_defaults=True):
    """Measurements of a tool's run. A tool sets ``exit_code`` and ``bytes_read``, the gateway the others.

    ``untrusted``: the model has read content from outside, like a page. ``changed_files`` is the number of
    files that the call changed. ``sessions`` are those of the nested runs that it started.
    """

    exit_code: int | None = None
    duration_ms: int | None = None
    bytes_read: int | None = None
    untrusted: bool = False
    changed_files: int = 0
    sessions: tuple[str, ...] = ()


class ErrorMetadata(Struct, frozen=True, omit_defaults=True):
    """Details of an error part.

    ``code`` is a provider's HTTP status, ``retry_after_ms`` its requested delay. ``stack`` has the models of
    a failed chain, one a line: ``provider/model: ErrorName (status)``. It quotes no text of a provider.
    ``original`` has the words of ``provider``; the message of the part is then made of kind and status.
    """

    code: str | None = None
    retryable: bool | None = None
    stack: str | None = None
    retry_after_ms: int | None = None
    provider: str | None = None
    original: str | None = None


class ReasoningState(Struct, frozen=True, gc=False):
    """Reasoning that its model needs back, such as signed or encrypted blocks; opaque to the gateway.

    Only the same model of the same provider gets it. ``data`` is JSON text in the form of its adapter.
    """

    provider: str
    model: str
    data: str


class TextPart(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="text"):
    """Markdown text of a ``kind``.

    A part with a ``state`` has no content: it is stored with the answer and sent back to its model. Users
    and other models never get it.

    ``reasoning`` is a model's reasoning, ``summary`` a compaction's summary. A ``notice`` is a message of the
    gateway about an answer, such as the use of a fallback provider: it is stored and shown in every channel,
    but is not part of the answer. Models, ``/v1`` clients and nested runs never get it. A ``quote`` is text
    that a user's message points at: its first line names the kind and the author, the rest is the text.
    """

    content: str
    kind: TextKind = "text"
    state: ReasoningState | None = None


class ToolCallPart(Struct, frozen=True, omit_defaults=True, tag_field="type", tag="tool_call"):
    """A tool call of the model. ``arguments`` is the parsed JSON object.

    If the model's text is not a JSON object (or was cut off), ``arguments`` is empty and
    ``invalid_arguments`` is the original text.
    """

    tool_call_id: str
    tool_name: str
    arguments: dict[str, Any]
    invalid_arguments: str | None = None


class ToolResultPart(Struct, frozen=True, omit_defaults=True, tag_field="type", tag="tool_result"):
    """The result of a tool; ``tool_call_id`` pairs it with its call."""

    tool_call_id: str
    output: str
    title: str | None = None
    metadata: ResultMetadata | None = None
    attachments: tuple[Attachment, ...] = ()
    is_error: bool = False
    display: DisplayHints | None = None


def is_untrusted(part: Part) -> bool:
    """Return whether a part is a tool's result with content of others."""
    return isinstance(part, ToolResultPart) and part.metadata is not None and part.metadata.untrusted


def verb_of(result: ToolResultPart | None) -> str | None:
    """Return the verb of a tool's display hints or its title; None if it has neither."""
    if result is None:
        return None
    return (result.display.verb if result.display is not None else None) or result.title


class ErrorPart(Struct, frozen=True, omit_defaults=True, tag_field="type", tag="error"):
    """An error while the message was produced."""

    error_name: str
    message: str
    metadata: ErrorMetadata | None = None


class ImagePart(Struct, frozen=True, omit_defaults=True, tag_field="type", tag="image"):
    """An image. ``data`` is base64; ``width`` and ``height`` are pixels."""

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
    """The usage of an answer. Tokens are counts, ``cost`` is USD, ``duration_ms`` the whole turn."""

    model: str | None = None
    provider: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cost: float | None = None
    duration_ms: int | None = None
    stop_reason: str | None = None


class Display(Struct, frozen=True, omit_defaults=True):
    """Hints for showing a message of a plugin.

    ``badge`` and ``prefix`` (Markdown) stand before its text. The web page colours its edge: red, green or
    yellow. ``hidden`` messages are kept and reach the model, but are not shown.
    """

    color: str | None = None
    prefix: str | None = None
    badge: str | None = None
    hidden: bool = False


class Origin(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """The author and the room of a user's message.

    ``user`` is the platform's user id, ``room`` the chat's id and ``title`` its display name; ``at`` is when
    the message was written, in milliseconds. ``group`` is true if several people write in the room.
    ``context``: an earlier message that was not addressed to the bot; ``key`` is its ``dedup_key``,
    ``account`` the account that received it, and ``own`` is true if the bot wrote it. ``trusted`` is false if
    a part of the message is by an author who may not use the bot.
    """

    channel: str = ""
    account: str = ""
    room: str = ""
    title: str = ""
    user: str = ""
    name: str = ""
    username: str = ""
    at: int = 0
    group: bool = False
    context: bool = False
    key: str = ""
    own: bool = False
    trusted: bool = True

    @property
    def author(self) -> str:
        """The author for readers: display name and username, or the user's id."""
        if self.own:
            return "the bot"
        at = f"@{self.username}" if self.username else ""
        return " ".join(filter(None, (self.name, at and f"({at})"))) if self.name else at or self.user

    @property
    def source(self) -> str:
        """Return the name of a context message, the same in all sessions that hold it."""
        return source_of(self.channel, self.account, self.key)


def source_of(channel: str, account: str, key: str) -> str:
    """Return the name of a platform's message, by which stored context is found."""
    return f"{channel}\n{account}\n{key}"


class Message(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """One message of a session.

    ``custom_type`` selects a registered renderer; ``for_model`` is false for messages that are only shown;
    ``pruned`` is true if models no longer get its tool outputs, which readers keep; ``meta`` belongs to the
    plugin that made the message. ``origin`` is set for users' messages in rooms with
    several people, for those that quote others, and for context.
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
    origin: Origin | None = None
    pruned: bool = False

    @property
    def text(self) -> str:
        """Return the text parts joined by blank lines, without reasoning, notices and quotes."""
        return "\n\n".join(p.content for p in self.parts if isinstance(p, TextPart) and is_said(p.kind))

    def with_state_of(self, provider: str = "", model: str = "") -> Message:
        """Return the message for a model, with no reasoning state but its own; without names for a person."""
        # A plain loop, because most messages have none, and every call of a model asks all of them.
        for part in self.parts:
            if isinstance(part, TextPart) and part.state is not None:
                break
        else:
            return self
        states = ((part, getattr(part, "state", None)) for part in self.parts)
        own = provider, model
        kept = tuple(part for part, state in states if state is None or (state.provider, state.model) == own)
        return self if len(kept) == len(self.parts) else msgspec.structs.replace(self, parts=kept)

    @property
    def error(self) -> ErrorPart | None:
        """The last error, or None."""
        return next((part for part in reversed(self.parts) if isinstance(part, ErrorPart)), None)


def is_said(kind: TextKind) -> bool:
    """Return whether text of this kind is part of a message's content for clients."""
    return kind not in ("reasoning", "notice", "quote")


def is_notice(part: Part) -> bool:
    """Return whether a part is a notice, which only users see."""
    return isinstance(part, TextPart) and part.kind == "notice"


def without_notices(message: Message) -> Message | None:
    """Return a message for a model: without notices; None if it contains only those."""
    if not any(map(is_notice, message.parts)):
        return message
    parts = tuple(part for part in message.parts if not is_notice(part))
    return msgspec.structs.replace(message, parts=parts) if parts else None


def size_of(message: Message) -> int:
    """Estimate the memory size of a message in bytes."""
    return _MESSAGE_BYTES + sum(map(_content_size, message.parts))


def _content_size(part: Part) -> int:
    match part:
        case TextPart():
            return len(part.content if part.state is None else part.state.data)
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
        case _:
            assert_never(part)


_part_decoder = msgspec.json.Decoder(Part)
_encoder = msgspec.json.Encoder()
_SURROGATE = re.compile("[\ud800-\udfff]")


def to_json(value: object) -> bytes:
    """Encode a value as JSON, with U+FFFD for lone surrogates, which are not valid UTF-8."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(_without_surrogates(msgspec.to_builtins(value)))


def sound(value: T) -> T:
    """Return the value with U+FFFD for every lone surrogate; the same object if there is none.

    File names and lenient JSON parsers produce lone surrogates, which UTF-8 and databases cannot store.
    Lengths do not change.
    """
    try:
        _encoder.encode(value)
    except UnicodeEncodeError:
        return msgspec.convert(_without_surrogates(msgspec.to_builtins(value)), type(value))
    return value


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        entries = cast("dict[Any, Any]", value).items()
        return {_without_surrogates(key): _without_surrogates(item) for key, item in entries}
    if isinstance(value, list | tuple):
        return [_without_surrogates(item) for item in cast("list[Any]", value)]
    return value


def checked_part(part: object) -> bytes:
    """Encode a part as JSON and verify that it can be decoded.

    Parts made in Python may hold values of any type. Raises InvalidPartTypeError for another object, and
    PartValidationError for a part with invalid fields.
    """
    if not isinstance(part, Part):
        raise InvalidPartTypeError(
            f"{type(part).__name__} is not a part; the part types are {', '.join(PART_TYPES)}"
        )
    try:
        payload = to_json(part)
    except (TypeError, ValueError, RecursionError) as error:
        raise PartValidationError(f"a part of type {part.__struct_config__.tag}: {error}") from None
    decode_part(payload)
    return payload


def decode_part(payload: bytes | str) -> Part:
    """Decode a part. Raises PartValidationError or InvalidPartTypeError."""
    try:
        return _part_decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _part_error(error) from None


def part_from(value: object) -> Part:
    """Convert plain data of a client to a part. Raises PartValidationError or InvalidPartTypeError."""
    try:
        return msgspec.convert(value, Part)
    except (msgspec.ValidationError, RecursionError) as error:
        raise _part_error(error) from None


def _part_error(error: Exception) -> InvalidPartTypeError | PartValidationError:
    text = str(error)
    if "Invalid value" in text and "$.type" in text:
        return InvalidPartTypeError(f"{text}; the part types are {', '.join(PART_TYPES)}")
    return PartValidationError(text)


ABORTED = "Aborted: the tool was stopped before it gave a result."
"""The result of a tool call that was stopped."""


def has_results(message: Message) -> bool:
    """Return whether a client sent tool results in a message."""
    return message.role == "user" and any(isinstance(part, ToolResultPart) for part in message.parts)
