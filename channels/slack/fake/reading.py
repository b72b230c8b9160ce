"""Rooms as people see them."""

from __future__ import annotations

from msgspec import Struct

from channels.slack.fake.blocks import spoken
from channels.slack.fake.state import State
from channels.slack.fake.workspace import Json, Room


class Said(Struct, frozen=True, kw_only=True):
    """A message that stands in a room. ``text`` is what shows, in Slack's own escaping; ``thread`` the first
    message's ``ts`` if it is a reply; ``reactions`` maps emoji to users; ``raw`` is the platform's object.
    """

    ts: str
    user: str
    text: str
    bot: bool
    thread: str | None
    edited: bool
    streaming: bool
    reactions: dict[str, tuple[str, ...]]
    files: tuple[str, ...]
    raw: Json


def said(state: State, room: Room, message: Json) -> Said:
    """A message as it shows."""
    team = state.teams[room.team]
    user = team.users.get(message.get("user", ""))
    root = message.get("thread_ts")
    shown = spoken(message.get("blocks", ())) if "bot_id" in message else ""
    return Said(
        ts=message["ts"],
        user=user.name if user else message.get("username", message.get("user", "")),
        text=shown or message.get("text", ""),
        bot="bot_id" in message,
        thread=root if root != message["ts"] else None,
        edited="edited" in message,
        streaming=message.get("streaming_state") == "in_progress",
        reactions={one["name"]: tuple(one["users"]) for one in message.get("reactions", ())},
        files=tuple(one["name"] for one in message.get("files", ())),
        raw=message,
    )
