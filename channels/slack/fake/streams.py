"""Streamed messages, the status of the app in a thread, and agent sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from channels.slack.fake.calls import Asked, RefusalError, invalid, objects
from channels.slack.fake.messages import (
    LONGEST_MARKDOWN,
    checked_blocks,
    limit_markdown,
    markdown_block,
    metadata,
    new_message,
)
from channels.slack.fake.rooms import change, expire_stream, place
from channels.slack.fake.state import Json, Room, Session, State, Stream
from channels.slack.fake.text import pings

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


def stopped(state: State, room: Room, root: str) -> list[str]:
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
