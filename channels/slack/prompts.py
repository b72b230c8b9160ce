"""Asking people whether a tool may run: a message with buttons, and what became of it."""

from __future__ import annotations

import json
from collections import OrderedDict

import structlog

from channels.slack.api import Api, Json, RefusedError
from channels.slack.markup import escaped
from channels.slack.parse import APPROVE, Pressed, press_value
from gateway import (
    ApprovalRequest,
    Host,
    NotFoundError,
    PlacementDeferred,
    PlacementUncertain,
    UnauthorizedError,
)

log = structlog.get_logger("trunkline.slack")

_LONGEST_ARGUMENTS = 2_000
_LABELS = {"once": "Allow once", "always": "Always allow", "deny": "Deny"}
_OUTCOMES = {
    "once": "✅ Allowed once",
    "always": "✅ Always allowed",
    "deny": "⛔ Denied",
    "timeout": "⌛ Nobody answered in time",
    "cancelled": "▫️ Not needed any more",
}
_NOTICE: Json = {"event_type": "trunkline_notice", "event_payload": {"k": "notice"}}
_MOST = 1_000


class Prompts:
    """The open requests of one account."""

    def __init__(self, api: Api, host: Host) -> None:
        self._api = api
        self._host = host
        self._placed: OrderedDict[str, str] = OrderedDict()

    async def ask(self, request: ApprovalRequest) -> None:
        """Place a request, with three buttons."""
        address = request.address
        answer = await self._api.call(
            "chat.postMessage",
            channel=address.chat,
            thread_ts=address.thread,
            unfurl_links=False,
            unfurl_media=False,
            metadata=_NOTICE,
            **_shown(request, [_buttons(request)]),
        )
        self._placed[request.id] = str(answer["ts"])
        if len(self._placed) > _MOST:
            self._placed.popitem(last=False)

    async def decided(self, request: ApprovalRequest, outcome: str) -> None:
        """Show what became of a request, in place of its buttons."""
        ts = self._placed.pop(request.id, None)
        if ts is not None:
            shown = _shown(request, [_line(_OUTCOMES.get(outcome, outcome))])
            await self._api.call(
                "chat.update", channel=request.address.chat, ts=ts, metadata=_NOTICE, **shown
            )

    async def pressed(self, press: Pressed) -> None:
        """Pass a person's word on; tell them when it counts for nothing."""
        try:
            self._host.approve(press.approval, press.decision, session=press.session, user=press.user)
        except NotFoundError:
            await self._tell(press, "This request has expired.", replace=True)
        except UnauthorizedError as error:
            await self._tell(press, f"{str(error)[:1].upper()}{str(error)[1:]}.", replace=False)

    async def _tell(self, press: Pressed, text: str, *, replace: bool) -> None:
        if not press.response_url:
            return
        told: Json = {"text": escaped(text), "replace_original": replace, "response_type": "ephemeral"}
        if replace:
            told |= {"blocks": [_line(text)]}
        try:
            await self._api.post(press.response_url, json=told)
        except (RefusedError, PlacementDeferred, PlacementUncertain) as error:
            log.info("a person could not be told about a button", reason=str(error))


def _shown(request: ApprovalRequest, more: list[Json]) -> Json:
    asked = f"May I run {request.tool_name}?"
    arguments = json.dumps(request.arguments, ensure_ascii=False, indent=1, default=str)[:_LONGEST_ARGUMENTS]
    words: Json = {
        "type": "rich_text",
        "elements": [
            {"type": "rich_text_section", "elements": [{"type": "text", "text": asked}]},
            {"type": "rich_text_preformatted", "elements": [{"type": "text", "text": arguments}]},
        ],
    }
    return {"text": escaped(asked), "blocks": [words, *more]}


def _buttons(request: ApprovalRequest) -> Json:
    return {"type": "actions", "elements": [_button(request, decision) for decision in _LABELS]}


def _button(request: ApprovalRequest, decision: str) -> Json:
    style = {"once": {"style": "primary"}, "deny": {"style": "danger"}}.get(decision, {})
    return {
        "type": "button",
        "action_id": f"{APPROVE}_{decision}",
        "text": {"type": "plain_text", "text": _LABELS[decision]},
        "value": press_value(decision, request.id, request.session),
        **style,
    }


def _line(text: str) -> Json:
    return {"type": "context", "elements": [{"type": "plain_text", "text": text}]}
