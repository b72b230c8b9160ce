"""Payloads of events and interactions."""

from __future__ import annotations

import re

from channels.slack.fake.state import (
    SCOPE_FAMILY,
    Delivery,
    Json,
    ReplyUrl,
    Room,
    State,
    Trigger,
    User,
    Workspace,
)

REPLY_URL_LIFE = 30 * 60
TRIGGER_LIFE = 3


def emit(state: State, team: Workspace, event: Json, *, name: str | None = None) -> Delivery | None:
    """Tell the app of an event, if it is installed there and subscribed to it."""
    if team.bot is None or not state.subscribed(name or event["type"]):
        return None
    return state.tell("events_api", team.id, event_callback(state, team, event))


def emit_message(state: State, room: Room, message: Json) -> None:
    """Tell the app of a message, and again that it was mentioned in it, in the same breath."""
    team = state.teams[room.team]
    state.changes.bump()
    if not team.sees(room) or team.bot is None:
        return
    event = {**message, "channel": room.id, "event_ts": message["ts"], "channel_type": room.kind}
    emit(state, team, event, name=f"message.{SCOPE_FAMILY[room.kind]}")
    mentioned = re.search(rf"<@{team.bot.id}(\|[^>]*)?>", message.get("text", ""))
    if mentioned and not room.direct and message.get("user") != team.bot.id and "hidden" not in message:
        kept = {key: value for key, value in event.items() if key not in ("subtype", "channel_type")}
        emit(state, team, {**kept, "type": "app_mention"})


def event_callback(state: State, team: Workspace, event: Json) -> Json:
    """An event inside what is the same for all of them."""
    bot = team.bot
    authorized = {
        "enterprise_id": None,
        "team_id": team.id,
        "user_id": bot.id if bot else "",
        "is_bot": True,
        "is_enterprise_install": False,
    }
    return {
        "token": state.app.verification_token,
        "team_id": team.id,
        "api_app_id": state.app.id,
        "event": event,
        "type": "event_callback",
        "event_id": state.names.next("Ev"),
        "event_time": state.stamps.seconds(),
        "authorizations": [authorized],
        "is_ext_shared_channel": False,
        "event_context": "4-" + state.names.next("Ec"),
    }


def interaction(state: State, kind: str, user: User) -> Json:
    """The part that every interaction begins with, a fresh ``trigger_id`` included."""
    team = state.teams[user.team]
    return {
        "type": kind,
        "token": state.app.verification_token,
        "api_app_id": state.app.id,
        "team": {"id": team.id, "domain": team.name},
        "enterprise": None,
        "is_enterprise_install": False,
        "user": {"id": user.id, "username": user.name, "name": user.name, "team_id": team.id},
        "trigger_id": new_trigger(state, user),
    }


def new_trigger(state: State, user: User) -> str:
    """A ``trigger_id``: opens one view within three seconds."""
    trigger = f"{state.names.next('')}.{state.names.next('')}.fake"
    state.triggers[trigger] = Trigger(user=user, until=state.clock.now() + TRIGGER_LIFE)
    return trigger


def new_reply_url(state: State, room: Room, user: User, source: str | None, thread: str | None = None) -> str:
    """A ``response_url`` for what a user did in a room, on a message if ``source`` names one."""
    name = state.names.next("R")
    until = state.clock.now() + REPLY_URL_LIFE
    state.reply_urls[name] = ReplyUrl(room=room, user=user.id, until=until, source=source, thread=thread)
    return f"{state.url}/actions/{room.team}/{name}"


def bot_profile(state: State, bot: User) -> Json:
    """Return the profile of the app in its messages."""
    icons = {f"image_{size}": f"{state.url}/icon-{size}.png" for size in (36, 48, 72)}
    return {
        "id": bot.bot_id,
        "deleted": False,
        "name": state.app.name,
        "updated": 1,
        "app_id": state.app.id,
        "icons": icons,
        "team_id": bot.team,
    }
