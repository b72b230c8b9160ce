"""The methods about users, the workspace, the app's account, and reactions."""

from __future__ import annotations

import re

from channels.slack.fake.calls import Asked, RefusalError
from channels.slack.fake.payloads import emit
from channels.slack.fake.rooms import paged, react
from channels.slack.fake.state import Json, Room, User

_STAMP = re.compile(r"\d{1,12}\.\d{6}")
_EMOJI = re.compile(r"[a-z0-9_+'-]+(::skin-tone-[2-6])?")


def auth_test(asked: Asked) -> Json:
    """``auth.test``: whose token it is."""
    if asked.grant.kind == "app":
        return {"app_name": asked.state.app.name, "app_id": asked.state.app.id}
    team = asked.team
    user = team.users[asked.grant.user]
    told = {
        "url": f"https://{team.name}.slack.example/",
        "team": team.name,
        "user": user.name,
        "team_id": team.id,
        "user_id": user.id,
        "is_enterprise_install": False,
    }
    return {**told, "bot_id": user.bot_id} if user.bot_id else told


def auth_revoke(asked: Asked) -> Json:
    """``auth.revoke``: revoke the token, and send the event of it."""
    if asked.get("test"):
        return {"revoked": False}
    asked.grant.revoked = "token_revoked"
    key = "bot" if asked.grant.kind == "bot" else "oauth"
    emit(asked.state, asked.team, {"type": "tokens_revoked", "tokens": {key: [asked.grant.user]}})
    return {"revoked": True}


def user_info(asked: Asked) -> Json:
    """``users.info``."""
    user = asked.team.users.get(asked["user"])
    if user is None:
        raise RefusalError("user_not_found")
    told = described(asked, user)
    return {"user": {**told, "locale": "en-US"} if asked.get("include_locale") else told}


def users_list(asked: Asked) -> Json:
    """``users.list``."""
    rows = [described(asked, user) for user in asked.team.users.values()]
    return {**paged(asked, "members", rows, 1000), "cache_ts": asked.state.stamps.seconds()}


def bot_info(asked: Asked) -> Json:
    """``bots.info``."""
    bot = asked.team.bot
    if bot is None or asked.get("bot", bot.bot_id) != bot.bot_id:
        raise RefusalError("bot_not_found")
    told: Json = {"id": bot.bot_id, "deleted": False, "name": bot.name, "updated": 1, "icons": {}}
    return {"bot": {**told, "app_id": asked.state.app.id, "user_id": bot.id}}


def team_info(asked: Asked) -> Json:
    """``team.info``: of the token's workspace only."""
    team = asked.team
    if asked.get("team", team.id) != team.id:
        raise RefusalError("team_not_found")
    told: Json = {"id": team.id, "name": team.name, "domain": team.name, "email_domain": "", "icon": {}}
    return {"team": {**told, "url": f"https://{team.name}.slack.example/", "is_verified": False}}


def described(asked: Asked, user: User) -> Json:
    """A user as the platform describes one."""
    profile = {
        "real_name": user.real_name,
        "real_name_normalized": user.real_name,
        "display_name": user.name,
        "display_name_normalized": user.name,
        "status_text": "",
        "status_emoji": "",
        "avatar_hash": "",
        "image_72": f"{asked.state.url}/icon-72.png",
        "team": user.team,
    }
    return {
        "id": user.id,
        "team_id": user.team,
        "name": user.name,
        "real_name": user.real_name,
        "deleted": False,
        "tz": "Europe/London",
        "tz_label": "Greenwich Mean Time",
        "tz_offset": 0,
        "profile": {**profile, **({"bot_id": user.bot_id} if user.bot_id else {})},
        "is_admin": False,
        "is_owner": False,
        "is_restricted": False,
        "is_ultra_restricted": False,
        "is_bot": user.is_bot,
        "is_app_user": False,
        "updated": 1,
    }


def reactions_add(asked: Asked) -> Json:
    """``reactions.add``."""
    room, ts = _reacted(asked)
    if not _EMOJI.fullmatch(asked["name"]):
        raise RefusalError("invalid_name", f"no such emoji: {asked['name']}")
    if not react(asked.state, room, ts, asked.team.users[asked.grant.user], asked["name"], add=True):
        raise RefusalError("already_reacted")
    return {}


def reactions_remove(asked: Asked) -> Json:
    """``reactions.remove``."""
    room, ts = _reacted(asked)
    if not react(asked.state, room, ts, asked.team.users[asked.grant.user], asked["name"], add=False):
        raise RefusalError("no_reaction")
    return {}


def reactions_get(asked: Asked) -> Json:
    """``reactions.get``."""
    room, ts = _reacted(asked)
    return {"type": "message", "channel": room.id, "message": room.messages[ts]}


def _reacted(asked: Asked) -> tuple[Room, str]:
    if not asked.get("channel") or not asked.get("timestamp"):
        raise RefusalError("no_item_specified", "neither channel nor timestamp")
    room = asked.room()
    if not _STAMP.fullmatch(asked["timestamp"]):
        raise RefusalError("bad_timestamp", f"no timestamp: {asked['timestamp']}")
    if asked["timestamp"] not in room.messages:
        raise RefusalError("message_not_found")
    return room, asked["timestamp"]
