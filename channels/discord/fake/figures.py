"""The platform's figures: how much it takes, and how long it waits. Times are seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

_CHANNEL, _MESSAGE = "/channels/{channel_id}", "/channels/{channel_id}/messages/{message_id}"
_REACTION = _MESSAGE + "/reactions/{emoji_name}"
_REACTING: Final = (1, 0.25)

BUCKETS: Final[Mapping[str, tuple[int, float]]] = {
    f"POST {_CHANNEL}/messages": (5, 5),
    f"GET {_CHANNEL}/messages": (5, 5),
    f"PATCH {_MESSAGE}": (5, 5),
    f"DELETE {_MESSAGE}": (5, 1),
    f"POST {_CHANNEL}/messages/bulk-delete": (1, 1),
    f"PUT {_REACTION}/@me": _REACTING,
    f"DELETE {_REACTION}/@me": _REACTING,
    f"DELETE {_REACTION}/{{user_id}}": _REACTING,
    f"POST {_CHANNEL}/typing": (5, 5),
    f"PATCH {_CHANNEL}": (2, 600),
    f"POST {_MESSAGE}/threads": (50, 300),
    f"POST {_CHANNEL}/threads": (50, 300),
    "POST /webhooks/{webhook_id}/{webhook_token}": (5, 2),
    "PATCH /webhooks/{webhook_id}/{webhook_token}/messages/@original": (5, 5),
    "PATCH /webhooks/{webhook_id}/{webhook_token}/messages/{message_id}": (5, 5),
}
"""Calls in a time, of one channel, guild or webhook. Not published: as seen in the answers' headers."""

ELSEWHERE: Final = (10, 10)
"""The bucket of a call that is not named above."""

UNLIMITED_CALLS: Final = frozenset(
    {"POST /interactions/{interaction_id}/{interaction_token}/callback", "GET /gateway"}
)
"""Calls without a bucket."""


class Figures(Struct, frozen=True, kw_only=True):
    """The figures, by default the platform's own. ``limits`` switches the limits on the rate of calls off."""

    limits: bool = True
    calls_a_second: int = 50
    invalid_calls: int = 10_000
    invalid_window: float = 600
    old_edits: int = 3
    old_edits_window: float = 20
    identifies: int = 1000
    identify_window: float = 86_400
    identify_interval: float = 5
    gateway_events: int = 120
    gateway_window: float = 60
    gateway_bytes: int = 4096
    command_creates: int = 200
    heartbeat: float = 41.25
    resumable: float = 180
    nonces: float = 180
    first_response: float = 3
    token_life: float = 900
    link_life: float = 86_400
    file_bytes: int = 10 * 1024 * 1024
    request_bytes: int = 25 * 1024 * 1024


def relaxed() -> Figures:
    """Nothing limits the rate, and no time has to pass between two identifies."""
    return Figures(limits=False, identify_interval=0)
