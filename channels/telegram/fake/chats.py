"""Methods about the bot, its chats, topics, commands and files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from channels.telegram.fake.calls import Request, bad, mistaken
from channels.telegram.fake.messages import Handler
from channels.telegram.fake.state import (
    ICON_COLOURS,
    Chat,
    Message,
    Person,
    Topic,
    World,
    chat_json,
    connection_json,
    person_json,
)

_MAX_RESULTS, _MAX_RESULT_ID = 50, 64
_PARAMETER = re.compile(r"[A-Za-z0-9_-]{1,64}")
_COMMAND = re.compile(r"[a-z0-9_]{1,32}")
_RIGHTS = (
    "can_be_edited",
    "is_anonymous",
    "can_manage_chat",
    "can_delete_messages",
    "can_manage_video_chats",
    "can_restrict_members",
    "can_promote_members",
    "can_change_info",
    "can_invite_users",
    "can_post_stories",
    "can_edit_stories",
    "can_delete_stories",
    "can_send_welcome_messages",
    "can_manage_topics",
)
_RIGHTS_NOT_GRANTED = ("can_be_edited", "is_anonymous")


def get_chat(world: World, request: Request) -> Any:
    """``getChat``."""
    chat = world.chat(request["chat_id"])
    gifts = (
        "unlimited_gifts",
        "limited_gifts",
        "unique_gifts",
        "premium_subscription",
        "gifts_from_channels",
    )
    return chat_json(chat) | {
        "accent_color_id": 0,
        "max_reaction_count": 11,
        "accepted_gift_types": dict.fromkeys(gifts, False),
    }


def get_chat_member(world: World, request: Request) -> Any:
    """``getChatMember``."""
    chat = world.chat(request["chat_id"])
    if request["user_id"] == world.bot.id:
        return member_json(world.bot, chat.status)
    person = next((one for one in world.people.values() if one.id == request["user_id"]), None)
    if person is None:
        raise bad("PARTICIPANT_ID_INVALID")
    return member_json(person, "member" if person.id in chat.members else "left")


def get_chat_administrators(world: World, request: Request) -> Any:
    """``getChatAdministrators``: the bot, if it is an administrator."""
    chat = world.chat(request["chat_id"])
    if not chat.is_group:
        raise bad("there are no administrators in the private chat")
    return [member_json(world.bot, chat.status)] if chat.status == "administrator" else []


def get_chat_member_count(world: World, request: Request) -> Any:
    """``getChatMemberCount``, with the bot."""
    return len(world.chat(request["chat_id"]).members) + 1


def leave_chat(world: World, request: Request) -> Any:
    """``leaveChat``."""
    world.chat(request["chat_id"]).status = "left"
    world.changes.bump()
    return True


def create_forum_topic(world: World, request: Request) -> Any:
    """``createForumTopic``: requires a forum where the bot is an administrator, or a private chat with
    topics."""
    chat = _chat_with_topics(world, request, "create a topic")
    topic = open_topic(world, chat, request["name"], world.bot, request.get("icon_color", ICON_COLOURS[0]))
    return {"message_thread_id": topic.id, "name": topic.name, "icon_color": topic.colour}


def edit_forum_topic(world: World, request: Request) -> Any:
    """``editForumTopic``: changes the name."""
    chat = _chat_with_topics(world, request, "edit the topic")
    topic = _topic(chat, request)
    if request.get("name", topic.name) == topic.name:
        raise bad("TOPIC_NOT_MODIFIED")
    topic.name = request["name"]
    add_service_message(world, chat, world.bot, {"forum_topic_edited": {"name": topic.name}}, topic)
    return True


def close_forum_topic(world: World, request: Request) -> Any:
    """``closeForumTopic``."""
    return _set_closed(world, request, closed=True)


def reopen_forum_topic(world: World, request: Request) -> Any:
    """``reopenForumTopic``."""
    return _set_closed(world, request, closed=False)


def delete_forum_topic(world: World, request: Request) -> Any:
    """``deleteForumTopic``, with all its messages."""
    chat = _chat_with_topics(world, request, "delete the topic")
    topic = _topic(chat, request)
    del chat.topics[topic.id]
    for message in [one for one in chat.messages.values() if one.in_topic and one.thread == topic.id]:
        del chat.messages[message.id]
    world.changes.bump()
    return True


def open_topic(
    world: World, chat: Chat, name: str, by: Person, colour: int = ICON_COLOURS[0], *, implicit: bool = False
) -> Topic:
    """Create a topic with its service message."""
    number = world.next_id(chat)
    topic = Topic(id=world.next_topic_id(chat, number), name=name, colour=colour)
    chat.topics[topic.id] = topic
    content: dict[str, Any] = {"name": name, "icon_color": colour}
    if implicit:
        content["is_name_implicit"] = True
    add_service_message(world, chat, by, {"forum_topic_created": content}, topic, number=number)
    return topic


def add_service_message(
    world: World,
    chat: Chat,
    by: Person,
    content: Mapping[str, Any],
    topic: Topic | None = None,
    number: int = 0,
) -> Message:
    """Add a service message, and send its update to the bot."""
    message = world.place(
        Message(
            id=number or world.next_id(chat),
            chat=chat.id,
            date=world.clock.date(),
            sender=by,
            media=content,
            service=True,
            thread=topic.id if topic else None,
            in_topic=topic is not None,
        )
    )
    world.queue_update("message", world.json(message), chat)
    return message


def set_my_commands(world: World, request: Request) -> Any:
    """``setMyCommands`` for one scope and language."""
    for command in request["commands"]:
        if not _COMMAND.fullmatch(command["command"]):
            raise mistaken("BOT_COMMAND_INVALID", f"a command {command['command']!r}")
    world.commands[_scope(world, request)] = request["commands"]
    world.changes.bump()
    return True


def get_my_commands(world: World, request: Request) -> Any:
    """``getMyCommands``."""
    return world.commands.get(_scope(world, request), [])


def delete_my_commands(world: World, request: Request) -> Any:
    """``deleteMyCommands``."""
    world.commands.pop(_scope(world, request), None)
    return True


def answer_callback_query(world: World, request: Request) -> Any:
    """``answerCallbackQuery``: accepted once, before the query expires."""
    query = world.queries.get(request["callback_query_id"])
    if query is None or query.answer is not None or world.clock.now() > query.until:
        raise bad("query is too old and response timeout expired or query ID is invalid")
    query.answer = {name: value for name, value in request.arguments.items() if name != "callback_query_id"}
    world.changes.bump()
    return True


def answer_inline_query(world: World, request: Request) -> Any:
    """``answerInlineQuery``: before the query expires."""
    query = world.inline.get(request["inline_query_id"])
    if query is None or world.clock.now() > query.until:
        raise bad("query is too old and response timeout expired or query ID is invalid")
    results: list[Mapping[str, Any]] = request["results"]
    if len(results) > _MAX_RESULTS:
        raise mistaken("RESULTS_TOO_MUCH")
    for result in results:
        if not 1 <= len(result["id"].encode()) <= _MAX_RESULT_ID:
            raise mistaken("RESULT_ID_INVALID")
        if not str(result.get("title", "")).strip():
            raise mistaken("ARTICLE_TITLE_EMPTY")
        if not result["input_message_content"].get("message_text", "").strip():
            raise mistaken("MESSAGE_EMPTY")
    if len({result["id"] for result in results}) < len(results):
        raise mistaken("RESULT_ID_DUPLICATE")
    button: Mapping[str, Any] = request.get("button") or {}
    if button and not _PARAMETER.fullmatch(button.get("start_parameter", "")):
        raise mistaken("START_PARAM_INVALID")
    query.answer = {name: value for name, value in request.arguments.items() if name != "inline_query_id"}
    query.cached_until = world.clock.now() + request.get("cache_time", 300)
    world.changes.bump()
    return True


def _setter(field: str) -> Handler:
    def change(world: World, request: Request) -> Any:
        world.profile[f"{field}:{request.get('language_code', '')}"] = request.get(field, "")
        return True

    return change


def _getter(field: str) -> Handler:
    def look(world: World, request: Request) -> Any:
        return {field: world.profile.get(f"{field}:{request.get('language_code', '')}", "")}

    return look


def member_json(person: Person, status: str) -> dict[str, Any]:
    """Return the ``ChatMember`` of a user."""
    shown: dict[str, Any] = {"user": person_json(person), "status": status}
    if status == "administrator":
        shown |= {right: right not in _RIGHTS_NOT_GRANTED for right in _RIGHTS}
    return shown | ({"until_date": 0} if status == "kicked" else {})


def _chat_with_topics(world: World, request: Request, what: str) -> Chat:
    chat = world.writable(request["chat_id"])
    if chat.kind == "private" and world.traits.topics:
        return chat
    if not chat.forum:
        raise bad("the chat is not a forum")
    if chat.status != "administrator":
        raise bad(f"not enough rights to {what}")
    return chat


def _topic(chat: Chat, request: Request) -> Topic:
    topic = chat.topics.get(request["message_thread_id"])
    if topic is None:
        raise bad("TOPIC_ID_INVALID")
    return topic


def _set_closed(world: World, request: Request, *, closed: bool) -> Any:
    chat = _chat_with_topics(world, request, "close the topic")
    topic = _topic(chat, request)
    if topic.closed == closed:
        raise bad("TOPIC_NOT_MODIFIED")
    topic.closed = closed
    add_service_message(
        world, chat, world.bot, {"forum_topic_closed" if closed else "forum_topic_reopened": {}}, topic
    )
    return True


def _scope(world: World, request: Request) -> tuple[str, str]:
    """Return the scope and language that commands are stored under. Raises Refused for an unknown chat."""
    scope = request.get("scope") or {"type": "default"}
    if "chat_id" in scope:
        world.chat(scope["chat_id"])
    return msgspec.json.encode(scope, order="sorted").decode(), request.get("language_code", "")


METHODS: dict[str, Handler] = {
    "getMe": lambda world, _request: world.me(),
    "getChat": get_chat,
    "getChatMember": get_chat_member,
    "getChatAdministrators": get_chat_administrators,
    "getChatMemberCount": get_chat_member_count,
    "leaveChat": leave_chat,
    "getBusinessConnection": lambda world, request: connection_json(
        world.connection(request["business_connection_id"])
    ),
    "createForumTopic": create_forum_topic,
    "editForumTopic": edit_forum_topic,
    "closeForumTopic": close_forum_topic,
    "reopenForumTopic": reopen_forum_topic,
    "deleteForumTopic": delete_forum_topic,
    "setMyCommands": set_my_commands,
    "getMyCommands": get_my_commands,
    "deleteMyCommands": delete_my_commands,
    "answerCallbackQuery": answer_callback_query,
    "answerInlineQuery": answer_inline_query,
    "getFile": lambda world, request: world.files.link(request["file_id"]),
    "setMyName": _setter("name"),
    "getMyName": _getter("name"),
    "setMyDescription": _setter("description"),
    "getMyDescription": _getter("description"),
    "setMyShortDescription": _setter("short_description"),
    "getMyShortDescription": _getter("short_description"),
    "setChatMenuButton": lambda _world, _request: True,
}
