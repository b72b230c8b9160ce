"""State of the fake homeserver: rooms, and one stream of their events that all positions refer to."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from gateway import now_ms

Json = dict[str, Any]

MOST_BYTES = 65_536
SERVER = "fake.example"
BOT = f"@trunkline:{SERVER}"


class Room:
    """A room: its events by their position in the stream. ``readable``: its history can be paged;
    ``public``: anyone can join it."""

    def __init__(self, homeserver: State, room_id: str, creator: str) -> None:
        self.id = room_id
        self.readable = True
        self.public = False
        self.stream: list[tuple[int, Any]] = []
        self.state: dict[tuple[str, str], Json] = {}
        self._homeserver = homeserver
        self.put("m.room.create", creator, {"room_version": "11"}, state_key="")
        self.put("m.room.member", creator, {"membership": "join"}, state_key=creator)

    def put(
        self, kind: str, sender: str, content: object, *, state_key: str | None = None, **more: object
    ) -> Json:
        """Add an event, and return it."""
        event: Json = {
            "type": kind,
            "sender": sender,
            "content": content,
            "event_id": f"${next(self._homeserver.ids)}",
            "origin_server_ts": self._homeserver.clock_ms(),
            **more,
        }
        if state_key is not None:
            event["state_key"] = state_key
            self.state[kind, state_key] = event
        self.inject(event)
        return event

    def inject(self, event: Any) -> None:
        """Add anything to the timeline, as it is."""
        self.stream.append((next(self._homeserver.positions), event))
        self._homeserver.changed()

    @property
    def events(self) -> list[Json]:
        """The events that are objects."""
        return [cast(Json, event) for _, event in self.stream if isinstance(event, dict)]

    def membership(self, user: str) -> str:
        """Return the membership of a user; ``leave`` for one who was never there."""
        event = self.state.get(("m.room.member", user), {})
        return str(event.get("content", {}).get("membership", "leave"))

    def find(self, event_id: str) -> Json | None:
        """Return an event by its id, with its newest edit, as homeservers bundle it."""
        events = self.events
        found = next((event for event in events if event.get("event_id") == event_id), None)
        edit = next((one for one in reversed(events) if replaces(one) == event_id), None)
        if found is None or edit is None or edit["sender"] != found["sender"]:
            return found
        return {**found, "unsigned": {"m.relations": {"m.replace": edit}}}

    def redact(self, event_id: str, sender: str) -> Json:
        """Remove the content of an event."""
        redaction = self.put("m.room.redaction", sender, {"redacts": event_id})
        for event in self.events:
            if event.get("event_id") == event_id:
                event["content"] = {}
                event["unsigned"] = {"redacted_because": redaction}
        return redaction

    def shown(self, sender: str) -> Sequence[Json]:
        """Return the contents of a user's messages as clients show them, with edits applied."""
        return [message["content"] for message in self.messages() if message["sender"] == sender]

    def messages(self) -> list[Json]:
        """Return the messages that are not deleted, with edits applied."""
        found: dict[str, Json] = {}
        for event in self.events:
            content, key, sender = event.get("content"), str(event.get("event_id")), event.get("sender")
            if event.get("type") != "m.room.message" or not content:
                continue
            edited = replaces(event)
            if edited is None:
                related = relation(event)
                found[key] = {
                    "id": key,
                    "sender": sender,
                    "content": content,
                    "relation": related,
                    "edited": False,
                }
            elif edited in found and found[edited]["sender"] == sender:
                found[edited] |= {"content": content["m.new_content"], "edited": True}
        return [*found.values()]


class State:
    """The rooms, the account data and the files of the homeserver. ``skew_ms`` moves its clock."""

    def __init__(self) -> None:
        self.rooms: dict[str, Room] = {}
        self.account_data: dict[tuple[str, str], Json] = {}
        self.account_changes: list[tuple[int, str, Json]] = []
        self.files: dict[str, tuple[str, bytes]] = {}
        self.names = {f"@ada:{SERVER}": "Ada", f"@ben:{SERVER}": "Ben", BOT: "Trunk Line"}
        self.ids = itertools.count(1)
        self.positions = itertools.count(1)
        self.skew_ms = 0

    @property
    def position(self) -> int:
        """The position of the newest event."""
        events = [room.stream[-1][0] for room in self.rooms.values() if room.stream]
        return max([*events, *(at for at, _, _ in self.account_changes)], default=0)

    def clock_ms(self) -> int:
        """Return the time of the homeserver, which may jump."""
        return now_ms() + self.skew_ms

    def create(self, creator: str, *, direct: bool = False, invite: str = BOT, name: str = "") -> Room:
        """Create a room and invite a user."""
        room_id = f"!room{next(self.ids)}:{SERVER}"
        room = self.rooms[room_id] = Room(self, room_id, creator)
        if name:
            room.put("m.room.name", creator, {"name": name}, state_key="")
        invitation = {"membership": "invite", **({"is_direct": True} if direct else {})}
        room.put("m.room.member", creator, invitation, state_key=invite)
        return room

    def join(self, room: Room, user: str) -> None:
        """Let a user join a room."""
        content = {"membership": "join", "displayname": self.names.get(user, user)}
        room.put("m.room.member", user, content, state_key=user)

    def upgrade(self, room: Room, user: str, *, public: bool) -> Room:
        """Replace a room as an upgrade does. The bot is not invited to the new one."""
        room_id = f"!room{next(self.ids)}:{SERVER}"
        new = self.rooms[room_id] = Room(self, room_id, user)
        new.public = public
        content = {"body": "This room has been replaced", "replacement_room": room_id}
        room.put("m.room.tombstone", user, content, state_key="")
        return new

    def changed(self) -> None:
        """Report a change; the server overrides it."""


def replaces(event: Mapping[str, Any]) -> str | None:
    """Return the id of the event that an event edits."""
    related = relation(event)
    return str(related.get("event_id")) if related.get("rel_type") == "m.replace" else None


def relation(event: Mapping[str, Any]) -> Json:
    """Return what relates an event to another one."""
    content = event.get("content")
    related = cast(Json, content).get("m.relates_to") if isinstance(content, dict) else None
    return cast(Json, related) if isinstance(related, dict) else {}


def complaint(content: Json) -> str | None:
    """Return the rule that the content of a message of the bot breaks, or None."""
    if len(msgspec.json.encode(content)) > MOST_BYTES - 2_000:
        return "the event is too large"
    new = content.get("m.new_content", content)
    if not isinstance(new.get("body"), str) or not str(new.get("msgtype", "")).startswith("m."):
        return "a message needs body and msgtype"
    if ("formatted_body" in new) != (new.get("format") == "org.matrix.custom.html"):
        return "formatted_body needs its format"
    return None
