"""Parser of Slack payloads: events, commands, interactions and histories. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

from msgspec import Struct
from msgspec.structs import replace

from channels.slack.context.content import (
    Shown,
    Upload,
    as_shown,
    begins_with_mention,
    full_text,
    mentions,
    own_text,
    plain_text,
    shown_in,
    uploads,
)
from channels.slack.render import FEEDBACK
from gateway.channel import (
    Address,
    Addressing,
    Feedback,
    InboundMessage,
    InvalidRequestError,
    MessageLink,
    Sender,
    SessionKey,
    SessionStrategy,
)

Json = Mapping[str, Any]

APPROVE = "trunkline_approve"
ASK = "trunkline_ask"
ASK_COMMAND = "ask"
"""Command that asks the bot, with a form if it has no text. A plugin's command of that name comes first."""
FORM, QUESTION, TEXT = "trunkline_form", "question", "text"
"""Names of the form, its block and its field."""

_TS = re.compile(r"[0-9]{1,12}\.[0-9]{6}")
_LINK = re.compile(r"https://[a-z0-9-]+\.slack\.com/archives/([CDG][A-Z0-9]+)/p(\d{1,12})(\d{6})(?:\?.*)?")
_SUBTYPES = (None, "file_share", "thread_broadcast", "me_message")
_DIRECTORY = (
    "channel_rename",
    "group_rename",
    "subteam_created",
    "subteam_members_changed",
    "subteam_updated",
    "user_change",
)
_QUESTION = "Answer this message."
"""Text of the shortcut "Ask about this", which has none of its own."""


class UnreadableError(Exception):
    """Error for a payload with missing or malformed fields."""


class FormError(Exception):
    """Error that is shown in a form to the user who submitted it."""


class Rules(Struct, frozen=True, kw_only=True):
    """Account and settings that decide how payloads are read.

    ``follows`` returns whether the bot was called into a thread before a timestamp, ``heeds`` whether the
    access rules name a bot, and ``asks`` whether ``/ask`` is a command of this channel. User ids are unique
    only within a workspace, so ids outside of the ``home`` workspace are prefixed with their team id.
    """

    channel: str
    team: str
    bot_user: str
    bot: str = ""
    home: bool = True
    strategy: SessionStrategy = "thread"
    edits: bool = True
    prefix: str = ""
    follows: Callable[[str, str, str], bool] = lambda _chat, _thread, _ts: False
    heeds: Callable[[str], bool] = lambda _bot: False
    asks: Callable[[], bool] = lambda: True


class OtherMessage(Struct, frozen=True):
    """Message that no user wrote: of the bot itself, of another bot, or of Slack."""

    chat: str
    ts: str


class UserMessage(Struct, frozen=True):
    """Message of a user, or of a bot that the access rules name.

    ``markup`` is its text with the ids of users and channels, and ``shown`` what else it shows; names and
    quotes are not in ``message`` yet. ``edited`` is the timestamp of the last edit, if read from a history.
    """

    message: InboundMessage
    ts: str
    files: tuple[Upload, ...] = ()
    edited: str | None = None
    markup: str = ""
    shown: tuple[Shown, ...] = ()


class DeletedMessage(Struct, frozen=True):
    """Message that was deleted."""

    dedup_key: str


class StopPressed(Struct, frozen=True):
    """Press of the stop button of a thread."""

    session: str
    chat: str
    thread: str


class QuestionPressed(Struct, frozen=True):
    """Press of a button of a question: the choice with this number.

    ``chat``, ``ts`` and ``text`` are the place and the text of its message, empty if unknown.
    """

    question: str
    number: int
    user: str
    response_url: str
    chat: str = ""
    ts: str = ""
    text: str = ""


class AppOpened(Struct, frozen=True):
    """Opening of the app by a user: of a new thread, of its messages, or of its home tab.

    ``visitor`` is an empty message of the user there.
    """

    tab: Literal["home", "messages"]
    visitor: InboundMessage


class FormAsked(Struct, frozen=True):
    """Command without its text, for which a form is opened. ``message`` has everything but the text.

    ``trigger`` is valid for three seconds.
    """

    message: InboundMessage
    trigger: str
    response_url: str


class FormSubmitted(Struct, frozen=True):
    """Submission of a form."""

    written: UserMessage


class DirectoryChanged(Struct, frozen=True):
    """Change of the name of a user or channel, or of a user group."""

    event: Json


class AppRemoved(Struct, frozen=True):
    """Removal of the app from the workspace, after which its token is invalid."""


class TokensRevoked(Struct, frozen=True):
    """Revocation of tokens of the workspace, which may include the bot's."""


Parsed = (
    AppOpened
    | AppRemoved
    | TokensRevoked
    | OtherMessage
    | UserMessage
    | DeletedMessage
    | DirectoryChanged
    | FormAsked
    | FormSubmitted
    | StopPressed
    | QuestionPressed
    | Feedback
    | None
)


def parse(payload: Json, rules: Rules, now: int) -> Parsed:
    """Parse a delivery; None if it is of no interest. ``now`` orders commands, in microseconds since 1970.

    Raises UnreadableError if the payload is malformed, and FormError for a form without a text.
    """
    if "command" in payload:
        return _command(payload, rules, now)
    kind = payload.get("type")
    if kind == "event_callback":
        return parse_event(_object(payload, "event"), rules)
    if kind == "block_actions":
        return _pressed(payload, rules)
    if kind == "message_action" and payload.get("callback_id") == ASK:
        return _message_shortcut(payload, rules)
    if kind == "view_submission" and _object(payload, "view").get("callback_id") == FORM:
        return _submitted(payload, rules, now)
    return None


def parse_event(event: Json, rules: Rules) -> Parsed:
    """Parse an event of the Events API. Raises UnreadableError."""
    kind = event.get("type")
    if kind == "agent_session_stopped":
        chat, thread = _text(event, "channel"), _ts(event, "thread_ts")
        return StopPressed(_session(rules, chat, thread, _text(event, "user")), chat, thread)
    if kind == "app_home_opened":
        tab, chat = event.get("tab", "home"), _text(event, "channel")
        return _opened(rules, tab, chat, None, _text(event, "user")) if tab in ("home", "messages") else None
    if kind == "assistant_thread_started":
        begun = _object(event, "assistant_thread")
        place = _text(begun, "channel_id"), _ts(begun, "thread_ts")
        return _opened(rules, "messages", *place, _text(begun, "user_id"))
    if kind == "app_uninstalled":
        return AppRemoved()
    if kind == "tokens_revoked":
        return TokensRevoked()
    if kind in _DIRECTORY:
        return DirectoryChanged(event)
    if kind not in ("message", "app_mention"):
        return None
    subtype = event.get("subtype")
    if subtype == "message_changed":
        return _changed(event, rules)
    if subtype == "message_deleted":
        return _deleted(event, rules)
    return _message(event, _text(event, "channel"), rules, mentioned=kind == "app_mention")


def _opened(
    rules: Rules, tab: Literal["home", "messages"], chat: str, thread: str | None, user: str
) -> AppOpened:
    visitor = InboundMessage(
        session=_session(rules, chat, thread, user),
        dedup_key="",
        address=_address(rules, chat, thread, None),
        sender=Sender(sender_id(rules, user)),
    )
    return AppOpened(tab, visitor)


def parse_history(message: Json, chat: str, rules: Rules) -> Parsed:
    """Parse a message of a history, which does not name its chat. Raises UnreadableError."""
    found = _message(message, chat, rules, mentioned=False)
    if isinstance(found, UserMessage) and isinstance(message.get("edited"), Mapping) and rules.edits:
        return replace(found, edited=_ts(cast(Json, message["edited"]), "ts"))
    return found


def _message(event: Json, chat: str, rules: Rules, *, mentioned: bool) -> OtherMessage | UserMessage:
    ts = _ts(event, "ts")
    user = _author(event, rules)
    if user is None:
        return OtherMessage(chat, ts)
    by_bot = bool(event.get("bot_id"))
    markup = full_text(event) if by_bot else own_text(event)
    thread = _ts(event, "thread_ts") if event.get("thread_ts") is not None else None
    plain = plain_text(markup, rules.bot_user)
    mentioned = mentioned or mentions(markup, rules.bot_user)
    addressed: Addressing = "command" if mentioned and plain.startswith("/") else "none"
    if addressed == "none":
        addressed = _in_thread(event, rules, chat, thread, ts, markup)
    if addressed == "none" and mentioned:
        addressed = "mention"
    client_msg_id = event.get("client_msg_id")
    message = InboundMessage(
        session=_session(rules, chat, _thread(rules, chat, thread, ts), user),
        dedup_key=_key(chat, ts),
        alt_key=client_msg_id if isinstance(client_msg_id, str) and client_msg_id else None,
        address=_address(rules, chat, _thread(rules, chat, thread, ts), ts),
        sender=Sender(sender_id(rules, user), as_shown(event).name if by_bot else ""),
        text=plain,
        order=order_of(ts),
        in_reply_to=thread,
        sent_at=order_of(ts) // 1000,
        addressed="direct" if _is_direct(chat) else addressed,
    )
    shown = () if by_bot or plain.startswith("/") else shown_in(event)
    return UserMessage(message, ts, uploads(event), markup=markup, shown=shown)


def _author(event: Json, rules: Rules) -> str | None:
    """Return the id of the user who wrote a message, or of a bot that mentions this one and may do so."""
    user, bot = event.get("user"), event.get("bot_id")
    if event.get("hidden") or user in (rules.bot_user, "USLACKBOT"):
        return None
    if not bot:
        written = event.get("subtype") in _SUBTYPES
        return user if written and isinstance(user, str) and user else None
    if not isinstance(bot, str) or bot == rules.bot or not rules.heeds(bot):
        return None
    written = event.get("subtype") in (*_SUBTYPES, "bot_message")
    return bot if written and mentions(full_text(event), rules.bot_user) else None


def _in_thread(event: Json, rules: Rules, chat: str, thread: str | None, ts: str, markup: str) -> Addressing:
    """Return the way in which a message in a thread addresses the bot, apart from a mention of it."""
    if thread is None or thread == ts or begins_with_mention(markup, rules.bot_user):
        return "none"
    if event.get("parent_user_id") == rules.bot_user:
        return "reply"
    return "thread" if rules.follows(chat, thread, ts) else "none"


def _changed(event: Json, rules: Rules) -> Parsed:
    chat, after = _text(event, "channel"), _object(event, "message")
    before = event.get("previous_message")
    old: Json = cast(Json, before) if isinstance(before, Mapping) else {}
    if after.get("subtype") == "tombstone":
        return DeletedMessage(_key(chat, _ts(after if "ts" in after else old, "ts")))
    edited = after.get("edited")
    if not rules.edits or not isinstance(edited, Mapping) or after.get("text") == old.get("text"):
        return None
    meant = _message(old, chat, rules, mentioned=False) if "ts" in old else None
    found = _message(after, chat, rules, mentioned=False)
    if not isinstance(found, UserMessage):
        return None
    message = found.message
    if message.addressed == "none" and isinstance(meant, UserMessage):
        message = replace(message, addressed=meant.message.addressed)
    return replace(found, message=revision(message, _ts(cast(Json, edited), "ts")))


def _deleted(event: Json, rules: Rules) -> DeletedMessage | OtherMessage:
    chat, before = _text(event, "channel"), event.get("previous_message")
    old: Json = cast(Json, before) if isinstance(before, Mapping) else {}
    ts = _ts(event, "deleted_ts") if "deleted_ts" in event else _ts(old, "ts")
    # The bot deletes its own messages when it repeats an answer; no context quotes those.
    return OtherMessage(chat, ts) if old.get("user") == rules.bot_user else DeletedMessage(_key(chat, ts))


def revision(message: InboundMessage, stamp: str) -> InboundMessage:
    """Return a message as a revision of the same message, edited at the timestamp ``stamp``."""
    key = message.dedup_key
    return replace(message, dedup_key=f"{key}:e{stamp}", revises=key, alt_key=None, order=order_of(stamp))


def _command(payload: Json, rules: Rules, now: int) -> UserMessage | FormAsked:
    """Parse a slash command. In group chats its answer goes to the ``response_url``, visible to its author
    only, whose id follows it.
    """
    chat, user = _text(payload, "channel_id"), _text(payload, "user_id")
    name = _text(payload, "command").removeprefix("/").removeprefix(rules.prefix).removeprefix("bot-")
    text, trigger = _text(payload, "text", "").strip(), _text(payload, "trigger_id")
    response_url, key = _text(payload, "response_url"), f"command:{trigger}"
    username = _text(payload, "user_name", "")
    if name == ASK_COMMAND and rules.asks():
        asked = _question(rules, chat, user, response_url, key, now, username)
        if not text:
            return FormAsked(asked, trigger, response_url)
        return UserMessage(replace(asked, text=text), "")
    message = InboundMessage(
        session=_session(rules, chat, None, user),
        dedup_key=key,
        address=_address(rules, chat, None, None if _is_direct(chat) else f"{response_url}#{user}"),
        sender=Sender(sender_id(rules, user), username=username),
        text=f"/{name} {text}".strip(),
        order=now,
        addressed="command",
    )
    return UserMessage(message, "")


def _question(
    rules: Rules, chat: str, user: str, response_url: str, key: str, now: int, username: str = ""
) -> InboundMessage:
    """Return a question of a command or form, without its text.

    In group chats only its author sees the answer, so that it is in a conversation of the author's own.
    """
    direct = _is_direct(chat)
    session = SessionKey(rules.channel, rules.team, chat, None, None if direct else user)
    return InboundMessage(
        session=str(session),
        dedup_key=key,
        address=_address(rules, chat, None, None if direct else f"{response_url}#{user}"),
        sender=Sender(sender_id(rules, user), username=username),
        order=now,
        addressed="command",
    )


def form_origin(asked: FormAsked) -> str:
    """Return where a form was opened, for its private metadata, as ``parse`` reads it."""
    return f"{asked.message.address.chat} {asked.response_url}"


def _submitted(payload: Json, rules: Rules, now: int) -> FormSubmitted:
    view = _object(payload, "view")
    chat, _, response_url = _text(view, "private_metadata").partition(" ")
    user, key = _text(_object(payload, "user"), "id"), f"view:{_text(view, 'id')}"
    field = _object(_object(_object(_object(view, "state"), "values"), QUESTION), TEXT)
    text = _text(field, "value", "").strip()
    if not text:
        raise FormError("Write something.")
    return FormSubmitted(
        UserMessage(replace(_question(rules, chat, user, response_url, key, now), text=text), "")
    )


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
        sender=Sender(sender_id(rules, user)),
        text=_QUESTION,
        order=order_of(stamp),
        addressed="command",
    )
    return UserMessage(message, ts, markup=_QUESTION, shown=(as_shown(source),))


def _pressed(payload: Json, rules: Rules) -> QuestionPressed | Feedback | None:
    actions = payload.get("actions")
    if not isinstance(actions, list) or not actions:
        raise UnreadableError("the interaction has no actions")
    action: Any = cast(list[object], actions)[0]
    if not isinstance(action, Mapping):
        return None
    pressed = cast(Json, action)
    name = str(pressed.get("action_id"))
    if name == FEEDBACK:
        return _feedback(payload, _text(pressed, "value"), rules)
    return _question_pressed(payload, _text(pressed, "value"), rules) if name.startswith(APPROVE) else None


def _feedback(payload: Json, value: str, rules: Rules) -> Feedback:
    if value not in ("up", "down"):
        raise UnreadableError("unknown value of a feedback button")
    place = _object(payload, "container")
    chat, message = _text(place, "channel_id"), _ts(place, "message_ts")
    user = sender_id(rules, _text(_object(payload, "user"), "id"))
    return Feedback(rules.team, chat, message, user, value)


def _question_pressed(payload: Json, value: str, rules: Rules) -> QuestionPressed:
    number, _, question = value.partition(" ")
    # Digits of other alphabets are digits to ``int``, too.
    if not (number.isascii() and number.isdigit() and len(number) < 4) or not question:
        raise UnreadableError("unknown value of a question's button")
    user = sender_id(rules, _text(_object(payload, "user"), "id"))
    press = QuestionPressed(question, int(number), user, _text(payload, "response_url", ""))
    place, message = payload.get("container"), payload.get("message")
    if not isinstance(place, Mapping):
        return press
    chat, ts = cast(Json, place).get("channel_id"), cast(Json, place).get("message_ts")
    if not isinstance(chat, str) or not isinstance(ts, str) or not _TS.fullmatch(ts):
        return press
    text = _text(cast(Json, message), "text", "") if isinstance(message, Mapping) else ""
    return replace(press, chat=chat, ts=ts, text=text)


def user_id_of(sender_id: str) -> str:
    """Return the user id of a sender without the team prefix."""
    return sender_id.rpartition(":")[2]


def sender_id(rules: Rules, user: str) -> str:
    """Return the sender id of a user or bot, which has a prefix outside of the home workspace."""
    return user if rules.home else f"{rules.team}:{user}"


def button_value(number: int, question: str) -> str:
    """Return the value of a question's button, as ``parse`` reads it."""
    return f"{number} {question}"


def _is_direct(chat: str) -> bool:
    return chat.startswith("D")


def _thread(rules: Rules, chat: str, thread: str | None, ts: str) -> str | None:
    """Return the thread to answer in. With the strategy ``thread``, each message in a channel starts one."""
    return thread or (ts if rules.strategy == "thread" and not _is_direct(chat) else None)


def _session(rules: Rules, chat: str, thread: str | None, user: str) -> str:
    threads, users = rules.strategy == "thread", rules.strategy == "chat_user" and not _is_direct(chat)
    key = SessionKey(rules.channel, rules.team, chat, thread if threads else None, user if users else None)
    return str(key)


def session_at(address: Address, channel: str, strategy: SessionStrategy) -> str:
    """Return the session of a chat. Raises InvalidRequestError for ids that are not Slack's."""
    team, chat, thread = address.account, address.chat, address.thread
    if not team or not chat.startswith(("C", "D", "G")) or not (thread is None or _TS.fullmatch(thread)):
        raise InvalidRequestError(
            f"an address on {channel} needs a team and a channel id such as C123, not {(team, chat, thread)}"
        )
    return str(SessionKey(channel, team, chat, thread if strategy == "thread" else None))


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


def _key(chat: str, ts: str) -> str:
    return f"{chat}:{ts}"


def _ts(given: Json, key: str) -> str:
    value = _text(given, key)
    if not _TS.fullmatch(value):
        raise UnreadableError(f"{key} is not a timestamp")
    return value


def link_of(text: str) -> MessageLink | None:
    """Return the message that a link names; Slack writes its timestamp without the point."""
    found = _LINK.fullmatch(text.strip())
    if found is None:
        return None
    ts = f"{found[2]}.{found[3]}"
    return MessageLink(found[1], ts, _key(found[1], ts))
