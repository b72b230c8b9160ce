"""Conversations: the changes in them, and the methods about them and their histories."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Any

from channels.slack.fake.calls import Asked, RefusalError, invalid, objects
from channels.slack.fake.delivery import emit, emit_message
from channels.slack.fake.state import SCOPE_FAMILY, Json, Kind, Room, Session, State, User, Workspace

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
    state.changes.bump()
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
    """Change fields of a message; None removes one. ``told`` sends the event of it."""
    before = room.messages[ts]
    after = {key: value for key, value in {**before, **fields}.items() if value is not None}
    room.messages[ts] = after
    if told:
        event = {"subtype": "message_changed", "message": after, "previous_message": before}
        emit_message(state, room, _hidden(state, event))
    else:
        state.changes.bump()
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
    state.changes.bump()
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


_STAMP = re.compile(r"\d+(\.\d+)?")
_TYPES: dict[str, Kind] = {
    "public_channel": "channel",
    "private_channel": "group",
    "mpim": "mpim",
    "im": "im",
}
SCARCE_ROWS = 15


def history(asked: Asked) -> Json:
    """``conversations.history``: newest first."""
    room = _readable(asked)
    told = {"pin_count": 0, "channel_actions_ts": None, "channel_actions_count": 0}
    return {**_page(asked, [*reversed(_between(asked, room.top()))], 100), **told}


def replies(asked: Asked) -> Json:
    """``conversations.replies``: a thread, starting with its first message regardless of the bounds."""
    room = _readable(asked)
    named = room.messages.get(asked["ts"])
    if named is None:
        raise RefusalError("thread_not_found")
    first, *rest = room.thread(named.get("thread_ts", named["ts"]))
    return _page(asked, [first, *_between(asked, rest)], 1000)


def info(asked: Asked) -> Json:
    """``conversations.info``."""
    room = asked.room(inside=False)
    asked.need(room, "read")
    told = described(asked, room)
    if asked.get("include_num_members"):
        told["num_members"] = len(room.members)
    return {"channel": told}


def members(asked: Asked) -> Json:
    """``conversations.members``."""
    room = asked.room(inside=False)
    asked.need(room, "read")
    return paged(asked, "members", sorted(room.members), 100)


def listing(asked: Asked) -> Json:
    """``conversations.list``."""
    return paged(asked, "channels", [described(asked, room) for room in _wanted(asked)], 100)


def of_user(asked: Asked) -> Json:
    """``users.conversations``: those of a user, the caller by default."""
    user = asked.get("user", asked.grant.user)
    return paged(
        asked,
        "channels",
        [described(asked, r) for r in _wanted(asked) if {user, asked.grant.user} <= r.members],
        100,
    )


def open_direct(asked: Asked) -> Json:
    """``conversations.open``: a direct message, there or new."""
    if asked.get("channel"):
        room = asked.room(inside=False)
        if not room.direct:
            raise RefusalError("method_not_supported_for_channel_type", "only direct messages are opened")
        return _opened(asked, room, there=True)
    users = [name.strip() for name in asked.get("users", "").split(",") if name.strip()]
    if not users:
        raise RefusalError("users_list_not_supplied", "neither a channel nor users")
    if len(users) > 8:
        raise RefusalError("too_many_users", f"{len(users)} users")
    if not set(users) <= set(asked.team.users):
        raise RefusalError("user_not_found")
    everybody = (*users, asked.grant.user)
    there = asked.team.between(*everybody) is not None
    if not there and asked.get("prevent_creation"):
        raise RefusalError("channel_not_found")
    asked.need_scope("im:write" if len(users) == 1 else "mpim:write")
    return _opened(asked, direct(asked.state, asked.team, *everybody), there=there)


def join(asked: Asked) -> Json:
    """``conversations.join``."""
    room = asked.room(inside=False)
    if room.kind != "channel":
        raise RefusalError("method_not_supported_for_channel_type", "only public channels are joined")
    if room.archived:
        raise RefusalError("is_archived")
    there = asked.grant.user in room.members
    enter(asked, room)
    return {"channel": described(asked, room), **({"warning": "already_in_channel"} if there else {})}


def enter(asked: Asked, room: Room) -> None:
    """The caller becomes a member."""
    if asked.grant.user not in room.members:
        room.members.add(asked.grant.user)
        event = {
            "type": "member_joined_channel",
            "user": asked.grant.user,
            "channel": room.id,
            "team": room.team,
        }
        emit(asked.state, asked.team, {**event, "channel_type": "C", "event_ts": asked.state.stamps.next()})
        asked.state.changes.bump()


def described(asked: Asked, room: Room) -> Json:
    """A room as the platform describes it."""
    told: Json = {
        "id": room.id,
        "created": room.created,
        "is_archived": room.archived,
        "is_im": room.kind == "im",
        "is_mpim": room.kind == "mpim",
        "is_org_shared": False,
        "context_team_id": room.team,
        "updated": room.created * 1000,
    }
    if room.kind == "im":
        other = next((user for user in sorted(room.members) if user != asked.grant.user), asked.grant.user)
        return {**told, "user": other, "is_user_deleted": False, "is_open": True, "priority": 0}
    nothing = {"value": "", "creator": "", "last_set": 0}
    return {
        **told,
        "name": room.name,
        "name_normalized": room.name,
        "is_channel": room.kind == "channel",
        "is_group": room.kind == "group",
        "is_private": room.kind != "channel",
        "is_general": room.name == "general",
        "is_member": asked.grant.user in room.members,
        "is_shared": False,
        "is_ext_shared": False,
        "creator": min(room.members, default=""),
        "topic": nothing,
        "purpose": nothing,
        "previous_names": [],
    }


def paged(asked: Asked, name: str, rows: Sequence[Any], usual: int) -> Json:
    """One page of a listing."""
    start, end = _window(asked, len(rows), asked.get("limit") or usual)
    return {name: list(rows[start:end]), "response_metadata": {"next_cursor": _cursor(end, len(rows))}}


def _page(asked: Asked, messages: Sequence[Json], usual: int) -> Json:
    most = asked.get("limit", usual)
    if asked.state.switches.scarce_history:
        most = min(most, SCARCE_ROWS)
    start, end = _window(asked, len(messages), most)
    more = end < len(messages)
    rows = [_shown(asked, message) for message in messages[start:end]]
    told: Json = {"messages": rows, "has_more": more}
    return {**told, "response_metadata": {"next_cursor": _cursor(end, len(messages))}} if more else told


def _shown(asked: Asked, message: Json) -> Json:
    """A message in a history: its metadata's payload only for who asks for it."""
    told = message.get("metadata")
    if told is None or asked.get("include_all_metadata"):
        return message
    return {**message, "metadata": {"event_type": told["event_type"]}}


def _readable(asked: Asked) -> Room:
    room = asked.room()
    asked.need(room, "history")
    return room


def _between(asked: Asked, messages: Sequence[Json]) -> list[Json]:
    for bound in ("oldest", "latest"):
        if asked.get(bound) not in (None, "now") and not _STAMP.fullmatch(asked[bound]):
            raise RefusalError(f"invalid_ts_{bound}", f"{bound} is no timestamp")
    oldest, latest = _order(asked.get("oldest") or "0"), _order(asked.get("latest") or "now")
    inclusive = asked.get("inclusive", False)
    return [
        message
        for message in messages
        if oldest < (at := _order(message["ts"])) < latest or (inclusive and at in (oldest, latest))
    ]


def _order(ts: str) -> int:
    """Microseconds, exactly: a float would confuse neighbours."""
    if ts == "now":
        return 10**18
    seconds, _, rest = ts.partition(".")
    return int(seconds) * 1_000_000 + int(rest.ljust(6, "0")[:6])


def _wanted(asked: Asked) -> list[Room]:
    names = [name.strip() for name in asked.get("types", "public_channel").split(",")]
    if not set(names) <= set(_TYPES):
        raise RefusalError("invalid_types", f"types: {', '.join(names)}")
    kinds: set[Kind] = {_TYPES[name] for name in names}
    for kind in kinds:
        asked.need_scope(f"{SCOPE_FAMILY[kind]}:read")
    return [
        room
        for room in asked.team.rooms.values()
        if room.kind in kinds
        and (room.kind == "channel" or asked.grant.user in room.members)
        and not (room.archived and asked.get("exclude_archived"))
    ]


def _opened(asked: Asked, room: Room, *, there: bool) -> Json:
    told = described(asked, room) if asked.get("return_im") else {"id": room.id}
    return {"channel": told, **({"no_op": True, "already_open": True} if there else {})}


def _window(asked: Asked, count: int, size: int) -> tuple[int, int]:
    given = asked.get("cursor")
    start = 0
    if given:
        try:
            start = int(base64.b64decode(given, validate=True).decode().removeprefix("row:"))
        except (binascii.Error, ValueError):
            raise RefusalError("invalid_cursor", "a cursor that no answer held") from None
    return start, min(count, start + size)


def _cursor(end: int, count: int) -> str:
    return base64.b64encode(f"row:{end}".encode()).decode() if end < count else ""


STATUS_LIFE = 2 * 60
MOST_PROMPTS = 4
LONGEST_TITLE = 200


def set_status(asked: Asked) -> Json:
    """``assistant.threads.setStatus``: shows for two minutes, or until the app says something."""
    room, root = _thread(asked)
    key = (room.id, root)
    if asked["status"]:
        asked.state.statuses[key] = (asked["status"], asked.state.clock.now() + STATUS_LIFE)
    else:
        asked.state.statuses.pop(key, None)
    asked.state.changes.bump()
    return {}


def set_title(asked: Asked) -> Json:
    """``assistant.threads.setTitle``."""
    room, root = _thread(asked)
    asked.state.titles[room.id, root] = asked["title"]
    asked.state.changes.bump()
    return {}


def set_prompts(asked: Asked) -> Json:
    """``assistant.threads.setSuggestedPrompts``."""
    prompts = objects(asked["prompts"], "prompts")
    if len(prompts) > MOST_PROMPTS:
        raise invalid(f"no more than {MOST_PROMPTS} items allowed [json-pointer:/prompts]")
    for prompt in prompts:
        if not isinstance(prompt.get("title"), str) or not isinstance(prompt.get("message"), str):
            raise invalid("missing required field: title [json-pointer:/prompts]")
    if not asked.state.switches.agent:
        raise RefusalError("not_agent_app")
    room = _room(asked)
    root = asked.get("thread_ts", "")
    if root and root not in room.messages:
        raise RefusalError("invalid_thread_ts", detail="Thread not found")
    asked.state.prompts[room.id, root] = {"title": asked.get("title"), "prompts": prompts}
    asked.state.changes.bump()
    return {}


def set_session_status(asked: Asked) -> Json:
    """``agents.sessions.setStatus``: begins a session, or sets the status of one."""
    room, root = _session_thread(asked)
    if asked.get("initiator_user_id", asked.grant.user) not in asked.team.users:
        raise RefusalError("user_not_found")
    session = asked.state.sessions.setdefault((room.id, root), Session(status="", title=asked.get("title")))
    session.status = asked["status"]
    asked.state.changes.bump()
    if session.status == "processing" and not asked.state.subscribed("agent_session_stopped"):
        asked.warnings.append("missing_agent_session_stopped_event_subscription")
    title = {"title": session.title} if session.title else {}
    return {"status": session.status, "agent_status": session.status, **title}


def rename_session(asked: Asked) -> Json:
    """``agents.sessions.rename``."""
    room, root = _session_thread(asked)
    session = asked.state.sessions.get((room.id, root))
    if session is None:
        raise RefusalError("session_not_found")
    session.title = asked["title"]
    asked.state.changes.bump()
    return {"title": session.title}


def _room(asked: Asked) -> Room:
    try:
        return asked.room("channel_id")
    except RefusalError:
        raise RefusalError("channel_not_found", detail="Invalid channel_id") from None


def _thread(asked: Asked) -> tuple[Room, str]:
    room = _room(asked)
    if asked["thread_ts"] not in room.messages:
        raise RefusalError("invalid_thread_ts", detail="Thread not found")
    return room, asked["thread_ts"]


def _session_thread(asked: Asked) -> tuple[Room, str]:
    if not asked.state.switches.agent:
        raise RefusalError("feature_disabled")
    room = asked.room("channel_id", inside=False)
    if asked.grant.user not in room.members:
        raise RefusalError("not_authorized")
    root = asked.get("thread_ts")
    if root not in room.messages:
        raise RefusalError("thread_ts_required", None if root else "a session belongs to a thread")
    return room, root
