"""The users of the workspaces: what tests do as users, and what they see."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

from msgspec import Struct

from channels.slack.fake import rooms, streams
from channels.slack.fake.blocks import spoken
from channels.slack.fake.files import announce, described, new_file
from channels.slack.fake.payloads import emit
from channels.slack.fake.state import Json, Kind, Room, Session, State, User, Workspace
from channels.slack.fake.text import rich_text, typed


class Said(Struct, frozen=True, kw_only=True):
    """A message that stands in a room. ``text`` is what shows, in Slack's own escaping; ``thread`` the first
    message's ``ts`` if it is a reply; ``reactions`` maps emoji to users; ``raw`` is the platform's object.
    """

    ts: str
    user: str
    text: str
    bot: bool
    thread: str | None
    edited: bool
    streaming: bool
    reactions: dict[str, tuple[str, ...]]
    files: tuple[str, ...]
    raw: Json


def said(state: State, room: Room, message: Json) -> Said:
    """A message as it shows."""
    team = state.teams[room.team]
    user = team.users.get(message.get("user", ""))
    root = message.get("thread_ts")
    shown = spoken(message.get("blocks", ())) if "bot_id" in message else ""
    return Said(
        ts=message["ts"],
        user=user.name if user else message.get("username", message.get("user", "")),
        text=shown or message.get("text", ""),
        bot="bot_id" in message,
        thread=root if root != message["ts"] else None,
        edited="edited" in message,
        streaming=message.get("streaming_state") == "in_progress",
        reactions={one["name"]: tuple(one["users"]) for one in message.get("reactions", ())},
        files=tuple(one["name"] for one in message.get("files", ())),
        raw=message,
    )


class People:
    """Persons are named, and there from the moment they do something.

    A ``chat`` is a room's id; or the name of a public channel, which opens with the app in it; or ``@name``,
    the direct message of a person with the app. ``team`` says in which workspace, the first one without.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.notices: list[tuple[str, str]] = []

    def say(
        self,
        chat: str,
        text: str,
        user: str = "ada",
        *,
        thread: str | None = None,
        broadcast: bool = False,
        files: Sequence[tuple[str, bytes]] = (),
        spoken: bool = False,
        client_msg_id: str | None = None,
        team: str | None = None,
    ) -> str:
        """A person writes; ``@name`` and ``#room`` are meant. With ``spoken`` the files are audio clips.
        Returns the message's ``ts``."""
        where, person = self._there(chat, user, team)
        written = typed(text, self.state.teams[where.team])
        message: Json = {
            "type": "message",
            "user": person.id,
            "ts": self.state.stamps.next(),
            "client_msg_id": client_msg_id or str(uuid.uuid4()),
            "text": written,
            "team": where.team,
            "blocks": rich_text(written),
        }
        if thread is not None:
            root = where.messages[thread]
            message |= {"thread_ts": thread, "parent_user_id": root.get("user", "")}
            message |= {"subtype": "thread_broadcast", "root": root} if broadcast else {}
        stored = [new_file(self.state, person, name, len(content)) for name, content in files]
        for file in stored:
            file.spoken = spoken
        for file, (_, content) in zip(stored, files, strict=True):
            file.content, file.shared, file.shares[where.id] = content, True, message["ts"]
        if stored:
            shown = [described(self.state, file) for file in stored]
            message |= {"subtype": "file_share", "files": shown, "upload": False, "display_as_bot": False}
        rooms.place(self.state, where, message)
        announce(self.state, where, stored)
        return message["ts"]

    def edit(self, chat: str, ts: str, text: str, user: str = "ada", *, team: str | None = None) -> None:
        """A person changes what they wrote."""
        where, person = self._there(chat, user, team)
        written = typed(text, self.state.teams[where.team])
        edited = {"user": person.id, "ts": self.state.stamps.next()}
        rooms.change(self.state, where, ts, {"text": written, "blocks": rich_text(written), "edited": edited})

    def delete(self, chat: str, ts: str, *, team: str | None = None) -> None:
        """A message is taken away by who may."""
        rooms.remove(self.state, self.room(chat, team), ts)

    def react(
        self, chat: str, ts: str, emoji: str, user: str = "ada", *, add: bool = True, team: str | None = None
    ) -> None:
        """A person sets a reaction, or takes it back."""
        where, person = self._there(chat, user, team)
        rooms.react(self.state, where, ts, person, emoji, add=add)

    def another_bot_says(
        self, chat: str, text: str, name: str = "otherbot", *, team: str | None = None
    ) -> str:
        """Another app writes. Returns the message's ``ts``."""
        where = self.room(chat, team)
        message: Json = {
            "type": "message",
            "subtype": "bot_message",
            "ts": self.state.stamps.next(),
            "text": typed(text, self.state.teams[where.team]),
            "bot_id": "B0OTHERBOT0",
            "app_id": "A0OTHERBOT0",
            "username": name,
        }
        return rooms.place(self.state, where, message)["ts"]

    def stop(self, chat: str, thread: str, user: str = "ada", *, team: str | None = None) -> None:
        """A person presses the stop button of an agent session, which shows while it is ``processing``.

        Raises ValueError when there is no such button.
        """
        where, person = self._there(chat, user, team)
        session = self.state.sessions.get((where.id, thread))
        if session is None or session.status != "processing":
            raise ValueError("there is nothing to stop")
        event = {
            "type": "agent_session_stopped",
            "channel": where.id,
            "user": person.id,
            "thread_ts": thread,
            "streaming_message_ts": streams.stopped(self.state, where, thread),
            "event_ts": self.state.stamps.next(),
        }
        emit(self.state, self.state.teams[where.team], event)
        self.state.changes.bump()

    def rename_session(self, chat: str, thread: str, title: str, user: str = "ada") -> None:
        """A person gives an agent session another title."""
        where, person = self._there(chat, user, None)
        session = self.state.sessions.setdefault((where.id, thread), Session(status="active"))
        event = {
            "type": "agent_session_title_changed",
            "channel": where.id,
            "user": person.id,
            "team_id": where.team,
            "thread_ts": thread,
            "title": title,
            **({"previous_title": session.title} if session.title else {}),
            "event_ts": self.state.stamps.next(),
        }
        session.title = title
        emit(self.state, self.state.teams[where.team], event)
        self.state.changes.bump()

    def open_app(self, user: str = "ada", tab: str = "messages", *, team: str | None = None) -> None:
        """A person opens the app's home, or its messages."""
        where, person = self._there(f"@{user}", user, team)
        event = {"type": "app_home_opened", "user": person.id, "channel": where.id, "tab": tab}
        emit(self.state, self.state.teams[where.team], {**event, "event_ts": self.state.stamps.next()})

    def invite(self, chat: str, *, team: str | None = None, away: bool = False) -> None:
        """The app's bot is invited to a room, or removed from it."""
        where = self.room(chat, team)
        workspace = self.state.teams[where.team]
        bot = workspace.bot
        assert bot is not None
        event: Json = {"user": bot.id, "channel": where.id, "channel_type": "C", "team": workspace.id}
        event |= {"type": "member_left_channel" if away else "member_joined_channel"}
        (where.members.discard if away else where.members.add)(bot.id)
        emit(self.state, workspace, {**event, "event_ts": self.state.stamps.next()})
        self.state.changes.bump()

    def open_room(
        self,
        name: str,
        *users: str,
        kind: Kind = "channel",
        with_bot: bool = True,
        archived: bool = False,
        team: str | None = None,
    ) -> str:
        """A room opens. Returns its id."""
        workspace = self.state.team_of(team)
        members = {self.user(one, team).id for one in users}
        if with_bot and workspace.bot is not None:
            members.add(workspace.bot.id)
        opened = rooms.new_room(self.state, workspace, kind, name, members)
        opened.archived = archived
        return opened.id

    def user(self, name: str, team: str | None = None) -> User:
        """A person by name or id; a name that is new is a person who joins the workspace."""
        workspace = self.state.team_of(team)
        return workspace.user(name) or rooms.new_user(self.state, workspace, name)

    def room(self, chat: str, team: str | None = None) -> Room:
        """A room, opened if it is a channel or a direct message that is not there yet."""
        for workspace in self.state.teams.values():
            if chat in workspace.rooms:
                return workspace.rooms[chat]
        workspace = self.state.team_of(team)
        if chat.startswith("@"):
            return self._direct(workspace, chat[1:])
        known = workspace.named(chat)
        return known or workspace.rooms[self.open_room(chat.removeprefix("#"), team=workspace.id)]

    def messages(self, chat: str, *, thread: str | None = None, team: str | None = None) -> list[Said]:
        """Return the messages of a chat, or of one thread, oldest first."""
        where = self.room(chat, team)
        shown = where.thread(thread) if thread is not None else list(where.messages.values())
        return [said(self.state, where, message) for message in shown]

    def answers(self, chat: str, *, team: str | None = None) -> list[str]:
        """Return the texts of bots in a chat."""
        return [message.text for message in self.messages(chat, team=team) if message.bot]

    def hidden(self, chat: str, user: str = "ada", *, team: str | None = None) -> list[Said]:
        """Return the messages of a chat that only this user sees."""
        where, person = self._there(chat, user, team)
        return [said(self.state, where, message) for message in where.hidden.get(person.id, ())]

    def status(self, chat: str, thread: str, *, team: str | None = None) -> str | None:
        """Return the status of the app in a thread; None if it shows none."""
        text, until = self.state.statuses.get((self.room(chat, team).id, thread), ("", 0.0))
        return text if self.state.clock.now() < until else None

    async def until(self, true: Callable[[], object], *, seconds: float = 20) -> None:
        """Wait until a condition holds. Raises TimeoutError after so many real seconds."""
        await self.state.changes.until(true, seconds)

    def _direct(self, workspace: Workspace, name: str) -> Room:
        bot = workspace.bot
        assert bot is not None
        return rooms.direct(self.state, workspace, self.user(name, workspace.id).id, bot.id)

    def _there(self, chat: str, user: str, team: str | None) -> tuple[Room, User]:
        """The room, and the person, who takes part in it from now on."""
        where = self.room(chat, team)
        person = self.user(user, where.team)
        if not where.direct:
            where.members.add(person.id)
        return where, person
