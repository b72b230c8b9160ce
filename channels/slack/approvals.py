"""Asking people whether a tool may run: a message with buttons, and what became of it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable

import structlog
from msgspec import Struct

from channels.slack.api import Api, Json, RefusedError
from channels.slack.delivery import is_shared, share, upload
from channels.slack.parse import APPROVE, Pressed, order_of, press_value
from channels.slack.render import escaped
from gateway.channel import (
    ApprovalRequest,
    Host,
    InvalidRequestError,
    NotFoundError,
    Placed,
    PlacementDeferred,
    PlacementRefused,
    PlacementUncertain,
    UnauthorizedError,
)

log = structlog.get_logger("trunkline.slack")

_LONGEST_ARGUMENTS = 2_000
_OUTCOMES = {
    "once": "✅ Allowed once",
    "always": "✅ Always allowed",
    "deny": "⛔ Denied",
    "timeout": "⌛ Nobody answered in time",
    "cancelled": "▫️ Not needed any more",
}
_NOTICE: Json = {"event_type": "trunkline_notice", "event_payload": {"k": "notice"}}
_MOST = 1_000


class _Attached(Struct):
    """A file with the complete arguments. ``shared``: whether it is shown in the room; None if unknown."""

    file: str
    shared: bool | None = False


class Prompts:
    """The open requests of one account."""

    def __init__(self, api: Api, host: Host) -> None:
        self._api = api
        self._host = host
        self._placed: OrderedDict[str, str] = OrderedDict()
        self._attached: OrderedDict[str, _Attached] = OrderedDict()

    async def ask(self, request: ApprovalRequest) -> Placed:
        """Place a request, with its buttons. Returns where it is.

        Where long arguments are cut, a file has them in full, which is in the room before the buttons are.
        """
        address = request.address
        shown = _shown(request, [_buttons(request)])
        if _arguments(request)[1]:
            await self._attach(request)
        answer = await self._api.call(
            "chat.postMessage",
            channel=address.chat,
            thread_ts=address.thread,
            unfurl_links=False,
            unfurl_media=False,
            metadata=_NOTICE,
            **shown,
        )
        self._placed[request.id] = str(answer["ts"])
        if len(self._placed) > _MOST:
            self._placed.popitem(last=False)
        return Placed(str(answer["ts"]), order_of(str(answer["ts"])))

    async def decided(self, request: ApprovalRequest, outcome: str) -> None:
        """Show what became of a request, in place of its buttons. A file without its question goes."""
        ts, attached = self._placed.pop(request.id, None), self._attached.pop(request.id, None)
        if ts is None and attached is not None:
            await self._api.call("files.delete", file=attached.file)
        if ts is not None:
            shown = _shown(request, [_line(_OUTCOMES.get(outcome, outcome))])
            await self._api.call(
                "chat.update", channel=request.address.chat, ts=ts, metadata=_NOTICE, **shown
            )

    async def pressed(self, press: Pressed) -> Awaitable[None] | None:
        """Make a person's decision durable. Returns what to tell them when it counts for nothing."""
        try:
            await self._host.approve(press.approval, press.decision, session=press.session, user=press.user)
        except (NotFoundError, InvalidRequestError):
            return self._tell(press, "This request has expired.", replace=True)
        except UnauthorizedError as error:
            return self._tell(press, f"{str(error)[:1].upper()}{str(error)[1:]}.", replace=False)
        return None

    async def _attach(self, request: ApprovalRequest) -> None:
        """Show the complete arguments as a file, once, however often the request is placed.

        Raises PlacementDeferred or RefusedError.
        """
        attached, name = self._attached.get(request.id), _file_name(request)
        if attached is None:
            attached = _Attached(await upload(self._api, name, request.in_full()))
            self._attached[request.id] = attached
            if len(self._attached) > _MOST:
                self._attached.popitem(last=False)
        try:
            if attached.shared is None:
                attached.shared = await is_shared(self._api, attached.file, request.address.chat)
            if not attached.shared:
                await share(self._api, attached.file, name, request.address)
                attached.shared = True
        except PlacementUncertain as error:
            attached.shared = None
            raise PlacementDeferred(str(error), 1.0) from error

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
    arguments, cut = _arguments(request)
    if cut:
        more = [_line(f"The file {_file_name(request)} has the arguments in full."), *more]
    words: Json = {
        "type": "rich_text",
        "elements": [
            {"type": "rich_text_section", "elements": [{"type": "text", "text": asked}]},
            {"type": "rich_text_preformatted", "elements": [{"type": "text", "text": arguments}]},
        ],
    }
    return {"text": escaped(asked), "blocks": [words, *more]}


def _arguments(request: ApprovalRequest) -> tuple[str, bool]:
    """Return every argument, and whether long ones are cut in the middle.

    Raises PlacementRefused if there are too many.
    """
    try:
        return request.whole(_LONGEST_ARGUMENTS), False
    except PlacementRefused:
        return request.shortened(_LONGEST_ARGUMENTS), True


def _file_name(request: ApprovalRequest) -> str:
    """Return a name of its own for a question's file: an earlier process may have left another."""
    return f"arguments-{request.id[:8]}.json"


def _buttons(request: ApprovalRequest) -> Json:
    """The buttons. What "always" is good for stands on its button; a label may have 75 characters."""
    labels = {"once": "Allow once", "deny": "Deny"}
    if request.always is not None:
        labels["always"] = f"Always: {request.always}"
    return {"type": "actions", "elements": [_button(request, *label) for label in labels.items()]}


def _button(request: ApprovalRequest, decision: str, label: str) -> Json:
    style = {"once": {"style": "primary"}, "deny": {"style": "danger"}}.get(decision, {})
    return {
        "type": "button",
        "action_id": f"{APPROVE}_{decision}",
        "text": {"type": "plain_text", "text": label},
        "value": press_value(decision, request.id, request.session),
        **style,
    }


def _line(text: str) -> Json:
    return {"type": "context", "elements": [{"type": "plain_text", "text": text}]}
