"""Chats and threads: their changes, the methods about them, their histories and agent sessions."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Any

from channels.slack.fake.calls import Call, RefusalError, invalid, objects
from channels.slack.fake.delivery import emit, emit_message
from channels.slack.fake.state import SCOPE_FAMILY, Chat, Json, Kind, Session, State, User, Workspace

ID_PREFIX = {"channel": "C", "group": "C", "im": "D", "mpim": "G"}


def new_user(state: State, team: Workspace, name: str) -> User:
    """Add a user to a workspace."""
    user = User(id=state.names.next("U"), team=team.id, name=name, real_name=name.replace("-", " ").title())
    team.users[user.id] = user
    return user


def new_chat(state: State, team: Workspace, kind: Kind, name: str, members: set[str]) -> Chat:
    """Add a chat to a workspace."""
    chat = Chat(
        id=state.names.next(ID_PREFIX[kind]),
        team=team.id,
        name=name,
        kind=kind,
        created=state.stamps.seconds(),
        members=members,
    )
    team.chats[chat.id] = chat
    state.changes.bump()
    return chat


def direct_chat(state: State, team: Workspace, *users: str) -> Chat:
    """Return the direct chat of these users, opened if needed."""
    found = team.direct_chat_of(*users)
    if found is not None:
        return found
    if len(users) == 2:
        return new_chat(state, team, "im", "", set(users))
    names = "--".join(team.users[user].name for user in users)
    return new_chat(state, team, "mpim", f"mpdm-{names}-1", set(users))


def place(state: State, chat: Chat, message: Json) -> Json:
    """Add a message to a chat, count a reply at its thread's root, and send the events."""
    chat.messages[message["ts"]] = message
    root = chat.messages.get(message.get("thread_ts", ""))
    if root is not None and root["ts"] != message["ts"]:
        chat.messages[root["ts"]] = {**root, **_replies(chat, root["ts"])}
        state.statuses.pop((chat.id, root["ts"]), None)
    emit_message(state, chat, message)
    return message


def change(state: State, chat: Chat, ts: str, fields: Json, *, emit_event: bool = True) -> Json:
    """Change fields of a message; None removes a field. ``emit_event`` sends ``message_changed``."""
    before = chat.messages[ts]
    after = {key: value for key, value in {**before, **fields}.items() if value is not None}
    chat.messages[ts] = after
    if emit_event:
        event = {"subtype": "message_changed", "message": after, "previous_message": before}
        emit_message(state, chat, _hidden_event(state, event))
    else:
        state.changes.bump()
    return after


def expire_stream(state: State, chat: Chat, ts: str) -> None:
    """End a stream whose time is over; its message keeps its content."""
    stream = state.streams.get((chat.id, ts))
    if stream is not None and state.clock.now() > stream.until:
        del state.streams[chat.id, ts]
        change(state, chat, ts, {"streaming_state": "errored"})


def remove(state: State, chat: Chat, ts: str) -> None:
    """Remove a message. One with replies becomes a tombstone."""
    before = chat.messages[ts]
    if before.get("reply_count"):
        tombstone = {"subtype": "tombstone", "text": "This message was deleted.", "user": "USLACKBOT"}
        kept = ("type", "ts", "thread_ts", "reply_count", "reply_users_count", "reply_users", "latest_reply")
        chat.messages[ts] = after = (
            {key: before[key] for key in kept if key in before} | tombstone | {"hidden": True}
        )
        event = {"subtype": "message_changed", "message": after, "previous_message": before}
        emit_message(state, chat, _hidden_event(state, event))
        return
    del chat.messages[ts]
    root = before.get("thread_ts")
    if root in chat.messages:
        chat.messages[root] = {**chat.messages[root], **_replies(chat, root)}
    event = {"subtype": "message_deleted", "deleted_ts": ts, "previous_message": before}
    emit_message(state, chat, _hidden_event(state, event))


def react(state: State, chat: Chat, ts: str, user: User, name: str, *, add: bool) -> bool:
    """Add or remove a reaction. Returns False if nothing changed."""
    message = chat.messages[ts]
    reactions: list[Json] = [dict(one) for one in message.get("reactions", ())]
    found = next((one for one in reactions if one["name"] == name), None)
    if (found is not None and user.id in found["users"]) == add:
        return False
    if found is None:
        new: Json = {"name": name, "users": [], "count": 0}
        reactions.append(found := new)
    users: list[str] = [one for one in found["users"] if one != user.id] + ([user.id] if add else [])
    found.update(users=users, count=len(users))
    chat.messages[ts] = {**message, "reactions": [one for one in reactions if one["users"]]}
    state.changes.bump()
    team = state.teams[chat.team]
    if team.has_app_in(chat):
        event = {
            "type": "reaction_added" if add else "reaction_removed",
            "user": user.id,
            "reaction": name,
            "item": {"type": "message", "channel": chat.id, "ts": ts},
            "item_user": message.get("user", ""),
            "event_ts": state.stamps.next(),
        }
        emit(state, team, event)
    return True


def _hidden_event(state: State, event: Json) -> Json:
    return {"type": "message", "hidden": True, "ts": state.stamps.next(), **event}


def _replies(chat: Chat, root: str) -> Json:
    replies = [message for message in chat.thread(root) if message["ts"] != root]
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


def history(call: Call) -> Json:
    """``conversations.history``: newest first."""
    chat = _readable(call)
    pins = {"pin_count": 0, "channel_actions_ts": None, "channel_actions_count": 0}
    return {**_page(call, [*reversed(_between(call, chat.top()))], 100), **pins}


def replies(call: Call) -> Json:
    """``conversations.replies``: a thread, always beginning with its root, even outside of the bounds."""
    chat = _readable(call)
    named = chat.messages.get(call["ts"])
    if named is None:
        raise RefusalError("thread_not_found")
    first, *rest = chat.thread(named.get("thread_ts", named["ts"]))
    return _page(call, [first, *_between(call, rest)], 1000)


def info(call: Call) -> Json:
    """``conversations.info``."""
    chat = call.chat(inside=False)
    call.need(chat, "read")
    answer = chat_object(call, chat)
    if call.get("include_num_members"):
        answer["num_members"] = len(chat.members)
    return {"channel": answer}


def members(call: Call) -> Json:
    """``conversations.members``."""
    chat = call.chat(inside=False)
    call.need(chat, "read")
    return page_of(call, "members", sorted(chat.members), 100)


def listing(call: Call) -> Json:
    """``conversations.list``."""
    return page_of(call, "channels", [chat_object(call, chat) for chat in _listed_chats(call)], 100)


def of_user(call: Call) -> Json:
    """``users.conversations``: chats of a user, by default of the caller."""
    user = call.get("user", call.grant.user)
    return page_of(
        call,
        "channels",
        [chat_object(call, r) for r in _listed_chats(call) if {user, call.grant.user} <= r.members],
        100,
    )


def open_direct(call: Call) -> Json:
    """``conversations.open``: open or find a direct chat."""
    if call.get("channel"):
        chat = call.chat(inside=False)
        if not chat.direct:
            raise RefusalError("method_not_supported_for_channel_type", "only direct messages are opened")
        return _opened(call, chat, there=True)
    users = [name.strip() for name in call.get("users", "").split(",") if name.strip()]
    if not users:
        raise RefusalError("users_list_not_supplied", "neither a channel nor users")
    if len(users) > 8:
        raise RefusalError("too_many_users", f"{len(users)} users")
    if not set(users) <= set(call.team.users):
        raise RefusalError("user_not_found")
    everybody = (*users, call.grant.user)
    there = call.team.direct_chat_of(*everybody) is not None
    if not there and call.get("prevent_creation"):
        raise RefusalError("channel_not_found")
    call.need_scope("im:write" if len(users) == 1 else "mpim:write")
    return _opened(call, direct_chat(call.state, call.team, *everybody), there=there)


def join(call: Call) -> Json:
    """``conversations.join``."""
    chat = call.chat(inside=False)
    if chat.kind != "channel":
        raise RefusalError("method_not_supported_for_channel_type", "only public channels are joined")
    if chat.archived:
        raise RefusalError("is_archived")
    there = call.grant.user in chat.members
    enter(call, chat)
    return {"channel": chat_object(call, chat), **({"warning": "already_in_channel"} if there else {})}


def enter(call: Call, chat: Chat) -> None:
    """Add the caller to a chat, and send the event."""
    if call.grant.user not in chat.members:
        chat.members.add(call.grant.user)
        event = {
            "type": "member_joined_channel",
            "user": call.grant.user,
            "channel": chat.id,
            "team": chat.team,
        }
        emit(call.state, call.team, {**event, "channel_type": "C", "event_ts": call.state.stamps.next()})
        call.state.changes.bump()


def chat_object(call: Call, chat: Chat) -> Json:
    """Return a chat as an object of the Web API."""
    common: Json = {
        "id": chat.id,
        "created": chat.created,
        "is_archived": chat.archived,
        "is_im": chat.kind == "im",
        "is_mpim": chat.kind == "mpim",
        "is_org_shared": False,
        "context_team_id": chat.team,
        "updated": chat.created * 1000,
    }
    if chat.kind == "im":
        other = next((user for user in sorted(chat.members) if user != call.grant.user), call.grant.user)
        return {**common, "user": other, "is_user_deleted": False, "is_open": True, "priority": 0}
    nothing = {"value": "", "creator": "", "last_set": 0}
    return {
        **common,
        "name": chat.name,
        "name_normalized": chat.name,
        "is_channel": chat.kind == "channel",
        "is_group": chat.kind == "group",
        "is_private": chat.kind != "channel",
        "is_general": chat.name == "general",
        "is_member": call.grant.user in chat.members,
        "is_shared": False,
        "is_ext_shared": False,
        "creator": min(chat.members, default=""),
        "topic": nothing,
        "purpose": nothing,
        "previous_names": [],
    }


def page_of(call: Call, name: str, rows: Sequence[Any], usual: int) -> Json:
    """Return one page of a listing."""
    start, end = _window(call, len(rows), call.get("limit") or usual)
    return {name: list(rows[start:end]), "response_metadata": {"next_cursor": _cursor(end, len(rows))}}


def _page(call: Call, messages: Sequence[Json], usual: int) -> Json:
    most = call.get("limit", usual)
    if call.state.switches.scarce_history:
        most = min(most, SCARCE_ROWS)
    start, end = _window(call, len(messages), most)
    more = end < len(messages)
    rows = [_history_message(call, message) for message in messages[start:end]]
    answer: Json = {"messages": rows, "has_more": more}
    return {**answer, "response_metadata": {"next_cursor": _cursor(end, len(messages))}} if more else answer


def _history_message(call: Call, message: Json) -> Json:
    """Return a message for a history. The payload of its metadata is included on request only."""
    metadata = message.get("metadata")
    if metadata is None or call.get("include_all_metadata"):
        return message
    return {**message, "metadata": {"event_type": metadata["event_type"]}}


def _readable(call: Call) -> Chat:
    chat = call.chat()
    call.need(chat, "history")
    return chat


def _between(call: Call, messages: Sequence[Json]) -> list[Json]:
    for bound in ("oldest", "latest"):
        if call.get(bound) not in (None, "now") and not _STAMP.fullmatch(call[bound]):
            raise RefusalError(f"invalid_ts_{bound}", f"{bound} is not a timestamp")
    oldest, latest = _microseconds(call.get("oldest") or "0"), _microseconds(call.get("latest") or "now")
    inclusive = call.get("inclusive", False)
    return [
        message
        for message in messages
        if oldest < (at := _microseconds(message["ts"])) < latest or (inclusive and at in (oldest, latest))
    ]


def _microseconds(ts: str) -> int:
    """Convert a timestamp to microseconds. Exact, because a float could confuse adjacent messages."""
    if ts == "now":
        return 10**18
    seconds, _, rest = ts.partition(".")
    return int(seconds) * 1_000_000 + int(rest.ljust(6, "0")[:6])


def _listed_chats(call: Call) -> list[Chat]:
    names = [name.strip() for name in call.get("types", "public_channel").split(",")]
    if not set(names) <= set(_TYPES):
        raise RefusalError("invalid_types", f"types: {', '.join(names)}")
    kinds: set[Kind] = {_TYPES[name] for name in names}
    for kind in kinds:
        call.need_scope(f"{SCOPE_FAMILY[kind]}:read")
    return [
        chat
        for chat in call.team.chats.values()
        if chat.kind in kinds
        and (chat.kind == "channel" or call.grant.user in chat.members)
        and not (chat.archived and call.get("exclude_archived"))
    ]


def _opened(call: Call, chat: Chat, *, there: bool) -> Json:
    described = chat_object(call, chat) if call.get("return_im") else {"id": chat.id}
    return {"channel": described, **({"no_op": True, "already_open": True} if there else {})}


def _window(call: Call, count: int, size: int) -> tuple[int, int]:
    given = call.get("cursor")
    start = 0
    if given:
        try:
            start = int(base64.b64decode(given, validate=True).decode().removeprefix("row:"))
        except (binascii.Error, ValueError):
            raise RefusalError("invalid_cursor", "unknown cursor") from None
    return start, min(count, start + size)


def _cursor(end: int, count: int) -> str:
    return base64.b64encode(f"row:{end}".encode()).decode() if end < count else ""


STATUS_LIFE = 2 * 60
MOST_PROMPTS = 4
LONGEST_TITLE = 200


def set_status(call: Call) -> Json:
    """``assistant.threads.setStatus``: shown for two minutes, or until the app posts in the thread."""
    chat, root = _thread(call)
    key = (chat.id, root)
    if call["status"]:
        call.state.statuses[key] = (call["status"], call.state.clock.now() + STATUS_LIFE)
    else:
        call.state.statuses.pop(key, None)
    call.state.changes.bump()
    return {}


def set_title(call: Call) -> Json:
    """``assistant.threads.setTitle``."""
    chat, root = _thread(call)
    call.state.titles[chat.id, root] = call["title"]
    call.state.changes.bump()
    return {}


def set_prompts(call: Call) -> Json:
    """``assistant.threads.setSuggestedPrompts``."""
    prompts = objects(call["prompts"], "prompts")
    if len(prompts) > MOST_PROMPTS:
        raise invalid(f"no more than {MOST_PROMPTS} items allowed [json-pointer:/prompts]")
    for prompt in prompts:
        if not isinstance(prompt.get("title"), str) or not isinstance(prompt.get("message"), str):
            raise invalid("missing required field: title [json-pointer:/prompts]")
    if not call.state.switches.agent:
        raise RefusalError("not_agent_app")
    chat = _chat_in(call)
    root = call.get("thread_ts", "")
    if root and root not in chat.messages:
        raise RefusalError("invalid_thread_ts", detail="Thread not found")
    call.state.prompts[chat.id, root] = {"title": call.get("title"), "prompts": prompts}
    call.state.changes.bump()
    return {}


def set_session_status(call: Call) -> Json:
    """``agents.sessions.setStatus``: start a session, or set its status."""
    chat, root = _session_thread(call)
    if call.get("initiator_user_id", call.grant.user) not in call.team.users:
        raise RefusalError("user_not_found")
    session = call.state.sessions.setdefault((chat.id, root), Session(status="", title=call.get("title")))
    session.status = call["status"]
    call.state.changes.bump()
    if session.status == "processing" and not call.state.subscribed("agent_session_stopped"):
        call.warnings.append("missing_agent_session_stopped_event_subscription")
    title = {"title": session.title} if session.title else {}
    return {"status": session.status, "agent_status": session.status, **title}


def rename_session(call: Call) -> Json:
    """``agents.sessions.rename``."""
    chat, root = _session_thread(call)
    session = call.state.sessions.get((chat.id, root))
    if session is None:
        raise RefusalError("session_not_found")
    session.title = call["title"]
    call.state.changes.bump()
    return {"title": session.title}


def _chat_in(call: Call) -> Chat:
    try:
        return call.chat("channel_id")
    except RefusalError:
        raise RefusalError("channel_not_found", detail="Invalid channel_id") from None


def _thread(call: Call) -> tuple[Chat, str]:
    chat = _chat_in(call)
    if call["thread_ts"] not in chat.messages:
        raise RefusalError("invalid_thread_ts", detail="Thread not found")
    return chat, call["thread_ts"]


def _session_thread(call: Call) -> tuple[Chat, str]:
    if not call.state.switches.agent:
        raise RefusalError("feature_disabled")
    chat = call.chat("channel_id", inside=False)
    if call.grant.user not in chat.members:
        raise RefusalError("not_authorized")
    root = call.get("thread_ts")
    if root not in chat.messages:
        raise RefusalError("thread_ts_required", None if root else "a session belongs to a thread")
    return chat, root
