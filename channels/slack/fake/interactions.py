"""What persons do to the app itself: buttons, slash commands, shortcuts, modals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from channels.slack.fake.asking import RefusalError
from channels.slack.fake.delivery import Delivery
from channels.slack.fake.payloads import interaction, new_reply_url, new_trigger
from channels.slack.fake.people import People
from channels.slack.fake.responses import acknowledged
from channels.slack.fake.workspace import Json, Room, User
from gateway.testing.transcript import Transcript


class Interactions(People):
    """Each returns its delivery; ``await delivery.settled()`` waits for the app."""

    transcript: Transcript

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
        """The person who has a modal open closes it, and the app is told."""
        shown = self.state.views.pop(view)
        person = self.user(shown["user_id"], shown["team_id"])
        payload = interaction(self.state, "view_closed", person) | {"view": shown, "is_cleared": False}
        return self.state.tell("interactive", person.team, payload)

    def settled(self, delivery: Delivery) -> None:
        """What an acknowledgement brings about, or its absence."""
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
            self.transcript.record("slash_command", {"command": command}, problem="; ".join(notes))

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
    """What is said of an element that was used."""
    kept = {
        key: element[key] for key in ("type", "action_id", "text", "value", "style", "url") if key in element
    }
    if option is None:
        return kept
    chosen = next((one for one in element.get("options", ()) if one.get("value") == option), None)
    if chosen is None:
        raise LookupError(f"there is no option {option!r}")
    return {**kept, "selected_option": chosen}
