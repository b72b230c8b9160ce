"""What happens in rooms, whoever does it: messages are placed, changed, removed, and the app is told."""

from __future__ import annotations

from channels.slack.fake.payloads import emit, emit_message
from channels.slack.fake.state import State
from channels.slack.fake.workspace import Json, Kind, Room, User, Workspace

ROOM_PREFIX = {"channel": "C", "group": "C", "im": "D", "mpim": "G"}


def new_user(state: State, team: Workspace, name: str) -> User:
    """A person joins the workspace."""
    user = User(id=state.names.next("U"), team=team.id, name=name, real_name=name.replace("-", " ").title())
    team.users[user.id] = user
    return user


def new_room(state: State, team: Workspace, kind: Kind, name: str, members: set[str]) -> Room:
    """A room is opened."""
    room = Room(
        id=state.names.next(ROOM_PREFIX[kind]),
        team=team.id,
        name=name,
        kind=kind,
        created=state.stamps.seconds(),
        members=members,
    )
    team.rooms[room.id] = room
    state.changed()
    return room


def direct(state: State, team: Workspace, *users: str) -> Room:
    """The direct message of some users, opened if there is none."""
    found = team.between(*users)
    if found is not None:
        return found
    if len(users) == 2:
        return new_room(state, team, "im", "", set(users))
    names = "--".join(team.users[user].name for user in users)
    return new_room(state, team, "mpim", f"mpdm-{names}-1", set(users))


def place(state: State, room: Room, message: Json) -> Json:
    """A message appears. A reply is counted at its thread's first message."""
    room.messages[message["ts"]] = message
    root = room.messages.get(message.get("thread_ts", ""))
    if root is not None and root["ts"] != message["ts"]:
        room.messages[root["ts"]] = {**root, **_replies(room, root["ts"])}
        state.statuses.pop((room.id, root["ts"]), None)
    emit_message(state, room, message)
    return message


def change(state: State, room: Room, ts: str, fields: Json, *, told: bool = True) -> Json:
    """A message is different now. Fields that are None go away. The app is told unless nobody is."""
    before = room.messages[ts]
    after = {key: value for key, value in {**before, **fields}.items() if value is not None}
    room.messages[ts] = after
    if told:
        event = {"subtype": "message_changed", "message": after, "previous_message": before}
        emit_message(state, room, _hidden(state, event))
    else:
        state.changed()
    return after


def expire_stream(state: State, room: Room, ts: str) -> None:
    """A stream whose time is over ends; its message keeps what it has."""
    stream = state.streams.get((room.id, ts))
    if stream is not None and state.clock.now() > stream.until:
        del state.streams[room.id, ts]
        change(state, room, ts, {"streaming_state": "errored"})


def remove(state: State, room: Room, ts: str) -> None:
    """A message is taken away. What had replies leaves a tombstone to hang them on."""
    before = room.messages[ts]
    if before.get("reply_count"):
        told = {"subtype": "tombstone", "text": "This message was deleted.", "user": "USLACKBOT"}
        kept = ("type", "ts", "thread_ts", "reply_count", "reply_users_count", "reply_users", "latest_reply")
        room.messages[ts] = after = (
            {key: before[key] for key in kept if key in before} | told | {"hidden": True}
        )
        event = {"subtype": "message_changed", "message": after, "previous_message": before}
        emit_message(state, room, _hidden(state, event))
        return
    del room.messages[ts]
    root = before.get("thread_ts")
    if root in room.messages:
        room.messages[root] = {**room.messages[root], **_replies(room, root)}
    event = {"subtype": "message_deleted", "deleted_ts": ts, "previous_message": before}
    emit_message(state, room, _hidden(state, event))


def react(state: State, room: Room, ts: str, user: User, name: str, *, add: bool) -> bool:
    """A reaction is set or taken back. False if there was nothing to do."""
    message = room.messages[ts]
    reactions: list[Json] = [dict(one) for one in message.get("reactions", ())]
    found = next((one for one in reactions if one["name"] == name), None)
    if (found is not None and user.id in found["users"]) == add:
        return False
    if found is None:
        new: Json = {"name": name, "users": [], "count": 0}
        reactions.append(found := new)
    users: list[str] = [one for one in found["users"] if one != user.id] + ([user.id] if add else [])
    found.update(users=users, count=len(users))
    room.messages[ts] = {**message, "reactions": [one for one in reactions if one["users"]]}
    state.changed()
    team = state.teams[room.team]
    if team.sees(room):
        event = {
            "type": "reaction_added" if add else "reaction_removed",
            "user": user.id,
            "reaction": name,
            "item": {"type": "message", "channel": room.id, "ts": ts},
            "item_user": message.get("user", ""),
            "event_ts": state.stamps.next(),
        }
        emit(state, team, event)
    return True


def _hidden(state: State, event: Json) -> Json:
    return {"type": "message", "hidden": True, "ts": state.stamps.next(), **event}


def _replies(room: Room, root: str) -> Json:
    replies = [message for message in room.thread(root) if message["ts"] != root]
    users = list(dict.fromkeys(message.get("user", "") for message in replies))
    if not replies:
        return {"reply_count": 0, "reply_users": [], "reply_users_count": 0}
    return {
        "thread_ts": root,
        "reply_count": len(replies),
        "reply_users": users,
        "reply_users_count": len(users),
        "latest_reply": replies[-1]["ts"],
    }
