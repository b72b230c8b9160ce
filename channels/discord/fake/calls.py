"""A call of the bot, its answer, the platform's errors, and the access of the bot to chats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from msgspec import Struct

from channels.discord.fake.state import PRIVATE_THREAD, Channel, Guild, Message, Permission, World
from gateway.testing.fake_platform import Refusal

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
    """A call that the platform refuses. ``detail`` are further fields of its answer."""

    def __init__(
        self, kind: tuple[int, int, str], problem: str | None = None, detail: Mapping[str, Any] | None = None
    ) -> None:
        self.status, self.code, self.message = kind
        self.detail = detail or {}
        super().__init__(self.message, problem or (self.message if kind in _CARELESS else None))

    def body(self) -> dict[str, Any]:
        """The platform's answer."""
        return {"message": self.message, "code": self.code, **self.detail}


def invalid(path: str, code: str, message: str) -> ApiError:
    """A body that has something wrong at a dotted path."""
    tree: dict[str, Any] = {"_errors": [{"code": code, "message": message}]}
    for key in reversed(path.split(".")):
        tree = {key: tree}
    return ApiError(INVALID_FORM, f"{path}: {message}", {"errors": tree})


def unmodelled(what: str) -> ApiError:
    """A call that the platform may understand, and this fake does not."""
    message = f"the fake has no {what}"
    return ApiError((501, 0, message), message)


class Upload(Struct, frozen=True):
    """A file that came with a call, under ``files[index]``."""

    index: int
    filename: str
    data: bytes


class ApiCall(Struct, frozen=True, kw_only=True):
    """A call. ``name`` is its verb and path template, ``path`` the values of the template's gaps."""

    name: str
    path: Mapping[str, str]
    query: Mapping[str, str] = {}
    body: Any = None
    files: tuple[Upload, ...] = ()

    def id(self, name: str) -> int:
        """An id from the path. Raises ApiError."""
        given = self.path[name]
        if not given.isdecimal():
            raise invalid(name, "NUMBER_TYPE_COERCE", f'Value "{given}" is not snowflake.')
        return int(given)

    @property
    def arguments(self) -> dict[str, Any]:
        """Everything that was given, for the transcript."""
        given: dict[str, Any] = {**self.path, **self.query}
        if isinstance(self.body, dict):
            given |= cast("dict[str, Any]", self.body)
        elif self.body is not None:
            given["body"] = self.body
        if self.files:
            given["files"] = [file.filename for file in self.files]
        return given

    def major(self) -> str:
        """Return the key of a rate limit: a channel, a guild, or a webhook with its token."""
        keys = ("channel_id", "guild_id", "webhook_id", "webhook_token")
        return ":".join(self.path[key] for key in keys if key in self.path)


class Answer(Struct, frozen=True):
    """The answer of a call. ``problem`` is a rule that the call broke although it was applied."""

    status: int = 204
    body: Any = None
    problem: str | None = None


Handler = Callable[[ApiCall], Answer]


class Access:
    """Everything raises ApiError."""

    def __init__(self, world: World) -> None:
        self._world = world

    def guild(self, call: ApiCall) -> Guild:
        """The guild that a call names."""
        guild = self._world.guilds.get(call.id("guild_id"))
        if guild is None:
            raise ApiError(UNKNOWN_GUILD)
        return guild

    def channel(self, call: ApiCall) -> Channel:
        """The room that a call names, if the bot can see it."""
        channel = self._world.channels.get(call.id("channel_id"))
        if channel is None:
            raise ApiError(UNKNOWN_CHANNEL)
        if not self.sees(channel):
            raise ApiError(MISSING_ACCESS)
        return channel

    def sees(self, channel: Channel) -> bool:
        """Return whether the bot can see a room."""
        if channel.kind == PRIVATE_THREAD and channel.thread is not None:
            inside = self._world.bot.id in channel.thread.members
            if not inside and not self._world.may(channel, "MANAGE_THREADS"):
                return False
        return self._world.may(channel, "VIEW_CHANNEL")

    def message(self, call: ApiCall, channel: Channel) -> Message:
        """The message that a call names. What only a person sees cannot be had this way."""
        message = self._world.messages[channel.id].get(call.id("message_id"))
        if message is None or message.ephemeral:
            raise ApiError(UNKNOWN_MESSAGE)
        return message

    def demand(self, channel: Channel, *names: Permission) -> None:
        """The bot needs permissions."""
        if not self._world.may(channel, *names):
            raise ApiError(MISSING_PERMISSIONS)

    def demand_write(self, channel: Channel) -> None:
        """The bot wants to write in a room. That takes a thread out of the archive, unless it is locked."""
        if channel.recipient in self._world.refusing:
            raise ApiError(CLOSED_DM)
        state = channel.thread
        self.demand(channel, "SEND_MESSAGES" if state is None else "SEND_MESSAGES_IN_THREADS")
        if state is not None and state.locked and not self._world.may(channel, "MANAGE_THREADS"):
            raise ApiError(ARCHIVED if state.archived else THREAD_LOCKED)

    def demand_active(self, channel: Channel) -> None:
        """The bot wants to do what cannot be done in an archived thread."""
        state = channel.thread
        if state is not None and state.archived:
            raise ApiError(ARCHIVED)
        if state is not None and state.locked and not self._world.may(channel, "MANAGE_THREADS"):
            raise ApiError(THREAD_LOCKED)
