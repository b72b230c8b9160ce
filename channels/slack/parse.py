"""Parser of Slack payloads: events, commands, interactions and histories. Pure."""

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

_TS = re.compile(r"[0-9]{1,12}\.[0-9]{6}")
_SUBTYPES = (None, "file_share", "thread_broadcast", "me_message")


class UnreadableError(Exception):
    """Error for a payload with missing or malformed fields."""


class Rules(Struct, frozen=True, kw_only=True):
    """Account and settings that decide how payloads are read.

    ``follows`` returns whether the bot takes part in a thread. User ids are unique only within a workspace,
    so ids outside of the ``home`` workspace are prefixed with their team id.
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
    """File of a message that was not fetched yet. ``size`` is in bytes, as announced by Slack.

    A recorded audio clip has an audio type here, although Slack announces it as video.
    """

    id: str
    name: str
    mime_type: str
    size: int
    url: str


class OtherMessage(Struct, frozen=True):
    """Message that is not for the bot, or from it."""

    chat: str
    ts: str


class UserMessage(Struct, frozen=True):
    """Message for the bot. ``edited`` is the timestamp of the last edit, if read from a history."""

    message: InboundMessage
    ts: str
    files: tuple[Upload, ...] = ()
    edited: str | None = None


class DeletedMessage(Struct, frozen=True):
    """Message that was deleted."""

    dedup_key: str


class StopPressed(Struct, frozen=True):
    """Press of the stop button of a thread."""

    session: str
    chat: str
    thread: str


class ApprovalPressed(Struct, frozen=True):
    """Press of a button of an approval request."""

    approval: str
    decision: Literal["once", "always", "deny"]
    session: str
    user: str
    response_url: str


class AppRemoved(Struct, frozen=True):
    """Removal of the app from the workspace, after which its token is invalid."""


class TokensRevoked(Struct, frozen=True):
    """Revocation of tokens of the workspace, which may include the bot's."""


Parsed = (
    AppRemoved
    | TokensRevoked
    | OtherMessage
    | UserMessage
    | DeletedMessage
    | StopPressed
    | ApprovalPressed
    | None
)


def parse(payload: Json, rules: Rules, now: int) -> Parsed:
    """Parse a delivery; None if it is of no interest. ``now`` orders commands, in microseconds since 1970.

    Raises UnreadableError if the payload is malformed.
    """
    if "command" in payload:
        return _command(payload, rules, now)
    kind = payload.get("type")
    if kind == "event_callback":
        return parse_event(_object(payload, "event"), rules)
    if kind == "block_actions":
        return _approval_pressed(payload, rules)
    if kind == "message_action" and payload.get("callback_id") == ASK:
        return _message_shortcut(payload, rules)
    return None


def parse_event(event: Json, rules: Rules) -> Parsed:
    """Parse an event of the Events API. Raises UnreadableError."""
    kind = event.get("type")
    if kind == "agent_session_stopped":
        chat, thread = _text(event, "channel"), _ts(event, "thread_ts")
        return StopPressed(_session(rules, chat, thread, _text(event, "user")), chat, thread)
    if kind == "app_uninstalled":
        return AppRemoved()
    if kind == "tokens_revoked":
        return TokensRevoked()
    if kind not in ("message", "app_mention"):
        return None
    subtype = event.get("subtype")
    if subtype == "message_changed":
        return _changed(event, rules)
    if subtype == "message_deleted":
        return _deleted(event.get("previous_message"), _text(event, "channel"), rules)
    return _message(event, _text(event, "channel"), rules, mentioned=kind == "app_mention")


def parse_history(message: Json, chat: str, rules: Rules) -> Parsed:
    """Parse a message of a history, which does not name its chat. Raises UnreadableError."""
    found = _message(message, chat, rules, mentioned=False)
    if isinstance(found, UserMessage) and isinstance(message.get("edited"), Mapping) and rules.edits:
        return replace(found, edited=_ts(cast(Json, message["edited"]), "ts"))
    return found


def _message(event: Json, chat: str, rules: Rules, *, mentioned: bool) -> Parsed:
    ts = _ts(event, "ts")
    user = event.get("user")
    if event.get("subtype") not in _SUBTYPES or event.get("bot_id") or event.get("hidden"):
        return OtherMessage(chat, ts)
    if not isinstance(user, str) or user in ("", rules.bot_user, "USLACKBOT"):
        return OtherMessage(chat, ts)
    text = _text(event, "text", "")
    thread = _ts(event, "thread_ts") if event.get("thread_ts") is not None else None
    mentioned = mentioned or mentions(text, rules.bot_user)
    plain = plain_text(text, rules.bot_user)
    if not (_is_direct(chat) or _is_addressed(event, rules, chat, thread, plain, mentioned=mentioned)):
        return OtherMessage(chat, ts)
    client_msg_id = event.get("client_msg_id")
    message = InboundMessage(
        session=_session(rules, chat, _thread(rules, chat, thread, ts), user),
        dedup_key=f"{chat}:{ts}",
        alt_key=client_msg_id if isinstance(client_msg_id, str) and client_msg_id else None,
        address=_address(rules, chat, _thread(rules, chat, thread, ts), ts),
        sender=Sender(_sender_id(rules, user)),
        text=plain,
        order=order_of(ts),
        in_reply_to=thread,
        sent_at=order_of(ts) // 1000,
    )
    return UserMessage(message, ts, _files(event))


def _is_addressed(
    event: Json, rules: Rules, chat: str, thread: str | None, plain: str, *, mentioned: bool
) -> bool:
    """Return whether a message in a group chat is for the bot, according to ``groups``."""
    match rules.groups:
        case "always":
            return True
        case "command":
            return mentioned and plain.startswith("/")
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
    meant = isinstance(_message(old, chat, rules, mentioned=False), UserMessage) if "ts" in old else False
    found = _message(after, chat, rules, mentioned=meant)
    if not isinstance(found, UserMessage):
        return None
    return UserMessage(revision(found.message, _ts(cast(Json, edited), "ts")), found.ts, found.files)


def revision(message: InboundMessage, stamp: str) -> InboundMessage:
    """Return a message as a revision of the same message, edited at the timestamp ``stamp``."""
    key = message.dedup_key
    return replace(message, dedup_key=f"{key}:e{stamp}", revises=key, alt_key=None, order=order_of(stamp))


def _deleted(message: object, chat: str, rules: Rules) -> Parsed:
    if not isinstance(message, Mapping):
        return None
    found = _message(cast(Json, message), chat, rules, mentioned=True)
    return DeletedMessage(found.message.dedup_key) if isinstance(found, UserMessage) else None


def _command(payload: Json, rules: Rules, now: int) -> UserMessage:
    """Parse a slash command. In group chats its answer goes to the ``response_url``, visible to its author
    only.
    """
    chat, user = _text(payload, "channel_id"), _text(payload, "user_id")
    name = _text(payload, "command").removeprefix("/").removeprefix(rules.prefix).removeprefix("bot-")
    direct = _is_direct(chat)
    message = InboundMessage(
        session=_session(rules, chat, None, user),
        dedup_key=f"command:{_text(payload, 'trigger_id')}",
        address=_address(rules, chat, None, None if direct else _text(payload, "response_url")),
        sender=Sender(_sender_id(rules, user), _text(payload, "user_name", "")),
        text=f"/{name} {_text(payload, 'text', '')}".strip(),
        order=now,
    )
    return UserMessage(message, "")


def _message_shortcut(payload: Json, rules: Rules) -> Parsed:
    """Parse the shortcut "Ask about this"; the answer goes to the thread of the chosen message."""
    source, chat = _object(payload, "message"), _text(_object(payload, "channel"), "id")
    ts, user = _ts(source, "ts"), _text(_object(payload, "user"), "id")
    stamp = _ts(payload, "action_ts")
    thread = _ts(source, "thread_ts") if source.get("thread_ts") is not None else ts
    message = InboundMessage(
        session=_session(rules, chat, thread, user),
        dedup_key=f"shortcut:{chat}:{stamp}",
        address=_address(rules, chat, thread, ts),
        sender=Sender(_sender_id(rules, user)),
        text=plain_text(_text(source, "text", ""), rules.bot_user),
        order=order_of(stamp),
    )
    return UserMessage(message, ts, _files(source))


def _approval_pressed(payload: Json, rules: Rules) -> ApprovalPressed | None:
    actions = payload.get("actions")
    if not isinstance(actions, list) or not actions:
        raise UnreadableError("the interaction has no actions")
    action: Any = cast(list[object], actions)[0]
    if not isinstance(action, Mapping) or not str(cast(Json, action).get("action_id")).startswith(APPROVE):
        return None
    decision, _, rest = _text(cast(Json, action), "value").partition(" ")
    approval, _, session = rest.partition(" ")
    if decision not in ("once", "always", "deny") or not approval or not session:
        raise UnreadableError("unknown value of an approval button")
    user = _sender_id(rules, _text(_object(payload, "user"), "id"))
    return ApprovalPressed(approval, decision, session, user, _text(payload, "response_url", ""))


def user_id_of(sender_id: str) -> str:
    """Return the user id of a sender without the team prefix."""
    return sender_id.rpartition(":")[2]


def _sender_id(rules: Rules, user: str) -> str:
    return user if rules.home else f"{rules.team}:{user}"


def button_value(decision: str, approval: str, session: str) -> str:
    """Return the value of an approval button, as ``parse`` reads it."""
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
    """Return the thread to answer in. With the strategy ``thread``, each message in a channel starts one."""
    return thread or (ts if rules.strategy == "thread" and not _is_direct(chat) else None)


def _session(rules: Rules, chat: str, thread: str | None, user: str) -> str:
    threads, users = rules.strategy == "thread", rules.strategy == "chat_user" and not _is_direct(chat)
    key = SessionKey(rules.channel, rules.team, chat, thread if threads else None, user if users else None)
    return str(key)


def _address(rules: Rules, chat: str, thread: str | None, reply_to: str | None) -> Address:
    return Address(rules.channel, rules.team, chat, thread, reply_to, group=not _is_direct(chat))


def order_of(ts: str) -> int:
    """Return a timestamp as microseconds; 0 if it is malformed."""
    return int(ts.replace(".", "")) if _TS.fullmatch(ts) else 0


def _object(given: Json, key: str) -> Json:
    value = given.get(key)
    if not isinstance(value, Mapping):
        raise UnreadableError(f"{key} is not an object")
    return cast(Json, value)


def _text(given: Json, key: str, otherwise: str | None = None) -> str:
    value = given.get(key)
    if value is None and otherwise is not None:
        return otherwise
    if not isinstance(value, str) or (not value and otherwise is None):
        raise UnreadableError(f"{key} is not text")
    return value


def _ts(given: Json, key: str) -> str:
    value = _text(given, key)
    if not _TS.fullmatch(value):
        raise UnreadableError(f"{key} is not a timestamp")
    return value


_SEQUENCE = re.compile(r"<([^<>]+)>")
_ENTITIES = (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&"))


def mentions(text: str, user: str) -> bool:
    """Return whether a text mentions a user."""
    return re.search(rf"<@{re.escape(user)}(\|[^<>]*)?>", text) is not None


def plain_text(text: str, bot_user: str) -> str:
    """Return a message's text without markup and without mentions of the bot."""
    text = re.sub(rf"<@{re.escape(bot_user)}(\|[^<>]*)?>[:,]?[ \t]*", "", text)
    return _unescape(_SEQUENCE.sub(_sequence_text, text)).strip()


def _sequence_text(match: re.Match[str]) -> str:
    inside, _, label = match.group(1).partition("|")
    sign, name = inside[0], inside[1:]
    if sign == "@":
        return f"@{label or name}"
    if sign == "#":
        return f"#{label or name}"
    if sign == "!":
        return label or f"@{name.partition('^')[0]}"
    return f"{label} ({inside})" if label and label not in inside else inside


def _unescape(text: str) -> str:
    for entity, mark in _ENTITIES:
        text = text.replace(entity, mark)
    return text
