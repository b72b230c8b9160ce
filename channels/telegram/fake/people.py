"""The users of the platform: what tests do as users, and which messages the bot receives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from channels.telegram.fake import chats
from channels.telegram.fake.calls import Upload
from channels.telegram.fake.chats import told
from channels.telegram.fake.files import Stored
from channels.telegram.fake.messages import media_of, shown_drafts, thread_of
from channels.telegram.fake.state import (
    Chat,
    Draft,
    Kind,
    Message,
    Person,
    Query,
    Status,
    World,
    chat_json,
    person_json,
)
from channels.telegram.fake.text import Entity, styled


def heard(world: World, chat: Chat, message: Message) -> bool:
    """Return whether the bot receives a user's message.

    Never of another bot's; of everything in private chats and where it is an administrator. Else privacy mode
    leaves commands that name it, commands that name nobody if it was the last bot to write, and replies to
    what it wrote.
    """
    if message.sender.is_bot or chat.status in ("left", "kicked"):
        return False
    if not chat.is_group or chat.status == "administrator" or not world.traits.privacy:
        return True
    answered = chat.messages.get(message.reply_to or 0)
    if answered is not None and answered.sender.id == world.bot.id and not answered.service:
        return True
    return _commanded(world, chat, message)


def _commanded(world: World, chat: Chat, message: Message) -> bool:
    first = next((entity for entity in message.entities if entity["type"] == "bot_command"), None)
    if first is None or first["offset"] != 0:
        return False
    _, _, named = message.text[: first["length"]].partition("@")
    return named.lower() == world.traits.username.lower() if named else chat.spoke_last


Who = Person | str
"""Somebody, or the first name under which they are known."""

ANSWER_SECONDS = 15
"""How long the platform waits for the bot's answer to a button that was pressed."""


class People:
    """The users. Chats and messages are identified by their numbers."""

    def __init__(self, world: World) -> None:
        self.world = world

    def person(self, name: str = "Ada", *, username: str = "", is_bot: bool = False) -> Person:
        """Return a user by first name, the same one each time."""
        return self.world.person(name, username=username, is_bot=is_bot)

    def private(self, who: Who = "Ada") -> int:
        """Return the private chat of a user with the bot. From now on the bot may write there."""
        return self.world.private(self._person(who)).id

    def group(
        self,
        title: str = "Lab",
        *people: Who,
        kind: Kind = "supergroup",
        forum: bool = False,
        admin: bool = False,
    ) -> int:
        """A group with the bot in it; as an ``admin`` it hears everything."""
        members = {person.id: person for person in map(self._person, people)}
        status: Status = "administrator" if admin else "member"
        return self.world.open(kind, title, forum=forum, status=status, members=members).id

    def say(
        self,
        chat: int,
        text: str,
        user: Who | None = None,
        *,
        reply_to: int | None = None,
        thread: int | None = None,
        entities: Iterable[Entity] = (),
    ) -> int:
        """Write as a user, by default the first one of the chat. Returns the number of the message."""
        return self._placed(chat, user, text, reply_to, thread, entities=entities).id

    def send(
        self,
        chat: int,
        data: bytes,
        user: Who | None = None,
        *,
        kind: str = "photo",
        name: str = "",
        mime: str = "",
        caption: str = "",
        thread: int | None = None,
        **attributes: Any,
    ) -> int:
        """Send a file as a user; ``kind`` is photo, document, voice, audio, video or animation."""
        stored = self.world.files.store(kind, Upload(name, data, mime), attributes)
        return self._placed(chat, user, caption, None, thread, stored=stored).id

    def album(
        self,
        chat: int,
        files: Sequence[bytes],
        user: Who | None = None,
        *,
        kind: str = "photo",
        caption: str = "",
    ) -> list[int]:
        """Send several files as a user: one message each, the first with the caption."""
        album = str(13_000_000_000 + self.world.number())
        stored = [self.world.files.store(kind, Upload("", data, "")) for data in files]
        captions = [caption, *[""] * len(files)]
        return [
            self._placed(chat, user, text, None, None, stored=file, album=album).id
            for file, text in zip(stored, captions, strict=False)
        ]

    def edit(self, chat: int, message: int, text: str) -> None:
        """Change the text of a user's message."""
        room = self.world.chats[chat]
        content = styled(text)
        changed = self.world.change(
            room.messages[message],
            text=content.text,
            entities=content.entities,
            edited=self.world.clock.date(),
        )
        if heard(self.world, room, changed):
            self.world.tell("edited_message", self.world.json(changed), room)

    def delete(self, chat: int, message: int) -> None:
        """Delete a message as a user. Bots receive no update of that."""
        del self.world.chats[chat].messages[message]
        self.world.changes.bump()

    def press(self, chat: int, message: int, button: str, user: Who | None = None) -> Query:
        """Press a button, found by its text or its data. ``answer`` of the result is the bot's answer.

        Raises LookupError if there is no such button.
        """
        room = self.world.chats[chat]
        pressed = room.messages[message]
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
        sender = self._sender(room, user)
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
        self.world.tell("callback_query", content, room, seconds=150)
        return query

    def react(self, chat: int, message: int, emoji: str | None, user: Who | None = None) -> None:
        """React to a message, or take it back. An administrator bot that asks for it gets an update."""
        room = self.world.chats[chat]
        sender = self._sender(room, user)
        before = room.messages[message].reactions.get(sender.id, ())
        after = ({"type": "emoji", "emoji": emoji},) if emoji else ()
        self.world.change(
            room.messages[message], reactions={**room.messages[message].reactions, sender.id: after}
        )
        if room.status == "administrator" or room.kind == "private":
            content = {
                "chat": chat_json(room),
                "message_id": message,
                "user": person_json(sender),
                "date": self.world.clock.date(),
                "old_reaction": list(before),
                "new_reaction": list(after),
            }
            self.world.tell("message_reaction", content, room)

    def stop(self, chat: int, draft: int | None = None) -> None:
        """Press Stop under a draft (the newest). Raises LookupError if none can be stopped."""
        room = self.world.chats[chat]
        for key, shown in reversed(room.drafts.items()):
            if shown.can_stop and shown in shown_drafts(self.world, room) and draft in (None, shown.id):
                self._stopped(room, key, shown)
                return
        raise LookupError(f"no draft in {chat} can be stopped")

    def topic(self, chat: int, name: str, user: Who | None = None) -> int:
        """Open a topic as a user. Returns its number."""
        room = self.world.chats[chat]
        return chats.open_topic(self.world, room, name, self._sender(room, user)).id

    def close_topic(self, chat: int, topic: int, user: Who | None = None) -> None:
        """Close a topic as a user."""
        room = self.world.chats[chat]
        room.topics[topic].closed = True
        told(self.world, room, self._sender(room, user), {"forum_topic_closed": {}}, room.topics[topic])

    def join(self, chat: int, user: Who) -> None:
        """Let a user join a group."""
        room, person = self.world.chats[chat], self._person(user)
        room.members[person.id] = person
        told(self.world, room, person, {"new_chat_members": [person_json(person)]})

    def block(self, who: Who = "Ada") -> None:
        """Block the bot as a user."""
        self._standing(self.world.private(self._person(who)), "kicked", blocked=True)

    def unblock(self, who: Who = "Ada") -> None:
        """Unblock the bot as a user."""
        self._standing(self.world.private(self._person(who)), "member", blocked=False)

    def kick(self, chat: int, by: Who = "Ada") -> None:
        """Remove the bot from a group."""
        room = self.world.chats[chat]
        before, room.status = room.status, "kicked"
        self._member_changed(room, self._person(by), before, "kicked")

    def promote(self, chat: int, status: Status = "administrator", by: Who = "Ada") -> None:
        """Make the bot an administrator, or a member again; also after it was removed."""
        room = self.world.chats[chat]
        before, room.status = room.status, status
        self._member_changed(room, self._person(by), before, status)

    def migrate(self, chat: int) -> int:
        """A small group becomes a supergroup with another number, which is returned."""
        old = self.world.chats[chat]
        new = self.world.open("supergroup", old.title, members=dict(old.members), status=old.status)
        by = next(iter(old.members.values()))
        told(self.world, old, by, {"migrate_to_chat_id": new.id})
        old.migrated_to = new.id
        told(self.world, new, by, {"migrate_from_chat_id": old.id})
        return new.id

    def messages(self, chat: int) -> list[Message]:
        """Return the messages of a chat, in order."""
        room = self.world.chats[chat]
        return [room.messages[number] for number in sorted(room.messages)]

    def answers(self, chat: int) -> list[str]:
        """The texts of the bot in a room, as they stand now."""
        return [
            one.text for one in self.messages(chat) if one.sender.id == self.world.bot.id and not one.service
        ]

    def drafts(self, chat: int) -> list[Draft]:
        """Return the drafts that a chat shows while an answer is made."""
        return shown_drafts(self.world, self.world.chats[chat])

    def actions(self, chat: int) -> list[str]:
        """All that ``sendChatAction`` was called with for a room."""
        return list(self.world.chats[chat].actions)

    def chat(self, chat: int) -> Chat:
        """A room, to look at or to change: ``refused``, ``muted`` and the like make it refuse the bot."""
        return self.world.chats[chat]

    def _placed(
        self,
        chat: int,
        user: Who | None,
        text: str,
        reply_to: int | None,
        thread: int | None,
        *,
        entities: Iterable[Entity] = (),
        stored: Stored | None = None,
        album: str | None = None,
    ) -> Message:
        room = self.world.chats[chat]
        sender = self._sender(room, user)
        content = styled(text, "", entities)
        answered = room.messages[reply_to] if reply_to is not None else None
        if thread is None and answered is None and self._opens_topic(room):
            thread = chats.open_topic(
                self.world, room, content.text[:128] or "New chat", sender, implicit=True
            ).id
        place, in_topic = thread_of(self.world, room, thread, answered)
        message = Message(
            id=self.world.next_id(room),
            chat=room.id,
            date=self.world.clock.date(),
            sender=sender,
            text=content.text,
            entities=content.entities,
            media=media_of(stored) if stored else {},
            thread=place,
            in_topic=in_topic,
            reply_to=reply_to,
            album=album,
        )
        self.world.place(message)
        if heard(self.world, room, message):
            self.world.tell("message", self.world.json(message), room)
        return message

    def _opens_topic(self, room: Chat) -> bool:
        """Return whether a message outside of a topic opens one, as in private chats with topics."""
        traits = self.world.traits
        return room.kind == "private" and traits.topics and traits.people_make_topics

    def _stopped(self, room: Chat, key: tuple[int | None, int], shown: Draft) -> None:
        room.drafts[key] = replace(shown, stopped=True)
        content: dict[str, Any] = {"chat": chat_json(room), "draft_id": shown.id}
        if shown.thread is not None:
            content["message_thread_id"] = shown.thread
        self.world.tell("stopped_message_generation", content, room)

    def _standing(self, room: Chat, status: Status, *, blocked: bool) -> None:
        before: Status = "kicked" if room.blocked else "member"
        room.blocked = blocked
        self._member_changed(room, next(iter(room.members.values())), before, status)

    def _member_changed(self, room: Chat, by: Person, before: Status, after: Status) -> None:
        content: Mapping[str, Any] = {
            "chat": chat_json(room),
            "from": person_json(by),
            "date": self.world.clock.date(),
            "old_chat_member": chats.member_json(self.world.bot, before),
            "new_chat_member": chats.member_json(self.world.bot, after),
        }
        self.world.tell("my_chat_member", content, room)

    def _person(self, who: Who) -> Person:
        return who if isinstance(who, Person) else self.world.person(who)

    def _sender(self, room: Chat, user: Who | None) -> Person:
        """Return the acting user, by default the first one of the chat, and add them to the chat."""
        person = self._person(user) if user is not None else next(iter(room.members.values()))
        room.members.setdefault(person.id, person)
        return person
