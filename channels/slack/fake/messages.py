"""The methods that write, stream and react to messages, and the checks of their content."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from msgspec import Struct

from channels.slack.fake.calls import Asked, RefusalError, invalid, values
from channels.slack.fake.chats import change, direct, expire_stream, place, react, remove
from channels.slack.fake.delivery import bot_profile
from channels.slack.fake.markup import LONGEST_BLOCKS, LONGEST_MARKDOWN, Inspection, pings, stored, stray
from channels.slack.fake.state import Grant, Json, ReplyUrl, Room, Session, State, Stream

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


STREAM_LIFE = 5 * 60
_TASK_STATES = ("pending", "in_progress", "complete", "error")


def start_stream(asked: Asked) -> Json:
    """``chat.startStream``: always a reply; outside direct messages for one person, who sees it grow."""
    room = asked.room()
    if not asked["thread_ts"]:
        raise invalid("missing required field: thread_ts")
    if not room.direct:
        _recipient(asked, room)
    message = new_message(asked, room, {"subtype": "bot_message"}, asked["thread_ts"])
    message["streaming_state"] = "in_progress"
    stream = Stream(ts=message["ts"], until=asked.state.clock.now() + STREAM_LIFE)
    grown = _grow(asked, message, stream)
    asked.state.streams[room.id, stream.ts] = stream
    place(asked.state, room, grown)
    return {"channel": room.id, "ts": stream.ts}


def append_stream(asked: Asked) -> Json:
    """``chat.appendStream``."""
    room, message, stream = _streaming(asked)
    if stream.closed == "stopped_by_user":
        raise RefusalError("stopped_by_user")
    if not asked.get("markdown_text") and not asked.get("chunks"):
        raise RefusalError("no_text", "nothing to append")
    grown = _grow(asked, message, stream)
    change(asked.state, room, stream.ts, grown, told=False)
    return {"channel": room.id, "ts": stream.ts}


def stop_stream(asked: Asked) -> Json:
    """``chat.stopStream``: the last words, blocks for the end, and the message is finished."""
    room, message, stream = _streaming(asked)
    grown = _grow(asked, message, stream)
    last = checked_blocks(asked, asked.get("blocks"), too_many="msg_blocks_too_many")
    fields = {**grown, "blocks": [*grown.get("blocks", ()), *(last or ())], "streaming_state": "completed"}
    told = metadata(asked)
    done = change(asked.state, room, stream.ts, {**fields, **({"metadata": told} if told else {})})
    del asked.state.streams[room.id, stream.ts]
    if asked.get("session_status"):
        key = (room.id, message["thread_ts"])
        asked.state.sessions.setdefault(key, Session(status="")).status = asked["session_status"]
    return {"channel": room.id, "ts": stream.ts, "message": done}


def stop_streams(state: State, room: Room, root: str) -> list[str]:
    """A person stops what is being streamed in a thread. Returns the messages."""
    found = [
        stream
        for (where, ts), stream in state.streams.items()
        if where == room.id and room.messages[ts].get("thread_ts") == root and not stream.closed
    ]
    for stream in found:
        stream.closed = "stopped_by_user"
        change(state, room, stream.ts, {"streaming_state": "completed"}, told=False)
    return [stream.ts for stream in found]


def _recipient(asked: Asked, room: Room) -> None:
    if not asked.get("recipient_team_id"):
        raise RefusalError("missing_recipient_team_id", "a stream in a channel is for somebody")
    if not asked.get("recipient_user_id"):
        raise RefusalError("missing_recipient_user_id", "a stream in a channel is for somebody")
    if asked["recipient_user_id"] not in asked.team.users:
        raise RefusalError("user_not_found")
    if asked["recipient_user_id"] == asked.grant.user:
        asked.notes.append("the bot streams to itself: nobody sees it grow")
    if asked["recipient_user_id"] not in room.members:
        asked.notes.append("the stream is for somebody who is not in the channel")


def _streaming(asked: Asked) -> tuple[Room, Json, Stream]:
    room = asked.room()
    message = asked.own(room, asked["ts"], otherwise="message_not_owned_by_app")
    expire_stream(asked.state, room, message["ts"])
    stream = asked.state.streams.get((room.id, message["ts"]))
    if stream is None:
        raise RefusalError("message_not_in_streaming_state")
    return room, message, stream


def _grow(asked: Asked, message: Json, stream: Stream) -> Json:
    """The message with what this call adds. Nothing is kept if the call is refused."""
    pieces = _pieces(asked)
    size = stream.size + sum(
        len(piece.get("text", "")) for piece in pieces if piece["type"] == "markdown_text"
    )
    if size > LONGEST_MARKDOWN:
        raise RefusalError("msg_too_long", f"the streamed message would have {size} characters")
    grown = message
    for piece in pieces:
        grown = _add(asked, grown, piece)
    allowed = asked.state.switches.may_ping  # a mention may come in pieces, so the whole text is looked at
    known = list(pings(message["text"], allowed))
    asked.notes += [f"unescaped mention {ping}" for ping in list(pings(grown["text"], allowed))[len(known) :]]
    stream.size = size
    return grown


def _pieces(asked: Asked) -> Sequence[Json]:
    chunks = asked.get("chunks")
    if chunks is not None and not isinstance(chunks, list):
        raise RefusalError("invalid_chunks", "chunks are no list")
    markdown = asked.get("markdown_text")
    if markdown:
        limit_markdown(markdown)
    first: list[Json] = [{"type": "markdown_text", "text": markdown}] if markdown else []
    return [*first, *(_chunk(asked, one) for one in cast(list[Any], chunks or ()))]


def _chunk(asked: Asked, given: object) -> Json:
    if not isinstance(given, dict):
        raise RefusalError("invalid_chunks", "a chunk is no object")
    chunk = cast(Json, given)
    kind = chunk.get("type")
    fine = (
        (kind == "markdown_text" and isinstance(chunk.get("text"), str))
        or (kind == "task_update" and bool(chunk.get("id")) and bool(chunk.get("title")))
        or (kind == "plan_update" and bool(chunk.get("title")))
        or (kind == "blocks" and isinstance(chunk.get("blocks"), list))
    )
    if not fine or (kind == "task_update" and chunk.get("status", "pending") not in _TASK_STATES):
        raise RefusalError("invalid_chunks", f"no such chunk: {kind}")
    return chunk


def _add(asked: Asked, message: Json, piece: Json) -> Json:
    blocks: list[Json] = list(message.get("blocks", ()))
    if piece["type"] == "markdown_text":
        text = message["text"] + piece["text"]
        if blocks and blocks[-1]["type"] == "markdown":
            blocks[-1] = {**blocks[-1], "text": blocks[-1]["text"] + piece["text"]}
        else:
            blocks.append(markdown_block(asked, piece["text"]))
        return {**message, "text": text, "blocks": blocks}
    if piece["type"] == "blocks":
        added = checked_blocks(asked, piece["blocks"], too_many="msg_blocks_too_many") or []
        return {**message, "blocks": [*blocks, *added]}
    return {**message, "blocks": _with_task(asked, blocks, piece)}


def _with_task(asked: Asked, blocks: list[Json], piece: Json) -> list[Json]:
    """The task's card, or the plan's title, new or as it is now."""
    kind = "task_card" if piece["type"] == "task_update" else "plan"
    facts = {key: value for key, value in piece.items() if key not in ("type", "id")}
    task = piece.get("id", "")
    for number, block in enumerate(blocks):
        if block["type"] == kind and block.get("task_id", "") == task:
            return [*blocks[:number], {**block, **facts}, *blocks[number + 1 :]]
    new = {
        "type": kind,
        "block_id": asked.state.names.next("b"),
        **({"task_id": task} if task else {}),
        **facts,
    }
    return [*blocks, new]


_EMOJI = re.compile(r"[a-z0-9_+'-]+(::skin-tone-[2-6])?")


def reactions_add(asked: Asked) -> Json:
    """``reactions.add``."""
    room, ts = _reacted(asked)
    if not _EMOJI.fullmatch(asked["name"]):
        raise RefusalError("invalid_name", f"no such emoji: {asked['name']}")
    if not react(asked.state, room, ts, asked.team.users[asked.grant.user], asked["name"], add=True):
        raise RefusalError("already_reacted")
    return {}


def reactions_remove(asked: Asked) -> Json:
    """``reactions.remove``."""
    room, ts = _reacted(asked)
    if not react(asked.state, room, ts, asked.team.users[asked.grant.user], asked["name"], add=False):
        raise RefusalError("no_reaction")
    return {}


def reactions_get(asked: Asked) -> Json:
    """``reactions.get``."""
    room, ts = _reacted(asked)
    return {"type": "message", "channel": room.id, "message": room.messages[ts]}


def _reacted(asked: Asked) -> tuple[Room, str]:
    if not asked.get("channel") or not asked.get("timestamp"):
        raise RefusalError("no_item_specified", "neither channel nor timestamp")
    room = asked.room()
    if not _STAMP.fullmatch(asked["timestamp"]):
        raise RefusalError("bad_timestamp", f"no timestamp: {asked['timestamp']}")
    if asked["timestamp"] not in room.messages:
        raise RefusalError("message_not_found")
    return room, asked["timestamp"]


MOST_USES = 5


def respond(state: State, name: str, given: Json, notes: list[str]) -> None:
    """A call of a ``response_url``. Raises RefusalError."""
    url = state.reply_urls.get(name)
    if url is None:
        raise RefusalError("invalid_token", "a response_url that nothing gave out")
    if state.clock.now() > url.until:
        raise RefusalError("expired_url", "a response_url is used after half an hour")
    if url.uses >= MOST_USES:
        raise RefusalError("used_url", "a response_url is used a sixth time")
    say(state, url, given, notes)
    url.uses += 1


def say(state: State, url: ReplyUrl, given: Json, notes: list[str]) -> None:
    """Do what an app answers: write, replace what was acted on, or delete it. Raises RefusalError."""
    arguments = {**given, **values("chat.postMessage", given)}
    asked = Asked(
        state=state, method="response_url", arguments=arguments, grant=_voice(state, url), notes=notes
    )
    if given.get("delete_original"):
        _delete(state, url)
        return
    said = content(asked).fields()
    if given.get("replace_original") and url.source is not None:
        _replace(asked, url, said)
        return
    message = new_message(asked, url.room, said, given.get("thread_ts") or url.thread)
    if given.get("response_type") == "in_channel":
        place(state, url.room, message)
    else:
        url.room.hidden.setdefault(url.user, []).append({**message, "is_ephemeral": True})
        state.changes.bump()


def acknowledged(state: State, url: ReplyUrl, answer: object, notes: list[str]) -> None:
    """Apply what came with the acknowledgement of a slash command: a text, or a message."""
    given: Any = {"text": answer} if isinstance(answer, str) and answer else answer
    if isinstance(given, dict) and given:
        say(state, url, cast(Json, given), notes)


def _voice(state: State, url: ReplyUrl) -> Grant:
    """Responses need no token and no membership."""
    team = state.teams[url.room.team]
    bot = team.bot.id if team.bot else ""
    return Grant(token="", kind="bot", team=team.id, user=bot, scopes={"chat:write.customize"})


def _delete(state: State, url: ReplyUrl) -> None:
    source = url.source or ""
    if source in url.room.messages:
        remove(state, url.room, source)
    else:
        url.room.hidden[url.user] = [one for one in _hidden(url.room, url.user) if one["ts"] != source]
        state.changes.bump()


def _replace(asked: Asked, url: ReplyUrl, said: Json) -> None:
    fields = {"blocks": None, "attachments": None, **said}
    source = url.source or ""
    if source in url.room.messages:
        change(asked.state, url.room, source, fields)
        return
    url.room.hidden[url.user] = [
        {key: value for key, value in {**one, **fields}.items() if value is not None}
        if one["ts"] == source
        else one
        for one in _hidden(url.room, url.user)
    ]
    asked.state.changes.bump()


def _hidden(room: Room, user: str) -> list[Json]:
    return room.hidden.get(user, [])
