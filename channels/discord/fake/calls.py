"""Calls of the bot: form and validation against ``schema.json``, Discord's errors, and access to chats."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Final, cast
from urllib.parse import urlsplit

from msgspec import Struct

from channels.discord.fake.state import FORUMS, PRIVATE_THREAD, Channel, Guild, Message, Permission, World
from gateway.testing.fake_platform import Finding, Refusal, Schemas

UNAUTHORIZED: Final = (401, 0, "401: Unauthorized")
NOT_FOUND: Final = (404, 0, "404: Not Found")
WRONG_METHOD: Final = (405, 0, "405: Method Not Allowed")
UNKNOWN_CHANNEL: Final = (404, 10003, "Unknown Channel")
UNKNOWN_GUILD: Final = (404, 10004, "Unknown Guild")
UNKNOWN_MEMBER: Final = (404, 10007, "Unknown Member")
UNKNOWN_MESSAGE: Final = (404, 10008, "Unknown Message")
UNKNOWN_USER: Final = (404, 10013, "Unknown User")
UNKNOWN_EMOJI: Final = (400, 10014, "Unknown Emoji")
UNKNOWN_WEBHOOK: Final = (404, 10015, "Unknown Webhook")
UNKNOWN_INTERACTION: Final = (404, 10062, "Unknown interaction")
UNKNOWN_COMMAND: Final = (404, 10063, "Unknown application command")
NOT_YOUR_APPLICATION: Final = (
    403,
    20012,
    "You are not authorized to perform this action on this application",
)
TOO_MANY_REACTIONS: Final = (400, 30010, "Maximum number of reactions reached (20)")
TOO_MANY_CREATES: Final = (
    400,
    30034,
    "Max number of daily application command creates has been reached (200)",
)
OLD_EDITS: Final = (
    429,
    30046,
    "Maximum number of edits to messages older than 1 hour reached. Try again later.",
)
TOO_LARGE: Final = (413, 40005, "Request entity too large")
ALREADY_ACKNOWLEDGED: Final = (400, 40060, "Interaction has already been acknowledged.")
BAD_USER_AGENT: Final = (403, 40333, "internal network error")
MISSING_ACCESS: Final = (403, 50001, "Missing Access")
NO_TEXT: Final = (400, 50008, "Cannot send messages in a non-text channel")
NOT_IN_DM: Final = (403, 50003, "Cannot execute action on a DM channel")
NOT_YOUR_MESSAGE: Final = (403, 50005, "Cannot edit a message authored by another user")
EMPTY_MESSAGE: Final = (400, 50006, "Cannot send an empty message")
CLOSED_DM: Final = (403, 50007, "Cannot send messages to this user")
MISSING_PERMISSIONS: Final = (403, 50013, "Missing Permissions")
WRONG_CHANNEL_TYPE: Final = (400, 50024, "Cannot execute action on this channel type")
EXPIRED_TOKEN: Final = (401, 50027, "Invalid Webhook Token")
DM_WITH_YOURSELF: Final = (400, 50033, "Invalid Recipient(s)")
TOO_OLD_TO_DELETE: Final = (400, 50034, "You can only bulk delete messages that are under 14 days old.")
INVALID_FORM: Final = (400, 50035, "Invalid Form Body")
ARCHIVED: Final = (400, 50083, "Thread is archived")
INVALID_JSON: Final = (400, 50109, "The request body contains invalid JSON.")
VOICE_WITH_MORE: Final = (400, 50159, "Voice messages do not support additional content.")
VOICE_NOT_ALONE: Final = (400, 50160, "Voice messages must have a single audio attachment.")
VOICE_UNKNOWN: Final = (400, 50161, "Voice messages must have supporting metadata.")
VOICE_EDITED: Final = (400, 50162, "Voice messages cannot be edited.")
NO_VOICE: Final = (403, 50173, "You cannot send voice messages in this channel.")
NO_HISTORY_FOR_REPLY: Final = (
    400,
    160002,
    "Cannot reply without permission to read message history",
)
THREAD_LOCKED: Final = (400, 160005, "This thread is locked")
THREAD_EXISTS: Final = (400, 160004, "A thread has already been created for this message")

_CARELESS: Final = {
    NOT_YOUR_APPLICATION,
    TOO_MANY_CREATES,
    ALREADY_ACKNOWLEDGED,
    BAD_USER_AGENT,
    NOT_IN_DM,
    NOT_YOUR_MESSAGE,
    EMPTY_MESSAGE,
    UNKNOWN_EMOJI,
    DM_WITH_YOURSELF,
    INVALID_FORM,
    INVALID_JSON,
    TOO_LARGE,
    TOO_OLD_TO_DELETE,
    VOICE_NOT_ALONE,
    VOICE_UNKNOWN,
    VOICE_WITH_MORE,
    WRONG_CHANNEL_TYPE,
}


class ApiError(Refusal):
    """Refused call. ``detail`` has further fields of the response."""

    def __init__(
        self, kind: tuple[int, int, str], problem: str | None = None, detail: Mapping[str, Any] | None = None
    ) -> None:
        self.status, self.code, self.message = kind
        self.detail = detail or {}
        super().__init__(self.message, problem or (self.message if kind in _CARELESS else None))

    def body(self) -> dict[str, Any]:
        """Return the body of the response."""
        return {"message": self.message, "code": self.code, **self.detail}


def invalid(path: str, code: str, message: str) -> ApiError:
    """Return the error for an invalid value at a dotted path of the body."""
    tree: dict[str, Any] = {"_errors": [{"code": code, "message": message}]}
    for key in reversed(path.split(".")):
        tree = {key: tree}
    return ApiError(INVALID_FORM, f"{path}: {message}", {"errors": tree})


def unmodelled(what: str) -> ApiError:
    """Return the error for a feature that Discord may have and the fake does not."""
    message = f"the fake has no {what}"
    return ApiError((501, 0, message), message)


class Upload(Struct, frozen=True):
    """File of a call, from the form field ``files[index]``."""

    index: int
    filename: str
    data: bytes


class ApiCall(Struct, frozen=True, kw_only=True):
    """Call of the bot. ``name`` is the verb and the path template, ``path`` the values of the template."""

    name: str
    path: Mapping[str, str]
    query: Mapping[str, str] = {}
    body: Any = None
    files: tuple[Upload, ...] = ()

    def id(self, name: str) -> int:
        """Return an id from the path. Raises ApiError."""
        given = self.path[name]
        if not given.isdecimal():
            raise invalid(name, "NUMBER_TYPE_COERCE", f'Value "{given}" is not snowflake.')
        return int(given)

    @property
    def arguments(self) -> dict[str, Any]:
        """Return all arguments, for the transcript."""
        given: dict[str, Any] = {**self.path, **self.query}
        if isinstance(self.body, dict):
            given |= cast("dict[str, Any]", self.body)
        elif self.body is not None:
            given["body"] = self.body
        if self.files:
            given["files"] = [file.filename for file in self.files]
        return given

    def major(self) -> str:
        """Return the part of a rate limit's key that names the channel, guild or webhook."""
        keys = ("channel_id", "guild_id", "webhook_id", "webhook_token")
        return ":".join(self.path[key] for key in keys if key in self.path)


class Answer(Struct, frozen=True):
    """Response to a call. ``problem`` is a rule that the call broke although it was applied."""

    status: int = 204
    body: Any = None
    problem: str | None = None


Handler = Callable[[ApiCall], Answer]


class Access:
    """Checks of what the bot may see and do. The methods raise ApiError."""

    def __init__(self, world: World) -> None:
        self._world = world

    def guild(self, call: ApiCall) -> Guild:
        """Return the guild of a call."""
        guild = self._world.guilds.get(call.id("guild_id"))
        if guild is None:
            raise ApiError(UNKNOWN_GUILD)
        return guild

    def channel(self, call: ApiCall) -> Channel:
        """Return the channel of a call, if the bot can see it."""
        channel = self._world.channels.get(call.id("channel_id"))
        if channel is None:
            raise ApiError(UNKNOWN_CHANNEL)
        if not self.sees(channel):
            raise ApiError(MISSING_ACCESS)
        return channel

    def sees(self, channel: Channel) -> bool:
        """Return whether the bot can see a channel."""
        if channel.kind == PRIVATE_THREAD and channel.thread is not None:
            inside = self._world.bot.id in channel.thread.members
            if not inside and not self._world.may(channel, "MANAGE_THREADS"):
                return False
        return self._world.may(channel, "VIEW_CHANNEL")

    def message(self, call: ApiCall, channel: Channel) -> Message:
        """Return the message of a call; an ephemeral message counts as unknown."""
        message = self._world.messages[channel.id].get(call.id("message_id"))
        if message is None or message.ephemeral:
            raise ApiError(UNKNOWN_MESSAGE)
        return message

    def demand(self, channel: Channel, *names: Permission) -> None:
        """Require permissions in a channel."""
        if not self._world.may(channel, *names):
            raise ApiError(MISSING_PERMISSIONS)

    def demand_write(self, channel: Channel) -> None:
        """Require that the bot may write; an archived thread allows that, a locked one only to moderators."""
        if channel.recipient in self._world.refusing:
            raise ApiError(CLOSED_DM)
        if channel.kind in FORUMS:
            raise ApiError(NO_TEXT, "a forum has only posts")
        state = channel.thread
        self.demand(channel, "SEND_MESSAGES" if state is None else "SEND_MESSAGES_IN_THREADS")
        if state is not None and state.locked and not self._world.may(channel, "MANAGE_THREADS"):
            raise ApiError(ARCHIVED if state.archived else THREAD_LOCKED)

    def demand_active(self, channel: Channel) -> None:
        """Require that a thread is neither archived nor, unless the bot moderates, locked."""
        state = channel.thread
        if state is not None and state.archived:
            raise ApiError(ARCHIVED)
        if state is not None and state.locked and not self._world.may(channel, "MANAGE_THREADS"):
            raise ApiError(THREAD_LOCKED)


_SNOWFLAKE: Final = re.compile(r"0|[1-9][0-9]{0,19}")
_SCHEMES: Final = ("http", "https", "discord", "attachment")
_MISFITS: Final = ("type", "pattern", "format")
_KINDS: Final = {
    "object": ("DICT_TYPE_CONVERT", "Only dictionaries may be used in a DictType"),
    "array": ("LIST_TYPE_CONVERT", "Only iterables may be used in a ListType"),
    "boolean": ("BOOLEAN_TYPE_CONVERT", "Must be either true or false."),
}


class Wrong(Struct, frozen=True):
    """Violation of the schema: its place, and Discord's code and message for it."""

    path: tuple[str, ...]
    code: str
    message: str


class Findings(Struct, frozen=True):
    """Result of a check. ``unknown`` are parameters that Discord ignores."""

    wrong: tuple[Wrong, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def problem(self) -> str | None:
        """Return all findings in one line; None if there are none."""
        said = [f"{'.'.join(wrong.path) or 'body'}: {wrong.message}" for wrong in self.wrong]
        said += [f"{name}: no such parameter" for name in self.unknown]
        return "; ".join(said) or None


@cache
def schemas() -> Schemas:
    """Return the published schemas of calls and gateway payloads."""
    return Schemas.beside(__file__, formats=FORMATS)


def check_call(call: ApiCall) -> str | None:
    """Check a call. Returns the ignored parameters as a problem; raises ApiError for a violation."""
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
    """Check a payload that the bot sent to the gateway with an opcode."""
    known = str(op) in schemas().at("ops")
    return check(schemas(), data, "ops", str(op)) if known else Findings()


def check(document: Schemas, value: object, *place: str) -> Findings:
    """Check a value against the schema at a place."""
    found = document.check(value, *place)
    unfit = {one.at for one in found if one.keyword in _MISFITS}
    # A value of the wrong type is reported once, without its other violations.
    said = [one for one in found if one.at not in unfit or one.keyword in _MISFITS]
    return Findings(
        tuple(dict.fromkeys(_wrong(one) for one in said if one.keyword != "unknown")),
        tuple(".".join(map(str, one.at)) for one in said if one.keyword == "unknown"),
    )


def error_tree(wrong: Iterable[Wrong]) -> dict[str, Any]:
    """Return the field ``errors`` of the response, nested as the body is."""
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
    """Return Discord's code and message for a finding."""
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
    """Convert a query parameter to the type of its schema; return the text itself if it has no such type."""
    kinds = schema.get("type", ())
    if "boolean" in kinds:
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
    if "integer" in kinds and schema.get("format") != "snowflake" and re.fullmatch(r"-?[0-9]+", text):
        return int(text)
    return text
