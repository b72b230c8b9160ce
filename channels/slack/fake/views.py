"""Views: modals and the app's home."""

from __future__ import annotations

import json
from typing import Any, cast

from channels.slack.fake.asking import Asked, RefusalError, invalid
from channels.slack.fake.blocks import MOST_IN_VIEW, Inspection
from channels.slack.fake.state import Trigger
from channels.slack.fake.workspace import Json

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
    asked.state.changed()
    return stored
