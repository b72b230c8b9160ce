"""The platform's errors: status, code and sentence, as it publishes them.

A ``problem`` is an error that a correct bot never causes, whatever people do; it goes into the transcript.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

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


class ApiError(Exception):
    """A call that the platform refuses. ``detail`` are further fields of its answer."""

    def __init__(
        self, kind: tuple[int, int, str], problem: str | None = None, detail: Mapping[str, Any] | None = None
    ) -> None:
        self.status, self.code, self.message = kind
        self.problem = problem or (self.message if kind in _CARELESS else None)
        self.detail = detail or {}
        super().__init__(self.message)

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
