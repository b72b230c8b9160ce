"""Users of the platform: what tests do as users, and which messages the bot receives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from channels.telegram.fake import chats
from channels.telegram.fake.calls import Upload, describe, schemas
from channels.telegram.fake.chats import add_service_message
from channels.telegram.fake.files import Stored
from channels.telegram.fake.messages import media_of, shown_drafts, thread_of
from channels.telegram.fake.state import (
    Chat,
    Connection,
    Draft,
    InlineQuery,
    Kind,
    Message,
    Person,
    Query,
    Status,
    World,
    chat_json,
    connection_json,
    person_json,
)
from channels.telegram.fake.text import Entity, styled, utf16


def is_delivered(world: World, chat: Chat, message: Message) -> bool:
    """Return whether the bot receives a user's message.

    It receives no messages of other bots, and all others in private chats and where it is an administrator.
    In other channels it receives nothing. In other groups, privacy mode leaves replies to its own messages,
    commands with its name, and commands without a name if it was the last bot that wrote.
    """
    if message.sender.is_bot or chat.status in ("left", "kicked"):
        return False
    if not chat.is_group or chat.status == "administrator":
        return True
    if chat.kind == "channel":
        return False
    if not world.traits.privacy:
        return True
    answered = chat.messages.get(message.reply_to or 0)
    if answered is not None and answered.sender.id == world.bot.id and not answered.service:
        return True
    return _is_command_for_bot(world, chat, message)


def _is_command_for_bot(world: World, chat: Chat, message: Message) -> bool:
    first = next((entity for entity in message.entities if entity["type"] == "bot_command"), None)
    if first is None or first["offset"] != 0:
        return False
    _, _, named = message.text[: first["length"]].partition("@")
    return named.lower() == world.traits.username.lower() if named else chat.spoke_last


User = Person | str
"""A user, or the first name of one."""

INLINE_SECONDS = 30
"""Seconds in which the bot may answer an inline query."""
ANSWER_SECONDS = 15
"""Seconds in which the bot may answer a pressed button."""


class People:
    """The users. Chats and messages are given by id."""

    def __init__(self, world: World) -> None:
        self.world = world

    def person(self, name: str = "Ada", *, username: str = "", is_bot: bool = False) -> Person:
        """Return the user with a first name; the same name is the same user."""
        return self.world.person(name, username=username, is_bot=is_bot)

    def private(self, who: User = "Ada") -> int:
        """Return the private chat of a user with the bot, where the bot may write from now on."""
        return self.world.private(self._person(who)).id

    def group(
        self,
        title: str = "Lab",
        *people: User,
        kind: Kind = "supergroup",
        forum: bool = False,
        admin: bool = False,
    ) -> int:
        """Create a group or channel with the bot in it; an ``admin`` bot receives all messages.

        What users write in a channel is by the channel.
        """
        members = {person.id: person for person in map(self._person, people)}
        status: Status = "administrator" if admin else "member"
        return self.world.open(kind, title, forum=forum, status=status, members=members).id

    def ask_inline(self, text: str, user: User = "Ada") -> InlineQuery:
        """Type a text behind the bot's name. ``answer`` of the result becomes the bot's answer; the platform
        does not ask again for a text of the same user while the answer is cached.

        Raises ValueError if the bot's inline mode is off.
        """
        if not self.world.traits.inline:
            raise ValueError("the inline mode of this bot is not enabled")
        person, now = self._person(user), self.world.clock.now()
        for earlier in self.world.inline.values():
            if (earlier.sender, earlier.text) == (person, text) and earlier.cached_until > now:
                return earlier
        number = f"88{self.world.number():016}"
        query = InlineQuery(id=number, sender=person, text=text, until=now + INLINE_SECONDS)
        self.world.inline[query.id] = query
        content = {"id": query.id, "from": person_json(person), "query": text, "offset": ""}
        self.world.updates.push("inline_query", content, queue="inline", seconds=INLINE_SECONDS)
        return query

    def connect(self, owner: User, *rights: str) -> str:
        """Connect the bot to the business account of a user, by default with the right to reply and to delete
        what it sent. Returns the id of the connection.

        Raises ValueError if the bot's business mode is off.
        """
        if not self.world.traits.business:
            raise ValueError("the business mode of this bot is not enabled")
        connection = Connection(
            id=f"bc{self.world.number():04}_x-Y", owner=self._person(owner), date=self.world.clock.date()
        )
        if rights:
            connection.rights = {*rights}
        self.world.connections[connection.id] = connection
        self._send_connection(connection)
        return connection.id

    def reconnect(self, connection: str, *, enabled: bool) -> None:
        """Disable a connection as its owner, or enable it again."""
        self.world.connections[connection].enabled = enabled
        self._send_connection(self.world.connections[connection])

    def customer(self, connection: str, who: User) -> int:
        """Return the chat of a business account with a user, for ``say`` and the like. That user is the
        default author there."""
        return self.world.business(self.world.connections[connection], self._person(who)).id

    def say(
        self,
        chat: int,
        text: str,
        user: User | None = None,
        *,
        reply_to: int | None = None,
        thread: int | None = None,
        entities: Iterable[Entity] = (),
        quote: str = "",
        outside: tuple[int, int] | None = None,
    ) -> int:
        """Write as a user, by default the first one of the chat. Returns the message id.

        ``quote`` is the part of the replied message that the user selected; ``outside`` are chat and id of a
        message of another chat that this one replies to.
        """
        more: dict[str, Any] = {}
        if outside is not None:
            more = self._external_reply(*outside)
        if quote:
            source = self.world.chats[outside[0] if outside else chat].messages[
                outside[1] if outside else reply_to or 0
            ]
            more["quote"] = {
                "text": quote,
                "position": utf16(source.text[: source.text.index(quote)]),
                "is_manual": True,
            }
        return self._write(chat, user, text, reply_to, thread, entities=entities, more=more).id

    def post(
        self,
        chat: int,
        content: Mapping[str, Any],
        user: User | None = None,
        *,
        reply_to: int | None = None,
        thread: int | None = None,
    ) -> int:
        """Write a message with any content of the Bot API, such as a location or a poll. Returns its id.

        Raises ValueError for content that the Bot API does not have.
        """
        made = {"message_id": 1, "date": 1, "chat": {"id": 1, "type": "private"}, **content}
        if found := [describe(finding, "content") for finding in schemas().check(made, "$defs", "Message")]:
            raise ValueError(f"no content of a message: {found}")
        return self._write(chat, user, "", reply_to, thread, media=content).id

    def forward(
        self, chat: int, source: int, message: int, user: User | None = None, *, hidden: bool = False
    ) -> int:
        """Forward a message of the chat ``source`` as a user. Returns the message id.

        ``hidden``: its author hides the account, so that only the name is shown.
        """
        shown = self.world.chats[source].messages[message]
        more = {"forward_origin": _origin(shown, hidden=hidden)}
        return self._write(
            chat, user, shown.text, None, None, entities=shown.entities, media=shown.media, more=more
        ).id

    def send(
        self,
        chat: int,
        data: bytes,
        user: User | None = None,
        *,
        kind: str = "photo",
        name: str = "",
        mime: str = "",
        caption: str = "",
        thread: int | None = None,
        **attributes: Any,
    ) -> int:
        """Send a file as a user; ``kind`` is photo, document, voice, audio, video or animation. Returns the
        message id."""
        stored = self.world.files.store(kind, Upload(name, data, mime), attributes)
        return self._write(chat, user, caption, None, thread, stored=stored).id

    def album(
        self,
        chat: int,
        files: Sequence[bytes],
        user: User | None = None,
        *,
        kind: str = "photo",
        caption: str = "",
        thread: int | None = None,
    ) -> list[int]:
        """Send several files as a user: one message each, the first with the caption. Returns the message
        ids."""
        album = str(13_000_000_000 + self.world.number())
        stored = [self.world.files.store(kind, Upload("", data, "")) for data in files]
        captions = [caption, *[""] * len(files)]
        return [
            self._write(chat, user, text, None, thread, stored=file, album=album).id
            for file, text in zip(stored, captions, strict=False)
        ]

    def edit(self, chat: int, message: int, text: str) -> None:
        """Edit the text of a user's message."""
        chat_state = self.world.chats[chat]
        content = styled(text)
        changed = self.world.change(
            chat_state.messages[message],
            text=content.text,
            entities=content.entities,
            edited=self.world.clock.date(),
        )
        if is_delivered(self.world, chat_state, changed):
            self.world.queue_update("edited_message", self.world.json(changed), chat_state)

    def delete(self, chat: int, message: int) -> None:
        """Delete a message as a user. Bots receive an update about that only for a business account."""
        chat_state = self.world.chats[chat]
        del chat_state.messages[message]
        self.world.changes.bump()
        if (connection := chat_state.connection) is not None and connection.enabled:
            content = {
                "business_connection_id": connection.id,
                "chat": chat_json(chat_state),
                "message_ids": [message],
            }
            self.world.queue_update("deleted_business_messages", content, chat_state)

    def press(self, chat: int, message: int, button: str, user: User | None = None) -> Query:
        """Press a button, given by its text or its data. ``answer`` of the result becomes the bot's answer.

        Raises LookupError for an unknown button.
        """
        chat_state = self.world.chats[chat]
        pressed = chat_state.messages[message]
        data = next(
            (
                one["callback_data"]
                for one in pressed.buttons
                if button in (one["text"], one.get("callback_data"))
            ),
            None,
        )
        if data is None:
            raise LookupError(f"message {message} has no button {button}")
        sender = self._sender(chat_state, user)
        query = Query(
            id=f"77{self.world.number():016}",
            chat=chat,
            message=message,
            sender=sender,
            data=data,
            until=self.world.clock.now() + ANSWER_SECONDS,
        )
        self.world.queries[query.id] = query
        content = {
            "id": query.id,
            "from": person_json(sender),
            "message": self.world.json(pressed),
            "chat_instance": str(chat),
            "data": data,
        }
        self.world.queue_update("callback_query", content, chat_state, seconds=150)
        return query

    def react(self, chat: int, message: int, emoji: str | None, user: User | None = None) -> None:
        """Set or remove the reaction of a user. The bot gets an update in private chats and where it is an
        administrator, if it asked for that kind."""
        chat_state = self.world.chats[chat]
        sender = self._sender(chat_state, user)
        before = chat_state.messages[message].reactions.get(sender.id, ())
        after = ({"type": "emoji", "emoji": emoji},) if emoji else ()
        self.world.change(
            chat_state.messages[message],
            reactions={**chat_state.messages[message].reactions, sender.id: after},
        )
        is_own = chat_state.kind == "private" and chat_state.connection is None
        is_group = chat_state.is_group and chat_state.kind != "channel"
        if is_own or (is_group and chat_state.status == "administrator"):
            content = {
                "chat": chat_json(chat_state),
                "message_id": message,
                "user": person_json(sender),
                "date": self.world.clock.date(),
                "old_reaction": list(before),
                "new_reaction": list(after),
            }
            self.world.queue_update("message_reaction", content, chat_state)

    def stop(self, chat: int, draft: int | None = None) -> None:
        """Press Stop under a draft, by default the newest. Raises LookupError if no draft can be stopped."""
        chat_state = self.world.chats[chat]
        for key, shown in reversed(chat_state.drafts.items()):
            if shown.can_stop and shown in shown_drafts(self.world, chat_state) and draft in (None, shown.id):
                self._send_stop(chat_state, key, shown)
                return
        raise LookupError(f"no draft in {chat} can be stopped")

    def topic(self, chat: int, name: str, user: User | None = None) -> int:
        """Open a topic as a user. Returns its id."""
        chat_state = self.world.chats[chat]
        return chats.open_topic(self.world, chat_state, name, self._sender(chat_state, user)).id

    def close_topic(self, chat: int, topic: int, user: User | None = None) -> None:
        """Close a topic as a user."""
        chat_state = self.world.chats[chat]
        chat_state.topics[topic].closed = True
        add_service_message(
            self.world,
            chat_state,
            self._sender(chat_state, user),
            {"forum_topic_closed": {}},
            chat_state.topics[topic],
        )

    def join(self, chat: int, user: User) -> None:
        """Add a user to a group."""
        chat_state, person = self.world.chats[chat], self._person(user)
        chat_state.members[person.id] = person
        add_service_message(self.world, chat_state, person, {"new_chat_members": [person_json(person)]})

    def block(self, who: User = "Ada") -> None:
        """Block the bot as a user."""
        self._set_blocked(self.world.private(self._person(who)), "kicked", blocked=True)

    def unblock(self, who: User = "Ada") -> None:
        """Unblock the bot as a user."""
        self._set_blocked(self.world.private(self._person(who)), "member", blocked=False)

    def kick(self, chat: int, by: User = "Ada") -> None:
        """Remove the bot from a group."""
        chat_state = self.world.chats[chat]
        before, chat_state.status = chat_state.status, "kicked"
        self._send_membership(chat_state, self._person(by), before, "kicked")

    def rename_bot(self, username: str) -> None:
        """Give the bot another user name. No update reports it."""
        world = self.world
        world.bot = replace(world.bot, username=username)
        world.traits = replace(world.traits, username=username)

    def promote(self, chat: int, status: Status = "administrator", by: User = "Ada") -> None:
        """Set the bot's status in a group, also after it was removed."""
        chat_state = self.world.chats[chat]
        before, chat_state.status = chat_state.status, status
        self._send_membership(chat_state, self._person(by), before, status)

    def migrate(self, chat: int) -> int:
        """Turn a small group into a supergroup. Returns the new chat id."""
        old = self.world.chats[chat]
        new = self.world.open("supergroup", old.title, members=dict(old.members), status=old.status)
        by = next(iter(old.members.values()))
        add_service_message(self.world, old, by, {"migrate_to_chat_id": new.id})
        old.migrated_to = new.id
        add_service_message(self.world, new, by, {"migrate_from_chat_id": old.id})
        return new.id

    def messages(self, chat: int) -> list[Message]:
        """Return the messages of a chat, in order."""
        chat_state = self.world.chats[chat]
        return [chat_state.messages[number] for number in sorted(chat_state.messages)]

    def answers(self, chat: int) -> list[str]:
        """Return the texts of the bot in a chat, as they are now."""
        return [
            one.text for one in self.messages(chat) if one.sender.id == self.world.bot.id and not one.service
        ]

    def drafts(self, chat: int) -> list[Draft]:
        """Return the drafts that a chat shows."""
        return shown_drafts(self.world, self.world.chats[chat])

    def actions(self, chat: int) -> list[str]:
        """Return the actions of all ``sendChatAction`` calls in a chat."""
        return list(self.world.chats[chat].actions)

    def chat(self, chat: int) -> Chat:
        """Return a chat. ``refused``, ``muted`` and similar fields may be set, to make it refuse the bot's
        messages."""
        return self.world.chats[chat]

    def _write(
        self,
        chat: int,
        user: User | None,
        text: str,
        reply_to: int | None,
        thread: int | None,
        *,
        entities: Iterable[Entity] = (),
        stored: Stored | None = None,
        album: str | None = None,
        media: Mapping[str, Any] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> Message:
        chat_state = self.world.chats[chat]
        sender = self._sender(chat_state, user)
        content = styled(text, "", entities)
        answered = chat_state.messages[reply_to] if reply_to is not None else None
        if thread is None and answered is None and self._opens_topic(chat_state):
            thread = chats.open_topic(
                self.world, chat_state, content.text[:128] or "New chat", sender, implicit=True
            ).id
        thread_id, in_topic = thread_of(self.world, chat_state, thread, answered)
        message = Message(
            id=self.world.next_id(chat_state),
            chat=chat_state.id,
            date=self.world.clock.date(),
            sender=sender,
            text=content.text,
            entities=content.entities,
            media=media_of(stored) if stored else media or {},
            more=more or {},
            thread=thread_id,
            in_topic=in_topic,
            reply_to=reply_to,
            album=album,
        )
        self.world.place(message)
        if is_delivered(self.world, chat_state, message):
            self.world.queue_update("message", self.world.json(message), chat_state)
        return message

    def _external_reply(self, source: int, message: int) -> dict[str, Any]:
        """Return the fields of a reply to a message of another chat; its text comes as a quote."""
        chat, shown = self.world.chats[source], self.world.chats[source].messages[message]
        reply: dict[str, Any] = {"origin": _origin(shown), **shown.media}
        if chat.kind == "supergroup":
            reply |= {"chat": chat_json(chat), "message_id": message}
        quote = {"quote": {"text": shown.text, "position": 0}} if shown.text else {}
        return {"external_reply": reply, **quote}

    def _opens_topic(self, chat_state: Chat) -> bool:
        """Return whether a message outside of a topic opens one, as in private chats with topics."""
        traits = self.world.traits
        is_own = chat_state.kind == "private" and chat_state.connection is None
        return is_own and traits.topics and traits.people_make_topics

    def _send_stop(self, chat_state: Chat, key: tuple[int | None, int], shown: Draft) -> None:
        chat_state.drafts[key] = replace(shown, stopped=True)
        content: dict[str, Any] = {"chat": chat_json(chat_state), "draft_id": shown.id}
        if shown.thread is not None:
            content["message_thread_id"] = shown.thread
        self.world.queue_update("stopped_message_generation", content, chat_state)

    def _set_blocked(self, chat_state: Chat, status: Status, *, blocked: bool) -> None:
        before: Status = "kicked" if chat_state.blocked else "member"
        chat_state.blocked = blocked
        self._send_membership(chat_state, next(iter(chat_state.members.values())), before, status)

    def _send_connection(self, connection: Connection) -> None:
        owner = self.world.private(connection.owner)
        self.world.queue_update("business_connection", connection_json(connection), owner)

    def _send_membership(self, chat_state: Chat, by: Person, before: Status, after: Status) -> None:
        content: Mapping[str, Any] = {
            "chat": chat_json(chat_state),
            "from": person_json(by),
            "date": self.world.clock.date(),
            "old_chat_member": chats.member_json(self.world.bot, before),
            "new_chat_member": chats.member_json(self.world.bot, after),
        }
        self.world.queue_update("my_chat_member", content, chat_state)

    def _person(self, who: User) -> Person:
        return who if isinstance(who, Person) else self.world.person(who)

    def _sender(self, chat_state: Chat, user: User | None) -> Person:
        """Return the acting user, by default the first of the chat, after adding the user to the chat."""
        person = self._person(user) if user is not None else next(iter(chat_state.members.values()))
        chat_state.members.setdefault(person.id, person)
        return person


def _origin(message: Message, *, hidden: bool = False) -> dict[str, Any]:
    """Return the ``MessageOrigin`` of a user's message."""
    if hidden:
        return {"type": "hidden_user", "date": message.date, "sender_user_name": message.sender.first_name}
    return {"type": "user", "date": message.date, "sender_user": person_json(message.sender)}
