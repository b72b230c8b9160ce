"""Methods that write, stream and react to messages, and the checks of their content."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from msgspec import Struct

from channels.slack.fake.calls import Call, RefusalError, invalid, values
from channels.slack.fake.chats import change, direct_chat, expire_stream, place, react, remove
from channels.slack.fake.delivery import bot_profile
from channels.slack.fake.markup import (
    LONGEST_BLOCKS,
    LONGEST_MARKDOWN,
    Inspection,
    encode_stored,
    has_stray_bracket,
    notifying_mentions,
)
from channels.slack.fake.state import Chat, Grant, Json, ReplyUrl, Session, State, Stream

LONGEST_TEXT = 40_000
"""Characters of a posted text; a longer one is cut."""
LONGEST_UPDATE = 4_000
MOST_ATTACHMENTS = 100
LARGEST_METADATA = 8_000
"""Bytes of JSON. Slack publishes no limit."""
_BARE_MENTION = re.compile(r"(?<!\w)@(here|channel|everyone)\b")


class Content(Struct, frozen=True, kw_only=True):
    """Content of a message. None for what is not given; blocks have their ids."""

    text: str | None
    blocks: list[Json] | None
    attachments: list[Json] | None
    metadata: Json | None

    def fields(self) -> Json:
        """Return the given fields of the stored message."""
        given: Json = {"text": self.text, "blocks": self.blocks, "attachments": self.attachments}
        given["metadata"] = self.metadata
        return {name: value for name, value in given.items() if value is not None}


def read_content(call: Call, *, longest: int = LONGEST_TEXT, needed: bool = True) -> Content:
    """Read and check the content of a message. ``needed`` refuses an empty one.

    Raises RefusalError with Slack's code for the mistake.
    """
    markdown = call.get("markdown_text")
    text = call.get("text")
    if markdown is not None and (text is not None or call.get("blocks") is not None):
        raise RefusalError("markdown_text_conflict", "markdown_text excludes text and blocks")
    blocks = check_blocks(call, call.get("blocks"))
    attachments = _attachments(call, call.get("attachments"))
    if needed and not (text or markdown or blocks or attachments):
        raise RefusalError("no_text", "the message is empty")
    if markdown is not None:
        limit_markdown(markdown)
        note_mentions(call, [markdown])
        return Content(
            text=markdown,
            blocks=[markdown_block(call, markdown)],
            attachments=attachments,
            metadata=check_metadata(call),
        )
    text = None if text is None else check_text(call, text, longest)
    return Content(text=text, blocks=blocks, attachments=attachments, metadata=check_metadata(call))


def limit_markdown(markdown: str) -> None:
    """Raise RefusalError ``msg_too_long`` if Markdown is too long."""
    if len(markdown) > LONGEST_MARKDOWN:
        raise RefusalError("msg_too_long", f"markdown_text has {len(markdown)} characters")


def markdown_block(call: Call, markdown: str) -> Json:
    """Return a block that shows Markdown."""
    return {"type": "markdown", "text": markdown, "block_id": call.state.names.next("b")}


def note_mentions(call: Call, texts: Iterable[str]) -> None:
    """Note the mentions in texts that must not notify users."""
    for text in texts:
        for ping in notifying_mentions(text, call.state.switches.may_ping):
            call.notes.append(f"unescaped mention {ping}")


def check_blocks(call: Call, given: object, *, too_many: str = "invalid_blocks") -> list[Json] | None:
    """Return blocks with ids; None if not given. Raises RefusalError for what Block Kit does not allow."""
    if given is None:
        return None
    if not isinstance(given, list):
        raise RefusalError("invalid_blocks_format", "blocks are not a list")
    blocks = cast(list[Json], given)
    found = Inspection(blocks)
    if unknown := found.kinds & call.state.switches.unknown_blocks:
        raise RefusalError("invalid_blocks", errors=[f"unsupported type: {kind}" for kind in unknown])
    if found.tables > 1:
        raise RefusalError("invalid_attachments", "only_one_table_allowed", errors=["only_one_table_allowed"])
    if found.errors:
        error = too_many if found.errors[0].endswith(":/blocks]") else "invalid_blocks"
        texts = [f"[ERROR] {message}" for message in found.errors]
        problem = "; ".join(found.errors)
        raise RefusalError(error, problem, errors=found.errors, response_metadata={"messages": texts})
    if found.size > LONGEST_BLOCKS or sum(map(len, found.markdown)) > LONGEST_MARKDOWN:
        raise RefusalError("msg_blocks_too_long", f"the blocks have {found.size} characters")
    note_mentions(call, (*found.mrkdwn, *found.markdown))
    call.notes += [
        f"mention of {name} in rich text" for name in found.mentions if not _may_mention(call, name)
    ]
    call.notes += ["unescaped < in a block" for text in found.mrkdwn if has_stray_bracket(text)]
    return [{**block, "block_id": block.get("block_id") or call.state.names.next("b")} for block in blocks]


def check_metadata(call: Call) -> Json | None:
    """Return metadata; None if not given. Raises RefusalError if it is malformed."""
    given = call.get("metadata")
    if given is None:
        return None
    if not isinstance(given, dict):
        raise RefusalError("invalid_metadata_format", "metadata is not an object")
    checked = cast(Json, given)
    if checked and not (
        isinstance(checked.get("event_type"), str) and isinstance(checked.get("event_payload"), dict)
    ):
        raise RefusalError("invalid_metadata_schema", "metadata needs event_type and event_payload")
    if len(json.dumps(checked)) > LARGEST_METADATA:
        raise RefusalError("metadata_too_large", "the metadata is too large")
    return checked


def check_text(call: Call, text: str, longest: int = LONGEST_TEXT) -> str:
    """Return a text as it is stored, cut or refused if too long. Notes its mentions."""
    if len(text) > longest:
        if longest != LONGEST_TEXT:
            raise RefusalError("msg_too_long", f"the text has {len(text)} characters")
        call.warnings.append("message_truncated")
        call.notes.append(f"the text has {len(text)} characters and is cut")
        text = text[:longest]
    note_mentions(call, [text])
    if has_stray_bracket(text):
        call.notes.append("unescaped < in the text")
    if (call.get("link_names") or call.get("parse") == "full") and _BARE_MENTION.search(text):
        call.notes.append("a bare mention that link_names or parse turns into a ping")
    return encode_stored(text)


def _attachments(call: Call, given: Any) -> list[Json] | None:
    if given is None:
        return None
    if not isinstance(given, list):
        raise invalid("must provide an array [json-pointer:/attachments]", "invalid_attachments")
    attachments = cast(list[Json], given)
    if len(attachments) > MOST_ATTACHMENTS:
        raise RefusalError("too_many_attachments", f"{len(attachments)} attachments")
    note_mentions(call, _strings(attachments))
    return attachments


def _strings(value: object) -> Iterator[str]:
    """Yield all texts in nested lists and objects."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        inside = cast(Json, value).values() if isinstance(value, dict) else cast(list[object], value)
        for one in inside:
            yield from _strings(one)


def _may_mention(call: Call, name: str) -> bool:
    return name in call.state.switches.may_ping


_STAMP = re.compile(r"\d{1,12}\.\d{6}")


def post_message(call: Call) -> Json:
    """``chat.postMessage``."""
    chat = _target(call)
    said = read_content(call)
    message = new_message(call, chat, said.fields(), call.get("thread_ts"))
    if call.get("reply_broadcast") and "thread_ts" in message:
        root = chat.messages[message["thread_ts"]]
        message |= {"subtype": "thread_broadcast", "root": root}
    place(call.state, chat, message)
    return {"channel": chat.id, "ts": message["ts"], "message": message}


def update(call: Call) -> Json:
    """``chat.update``: for the app's own messages that are not being streamed."""
    chat = call.chat()
    expire_stream(call.state, chat, call["ts"])
    before = call.own(chat, call["ts"], otherwise="cant_update_message")
    if before.get("streaming_state") == "in_progress":
        raise RefusalError("streaming_state_conflict", "the message is being streamed")
    window = call.state.switches.edit_window
    if window is not None and call.state.stamps.seconds() - float(before["ts"]) > window:
        raise RefusalError("edit_window_closed")
    said = read_content(call, longest=LONGEST_UPDATE)
    fields = _update_fields(call, before, said)
    edited = {"user": call.grant.user, "ts": call.state.stamps.next()}
    message = change(call.state, chat, before["ts"], {**fields, "edited": edited})
    return {"channel": chat.id, "ts": before["ts"], "text": message.get("text", ""), "message": message}


def delete(call: Call) -> Json:
    """``chat.delete``."""
    chat = call.chat()
    call.own(chat, call["ts"], otherwise="cant_delete_message")
    call.state.streams.pop((chat.id, call["ts"]), None)
    remove(call.state, chat, call["ts"])
    return {"channel": chat.id, "ts": call["ts"]}


def post_ephemeral(call: Call) -> Json:
    """``chat.postEphemeral``: visible to one user, without event, and in no history."""
    chat = call.chat()
    if call["user"] not in chat.members:
        raise RefusalError("user_not_in_channel")
    message = new_message(call, chat, read_content(call).fields(), call.get("thread_ts"))
    message |= {"is_ephemeral": True}
    chat.hidden.setdefault(call["user"], []).append(message)
    call.state.changes.bump()
    return {"message_ts": message["ts"]}


def get_permalink(call: Call) -> Json:
    """``chat.getPermalink``."""
    chat = call.chat(inside=False)
    if call["message_ts"] not in chat.messages:
        raise RefusalError("message_not_found")
    return {"channel": chat.id, "permalink": permalink(call, chat, call["message_ts"])}


def permalink(call: Call, chat: Chat, ts: str) -> str:
    """Return the web address of a message."""
    return f"{call.state.url}/archives/{chat.id}/p{ts.replace('.', '')}"


def new_message(call: Call, chat: Chat, fields: Json, thread: str | None) -> Json:
    """Return a new message of the app, not added to the chat yet."""
    message: Json = {
        "type": "message",
        "ts": call.state.stamps.next(),
        "user": call.grant.user,
        "team": call.team.id,
        "text": "",
        **{name: value for name, value in fields.items() if name != "metadata" or value},
    }
    bot = call.team.bot
    if bot is not None and call.grant.kind == "bot":
        message |= {
            "bot_id": bot.bot_id,
            "app_id": call.state.app.id,
            "bot_profile": bot_profile(call.state, bot),
        }
    message |= _custom_author(call)
    if thread is not None:
        root = thread_root(call, chat, thread)
        message |= {"thread_ts": root["ts"], "parent_user_id": root.get("user", "")}
    return message


def thread_root(call: Call, chat: Chat, ts: str) -> Json:
    """Return the root of the thread that a ``thread_ts`` names. Raises RefusalError."""
    found = chat.messages.get(ts)
    if found is None or not _STAMP.fullmatch(ts):
        raise RefusalError("invalid_thread_ts", f"there is no message {ts!r} to reply to")
    root = chat.messages.get(found.get("thread_ts", ts), found)
    if root is not found:
        call.notes.append("thread_ts names a reply instead of the thread's first message")
    return root


def _target(call: Call) -> Chat:
    """Return the chat to post to, named by its id, its name, or the user of a direct chat."""
    team = call.team
    if call["channel"] in team.users:
        return direct_chat(call.state, team, call["channel"], call.grant.user)
    chat = call.chat(inside=False)
    if chat.archived:
        raise RefusalError("is_archived")
    if call.grant.user not in chat.members and "chat:write.public" not in call.grant.scopes:
        raise RefusalError("not_in_channel")
    return chat


def _update_fields(call: Call, before: Json, said: Content) -> Json:
    """Return the fields that an update sets. New text replaces blocks unless new blocks are given."""
    fields = said.fields()
    was_rich = any(block["type"] == "rich_text" for block in before.get("blocks", ()))
    if was_rich and said.blocks and not any(block["type"] == "rich_text" for block in said.blocks):
        raise RefusalError("block_mismatch", "rich text can only be replaced by rich text")
    if said.blocks is None and before.get("blocks"):
        call.notes.append("an update without blocks of a message with blocks: state which to keep")
        fields["blocks"] = None
    if fields.get("metadata") == {}:
        fields["metadata"] = None
    return {name: value or None if name == "blocks" else value for name, value in fields.items()}


def _custom_author(call: Call) -> Json:
    """Return the fields of another name or picture, which needs its own scope."""
    given = {name: call.get(name) for name in ("username", "icon_url", "icon_emoji") if call.get(name)}
    if not given:
        return {}
    call.need_scope("chat:write.customize")
    icons = {"emoji": given.get("icon_emoji"), "image_64": given.get("icon_url")}
    shown = {name: value for name, value in icons.items() if value}
    return {"subtype": "bot_message", "username": given.get("username", call.state.app.name), "icons": shown}


STREAM_LIFE = 5 * 60
_TASK_STATES = ("pending", "in_progress", "complete", "error")


def start_stream(call: Call) -> Json:
    """``chat.startStream``: always a reply; in channels for one recipient, who sees it grow."""
    chat = call.chat()
    if not call["thread_ts"]:
        raise invalid("missing required field: thread_ts")
    if not chat.direct:
        _check_recipient(call, chat)
    message = new_message(call, chat, {"subtype": "bot_message"}, call["thread_ts"])
    message["streaming_state"] = "in_progress"
    stream = Stream(ts=message["ts"], until=call.state.clock.now() + STREAM_LIFE)
    grown = _extend(call, message, stream)
    call.state.streams[chat.id, stream.ts] = stream
    place(call.state, chat, grown)
    return {"channel": chat.id, "ts": stream.ts}


def append_stream(call: Call) -> Json:
    """``chat.appendStream``."""
    chat, message, stream = _streaming(call)
    if stream.closed == "stopped_by_user":
        raise RefusalError("stopped_by_user")
    if not call.get("markdown_text") and not call.get("chunks"):
        raise RefusalError("no_text", "nothing to append")
    grown = _extend(call, message, stream)
    change(call.state, chat, stream.ts, grown, emit_event=False)
    return {"channel": chat.id, "ts": stream.ts}


def stop_stream(call: Call) -> Json:
    """``chat.stopStream``: append the last text and blocks, and finish the message."""
    chat, message, stream = _streaming(call)
    grown = _extend(call, message, stream)
    last = check_blocks(call, call.get("blocks"), too_many="msg_blocks_too_many")
    fields = {**grown, "blocks": [*grown.get("blocks", ()), *(last or ())], "streaming_state": "completed"}
    checked = check_metadata(call)
    done = change(call.state, chat, stream.ts, {**fields, **({"metadata": checked} if checked else {})})
    del call.state.streams[chat.id, stream.ts]
    if call.get("session_status"):
        key = (chat.id, message["thread_ts"])
        call.state.sessions.setdefault(key, Session(status="")).status = call["session_status"]
    return {"channel": chat.id, "ts": stream.ts, "message": done}


def stop_streams(state: State, chat: Chat, root: str) -> list[str]:
    """Stop the streams of a thread, as its stop button does. Returns their timestamps."""
    found = [
        stream
        for (where, ts), stream in state.streams.items()
        if where == chat.id and chat.messages[ts].get("thread_ts") == root and not stream.closed
    ]
    for stream in found:
        stream.closed = "stopped_by_user"
        change(state, chat, stream.ts, {"streaming_state": "completed"}, emit_event=False)
    return [stream.ts for stream in found]


def _check_recipient(call: Call, chat: Chat) -> None:
    if not call.get("recipient_team_id"):
        raise RefusalError("missing_recipient_team_id", "a stream in a channel needs a recipient")
    if not call.get("recipient_user_id"):
        raise RefusalError("missing_recipient_user_id", "a stream in a channel needs a recipient")
    if call["recipient_user_id"] not in call.team.users:
        raise RefusalError("user_not_found")
    if call["recipient_user_id"] == call.grant.user:
        call.notes.append("the bot streams to itself, so that no user sees the text grow")
    if call["recipient_user_id"] not in chat.members:
        call.notes.append("the recipient of the stream is not in the channel")


def _streaming(call: Call) -> tuple[Chat, Json, Stream]:
    chat = call.chat()
    message = call.own(chat, call["ts"], otherwise="message_not_owned_by_app")
    expire_stream(call.state, chat, message["ts"])
    stream = call.state.streams.get((chat.id, message["ts"]))
    if stream is None:
        raise RefusalError("message_not_in_streaming_state")
    return chat, message, stream


def _extend(call: Call, message: Json, stream: Stream) -> Json:
    """Return the message with the pieces of this call. Changes nothing if the call is refused."""
    pieces = _pieces(call)
    size = stream.size + sum(
        len(piece.get("text", "")) for piece in pieces if piece["type"] == "markdown_text"
    )
    if size > LONGEST_MARKDOWN:
        raise RefusalError("msg_too_long", f"the streamed message would have {size} characters")
    grown = message
    for piece in pieces:
        grown = _add(call, grown, piece)
    allowed = call.state.switches.may_ping  # a mention may be split over calls
    known = list(notifying_mentions(message["text"], allowed))
    call.notes += [
        f"unescaped mention {ping}" for ping in list(notifying_mentions(grown["text"], allowed))[len(known) :]
    ]
    stream.size = size
    return grown


def _pieces(call: Call) -> Sequence[Json]:
    chunks = call.get("chunks")
    if chunks is not None and not isinstance(chunks, list):
        raise RefusalError("invalid_chunks", "chunks are not a list")
    markdown = call.get("markdown_text")
    if markdown:
        limit_markdown(markdown)
    first: list[Json] = [{"type": "markdown_text", "text": markdown}] if markdown else []
    return [*first, *(_chunk(call, one) for one in cast(list[Any], chunks or ()))]


def _chunk(call: Call, given: object) -> Json:
    if not isinstance(given, dict):
        raise RefusalError("invalid_chunks", "a chunk is not an object")
    chunk = cast(Json, given)
    kind = chunk.get("type")
    fine = (
        (kind == "markdown_text" and isinstance(chunk.get("text"), str))
        or (kind == "task_update" and bool(chunk.get("id")) and bool(chunk.get("title")))
        or (kind == "plan_update" and bool(chunk.get("title")))
        or (kind == "blocks" and isinstance(chunk.get("blocks"), list))
    )
    if not fine or (kind == "task_update" and chunk.get("status", "pending") not in _TASK_STATES):
        raise RefusalError("invalid_chunks", f"unknown chunk: {kind}")
    return chunk


def _add(call: Call, message: Json, piece: Json) -> Json:
    blocks: list[Json] = list(message.get("blocks", ()))
    if piece["type"] == "markdown_text":
        text = message["text"] + piece["text"]
        if blocks and blocks[-1]["type"] == "markdown":
            blocks[-1] = {**blocks[-1], "text": blocks[-1]["text"] + piece["text"]}
        else:
            blocks.append(markdown_block(call, piece["text"]))
        return {**message, "text": text, "blocks": blocks}
    if piece["type"] == "blocks":
        added = check_blocks(call, piece["blocks"], too_many="msg_blocks_too_many") or []
        return {**message, "blocks": [*blocks, *added]}
    return {**message, "blocks": _with_task(call, blocks, piece)}


def _with_task(call: Call, blocks: list[Json], piece: Json) -> list[Json]:
    """Return the blocks with a task's card or the plan's title added or updated."""
    kind = "task_card" if piece["type"] == "task_update" else "plan"
    facts = {key: value for key, value in piece.items() if key not in ("type", "id")}
    task = piece.get("id", "")
    for number, block in enumerate(blocks):
        if block["type"] == kind and block.get("task_id", "") == task:
            return [*blocks[:number], {**block, **facts}, *blocks[number + 1 :]]
    new = {
        "type": kind,
        "block_id": call.state.names.next("b"),
        **({"task_id": task} if task else {}),
        **facts,
    }
    return [*blocks, new]


_EMOJI = re.compile(r"[a-z0-9_+'-]+(::skin-tone-[2-6])?")


def reactions_add(call: Call) -> Json:
    """``reactions.add``."""
    chat, ts = _reacted(call)
    if not _EMOJI.fullmatch(call["name"]):
        raise RefusalError("invalid_name", f"no such emoji: {call['name']}")
    if not react(call.state, chat, ts, call.team.users[call.grant.user], call["name"], add=True):
        raise RefusalError("already_reacted")
    return {}


def reactions_remove(call: Call) -> Json:
    """``reactions.remove``."""
    chat, ts = _reacted(call)
    if not react(call.state, chat, ts, call.team.users[call.grant.user], call["name"], add=False):
        raise RefusalError("no_reaction")
    return {}


def reactions_get(call: Call) -> Json:
    """``reactions.get``."""
    chat, ts = _reacted(call)
    return {"type": "message", "channel": chat.id, "message": chat.messages[ts]}


def _reacted(call: Call) -> tuple[Chat, str]:
    if not call.get("channel") or not call.get("timestamp"):
        raise RefusalError("no_item_specified", "neither channel nor timestamp")
    chat = call.chat()
    if not _STAMP.fullmatch(call["timestamp"]):
        raise RefusalError("bad_timestamp", f"no timestamp: {call['timestamp']}")
    if call["timestamp"] not in chat.messages:
        raise RefusalError("message_not_found")
    return chat, call["timestamp"]


MOST_USES = 5


def respond(state: State, name: str, given: Json, notes: list[str]) -> None:
    """Handle a post to a ``response_url``. Raises RefusalError."""
    url = state.reply_urls.get(name)
    if url is None:
        raise RefusalError("invalid_token", "unknown response_url")
    if state.clock.now() > url.until:
        raise RefusalError("expired_url", "a response_url is used after 30 minutes")
    if url.uses >= MOST_USES:
        raise RefusalError("used_url", "a response_url is used a sixth time")
    apply_response(state, url, given, notes)
    url.uses += 1


def apply_response(state: State, url: ReplyUrl, given: Json, notes: list[str]) -> None:
    """Post a response, or replace or delete the message that the user acted on. Raises RefusalError."""
    arguments = {**given, **values("chat.postMessage", given)}
    call = Call(
        state=state,
        method="response_url",
        arguments=arguments,
        grant=_response_grant(state, url),
        notes=notes,
    )
    if given.get("delete_original"):
        _delete(state, url)
        return
    said = read_content(call).fields()
    if given.get("replace_original") and url.source is not None:
        _replace(call, url, said)
        return
    message = new_message(call, url.chat, said, given.get("thread_ts") or url.thread)
    if given.get("response_type") == "in_channel":
        place(state, url.chat, message)
    else:
        url.chat.hidden.setdefault(url.user, []).append({**message, "is_ephemeral": True})
        state.changes.bump()


def apply_acknowledgement(state: State, url: ReplyUrl, answer: object, notes: list[str]) -> None:
    """Apply the payload of a slash command's acknowledgement: a text or a message."""
    given: Any = {"text": answer} if isinstance(answer, str) and answer else answer
    if isinstance(given, dict) and given:
        apply_response(state, url, cast(Json, given), notes)


def _response_grant(state: State, url: ReplyUrl) -> Grant:
    """Return a grant for responses, which need neither token nor membership."""
    team = state.teams[url.chat.team]
    bot = team.bot.id if team.bot else ""
    return Grant(token="", kind="bot", team=team.id, user=bot, scopes={"chat:write.customize"})


def _delete(state: State, url: ReplyUrl) -> None:
    source = url.source or ""
    if source in url.chat.messages:
        remove(state, url.chat, source)
    else:
        url.chat.hidden[url.user] = [one for one in _hidden(url.chat, url.user) if one["ts"] != source]
        state.changes.bump()


def _replace(call: Call, url: ReplyUrl, said: Json) -> None:
    fields = {"blocks": None, "attachments": None, **said}
    source = url.source or ""
    if source in url.chat.messages:
        change(call.state, url.chat, source, fields)
        return
    url.chat.hidden[url.user] = [
        {key: value for key, value in {**one, **fields}.items() if value is not None}
        if one["ts"] == source
        else one
        for one in _hidden(url.chat, url.user)
    ]
    call.state.changes.bump()


def _hidden(chat: Chat, user: str) -> list[Json]:
    return chat.hidden.get(user, [])
