"""What Slack delivers to an app, by socket or HTTP: durable first, then acknowledged through bolt."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, cast

import structlog
from msgspec import Struct
from slack_bolt.async_app import AsyncApp
from slack_bolt.authorization import AuthorizeResult
from slack_bolt.request.async_request import AsyncBoltRequest

from channels.slack.api import Json

log = structlog.get_logger("trunkline.slack")

_ANYTHING = re.compile(r".*", re.DOTALL)


class Taker(Protocol):
    """Makes deliveries of one workspace durable."""

    async def commit(self, payload: Json) -> bool: ...


class _Taken(Struct):
    """One delivery on its way: whether anybody looked at it, and whether it is durable."""

    begun: bool = False
    durable: bool = False


class Deliveries:
    """Takes the deliveries of one app. ``taker`` tells whose a delivery is, by the workspace's id."""

    def __init__(self, taker: Callable[[str], Taker | None]) -> None:
        self._taker = taker
        self._app = self._bolt()

    async def handle(self, kind: str, payload: Json, _frame: Mapping[str, Any]) -> tuple[bool, Json | None]:
        """Take one delivery: whether it may be acknowledged, and what is to be said with that."""
        taken = _Taken()
        answer: Json | None = None
        try:
            request = AsyncBoltRequest(mode="socket_mode", body=payload)
            request.context["taken"] = taken
            response = await self._app.async_dispatch(request)
            if response.status == 200 and response.body:
                answer = cast(Json, json.loads(response.body))
        except Exception as error:  # noqa: BLE001 - the library stumbles over payloads that are not as usual
            log.debug("bolt cannot read a delivery", kind=kind, reason=type(error).__name__)
        if not taken.begun:
            await self._commit(payload, taken)
        return taken.durable, answer

    async def _commit(self, payload: Json, taken: _Taken) -> None:
        taken.begun = True
        team = team_of(payload)
        taker = self._taker(team)
        if taker is None:
            log.warning("Slack tells of a workspace that is none of ours", team=team)
        else:
            taken.durable = await taker.commit(payload)

    def _bolt(self) -> AsyncApp:
        """The app: everything is made durable before a listener acknowledges it."""
        quiet = logging.getLogger("trunkline.slack.bolt")
        quiet.setLevel(logging.CRITICAL)  # what goes wrong is told here, without what people wrote

        async def authorize(team_id: str | None) -> AuthorizeResult:
            return AuthorizeResult(enterprise_id=None, team_id=team_id)

        app: Any = AsyncApp(
            logger=quiet,
            signing_secret="checked before",  # noqa: S106 - signatures are checked where requests come in
            authorize=authorize,
            request_verification_enabled=False,
            ignoring_self_events_enabled=False,
        )

        async def commit(body: Json, context: dict[str, Any], next: Callable[[], Awaitable[None]]) -> None:
            taken: _Taken = context["taken"]
            await self._commit(body, taken)
            if taken.durable:
                await next()

        async def acknowledge(ack: Callable[[], Awaitable[None]]) -> None:
            await ack()

        app.use(commit)
        for kind in ("event", "command", "action", "shortcut", "view", "view_closed", "options"):
            getattr(app, kind)(_ANYTHING)(acknowledge)
        return cast(AsyncApp, app)


def team_of(payload: Json) -> str:
    """The workspace whose installation a delivery is for; empty if it does not say so.

    In rooms that workspaces share, the author's workspace may be another one.
    """
    authorized: object = payload.get("authorizations")
    first: object = cast(list[object], authorized)[0] if isinstance(authorized, list) and authorized else None
    for place, key in ((first, "team_id"), (payload, "team_id"), (payload.get("team"), "id")):
        found: object = cast(Json, place).get(key) if isinstance(place, dict) else None
        if isinstance(found, str) and found:
            return found
    return ""
