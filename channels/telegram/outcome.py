"""Mapping of call errors to the delivery errors of a message."""

from __future__ import annotations

from channels.telegram.api import CallError, NotSentError, RefusedError
from channels.telegram.pace import Pace
from gateway.channel import PlacementDeferred, PlacementRefused, PlacementUncertain

SAME = "message is not modified"
FOREIGN = "can't be edited"
MISSING = ("message to edit not found", "message_id_invalid")

_WAIT_FOR_TOKEN = 60.0


def outcome(pace: Pace, chat: str, error: CallError) -> Exception:
    """Return the error that ``Channel.send`` raises. If the platform asked to wait, calls about the chat
    are held."""
    if isinstance(error, NotSentError):
        return PlacementDeferred(str(error))
    if not isinstance(error, RefusedError):
        return PlacementUncertain(str(error))
    if error.retry_after is not None or error.code == 429:
        seconds = error.retry_after or 1.0
        pace.hold(chat, seconds)
        return PlacementDeferred("the platform asked to wait", seconds)
    if error.code in (401, 404, 409):
        return PlacementDeferred(error.reason, _WAIT_FOR_TOKEN)
    return PlacementRefused(error.reason)
