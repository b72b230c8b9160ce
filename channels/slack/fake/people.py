"""The users of the workspaces: what tests do as users, and what they see."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from msgspec import Struct

from channels.slack.fake import chats
from channels.slack.fake.calls import Asked, RefusalError, invalid
from channels.slack.fake.delivery import emit, interaction, new_reply_url, new_trigger
from channels.slack.fake.files import announce, described, new_file
from channels.slack.fake.markup import MOST_IN_VIEW, Inspection, rich_text, spoken, typed
from channels.slack.fake.messages import acknowledged, stop_streams
from channels.slack.fake.state import Delivery, Json, Kind, Room, Session, State, Trigger, User, Workspace
from gateway.testing.fake_platform import FakeServer


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
        chats.place(self.state, where, message)
        announce(self.state, where, stored)
        return message["ts"]

    def edit(self, chat: str, ts: str, text: str, user: str = "ada", *, team: str | None = None) -> None:
        """A person changes what they wrote."""
        where, person = self._there(chat, user, team)
        written = typed(text, self.state.teams[where.team])
        edited = {"user": person.id, "ts": self.state.stamps.next()}
        chats.change(self.state, where, ts, {"text": written, "blocks": rich_text(written), "edited": edited})

    def delete(self, chat: str, ts: str, *, team: str | None = None) -> None:
        """A message is taken away by who may."""
        chats.remove(self.state, self.room(chat, team), ts)

    def react(
        self, chat: str, ts: str, emoji: str, user: str = "ada", *, add: bool = True, team: str | None = None
    ) -> None:
        """A person sets a reaction, or takes it back."""
        where, person = self._there(chat, user, team)
        chats.react(self.state, where, ts, person, emoji, add=add)

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
        return chats.place(self.state, where, message)["ts"]

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
            "streaming_message_ts": stop_streams(self.state, where, thread),
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
        opened = chats.new_room(self.state, workspace, kind, name, members)
        opened.archived = archived
        return opened.id

    def user(self, name: str, team: str | None = None) -> User:
        """A person by name or id; a name that is new is a person who joins the workspace."""
        workspace = self.state.team_of(team)
        return workspace.user(name) or chats.new_user(self.state, workspace, name)

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
        return chats.direct(self.state, workspace, self.user(name, workspace.id).id, bot.id)

    def _there(self, chat: str, user: str, team: str | None) -> tuple[Room, User]:
        """The room, and the person, who takes part in it from now on."""
        where = self.room(chat, team)
        person = self.user(user, where.team)
        if not where.direct:
            where.members.add(person.id)
        return where, person


LARGEST_VIEW = 250_000
"""Bytes of JSON."""


def open_view(asked: Asked) -> Json:
    """``views.open``, and ``views.push`` on top of another: once for each ``trigger_id``, within 3 s."""
    view = _checked(asked, ("modal",))
    trigger = _trigger(asked)
    trigger.used = True
    return {"view": _kept(asked, view, trigger.user.id)}


def update_view(asked: Asked) -> Json:
    """``views.update``."""
    view = _checked(asked, ("modal", "home"))
    before = asked.state.views.get(asked.get("view_id", ""))
    if before is None or before["team_id"] != asked.team.id:
        raise RefusalError("not_found")
    if asked.get("hash") not in (None, before["hash"]):
        raise RefusalError("hash_conflict")
    return {"view": _kept(asked, view, before["user_id"], before["id"])}


def publish_view(asked: Asked) -> Json:
    """``views.publish``: the app's home for one user."""
    view = _checked(asked, ("home",))
    if asked["user_id"] not in asked.team.users:
        raise invalid("user_id is invalid [json-pointer:/user_id]")
    known = [one for one in asked.state.views.values() if one["type"] == "home"]
    old = next((one["id"] for one in known if one["user_id"] == asked["user_id"]), None)
    return {"view": _kept(asked, view, asked["user_id"], old)}


def _trigger(asked: Asked) -> Trigger:
    trigger = asked.state.triggers.get(asked.get("trigger_id", ""))
    if trigger is None or trigger.user.team != asked.team.id:
        raise RefusalError("invalid_trigger_id", "a trigger_id that nothing gave out")
    if asked.state.clock.now() > trigger.until:
        raise RefusalError("expired_trigger_id")
    if trigger.used:
        raise RefusalError("exchanged_trigger_id", "a trigger_id is used a second time")
    return trigger


def _checked(asked: Asked, kinds: tuple[str, ...]) -> Json:
    given = asked["view"]
    if not isinstance(given, dict):
        raise invalid("must provide an object [json-pointer:/view]")
    view = cast(Json, given)
    if view.get("type") not in kinds:
        raise invalid(f"must be one of: {', '.join(kinds)} [json-pointer:/view/type]")
    if view["type"] == "modal" and not isinstance(view.get("title"), dict):
        raise invalid("missing required field: title [json-pointer:/view]")
    if len(json.dumps(view)) > LARGEST_VIEW:
        raise RefusalError("view_too_large", "the view is too large")
    blocks: Any = view.get("blocks")
    if not isinstance(blocks, list):
        raise invalid("missing required field: blocks [json-pointer:/view]")
    errors = Inspection(cast(list[object], blocks), root="/view/blocks", most=MOST_IN_VIEW).errors
    if errors:
        raise invalid(errors[0])
    return view


def _kept(asked: Asked, view: Json, user: str, old: str | None = None) -> Json:
    known = old or asked.state.names.next("V")
    bot = asked.team.bot
    stored: Json = {
        "callback_id": "",
        "private_metadata": "",
        "external_id": "",
        "clear_on_close": False,
        "notify_on_close": False,
        **view,
        "id": known,
        "team_id": asked.team.id,
        "user_id": user,
        "app_id": asked.state.app.id,
        "bot_id": bot.bot_id if bot else None,
        "state": {"values": {}},
        "hash": f"{asked.state.stamps.next()}",
        "root_view_id": known,
        "previous_view_id": None,
    }
    asked.state.views[known] = stored
    asked.state.changes.bump()
    return stored


class Interactions(People):
    """Each returns its delivery; ``await delivery.settled()`` waits for the app."""

    def __init__(self, state: State, fake: FakeServer) -> None:
        super().__init__(state)
        self._fake = fake

    def command(self, chat: str, text: str, user: str = "ada", *, team: str | None = None) -> Delivery:
        """A person gives a slash command, with its ``/``."""
        where, person = self._there(chat, user, team)
        workspace = self.state.teams[where.team]
        name, _, rest = text.partition(" ")
        payload: Json = {
            "token": self.state.app.verification_token,
            "team_id": workspace.id,
            "team_domain": workspace.name,
            "channel_id": where.id,
            "channel_name": where.name or "directmessage",
            "user_id": person.id,
            "user_name": person.name,
            "command": name,
            "text": rest,
            "api_app_id": self.state.app.id,
            "is_enterprise_install": "false",
            "response_url": new_reply_url(self.state, where, person, None),
            "trigger_id": new_trigger(self.state, person),
        }
        return self.state.tell("slash_commands", workspace.id, payload, answerable=True)

    def press(
        self,
        chat: str,
        ts: str,
        what: str,
        user: str = "ada",
        *,
        option: str | None = None,
        team: str | None = None,
    ) -> Delivery:
        """A person presses a button, by its ``action_id`` or its label, or chooses an ``option``'s value.

        Raises LookupError when the message shows no such thing.
        """
        where, person = self._there(chat, user, team)
        ephemeral = ts not in where.messages
        shown = self._shown(where, person, ts)
        block, element = _element(shown, what)
        action = {**_action(element, option), "block_id": block.get("block_id", "")}
        thread = shown.get("thread_ts")
        container = {
            "type": "message",
            "message_ts": ts,
            "channel_id": where.id,
            "is_ephemeral": ephemeral,
            **({"thread_ts": thread} if thread else {}),
        }
        payload = interaction(self.state, "block_actions", person)
        payload |= {
            "container": container,
            "channel": {"id": where.id, "name": where.name or "directmessage"},
            "state": {"values": {}},
            "response_url": new_reply_url(self.state, where, person, ts, thread),
            "actions": [{**action, "action_ts": self.state.stamps.next()}],
            **({} if ephemeral else {"message": shown}),
        }
        return self.state.tell("interactive", where.team, payload)

    def shortcut(self, callback_id: str, user: str = "ada", *, team: str | None = None) -> Delivery:
        """A person takes one of the app's global shortcuts."""
        person = self.user(user, team)
        payload = interaction(self.state, "shortcut", person)
        payload |= {"callback_id": callback_id, "action_ts": self.state.stamps.next()}
        return self.state.tell("interactive", person.team, payload)

    def message_shortcut(
        self, callback_id: str, chat: str, ts: str, user: str = "ada", *, team: str | None = None
    ) -> Delivery:
        """A person takes one of the app's shortcuts on a message."""
        where, person = self._there(chat, user, team)
        payload = interaction(self.state, "message_action", person) | {
            "callback_id": callback_id,
            "action_ts": self.state.stamps.next(),
            "message_ts": ts,
            "message": where.messages[ts],
            "channel": {"id": where.id, "name": where.name or "directmessage"},
            "response_url": new_reply_url(
                self.state, where, person, None, where.messages[ts].get("thread_ts")
            ),
        }
        return self.state.tell("interactive", where.team, payload)

    def submit(self, view: str, values: Json) -> Delivery:
        """The person who has a modal open submits it. ``values`` is its state, by block and action id."""
        shown = self.state.views[view]
        person = self.user(shown["user_id"], shown["team_id"])
        filled = {**shown, "state": {"values": values}}
        payload = interaction(self.state, "view_submission", person)
        payload |= {"view": filled, "response_urls": []}
        return self.state.tell("interactive", person.team, payload, answerable=True)

    def close(self, view: str) -> Delivery:
        """Close a modal as the user who has it open, and send the event of it."""
        shown = self.state.views.pop(view)
        person = self.user(shown["user_id"], shown["team_id"])
        payload = interaction(self.state, "view_closed", person) | {"view": shown, "is_cleared": False}
        return self.state.tell("interactive", person.team, payload)

    def settled(self, delivery: Delivery) -> None:
        """Apply the result of a delivery: its acknowledgement, or its failure."""
        if delivery.kind == "events_api":
            return
        if delivery.refused is not None:
            person = delivery.payload.get("user_id") or delivery.payload.get("user", {}).get("id", "")
            self.notices.append((person, delivery.refused))
        elif delivery.kind == "slash_commands":
            self._answered(delivery)
        elif delivery.payload.get("type") == "view_submission":
            self._submitted(delivery)

    def _answered(self, delivery: Delivery) -> None:
        url = self.state.reply_urls.get(delivery.payload.get("response_url", "").rpartition("/")[2])
        notes: list[str] = []
        try:
            if url is not None:
                acknowledged(self.state, url, delivery.answer, notes)
        except RefusalError as refusal:
            notes.append(refusal.problem or refusal.error)
        if notes:
            command = delivery.payload["command"]
            self._fake.record("slash_command", {"command": command}, *notes)

    def _submitted(self, delivery: Delivery) -> None:
        view = delivery.payload.get("view", {}).get("id")
        if view not in self.state.views:
            return
        answer: Any = delivery.answer
        told = cast(Json, answer) if isinstance(answer, dict) else {}
        action = told.get("response_action")
        if action == "errors":
            self.state.views[view] = {**self.state.views[view], "errors": told.get("errors", {})}
        elif action in ("update", "push"):
            self.state.views[view] = {**self.state.views[view], **told.get("view", {})}
        else:
            self.state.views.pop(view, None)

    def _shown(self, where: Room, person: User, ts: str) -> Json:
        hidden = {one["ts"]: one for one in where.hidden.get(person.id, ())}
        found = where.messages.get(ts) or hidden.get(ts)
        if found is None:
            raise LookupError(f"no message {ts}")
        return found


def _element(message: Json, what: str) -> tuple[Json, Json]:
    """The block and the element that is meant."""
    for block in message.get("blocks", ()):
        for element in _elements(block):
            label = element.get("text")
            said = cast(Json, label).get("text") if isinstance(label, dict) else label
            if what in (element.get("action_id"), said):
                return block, element
    raise LookupError(f"the message shows no {what!r}")


def _elements(block: Json) -> Iterator[Json]:
    if isinstance(block.get("accessory"), dict):
        yield block["accessory"]
    for element in block.get("elements", ()):
        if element.get("type") == "feedback_buttons":
            for side in ("positive_button", "negative_button"):
                yield {
                    **element.get(side, {}),
                    "type": "feedback_buttons",
                    "action_id": element.get("action_id"),
                }
        else:
            yield element


def _action(element: Json, option: str | None) -> Json:
    """Return the payload of an element that was used."""
    kept = {
        key: element[key] for key in ("type", "action_id", "text", "value", "style", "url") if key in element
    }
    if option is None:
        return kept
    chosen = next((one for one in element.get("options", ()) if one.get("value") == option), None)
    if chosen is None:
        raise LookupError(f"there is no option {option!r}")
    return {**kept, "selected_option": chosen}
