"""Users of the workspaces: what tests do as users, and what they see."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from msgspec import Struct, structs

from channels.slack.fake import chats
from channels.slack.fake.accounts import user_group_object, user_object
from channels.slack.fake.calls import Call, RefusalError, invalid
from channels.slack.fake.delivery import emit, interaction, new_reply_url, new_trigger
from channels.slack.fake.files import emit_shared, file_row, new_file
from channels.slack.fake.markup import MOST_IN_VIEW, Inspection, encode_typed, rich_text, visible_text
from channels.slack.fake.messages import apply_acknowledgement, stop_streams
from channels.slack.fake.state import (
    Chat,
    Delivery,
    Json,
    Kind,
    Session,
    State,
    Trigger,
    User,
    UserGroup,
    Workspace,
)
from gateway.testing.fake_platform import FakeServer


class ShownMessage(Struct, frozen=True, kw_only=True):
    """Message as a user sees it.

    ``text`` is the visible text in Slack's escaping, ``thread`` the root's ``ts`` of a reply, ``reactions``
    maps emoji to user ids, and ``raw`` is the object of the Web API.
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


def shown_message(state: State, chat: Chat, message: Json) -> ShownMessage:
    """Return a message as a user sees it."""
    team = state.teams[chat.team]
    user = team.users.get(message.get("user", ""))
    root = message.get("thread_ts")
    shown = visible_text(message.get("blocks", ())) if "bot_id" in message else ""
    return ShownMessage(
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
    """Acts and views of the users. A user is named, and joins the workspace with the first act.

    ``chat`` is a chat's id, the name of a public channel (created with the app in it), or ``@name`` for a
    user's direct chat with the app. ``team`` is the workspace, by default the first. Interactions return
    their delivery; ``await delivery.settled()`` waits for the app.
    """

    def __init__(self, state: State, fake: FakeServer) -> None:
        self.state = state
        self._fake = fake
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
        fields: Json | None = None,
        team: str | None = None,
    ) -> str:
        """Post a message; ``@name`` and ``#channel`` become mentions. Returns its ``ts``.

        With ``spoken`` the files are audio clips. ``fields`` are further fields of the message.
        """
        where, person = self._chat_and_user(chat, user, team)
        written = encode_typed(text, self.state.teams[where.team])
        message: Json = {
            "type": "message",
            "user": person.id,
            "ts": self.state.stamps.next(),
            "client_msg_id": client_msg_id or str(uuid.uuid4()),
            "text": written,
            "team": where.team,
            "blocks": rich_text(written) if written else [],
            **(fields or {}),
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
            shown = [file_row(self.state, file) for file in stored]
            message |= {"subtype": "file_share", "files": shown, "upload": False, "display_as_bot": False}
        chats.place(self.state, where, message)
        emit_shared(self.state, where, stored)
        return message["ts"]

    def edit(self, chat: str, ts: str, text: str, user: str = "ada", *, team: str | None = None) -> None:
        """Edit a message."""
        where, person = self._chat_and_user(chat, user, team)
        written = encode_typed(text, self.state.teams[where.team])
        edited = {"user": person.id, "ts": self.state.stamps.next()}
        chats.change(self.state, where, ts, {"text": written, "blocks": rich_text(written), "edited": edited})

    def delete(self, chat: str, ts: str, *, team: str | None = None) -> None:
        """Delete a message."""
        chats.remove(self.state, self.chat(chat, team), ts)

    def react(
        self, chat: str, ts: str, emoji: str, user: str = "ada", *, add: bool = True, team: str | None = None
    ) -> None:
        """Add or remove a reaction."""
        where, person = self._chat_and_user(chat, user, team)
        chats.react(self.state, where, ts, person, emoji, add=add)

    def share(
        self, chat: str, source: str, ts: str, text: str = "", user: str = "ada", *, thread: str | None = None
    ) -> str:
        """Share the message ``ts`` of the chat ``source``, with a text of the user. Returns its ``ts``."""
        origin = self.chat(source)
        message = origin.messages[ts]
        author = self.state.teams[origin.team].users.get(message.get("user", ""))
        name = author.real_name if author else message.get("username", "")
        attachment: Json = {
            "id": 1,
            "ts": ts,
            "channel_id": origin.id,
            "channel_team": origin.team,
            "is_msg_unfurl": True,
            "is_share": True,
            "message_blocks": [
                {"channel": origin.id, "ts": ts, "message": {"blocks": message.get("blocks", [])}}
            ],
            "author_id": message.get("user", ""),
            "author_name": name,
            "author_subname": name,
            "fallback": f"[now] {name}: {message['text']}",
            "text": message["text"],
            "footer": f"Posted in #{origin.name}",
            "mrkdwn_in": ["text"],
            **({"files": message["files"]} if "files" in message else {}),
        }
        return self.say(chat, text, user, fields={"attachments": [attachment]}, thread=thread)

    def rename_user(self, user: str, display_name: str, *, team: str | None = None) -> None:
        """Change a user's display name."""
        person = self.user(user, team)
        workspace = self.state.teams[person.team]
        renamed = workspace.users[person.id] = structs.replace(person, display_name=display_name)
        event = {"type": "user_change", "user": user_object(self.state, renamed), "cache_ts": 1}
        emit(self.state, workspace, {**event, "event_ts": self.state.stamps.next()})

    def rename_chat(self, chat: str, name: str, *, team: str | None = None) -> None:
        """Change the name of a channel."""
        where = self.chat(chat, team)
        where.name = name
        event: Json = {"type": "channel_rename" if where.kind == "channel" else "group_rename"}
        event |= {"channel": {"id": where.id, "name": name, "created": where.created}}
        emit(self.state, self.state.teams[where.team], {**event, "event_ts": self.state.stamps.next()})

    def user_group(self, handle: str, *users: str, team: str | None = None, disabled: bool = False) -> str:
        """Create a user group, or change its members. Returns its id."""
        workspace = self.state.team_of(team)
        groups = workspace.user_groups
        known = next((one for one in groups.values() if one.handle == handle), None)
        group = known or UserGroup(id=self.state.names.next("S"), team=workspace.id, handle=handle)
        groups[group.id] = group
        before, after = group.users, tuple(self.user(one, team).id for one in users)
        group.users, group.disabled = after, disabled
        shown = {**user_group_object(group), "users": list(after)}
        kind = "subteam_created" if known is None else "subteam_updated"
        emit(self.state, workspace, {"type": kind, "subteam": shown, "event_ts": self.state.stamps.next()})
        if before != after:
            changed: Json = {"type": "subteam_members_changed", "subteam_id": group.id}
            changed |= {"team_id": workspace.id, "date_previous_update": 1, "date_update": 2}
            for key, found in (("added", set(after) - set(before)), ("removed", set(before) - set(after))):
                changed |= {f"{key}_users": sorted(found), f"{key}_users_count": len(found)}
            emit(self.state, workspace, {**changed, "event_ts": self.state.stamps.next()})
        return group.id

    def another_bot_says(
        self,
        chat: str,
        text: str,
        name: str = "otherbot",
        *,
        thread: str | None = None,
        fields: Json | None = None,
        team: str | None = None,
    ) -> str:
        """Post a message of another app, with further fields of the message. Returns its ``ts``."""
        where = self.chat(chat, team)
        message: Json = {
            "type": "message",
            "subtype": "bot_message",
            "ts": self.state.stamps.next(),
            "text": encode_typed(text, self.state.teams[where.team]),
            "bot_id": "B0OTHERBOT0",
            "app_id": "A0OTHERBOT0",
            "username": name,
            **({"thread_ts": thread} if thread is not None else {}),
            **(fields or {}),
        }
        return chats.place(self.state, where, message)["ts"]

    def stop(self, chat: str, thread: str, user: str = "ada", *, team: str | None = None) -> None:
        """Press the stop button of an agent session, shown while its status is ``processing``.

        Raises ValueError if there is no button.
        """
        where, person = self._chat_and_user(chat, user, team)
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
        """Change the title of an agent session."""
        where, person = self._chat_and_user(chat, user, None)
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
        """Open the app's home or messages tab."""
        where, person = self._chat_and_user(f"@{user}", user, team)
        event = {"type": "app_home_opened", "user": person.id, "channel": where.id, "tab": tab}
        emit(self.state, self.state.teams[where.team], {**event, "event_ts": self.state.stamps.next()})

    def start_thread(self, user: str = "ada", *, team: str | None = None) -> str:
        """Start a thread in the app's assistant view. Returns the ``ts`` of its first message."""
        where, person = self._chat_and_user(f"@{user}", user, team)
        workspace = self.state.teams[where.team]
        bot = workspace.bot
        assert bot is not None
        title = "New Assistant Thread"
        root: Json = {
            "type": "message",
            "subtype": "assistant_app_thread",
            "user": bot.id,
            "ts": self.state.stamps.next(),
            "text": title,
            "team": workspace.id,
            "assistant_app_thread": {"title": title, "title_blocks": [], "artifacts": []},
        }
        chats.place(self.state, where, root)
        begun = {"user_id": person.id, "context": {"team_id": workspace.id}}
        begun |= {"channel_id": where.id, "thread_ts": root["ts"]}
        event = {"type": "assistant_thread_started", "assistant_thread": begun}
        emit(self.state, workspace, {**event, "event_ts": self.state.stamps.next()})
        return root["ts"]

    def home(self, user: str = "ada", *, team: str | None = None) -> str | None:
        """Return the text of the home tab that a user sees; None if the app published none."""
        person = self.user(user, team)
        views = (one for one in self.state.views.values() if one["type"] == "home")
        return next((visible_text(one["blocks"]) for one in views if one["user_id"] == person.id), None)

    def invite(self, chat: str, *, team: str | None = None, away: bool = False) -> None:
        """Invite the app's bot to a chat, or remove it with ``away``."""
        where = self.chat(chat, team)
        workspace = self.state.teams[where.team]
        bot = workspace.bot
        assert bot is not None
        event: Json = {"user": bot.id, "channel": where.id, "channel_type": "C", "team": workspace.id}
        event |= {"type": "member_left_channel" if away else "member_joined_channel"}
        (where.members.discard if away else where.members.add)(bot.id)
        emit(self.state, workspace, {**event, "event_ts": self.state.stamps.next()})
        self.state.changes.bump()

    def open_chat(
        self,
        name: str,
        *users: str,
        kind: Kind = "channel",
        with_bot: bool = True,
        archived: bool = False,
        team: str | None = None,
    ) -> str:
        """Open a chat. Returns its id."""
        workspace = self.state.team_of(team)
        members = {self.user(one, team).id for one in users}
        if with_bot and workspace.bot is not None:
            members.add(workspace.bot.id)
        opened = chats.new_chat(self.state, workspace, kind, name, members)
        opened.archived = archived
        return opened.id

    def user(self, name: str, team: str | None = None) -> User:
        """Return a user by name or id; a new name joins the workspace."""
        workspace = self.state.team_of(team)
        return workspace.user(name) or chats.new_user(self.state, workspace, name)

    def chat(self, chat: str, team: str | None = None) -> Chat:
        """Return a chat; a channel or direct chat is opened if it does not exist."""
        for workspace in self.state.teams.values():
            if chat in workspace.chats:
                return workspace.chats[chat]
        workspace = self.state.team_of(team)
        if chat.startswith("@"):
            return self._direct(workspace, chat[1:])
        known = workspace.chat_named(chat)
        return known or workspace.chats[self.open_chat(chat.removeprefix("#"), team=workspace.id)]

    def messages(
        self, chat: str, *, thread: str | None = None, team: str | None = None
    ) -> list[ShownMessage]:
        """Return the messages of a chat, or of one thread, oldest first."""
        where = self.chat(chat, team)
        shown = where.thread(thread) if thread is not None else list(where.messages.values())
        return [shown_message(self.state, where, message) for message in shown]

    def answers(self, chat: str, *, team: str | None = None) -> list[str]:
        """Return the texts of bots in a chat."""
        return [message.text for message in self.messages(chat, team=team) if message.bot]

    def hidden(self, chat: str, user: str = "ada", *, team: str | None = None) -> list[ShownMessage]:
        """Return the messages of a chat that only this user sees."""
        where, person = self._chat_and_user(chat, user, team)
        return [shown_message(self.state, where, message) for message in where.hidden.get(person.id, ())]

    def status(self, chat: str, thread: str, *, team: str | None = None) -> str | None:
        """Return the status of the app in a thread; None if it shows none."""
        text, until = self.state.statuses.get((self.chat(chat, team).id, thread), ("", 0.0))
        return text if self.state.clock.now() < until else None

    async def until(self, true: Callable[[], object], *, seconds: float = 20) -> None:
        """Wait until a condition holds. Raises TimeoutError after some real seconds."""
        await self.state.changes.until(true, seconds)

    def _direct(self, workspace: Workspace, name: str) -> Chat:
        bot = workspace.bot
        assert bot is not None
        return chats.direct_chat(self.state, workspace, self.user(name, workspace.id).id, bot.id)

    def _chat_and_user(self, chat: str, user: str, team: str | None) -> tuple[Chat, User]:
        """Return a chat and a user, who becomes a member of it."""
        where = self.chat(chat, team)
        person = self.user(user, where.team)
        if not where.direct:
            where.members.add(person.id)
        return where, person

    def command(self, chat: str, text: str, user: str = "ada", *, team: str | None = None) -> Delivery:
        """Give a slash command, including its ``/``."""
        where, person = self._chat_and_user(chat, user, team)
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
        return self.state.deliver("slash_commands", workspace.id, payload, answerable=True)

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
        """Press a button, by its ``action_id`` or label, or choose an ``option`` by its value.

        Raises LookupError if the message has no such element.
        """
        where, person = self._chat_and_user(chat, user, team)
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
        return self.state.deliver("interactive", where.team, payload)

    def shortcut(self, callback_id: str, user: str = "ada", *, team: str | None = None) -> Delivery:
        """Use one of the app's global shortcuts."""
        person = self.user(user, team)
        payload = interaction(self.state, "shortcut", person)
        payload |= {"callback_id": callback_id, "action_ts": self.state.stamps.next()}
        return self.state.deliver("interactive", person.team, payload)

    def message_shortcut(
        self, callback_id: str, chat: str, ts: str, user: str = "ada", *, team: str | None = None
    ) -> Delivery:
        """Use one of the app's shortcuts on a message."""
        where, person = self._chat_and_user(chat, user, team)
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
        return self.state.deliver("interactive", where.team, payload)

    def submit(self, view: str, values: Json) -> Delivery:
        """Submit an open modal. ``values`` is its state, by block and action id."""
        shown = self.state.views[view]
        person = self.user(shown["user_id"], shown["team_id"])
        filled = {**shown, "state": {"values": values}}
        payload = interaction(self.state, "view_submission", person)
        payload |= {"view": filled, "response_urls": []}
        return self.state.deliver("interactive", person.team, payload, answerable=True)

    def close(self, view: str) -> Delivery:
        """Close a modal as the user who has it open, and send its event."""
        shown = self.state.views.pop(view)
        person = self.user(shown["user_id"], shown["team_id"])
        payload = interaction(self.state, "view_closed", person) | {"view": shown, "is_cleared": False}
        return self.state.deliver("interactive", person.team, payload)

    def settled(self, delivery: Delivery) -> None:
        """Apply the result of a delivery: its acknowledgement, or its failure."""
        if delivery.kind == "events_api":
            return
        if delivery.refused is not None:
            person = delivery.payload.get("user_id") or delivery.payload.get("user", {}).get("id", "")
            self.notices.append((person, delivery.refused))
        elif delivery.kind == "slash_commands":
            self._apply_acknowledgement(delivery)
        elif delivery.payload.get("type") == "view_submission":
            self._apply_submission(delivery)

    def _apply_acknowledgement(self, delivery: Delivery) -> None:
        url = self.state.reply_urls.get(delivery.payload.get("response_url", "").rpartition("/")[2])
        notes: list[str] = []
        try:
            if url is not None:
                apply_acknowledgement(self.state, url, delivery.answer, notes)
        except RefusalError as refusal:
            notes.append(refusal.problem or refusal.error)
        if notes:
            command = delivery.payload["command"]
            self._fake.record("slash_command", {"command": command}, *notes)

    def _apply_submission(self, delivery: Delivery) -> None:
        view = delivery.payload.get("view", {}).get("id")
        if view not in self.state.views:
            return
        answer: Any = delivery.answer
        response = cast(Json, answer) if isinstance(answer, dict) else {}
        action = response.get("response_action")
        if action == "errors":
            self.state.views[view] = {**self.state.views[view], "errors": response.get("errors", {})}
        elif action in ("update", "push"):
            self.state.views[view] = {**self.state.views[view], **response.get("view", {})}
        else:
            self.state.views.pop(view, None)

    def _shown(self, where: Chat, person: User, ts: str) -> Json:
        hidden = {one["ts"]: one for one in where.hidden.get(person.id, ())}
        found = where.messages.get(ts) or hidden.get(ts)
        if found is None:
            raise LookupError(f"no message {ts}")
        return found


LARGEST_VIEW = 250_000
"""Bytes of JSON."""
LONGEST_LABEL, LONGEST_METADATA = 24, 3_000
_ONLY_IN_MESSAGES = frozenset({"context_actions", "file", "markdown", "plan", "table", "task_card"})


def open_view(call: Call) -> Json:
    """``views.open`` and ``views.push``: once for each ``trigger_id``, within three seconds."""
    view = _check_view(call, ("modal",))
    trigger = _take_trigger(call)
    trigger.used = True
    return {"view": _store_view(call, view, trigger.user.id)}


def update_view(call: Call) -> Json:
    """``views.update``."""
    view = _check_view(call, ("modal", "home"))
    before = call.state.views.get(call.get("view_id", ""))
    if before is None or before["team_id"] != call.team.id:
        raise RefusalError("not_found")
    if call.get("hash") not in (None, before["hash"]):
        raise RefusalError("hash_conflict")
    return {"view": _store_view(call, view, before["user_id"], before["id"])}


def publish_view(call: Call) -> Json:
    """``views.publish``: show the app's home to one user."""
    view = _check_view(call, ("home",))
    if not call.state.switches.home:
        raise RefusalError("not_enabled")
    if call["user_id"] not in call.team.users:
        raise invalid("user_id is invalid [json-pointer:/user_id]")
    known = [one for one in call.state.views.values() if one["type"] == "home"]
    old = next((one["id"] for one in known if one["user_id"] == call["user_id"]), None)
    return {"view": _store_view(call, view, call["user_id"], old)}


def _take_trigger(call: Call) -> Trigger:
    trigger = call.state.triggers.get(call.get("trigger_id", ""))
    if trigger is None or trigger.user.team != call.team.id:
        raise RefusalError("invalid_trigger_id", "unknown trigger_id")
    if call.state.clock.now() > trigger.until:
        raise RefusalError("expired_trigger_id")
    if trigger.used:
        raise RefusalError("exchanged_trigger_id", "a trigger_id is used a second time")
    return trigger


def _check_view(call: Call, kinds: tuple[str, ...]) -> Json:
    given = call["view"]
    if not isinstance(given, dict):
        raise invalid("must provide an object [json-pointer:/view]")
    view = cast(Json, given)
    if view.get("type") not in kinds:
        raise invalid(f"must be one of: {', '.join(kinds)} [json-pointer:/view/type]")
    if view["type"] == "modal" and not isinstance(view.get("title"), dict):
        raise invalid("missing required field: title [json-pointer:/view]")
    _check_labels(view)
    if len(json.dumps(view)) > LARGEST_VIEW:
        raise RefusalError("view_too_large", "the view is too large")
    blocks: Any = view.get("blocks")
    if not isinstance(blocks, list):
        raise invalid("missing required field: blocks [json-pointer:/view]")
    found = Inspection(cast(list[object], blocks), root="/view/blocks", most=MOST_IN_VIEW)
    if found.errors:
        raise invalid(found.errors[0])
    if "input" in found.kinds and view["type"] == "modal" and "submit" not in view:
        raise invalid("`submit` is required if there is an input block [json-pointer:/view]")
    if alien := found.kinds & _ONLY_IN_MESSAGES:
        raise invalid(f"unsupported type: {min(alien)} [json-pointer:/view/blocks]")
    return view


def _check_labels(view: Json) -> None:
    """Check the title and the buttons of a view, and its private metadata."""
    for name in ("title", "submit", "close"):
        label: Any = view.get(name)
        if label is None:
            continue
        if not isinstance(label, dict) or cast(Json, label).get("type") != "plain_text":
            raise invalid(f"must provide an object [json-pointer:/view/{name}]")
        if not 0 < len(str(cast(Json, label).get("text", ""))) <= LONGEST_LABEL:
            raise invalid(
                f"must be less than {LONGEST_LABEL + 1} characters [json-pointer:/view/{name}/text]"
            )
    if len(str(view.get("private_metadata", ""))) > LONGEST_METADATA:
        raise invalid(
            f"must be less than {LONGEST_METADATA + 1} characters [json-pointer:/view/private_metadata]"
        )


def _store_view(call: Call, view: Json, user: str, old: str | None = None) -> Json:
    known = old or call.state.names.next("V")
    bot = call.team.bot
    stored: Json = {
        "callback_id": "",
        "private_metadata": "",
        "external_id": "",
        "clear_on_close": False,
        "notify_on_close": False,
        **view,
        "id": known,
        "team_id": call.team.id,
        "user_id": user,
        "app_id": call.state.app.id,
        "bot_id": bot.bot_id if bot else None,
        "state": {"values": {}},
        "hash": f"{call.state.stamps.next()}",
        "root_view_id": known,
        "previous_view_id": None,
    }
    call.state.views[known] = stored
    call.state.changes.bump()
    return stored


def _element(message: Json, what: str) -> tuple[Json, Json]:
    """Return the block and the element with an ``action_id`` or label."""
    for block in message.get("blocks", ()):
        for element in _elements(block):
            label = element.get("text")
            said = cast(Json, label).get("text") if isinstance(label, dict) else label
            if what in (element.get("action_id"), said):
                return block, element
    raise LookupError(f"the message has no {what!r}")


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
    """Return the payload of a used element."""
    kept = {
        key: element[key] for key in ("type", "action_id", "text", "value", "style", "url") if key in element
    }
    if option is None:
        return kept
    chosen = next((one for one in element.get("options", ()) if one.get("value") == option), None)
    if chosen is None:
        raise LookupError(f"there is no option {option!r}")
    return {**kept, "selected_option": chosen}
