"""Parser of Slack payloads: events, commands, interactions and histories. Pure; raises UnreadableError."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

from msgspec import Struct
from msgspec.structs import replace

from gateway.channel import Address, InboundMessage, Sender, SessionKey

Json = Mapping[str, Any]

APPROVE = "trunkline_approve"
ASK = "trunkline_ask"

_STAMP = re.compile(r"[0-9]{1,12}\.[0-9]{6}")
_SUBTYPES = (None, "file_share", "thread_broadcast", "me_message")


class UnreadableError(Exception):
    """A payload is not what it should be."""


class Rules(Struct, frozen=True, kw_only=True):
    """What an account makes of what it reads. ``follows`` says whether the bot takes part in a thread.

    Ids of people are only good within their workspace, so those of ``home`` stand as they are and all others
    behind the workspace's own: two people with one id are never taken for each other.
    """

    channel: str
    team: str
    bot_user: str
    home: bool = True
    strategy: Literal["chat", "chat_user", "thread"] = "thread"
    groups: Literal["mention", "reply", "command", "always"] = "mention"
    edits: bool = True
    prefix: str = ""
    follows: Callable[[str, str], bool] = lambda _chat, _thread: False


class Upload(Struct, frozen=True):
    """A file of a message that has yet to be fetched. ``size`` is in bytes, as the platform has it.

    What was spoken into Slack has an audio type, whatever Slack calls it.
    """

    id: str
    name: str
    mime_type: str
    size: int
    url: str


class Seen(Struct, frozen=True):
    """A message that is not for the bot, or is its own."""

    chat: str
    ts: str


class Written(Struct, frozen=True):
    """A message for the bot. ``edited`` is the time of its last change, when it was read from a history."""

    message: InboundMessage
    ts: str
    files: tuple[Upload, ...] = ()
    edited: str | None = None


class Deleted(Struct, frozen=True):
    """A message that its writer deleted."""

    dedup_key: str


class Stopped(Struct, frozen=True):
    """A person pressed the stop button of a thread."""

    session: str
    chat: str
    thread: str


class Pressed(Struct, frozen=True):
    """A person decided about a tool."""

    approval: str
    decision: Literal["once", "always", "deny"]
    session: str
    user: str
    response_url: str


class Left(Struct, frozen=True):
    """The app was removed from the workspace: its token is worth nothing any more."""


class Revoked(Struct, frozen=True):
    """Tokens of the workspace were revoked, the bot's perhaps among them."""


Parsed = Left | Revoked | Seen | Written | Deleted | Stopped | Pressed | None


def parse(payload: Json, rules: Rules, now: int) -> Parsed:
    """What a payload of any kind means; None for what is nothing to us. ``now`` is in microseconds."""
    if "command" in payload:
        return _command(payload, rules, now)
    kind = payload.get("type")
    if kind == "event_callback":
        return parse_event(_object(payload, "event"), rules)
    if kind == "block_actions":
        return _action(payload, rules)
    if kind == "message_action" and payload.get("callback_id") == ASK:
        return _asked_about(payload, rules)
    return None


def parse_event(event: Json, rules: Rules) -> Parsed:
    """What an event means."""
    kind = event.get("type")
    if kind == "agent_session_stopped":
        chat, thread = _text(event, "channel"), _stamp(event, "thread_ts")
        return Stopped(_session(rules, chat, thread, _text(event, "user")), chat, thread)
    if kind == "app_uninstalled":
        return Left()
    if kind == "tokens_revoked":
        return Revoked()
    if kind not in ("message", "app_mention"):
        return None
    subtype = event.get("subtype")
    if subtype == "message_changed":
        return _changed(event, rules)
    if subtype == "message_deleted":
        return _deleted(event.get("previous_message"), _text(event, "channel"), rules)
    return _written(event, _text(event, "channel"), rules, mentioned=kind == "app_mention")


def parse_history(message: Json, chat: str, rules: Rules) -> Parsed:
    """A message from a history, which has no room of its own."""
    found = _written(message, chat, rules, mentioned=False)
    if isinstance(found, Written) and isinstance(message.get("edited"), Mapping) and rules.edits:
        return replace(found, edited=_stamp(cast(Json, message["edited"]), "ts"))
    return found


def _written(event: Json, chat: str, rules: Rules, *, mentioned: bool) -> Parsed:
    ts = _stamp(event, "ts")
    user = event.get("user")
    if event.get("subtype") not in _SUBTYPES or event.get("bot_id") or event.get("hidden"):
        return Seen(chat, ts)
    if not isinstance(user, str) or user in ("", rules.bot_user, "USLACKBOT"):
        return Seen(chat, ts)
    text = _text(event, "text", "")
    thread = _stamp(event, "thread_ts") if event.get("thread_ts") is not None else None
    mentioned = mentioned or mentions(text, rules.bot_user)
    words = plain(text, rules.bot_user)
    if not (_is_direct(chat) or _is_meant(event, rules, chat, thread, words, mentioned=mentioned)):
        return Seen(chat, ts)
    client_msg_id = event.get("client_msg_id")
    message = InboundMessage(
        session=_session(rules, chat, _thread(rules, chat, thread, ts), user),
        dedup_key=f"{chat}:{ts}",
        alt_key=client_msg_id if isinstance(client_msg_id, str) and client_msg_id else None,
        address=_address(rules, chat, _thread(rules, chat, thread, ts), ts),
        sender=Sender(_person(rules, user)),
        text=words,
        order=order_of(ts),
        in_reply_to=thread,
        sent_at=order_of(ts) // 1000,
    )
    return Written(message, ts, _files(event))


def _is_meant(
    event: Json, rules: Rules, chat: str, thread: str | None, words: str, *, mentioned: bool
) -> bool:
    """Whether a message where several read is for the bot."""
    match rules.groups:
        case "always":
            return True
        case "command":
            return mentioned and words.startswith("/")
        case "mention":
            return mentioned
        case "reply":
            ours = thread is not None and (
                event.get("parent_user_id") == rules.bot_user or rules.follows(chat, thread)
            )
            return mentioned or ours


def _changed(event: Json, rules: Rules) -> Parsed:
    chat, after = _text(event, "channel"), _object(event, "message")
    before = event.get("previous_message")
    old: Json = cast(Json, before) if isinstance(before, Mapping) else {}
    if after.get("subtype") == "tombstone":
        return _deleted(old, chat, rules)
    edited = after.get("edited")
    if not rules.edits or not isinstance(edited, Mapping) or after.get("text") == old.get("text"):
        return None
    meant = isinstance(_written(old, chat, rules, mentioned=False), Written) if "ts" in old else False
    found = _written(after, chat, rules, mentioned=meant)
    if not isinstance(found, Written):
        return None
    return Written(revision(found.message, _stamp(cast(Json, edited), "ts")), found.ts, found.files)


def revision(message: InboundMessage, stamp: str) -> InboundMessage:
    """The new wording of a message, from the time of the change."""
    key = message.dedup_key
    return replace(message, dedup_key=f"{key}:e{stamp}", revises=key, alt_key=None, order=order_of(stamp))


def _deleted(message: object, chat: str, rules: Rules) -> Parsed:
    if not isinstance(message, Mapping):
        return None
    found = _written(cast(Json, message), chat, rules, mentioned=True)
    return Deleted(found.message.dedup_key) if isinstance(found, Written) else None


def _command(payload: Json, rules: Rules, now: int) -> Written:
    """A slash command. Where others read it is answered for the one who gave it alone."""
    chat, user = _text(payload, "channel_id"), _text(payload, "user_id")
    name = _text(payload, "command").removeprefix("/").removeprefix(rules.prefix).removeprefix("bot-")
    direct = _is_direct(chat)
    message = InboundMessage(
        session=_session(rules, chat, None, user),
        dedup_key=f"command:{_text(payload, 'trigger_id')}",
        address=_address(rules, chat, None, None if direct else _text(payload, "response_url")),
        sender=Sender(_person(rules, user), _text(payload, "user_name", "")),
        text=f"/{name} {_text(payload, 'text', '')}".strip(),
        order=now,
    )
    return Written(message, "")


def _asked_about(payload: Json, rules: Rules) -> Parsed:
    """A person chose to ask the bot about a message; the answer goes into that message's thread."""
    said, chat = _object(payload, "message"), _text(_object(payload, "channel"), "id")
    ts, user = _stamp(said, "ts"), _text(_object(payload, "user"), "id")
    stamp = _stamp(payload, "action_ts")
    thread = _stamp(said, "thread_ts") if said.get("thread_ts") is not None else ts
    message = InboundMessage(
        session=_session(rules, chat, thread, user),
        dedup_key=f"shortcut:{chat}:{stamp}",
        address=_address(rules, chat, thread, ts),
        sender=Sender(_person(rules, user)),
        text=plain(_text(said, "text", ""), rules.bot_user),
        order=order_of(stamp),
    )
    return Written(message, ts, _files(said))


def _action(payload: Json, rules: Rules) -> Pressed | None:
    actions = payload.get("actions")
    if not isinstance(actions, list) or not actions:
        raise UnreadableError("an interaction without actions")
    action: Any = cast(list[object], actions)[0]
    if not isinstance(action, Mapping) or not str(cast(Json, action).get("action_id")).startswith(APPROVE):
        return None
    decision, _, rest = _text(cast(Json, action), "value").partition(" ")
    approval, _, session = rest.partition(" ")
    if decision not in ("once", "always", "deny") or not approval or not session:
        raise UnreadableError("a button whose value is none of ours")
    user = _person(rules, _text(_object(payload, "user"), "id"))
    return Pressed(approval, decision, session, user, _text(payload, "response_url", ""))


def user_of(person: str) -> str:
    """The id by which a sender's workspace knows them."""
    return person.rpartition(":")[2]


def _person(rules: Rules, user: str) -> str:
    return user if rules.home else f"{rules.team}:{user}"


def press_value(decision: str, approval: str, session: str) -> str:
    """The value of a button, which ``parse`` reads when it is pressed."""
    return f"{decision} {approval} {session}"


def _files(event: Json) -> tuple[Upload, ...]:
    files = event.get("files")
    if not isinstance(files, list):
        return ()
    return tuple(
        _upload(cast(Json, one)) for one in cast(list[object], files)[:20] if isinstance(one, Mapping)
    )


def _upload(file: Json) -> Upload:
    size, mime_type = file.get("size"), _text(file, "mimetype", "")
    if file.get("subtype") == "slack_audio":
        mime_type = f"audio/{mime_type.rpartition('/')[2] or 'mp4'}"
    return Upload(
        _text(file, "id", ""),
        _text(file, "name", "file"),
        mime_type,
        size if isinstance(size, int) else 0,
        _text(file, "url_private_download", "") or _text(file, "url_private", ""),
    )


def _is_direct(chat: str) -> bool:
    return chat.startswith("D")


def _thread(rules: Rules, chat: str, thread: str | None, ts: str) -> str | None:
    """The thread that an answer belongs to: where threads are conversations, one begins with each message."""
    return thread or (ts if rules.strategy == "thread" and not _is_direct(chat) else None)


def _session(rules: Rules, chat: str, thread: str | None, user: str) -> str:
    threads, users = rules.strategy == "thread", rules.strategy == "chat_user" and not _is_direct(chat)
    key = SessionKey(rules.channel, rules.team, chat, thread if threads else None, user if users else None)
    return str(key)


def _address(rules: Rules, chat: str, thread: str | None, reply_to: str | None) -> Address:
    return Address(rules.channel, rules.team, chat, thread, reply_to, group=not _is_direct(chat))


def order_of(ts: str) -> int:
    """Return a message's place in Slack's order, from its timestamp."""
    return int(ts.replace(".", "")) if _STAMP.fullmatch(ts) else 0


def _object(given: Json, key: str) -> Json:
    value = given.get(key)
    if not isinstance(value, Mapping):
        raise UnreadableError(f"{key} is no object")
    return cast(Json, value)


def _text(given: Json, key: str, otherwise: str | None = None) -> str:
    value = given.get(key)
    if value is None and otherwise is not None:
        return otherwise
    if not isinstance(value, str) or (not value and otherwise is None):
        raise UnreadableError(f"{key} is no text")
    return value


def _stamp(given: Json, key: str) -> str:
    value = _text(given, key)
    if not _STAMP.fullmatch(value):
        raise UnreadableError(f"{key} is no timestamp")
    return value


_SEQUENCE = re.compile(r"<([^<>]+)>")
_ENTITIES = (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&"))


def mentions(text: str, user: str) -> bool:
    """Whether a text mentions a user."""
    return re.search(rf"<@{re.escape(user)}(\|[^<>]*)?>", text) is not None


def plain(text: str, bot_user: str) -> str:
    """What was written, without the bot's own name."""
    text = re.sub(rf"<@{re.escape(bot_user)}(\|[^<>]*)?>[:,]?[ \t]*", "", text)
    return _unescaped(_SEQUENCE.sub(_meant, text)).strip()


def _meant(match: re.Match[str]) -> str:
    inside, _, label = match.group(1).partition("|")
    sign, name = inside[0], inside[1:]
    if sign == "@":
        return f"@{label or name}"
    if sign == "#":
        return f"#{label or name}"
    if sign == "!":
        return label or f"@{name.partition('^')[0]}"
    return f"{label} ({inside})" if label and label not in inside else inside


def _unescaped(text: str) -> str:
    for entity, mark in _ENTITIES:
        text = text.replace(entity, mark)
    return text
