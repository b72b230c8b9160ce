"""The methods that write messages, and the checks of message content."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, cast

from msgspec import Struct

from channels.slack.fake.blocks import LONGEST_BLOCKS, LONGEST_MARKDOWN, Inspection
from channels.slack.fake.calls import Asked, RefusalError, invalid
from channels.slack.fake.payloads import bot_profile
from channels.slack.fake.rooms import change, direct, expire_stream, place, remove
from channels.slack.fake.state import Json, Room
from channels.slack.fake.text import pings, stored, stray

LONGEST_TEXT = 40_000
"""Longer text is cut when it is posted."""
LONGEST_UPDATE = 4_000
MOST_ATTACHMENTS = 100
LARGEST_METADATA = 8_000
"""In bytes of JSON. Slack publishes no figure."""
_BARE_MENTION = re.compile(r"(?<!\w)@(here|channel|everyone)\b")


class Content(Struct, frozen=True, kw_only=True):
    """A message's content. None is what was not given; blocks carry their ids."""

    text: str | None
    blocks: list[Json] | None
    attachments: list[Json] | None
    metadata: Json | None

    def fields(self) -> Json:
        """The fields of the stored message that were given."""
        given: Json = {"text": self.text, "blocks": self.blocks, "attachments": self.attachments}
        given["metadata"] = self.metadata
        return {name: value for name, value in given.items() if value is not None}


def content(asked: Asked, *, longest: int = LONGEST_TEXT, needed: bool = True) -> Content:
    """Read and check a message's content. ``needed``: it has to say something.

    Raises RefusalError with the platform's name for what is wrong.
    """
    markdown = asked.get("markdown_text")
    text = asked.get("text")
    if markdown is not None and (text is not None or asked.get("blocks") is not None):
        raise RefusalError("markdown_text_conflict", "markdown_text goes with neither text nor blocks")
    blocks = checked_blocks(asked, asked.get("blocks"))
    attachments = _attachments(asked, asked.get("attachments"))
    if needed and not (text or markdown or blocks or attachments):
        raise RefusalError("no_text", "a message has to say something")
    if markdown is not None:
        limit_markdown(markdown)
        note_pings(asked, [markdown])
        return Content(
            text=markdown,
            blocks=[markdown_block(asked, markdown)],
            attachments=attachments,
            metadata=metadata(asked),
        )
    text = None if text is None else plain_text(asked, text, longest)
    return Content(text=text, blocks=blocks, attachments=attachments, metadata=metadata(asked))


def limit_markdown(markdown: str) -> None:
    """Raises RefusalError ``msg_too_long``."""
    if len(markdown) > LONGEST_MARKDOWN:
        raise RefusalError("msg_too_long", f"markdown_text has {len(markdown)} characters")


def markdown_block(asked: Asked, markdown: str) -> Json:
    """The block that shows Markdown."""
    return {"type": "markdown", "text": markdown, "block_id": asked.state.names.next("b")}


def note_pings(asked: Asked, texts: Iterable[str]) -> None:
    """Note the mentions in texts that must not notify users."""
    for text in texts:
        for ping in pings(text, asked.state.switches.may_ping):
            asked.notes.append(f"unescaped mention {ping}")


def checked_blocks(asked: Asked, given: object, *, too_many: str = "invalid_blocks") -> list[Json] | None:
    """Blocks with their ids, or None. Raises RefusalError for what Block Kit does not allow."""
    if given is None:
        return None
    if not isinstance(given, list):
        raise RefusalError("invalid_blocks_format", "blocks are no list")
    blocks = cast(list[Json], given)
    found = Inspection(blocks)
    if found.errors:
        error = too_many if found.errors[0].endswith(":/blocks]") else "invalid_blocks"
        told = [f"[ERROR] {message}" for message in found.errors]
        problem = "; ".join(found.errors)
        raise RefusalError(error, problem, errors=found.errors, response_metadata={"messages": told})
    if found.size > LONGEST_BLOCKS or sum(map(len, found.markdown)) > LONGEST_MARKDOWN:
        raise RefusalError("msg_blocks_too_long", f"the blocks have {found.size} characters")
    note_pings(asked, (*found.mrkdwn, *found.markdown))
    asked.notes += [f"mention of {name} in rich text" for name in found.mentions if not _may(asked, name)]
    asked.notes += ["unescaped < in a block" for text in found.mrkdwn if stray(text)]
    return [{**block, "block_id": block.get("block_id") or asked.state.names.next("b")} for block in blocks]


def metadata(asked: Asked) -> Json | None:
    """Metadata, checked; None if none was given."""
    given = asked.get("metadata")
    if given is None:
        return None
    if not isinstance(given, dict):
        raise RefusalError("invalid_metadata_format", "metadata is no object")
    told = cast(Json, given)
    if told and not (isinstance(told.get("event_type"), str) and isinstance(told.get("event_payload"), dict)):
        raise RefusalError("invalid_metadata_schema", "metadata needs event_type and event_payload")
    if len(json.dumps(told)) > LARGEST_METADATA:
        raise RefusalError("metadata_too_large", "the metadata is too large")
    return told


def plain_text(asked: Asked, text: str, longest: int = LONGEST_TEXT) -> str:
    """A text as it is stored: cut or refused if it is too long, its pings noted."""
    if len(text) > longest:
        if longest != LONGEST_TEXT:
            raise RefusalError("msg_too_long", f"the text has {len(text)} characters")
        asked.warnings.append("message_truncated")
        asked.notes.append(f"the text has {len(text)} characters and is cut")
        text = text[:longest]
    note_pings(asked, [text])
    if stray(text):
        asked.notes.append("unescaped < in the text")
    if (asked.get("link_names") or asked.get("parse") == "full") and _BARE_MENTION.search(text):
        asked.notes.append("a bare mention that link_names or parse turns into a ping")
    return stored(text)


def _attachments(asked: Asked, given: Any) -> list[Json] | None:
    if given is None:
        return None
    if not isinstance(given, list):
        raise invalid("must provide an array [json-pointer:/attachments]", "invalid_attachments")
    attachments = cast(list[Json], given)
    if len(attachments) > MOST_ATTACHMENTS:
        raise RefusalError("too_many_attachments", f"{len(attachments)} attachments")
    note_pings(asked, _strings(attachments))
    return attachments


def _strings(value: object) -> Iterator[str]:
    """All texts in something, however deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        inside = cast(Json, value).values() if isinstance(value, dict) else cast(list[object], value)
        for one in inside:
            yield from _strings(one)


def _may(asked: Asked, name: str) -> bool:
    return name in asked.state.switches.may_ping


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
    """``chat.postEphemeral``: only its user sees it; it causes no event and is in no history."""
    room = asked.room()
    if asked["user"] not in room.members:
        raise RefusalError("user_not_in_channel")
    message = new_message(asked, room, content(asked).fields(), asked.get("thread_ts"))
    message |= {"is_ephemeral": True}
    room.hidden.setdefault(asked["user"], []).append(message)
    asked.state.changes.bump()
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
