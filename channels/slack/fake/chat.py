"""The methods that write messages: ``chat.postMessage``, ``update``, ``delete``, ``postEphemeral``."""

from __future__ import annotations

import re

from channels.slack.fake.asking import Asked, RefusalError
from channels.slack.fake.content import LONGEST_UPDATE, Content, content
from channels.slack.fake.payloads import bot_profile
from channels.slack.fake.rooms import change, direct, expire_stream, place, remove
from channels.slack.fake.workspace import Json, Room

_STAMP = re.compile(r"\d{1,12}\.\d{6}")


def post_message(asked: Asked) -> Json:
    """``chat.postMessage``."""
    room = _target(asked)
    said = content(asked)
    message = new_message(asked, room, said.fields(), asked.get("thread_ts"))
    if asked.get("reply_broadcast") and "thread_ts" in message:
        root = room.messages[message["thread_ts"]]
        message |= {"subtype": "thread_broadcast", "root": root}
    place(asked.state, room, message)
    return {"channel": room.id, "ts": message["ts"], "message": message}


def update(asked: Asked) -> Json:
    """``chat.update``: of the app's own messages, and of none that is being streamed."""
    room = asked.room()
    expire_stream(asked.state, room, asked["ts"])
    before = asked.own(room, asked["ts"], otherwise="cant_update_message")
    if before.get("streaming_state") == "in_progress":
        raise RefusalError("streaming_state_conflict", "the message is being streamed")
    window = asked.state.switches.edit_window
    if window is not None and asked.state.stamps.seconds() - float(before["ts"]) > window:
        raise RefusalError("edit_window_closed")
    said = content(asked, longest=LONGEST_UPDATE)
    fields = _updated(asked, before, said)
    edited = {"user": asked.grant.user, "ts": asked.state.stamps.next()}
    message = change(asked.state, room, before["ts"], {**fields, "edited": edited})
    return {"channel": room.id, "ts": before["ts"], "text": message.get("text", ""), "message": message}


def delete(asked: Asked) -> Json:
    """``chat.delete``."""
    room = asked.room()
    asked.own(room, asked["ts"], otherwise="cant_delete_message")
    asked.state.streams.pop((room.id, asked["ts"]), None)
    remove(asked.state, room, asked["ts"])
    return {"channel": room.id, "ts": asked["ts"]}


def post_ephemeral(asked: Asked) -> Json:
    """``chat.postEphemeral``: only its user sees it, nobody is told of it, and it is in no history."""
    room = asked.room()
    if asked["user"] not in room.members:
        raise RefusalError("user_not_in_channel")
    message = new_message(asked, room, content(asked).fields(), asked.get("thread_ts"))
    message |= {"is_ephemeral": True}
    room.hidden.setdefault(asked["user"], []).append(message)
    asked.state.changed()
    return {"message_ts": message["ts"]}


def get_permalink(asked: Asked) -> Json:
    """``chat.getPermalink``."""
    room = asked.room(inside=False)
    if asked["message_ts"] not in room.messages:
        raise RefusalError("message_not_found")
    return {"channel": room.id, "permalink": permalink(asked, room, asked["message_ts"])}


def permalink(asked: Asked, room: Room, ts: str) -> str:
    """The address of a message for people."""
    return f"{asked.state.url}/archives/{room.id}/p{ts.replace('.', '')}"


def new_message(asked: Asked, room: Room, fields: Json, thread: str | None) -> Json:
    """A message of the app, not placed yet."""
    message: Json = {
        "type": "message",
        "ts": asked.state.stamps.next(),
        "user": asked.grant.user,
        "team": asked.team.id,
        "text": "",
        **{name: value for name, value in fields.items() if name != "metadata" or value},
    }
    bot = asked.team.bot
    if bot is not None and asked.grant.kind == "bot":
        message |= {
            "bot_id": bot.bot_id,
            "app_id": asked.state.app.id,
            "bot_profile": bot_profile(asked.state, bot),
        }
    message |= _disguise(asked)
    if thread is not None:
        root = thread_root(asked, room, thread)
        message |= {"thread_ts": root["ts"], "parent_user_id": root.get("user", "")}
    return message


def thread_root(asked: Asked, room: Room, ts: str) -> Json:
    """The first message of the thread that a ``thread_ts`` names. Raises RefusalError."""
    found = room.messages.get(ts)
    if found is None or not _STAMP.fullmatch(ts):
        raise RefusalError("invalid_thread_ts", f"there is no message {ts!r} to reply to")
    root = room.messages.get(found.get("thread_ts", ts), found)
    if root is not found:
        asked.notes.append("thread_ts names a reply instead of the thread's first message")
    return root


def _target(asked: Asked) -> Room:
    """The room to post to: an id, a name, or a user for the direct message with them."""
    team = asked.team
    if asked["channel"] in team.users:
        return direct(asked.state, team, asked["channel"], asked.grant.user)
    room = asked.room(inside=False)
    if room.archived:
        raise RefusalError("is_archived")
    if asked.grant.user not in room.members and "chat:write.public" not in asked.grant.scopes:
        raise RefusalError("not_in_channel")
    return room


def _updated(asked: Asked, before: Json, said: Content) -> Json:
    """The fields that an update sets. New text takes the place of blocks unless new ones come with it."""
    fields = said.fields()
    was_rich = any(block["type"] == "rich_text" for block in before.get("blocks", ()))
    if was_rich and said.blocks and not any(block["type"] == "rich_text" for block in said.blocks):
        raise RefusalError("block_mismatch", "rich text can only be replaced by rich text")
    if said.blocks is None and before.get("blocks"):
        asked.notes.append("an update without blocks of a message with blocks: say which are to stand")
        fields["blocks"] = None
    if fields.get("metadata") == {}:
        fields["metadata"] = None
    return {name: value or None if name == "blocks" else value for name, value in fields.items()}


def _disguise(asked: Asked) -> Json:
    """Another name or picture, for which an app needs a scope of its own."""
    given = {name: asked.get(name) for name in ("username", "icon_url", "icon_emoji") if asked.get(name)}
    if not given:
        return {}
    asked.need_scope("chat:write.customize")
    icons = {"emoji": given.get("icon_emoji"), "image_64": given.get("icon_url")}
    shown = {name: value for name, value in icons.items() if value}
    return {"subtype": "bot_message", "username": given.get("username", asked.state.app.name), "icons": shown}
