"""The whole platform in memory: who is there, what stands where, what the bot has yet to be told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from channels.telegram.fake.clock import Clock
from channels.telegram.fake.files import Files
from channels.telegram.fake.refusal import Refused, bad, forbidden
from channels.telegram.fake.rooms import Chat, Kind, Message, Person
from channels.telegram.fake.shown import chat_json, message_json, person_json
from channels.telegram.fake.updates import Updates

_FIRST_PERSON = 5_000_000_001
_FIRST_GROUP = -4_000_000_001
_FIRST_SUPERGROUP = -1_002_000_000_001


class Traits(Struct, frozen=True, kw_only=True):
    """How the bot is set up: ``privacy`` hides group talk that is not meant for it, ``topics`` gives private
    chats topics, which ``people_make_topics`` lets people open."""

    token: str
    name: str
    username: str
    privacy: bool = True
    topics: bool = False
    people_make_topics: bool = True


class World:
    """Everything there is. Message numbers are one row for all private chats and small groups of the bot, and
    one row for each supergroup; numbers are never used twice."""

    def __init__(self, traits: Traits, clock: Clock) -> None:
        self.traits = traits
        self.clock = clock
        self.files = Files(clock)
        self.updates = Updates(clock)
        self.bot = Person(
            id=int(traits.token.partition(":")[0]),
            first_name=traits.name,
            username=traits.username,
            is_bot=True,
        )
        self.people: dict[str, Person] = {}
        self.chats: dict[int, Chat] = {}
        self.queries: dict[str, Query] = {}
        self.commands: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        self.profile: dict[str, str] = {}
        self._shared_id = 0
        self._topic_id = 0
        self._count = 0

    def number(self) -> int:
        """A number that was never given before: of an album, a query."""
        self._count += 1
        return self._count

    def person(self, name: str, *, username: str = "", is_bot: bool = False) -> Person:
        """Somebody by their first name; the same one each time."""
        if name not in self.people:
            made = Person(
                id=_FIRST_PERSON + len(self.people), first_name=name, username=username or "", is_bot=is_bot
            )
            self.people[name] = made
        return self.people[name]

    def open(self, kind: Kind, title: str = "", **traits: Any) -> Chat:
        """A new room."""
        place = sum(chat.kind == kind for chat in self.chats.values())
        first = _FIRST_GROUP if kind == "group" else _FIRST_SUPERGROUP
        chat = Chat(id=first - place, kind=kind, title=title, **traits)
        self.chats[chat.id] = chat
        self.clock.beat()
        return chat

    def private(self, person: Person) -> Chat:
        """The chat of one person with the bot; it has the person's number."""
        if person.id not in self.chats:
            self.chats[person.id] = Chat(id=person.id, kind="private", members={person.id: person})
            self.clock.beat()
        return self.chats[person.id]

    def next_id(self, chat: Chat) -> int:
        """The number of the next message."""
        if chat.kind == "supergroup":
            chat.last_id += 1
            return chat.last_id
        self._shared_id += 1
        return self._shared_id

    def next_topic_id(self, chat: Chat, message_id: int) -> int:
        """The number of a new topic: of the message that tells of it; in private chats it is the person's own
        count."""
        if chat.kind == "supergroup":
            return message_id
        self._topic_id += 1
        return 100_000 + self._topic_id

    def chat(self, given: int | str) -> Chat:
        """The room that the bot means. Raises Refused where it may not do anything."""
        chat = self.chats.get(given) if isinstance(given, int) else None
        if chat is None:
            if any(person.id == given for person in self.people.values()):
                raise forbidden("bot can't initiate conversation with a user")
            raise bad("chat not found")
        if chat.migrated_to is not None:
            text = "Bad Request: group chat was upgraded to a supergroup chat"
            raise Refused(text, migrate_to_chat_id=chat.migrated_to)
        if chat.status in ("kicked", "left"):
            how = "kicked from" if chat.status == "kicked" else "not a member of"
            verb = "was" if chat.status == "kicked" else "is"
            raise forbidden(f"bot {verb} {how} the {chat.kind} chat")
        return chat

    def writable(self, given: int | str) -> Chat:
        """The room that the bot wants to write in."""
        chat = self.chat(given)
        if chat.blocked:
            raise forbidden("bot was blocked by the user")
        if chat.refused:
            raise bad(chat.refused)
        if chat.muted:
            raise bad("not enough rights to send text messages to the chat")
        return chat

    def message(self, chat: Chat, message_id: int, label: str) -> Message:
        """A message that stands in a room. Raises Refused, naming it by ``label``, where none does."""
        if (message := chat.messages.get(message_id)) is None:
            raise bad(f"{label} not found")
        return message

    def place(self, message: Message) -> Message:
        """Put a message into its room."""
        chat = self.chats[message.chat]
        chat.messages[message.id] = message
        if message.sender.is_bot:
            chat.spoke_last = message.sender.id == self.bot.id
        self.clock.beat()
        return message

    def change(self, message: Message, **changes: Any) -> Message:
        """Put a changed message in its place."""
        return self.place(replace(message, **changes))

    def tell(self, kind: str, content: Mapping[str, Any], chat: Chat, *, seconds: float = 86_400) -> None:
        """Let the bot know of something, within so many seconds or never."""
        queue = "message" if kind == "edited_message" else kind
        self.updates.push(kind, content, queue=f"{queue}:{chat.id}", seconds=seconds)

    def json(self, message: Message) -> dict[str, Any]:
        """A message as the Bot API writes it."""
        return message_json(self.chats[message.chat], message)

    def chat_json(self, chat: Chat) -> dict[str, Any]:
        """A room as the Bot API writes it inside other things."""
        return chat_json(chat)

    def me(self) -> dict[str, Any]:
        """What ``getMe`` answers."""
        traits = self.traits
        return person_json(self.bot) | {
            "can_join_groups": True,
            "can_read_all_group_messages": not traits.privacy,
            "supports_inline_queries": False,
            "can_connect_to_business": False,
            "has_main_web_app": False,
            "has_topics_enabled": traits.topics,
            "allows_users_to_create_topics": traits.topics and traits.people_make_topics,
        }


class Query(Struct, kw_only=True):
    """A button that was pressed. ``answer`` is what the bot said to it, None as long as it said nothing."""

    id: str
    chat: int
    message: int
    sender: Person
    data: str
    until: float
    answer: Mapping[str, Any] | None = None
