"""State of the platform: users, chats, topics, messages, and their JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from channels.telegram.fake.calls import Refused, bad, forbidden
from channels.telegram.fake.delivery import Updates
from channels.telegram.fake.files import Files
from channels.telegram.fake.text import Entity
from gateway.testing.fake_platform import Changes, Clock

Kind = Literal["private", "group", "supergroup", "channel"]
Status = Literal["member", "administrator", "left", "kicked"]

GENERAL_TOPIC = 1
"""The topic that every forum has. Its messages carry no thread."""

ICON_COLOURS = (7322096, 16766590, 13338331, 9367192, 16749490, 16478047)


class Person(Struct, frozen=True, kw_only=True):
    """A user or a bot."""

    id: int
    first_name: str
    last_name: str = ""
    username: str = ""
    language_code: str = "en"
    is_bot: bool = False


class Message(Struct, frozen=True, kw_only=True):
    """A message in a chat.

    ``text`` is the text, or the caption of a file. ``media`` has the other fields of the JSON: files, or the
    content of a service message. ``keyboard`` marks a message with a reply keyboard, which cannot be edited.
    ``thread`` is the topic; in a supergroup without topics it is the first message of a chain of replies.
    """

    id: int
    chat: int
    date: int
    sender: Person
    text: str = ""
    entities: tuple[Entity, ...] = ()
    media: Mapping[str, Any] = {}
    markup: Mapping[str, Any] | None = None
    keyboard: bool = False
    thread: int | None = None
    in_topic: bool = False
    reply_to: int | None = None
    album: str | None = None
    edited: int | None = None
    service: bool = False
    more: Mapping[str, Any] = {}
    reactions: Mapping[int, tuple[Mapping[str, Any], ...]] = {}

    @property
    def buttons(self) -> list[Mapping[str, Any]]:
        """Return the inline buttons, row by row."""
        rows = (self.markup or {}).get("inline_keyboard", ())
        return [button for row in rows for button in row]


class Topic(Struct, kw_only=True):
    """A topic of a forum or a private chat."""

    id: int
    name: str
    colour: int = ICON_COLOURS[0]
    closed: bool = False


class Draft(Struct, frozen=True, kw_only=True):
    """A draft that a user sees. It ends after 30 seconds, or with the next message in its thread."""

    id: int
    text: str
    entities: tuple[Entity, ...]
    thread: int | None
    until: float
    rich: Mapping[str, Any] | None = None
    can_stop: bool = False
    keep_on_stop: bool = False
    stopped: bool = False


class Connection(Struct, kw_only=True):
    """A connection of the bot with the business account of ``owner``. All private chats of the account share
    one sequence of message ids."""

    id: str
    owner: Person
    date: int
    enabled: bool = True
    rights: set[str] = field(default_factory=lambda: {"can_reply", "can_delete_sent_messages"})
    last_id: int = 0


class Chat(Struct, kw_only=True):
    """A chat with its messages.

    ``refused`` is the error for every message of the bot; ``muted`` refuses them for missing rights,
    ``refuses_voice`` only voice messages, ``refuses_documents`` only documents. ``spoke_last`` is whether
    this bot was the last bot that wrote. Ids in a supergroup begin with 2, because message 1 reported its
    creation. A chat of a business account has a ``connection``, and an id that only the fake knows: the
    platform identifies it by the connection and the id of the other user, its first member.
    """

    id: int
    kind: Kind
    connection: Connection | None = None
    title: str = ""
    members: dict[int, Person] = field(default_factory=dict[int, Person])
    status: Status = "member"
    blocked: bool = False
    refused: str = ""
    refuses_voice: bool = False
    refuses_documents: bool = False
    forum: bool = False
    muted: bool = False
    spoke_last: bool = False
    migrated_to: int | None = None
    last_id: int = 1
    messages: dict[int, Message] = field(default_factory=dict[int, Message])
    topics: dict[int, Topic] = field(default_factory=dict[int, Topic])
    drafts: dict[tuple[int | None, int], Draft] = field(default_factory=dict[tuple[int | None, int], Draft])
    actions: list[str] = field(default_factory=list[str])

    @property
    def is_group(self) -> bool:
        """Return whether it may have more than two members."""
        return self.kind != "private"

    def newest(self) -> Message:
        """Return the message with the highest id. Raises LookupError if there is none."""
        if not self.messages:
            raise LookupError(f"nothing stands in {self.id}")
        return self.messages[max(self.messages)]


_IN_BUSINESS = {"message": "business_message", "edited_message": "edited_business_message"}
_IN_CHANNELS = {"message": "channel_post", "edited_message": "edited_channel_post"}
_FIRST_BUSINESS_CHAT = 9_000_000_000_001
_FIRST_PERSON = 5_000_000_001
_FIRST_GROUP = -4_000_000_001
_FIRST_SUPERGROUP = -1_002_000_000_001
_FIRST_CHANNEL = -1_003_000_000_001


def person_json(person: Person) -> dict[str, Any]:
    """Return a ``User``."""
    shown: dict[str, Any] = {"id": person.id, "is_bot": person.is_bot, "first_name": person.first_name}
    if person.last_name:
        shown["last_name"] = person.last_name
    if person.username:
        shown["username"] = person.username
    if not person.is_bot:
        shown["language_code"] = person.language_code
    return shown


def connection_json(connection: Connection) -> dict[str, Any]:
    """Return a ``BusinessConnection``."""
    return {
        "id": connection.id,
        "user": person_json(connection.owner),
        "user_chat_id": connection.owner.id,
        "date": connection.date,
        "is_enabled": connection.enabled,
        "rights": dict.fromkeys(sorted(connection.rights), True),
    }


def chat_json(chat: Chat) -> dict[str, Any]:
    """Return a ``Chat``."""
    if chat.kind == "private":
        person = next(iter(chat.members.values()))
        shown: dict[str, Any] = {"id": person.id, "first_name": person.first_name, "type": "private"}
        return shown | ({"username": person.username} if person.username else {})
    shown = {"id": chat.id, "title": chat.title, "type": chat.kind}
    return shown | ({"is_forum": True} if chat.forum else {})


def message_json(chat: Chat, message: Message, *, with_reply: bool = True) -> dict[str, Any]:
    """Return a ``Message``. In a topic of a group, a message that is not a reply replies to the topic's first
    message."""
    shown: dict[str, Any] = {
        "message_id": message.id,
        "from": person_json(message.sender),
        "chat": chat_json(chat),
        "date": message.date,
    }
    if chat.kind == "channel":
        del shown["from"]
        shown["sender_chat"] = chat_json(chat)
    if chat.connection is not None:
        shown["business_connection_id"] = chat.connection.id
        if message.sender.is_bot:
            shown |= {"from": person_json(chat.connection.owner), "sender_business_bot": shown["from"]}
    if message.edited is not None:
        shown["edit_date"] = message.edited
    if message.thread is not None:
        shown["message_thread_id"] = message.thread
    if with_reply and (answered := chat.messages.get(_reply_target(chat, message))) is not None:
        shown["reply_to_message"] = message_json(chat, answered, with_reply=False)
    if message.album is not None:
        shown["media_group_id"] = message.album
    shown |= _content(message)
    shown |= message.more
    if message.markup is not None:
        shown["reply_markup"] = message.markup
    if message.in_topic:
        shown["is_topic_message"] = True
    return shown


def _reply_target(chat: Chat, message: Message) -> int:
    """Return the id of the message that this one replies to; 0 for none."""
    if message.reply_to is not None:
        return message.reply_to
    implied = message.thread if chat.kind == "supergroup" else None
    return implied if implied is not None and implied < message.id else 0


def _content(message: Message) -> dict[str, Any]:
    if message.service:
        return dict(message.media)
    name = "caption" if message.media and "rich_message" not in message.media else "text"
    shown = dict(message.media)
    if message.text and "rich_message" not in message.media:
        shown[name] = message.text
    if message.entities:
        shown["entities" if name == "text" else "caption_entities"] = list(message.entities)
    return shown


class BotSettings(Struct, frozen=True, kw_only=True):
    """The bot's settings: ``privacy`` hides group messages, ``topics`` gives private chats topics."""

    token: str
    name: str
    username: str
    privacy: bool = True
    topics: bool = False
    people_make_topics: bool = True
    business: bool = False
    inline: bool = False


class World:
    """State of the whole platform.

    All private chats and small groups of the bot share one sequence of message ids; each supergroup has its
    own. Ids are never used twice.
    """

    def __init__(self, traits: BotSettings, clock: Clock, changes: Changes) -> None:
        self.traits = traits
        self.bot_api: tuple[int, int] = (10, 3)
        """Version of the Bot API; tests may set an older one."""
        self.token = traits.token
        self.clock = clock
        self.changes = changes
        self.files = Files(clock)
        self.updates = Updates(clock, changes)
        self.bot = Person(
            id=int(traits.token.partition(":")[0]),
            first_name=traits.name,
            username=traits.username,
            is_bot=True,
        )
        self.people: dict[str, Person] = {}
        self.chats: dict[int, Chat] = {}
        self.connections: dict[str, Connection] = {}
        self.queries: dict[str, Query] = {}
        self.inline: dict[str, InlineQuery] = {}
        self.commands: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        self.profile: dict[str, str] = {}
        self._shared_id = 0
        self._topic_id = 0
        self._count = 0

    def number(self) -> int:
        """Return a number that was not used before, for an album or a query."""
        self._count += 1
        return self._count

    def person(self, name: str, *, username: str = "", is_bot: bool = False) -> Person:
        """Return the user with a first name; the same name is the same user."""
        if name not in self.people:
            made = Person(
                id=_FIRST_PERSON + len(self.people), first_name=name, username=username or "", is_bot=is_bot
            )
            self.people[name] = made
        return self.people[name]

    def open(self, kind: Kind, title: str = "", **traits: Any) -> Chat:
        """Create a chat."""
        place = sum(chat.kind == kind for chat in self.chats.values())
        first = {"group": _FIRST_GROUP, "channel": _FIRST_CHANNEL}.get(kind, _FIRST_SUPERGROUP)
        chat = Chat(id=first - place, kind=kind, title=title, **traits)
        self.chats[chat.id] = chat
        self.changes.bump()
        return chat

    def private(self, person: Person) -> Chat:
        """Return the private chat of a user with the bot; its id is the user's id."""
        if person.id not in self.chats:
            self.chats[person.id] = Chat(id=person.id, kind="private", members={person.id: person})
            self.changes.bump()
        return self.chats[person.id]

    def business(self, connection: Connection, person: Person) -> Chat:
        """Return the chat of a business account with a user."""
        for chat in self.chats.values():
            if chat.connection is connection and person.id == next(iter(chat.members)):
                return chat
        number = _FIRST_BUSINESS_CHAT + sum(chat.connection is not None for chat in self.chats.values())
        made = Chat(id=number, kind="private", members={person.id: person}, connection=connection)
        self.chats[number] = made
        self.changes.bump()
        return made

    def next_id(self, chat: Chat) -> int:
        """Return the id of the next message."""
        if chat.connection is not None:
            chat.connection.last_id += 1
            return chat.connection.last_id
        if chat.kind in ("supergroup", "channel"):
            chat.last_id += 1
            return chat.last_id
        self._shared_id += 1
        return self._shared_id

    def next_topic_id(self, chat: Chat, message_id: int) -> int:
        """Return the id of a new topic: in a supergroup the id of its service message, in private chats a
        separate count."""
        if chat.kind == "supergroup":
            return message_id
        self._topic_id += 1
        return 100_000 + self._topic_id

    def chat(self, given: int | str, *, edits: bool = False) -> Chat:
        """Return the chat of a call. Raises Refused if it is unknown, or the bot has no access to it.

        A group that became a supergroup can only be read, and its messages be edited (``edits``).
        """
        chat = self.chats.get(given) if isinstance(given, int) else None
        if chat is None:
            if any(person.id == given for person in self.people.values()):
                raise forbidden("bot can't initiate conversation with a user")
            raise bad("chat not found")
        if chat.migrated_to is not None and edits:
            return chat
        if chat.migrated_to is not None:
            text = "Bad Request: group chat was upgraded to a supergroup chat"
            raise Refused(text, migrate_to_chat_id=chat.migrated_to)
        if chat.status in ("kicked", "left"):
            how = "kicked from" if chat.status == "kicked" else "not a member of"
            verb = "was" if chat.status == "kicked" else "is"
            raise forbidden(f"bot {verb} {how} the {chat.kind} chat")
        return chat

    def business_chat(self, connection_id: str, user: int | str) -> Chat:
        """Return the chat of a business account with a user. Raises Refused if the connection is disabled, or
        there is no such chat."""
        connection = self.connection(connection_id)
        if not connection.enabled:
            raise bad("BUSINESS_CONNECTION_INVALID")
        for chat in self.chats.values():
            if chat.connection is connection and user == next(iter(chat.members)):
                return chat
        raise bad("BUSINESS_PEER_INVALID")

    def connection(self, connection_id: str) -> Connection:
        """Return a connection. Raises Refused if it is unknown."""
        if connection_id not in self.connections:
            raise bad("BUSINESS_CONNECTION_INVALID")
        return self.connections[connection_id]

    def writable(self, given: int | str) -> Chat:
        """Return the chat to write in. Raises Refused if the bot may not write there."""
        chat = self.chat(given)
        if chat.blocked:
            raise forbidden("bot was blocked by the user")
        if chat.refused:
            raise bad(chat.refused)
        if chat.kind == "channel" and chat.status != "administrator":
            raise bad("need administrator rights in the channel chat")
        if chat.muted:
            raise bad("not enough rights to send text messages to the chat")
        return chat

    def message(self, chat: Chat, message_id: int, label: str) -> Message:
        """Return a message of a chat. Raises Refused with ``label`` if it is unknown."""
        if (message := chat.messages.get(message_id)) is None:
            raise bad(f"{label} not found")
        return message

    def place(self, message: Message) -> Message:
        """Store a message in its chat."""
        chat = self.chats[message.chat]
        chat.messages[message.id] = message
        if message.sender.is_bot:
            chat.spoke_last = message.sender.id == self.bot.id
        self.changes.bump()
        return message

    def change(self, message: Message, **changes: Any) -> Message:
        """Store a message with changed fields."""
        return self.place(replace(message, **changes))

    def queue_update(
        self, kind: str, content: Mapping[str, Any], chat: Chat, *, seconds: float = 86_400
    ) -> None:
        """Queue an update for the bot, which expires after ``seconds``."""
        if chat.connection is not None and kind in _IN_BUSINESS:
            if not chat.connection.enabled:
                return
            kind = _IN_BUSINESS[kind]
        if chat.kind == "channel":
            kind = _IN_CHANNELS.get(kind, kind)
        queue = kind.removeprefix("edited_")
        self.updates.push(kind, content, queue=f"{queue}:{chat.id}", seconds=seconds)

    def json(self, message: Message) -> dict[str, Any]:
        """Return a message as a Bot API object."""
        return message_json(self.chats[message.chat], message)

    def chat_json(self, chat: Chat) -> dict[str, Any]:
        """Return a chat as a Bot API object."""
        return chat_json(chat)

    def me(self) -> dict[str, Any]:
        """Return the result of ``getMe``."""
        traits = self.traits
        return person_json(self.bot) | {
            "can_join_groups": True,
            "can_read_all_group_messages": not traits.privacy,
            "supports_inline_queries": traits.inline,
            "can_connect_to_business": traits.business,
            "has_main_web_app": False,
            "has_topics_enabled": traits.topics,
            "allows_users_to_create_topics": traits.topics and traits.people_make_topics,
        }


class Query(Struct, kw_only=True):
    """A press of a button. ``answer`` is the bot's answer, None until it answers."""

    id: str
    chat: int
    message: int
    sender: Person
    data: str
    until: float
    answer: Mapping[str, Any] | None = None


class InlineQuery(Struct, kw_only=True):
    """A text that a user typed behind the bot's name. ``answer`` has the arguments of the bot's answer, and
    counts for the same text until ``cached_until``."""

    id: str
    sender: Person
    text: str
    until: float
    answer: Mapping[str, Any] | None = None
    cached_until: float = 0.0
