"""Interactions: buttons, slash commands, shortcuts, modals, and the app's responses to them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

from channels.slack.fake.blocks import MOST_IN_VIEW, Inspection
from channels.slack.fake.calls import Asked, RefusalError, invalid
from channels.slack.fake.messages import content, new_message
from channels.slack.fake.payloads import interaction, new_reply_url, new_trigger
from channels.slack.fake.people import People
from channels.slack.fake.rooms import change, place, remove
from channels.slack.fake.state import Delivery, Grant, Json, ReplyUrl, Room, State, Trigger, User
from channels.slack.fake.validation import values
from gateway.testing.fake_platform import FakeServer

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


MOST_USES = 5


def respond(state: State, name: str, given: Json, notes: list[str]) -> None:
    """A call of a ``response_url``. Raises RefusalError."""
    url = state.reply_urls.get(name)
    if url is None:
        raise RefusalError("invalid_token", "a response_url that nothing gave out")
    if state.clock.now() > url.until:
        raise RefusalError("expired_url", "a response_url is used after half an hour")
    if url.uses >= MOST_USES:
        raise RefusalError("used_url", "a response_url is used a sixth time")
    say(state, url, given, notes)
    url.uses += 1


def say(state: State, url: ReplyUrl, given: Json, notes: list[str]) -> None:
    """Do what an app answers: write, replace what was acted on, or delete it. Raises RefusalError."""
    arguments = {**given, **values("chat.postMessage", given)}
    asked = Asked(
        state=state, method="response_url", arguments=arguments, grant=_voice(state, url), notes=notes
    )
    if given.get("delete_original"):
        _delete(state, url)
        return
    said = content(asked).fields()
    if given.get("replace_original") and url.source is not None:
        _replace(asked, url, said)
        return
    message = new_message(asked, url.room, said, given.get("thread_ts") or url.thread)
    if given.get("response_type") == "in_channel":
        place(state, url.room, message)
    else:
        url.room.hidden.setdefault(url.user, []).append({**message, "is_ephemeral": True})
        state.changes.bump()


def acknowledged(state: State, url: ReplyUrl, answer: object, notes: list[str]) -> None:
    """Apply what came with the acknowledgement of a slash command: a text, or a message."""
    given: Any = {"text": answer} if isinstance(answer, str) and answer else answer
    if isinstance(given, dict) and given:
        say(state, url, cast(Json, given), notes)


def _voice(state: State, url: ReplyUrl) -> Grant:
    """Responses need no token and no membership."""
    team = state.teams[url.room.team]
    bot = team.bot.id if team.bot else ""
    return Grant(token="", kind="bot", team=team.id, user=bot, scopes={"chat:write.customize"})


def _delete(state: State, url: ReplyUrl) -> None:
    source = url.source or ""
    if source in url.room.messages:
        remove(state, url.room, source)
    else:
        url.room.hidden[url.user] = [one for one in _hidden(url.room, url.user) if one["ts"] != source]
        state.changes.bump()


def _replace(asked: Asked, url: ReplyUrl, said: Json) -> None:
    fields = {"blocks": None, "attachments": None, **said}
    source = url.source or ""
    if source in url.room.messages:
        change(asked.state, url.room, source, fields)
        return
    url.room.hidden[url.user] = [
        {key: value for key, value in {**one, **fields}.items() if value is not None}
        if one["ts"] == source
        else one
        for one in _hidden(url.room, url.user)
    ]
    asked.state.changes.bump()


def _hidden(room: Room, user: str) -> list[Json]:
    return room.hidden.get(user, [])


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
