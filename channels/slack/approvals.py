"""Approval requests: messages with buttons, and their outcomes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable

import structlog
from msgspec import Struct

from channels.slack.api import Api, Json, RefusedError
from channels.slack.delivery import is_shared, share, upload
from channels.slack.parse import APPROVE, ApprovalPressed, button_value, order_of
from channels.slack.render import escape
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


class _ArgumentsFile(Struct):
    """File with the complete arguments. ``shared`` is None if it is unknown whether the chat shows it."""

    file: str
    shared: bool | None = False


class Approvals:
    """Open approval requests of one workspace."""

    def __init__(self, api: Api, host: Host) -> None:
        self._api = api
        self._host = host
        self._placed: OrderedDict[str, str] = OrderedDict()
        self._files: OrderedDict[str, _ArgumentsFile] = OrderedDict()

    async def ask(self, request: ApprovalRequest) -> Placed:
        """Post a request with its buttons.

        Long arguments are cut in the message; a file with the complete arguments is shared before the
        buttons.
        """
        address = request.address
        shown = _body(request, [_buttons(request)])
        if _arguments(request)[1]:
            await self._share_arguments(request)
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
        """Replace the buttons of a request by its outcome. Deletes the file of a request that was never
        posted.
        """
        ts, attached = self._placed.pop(request.id, None), self._files.pop(request.id, None)
        if ts is None and attached is not None:
            await self._api.call("files.delete", file=attached.file)
        if ts is not None:
            shown = _body(request, [_context_block(_OUTCOMES.get(outcome, outcome))])
            await self._api.call(
                "chat.update", channel=request.address.chat, ts=ts, metadata=_NOTICE, **shown
            )

    async def pressed(self, press: ApprovalPressed) -> Awaitable[None] | None:
        """Commit a user's decision. Returns the notification to send if the decision has no effect."""
        try:
            await self._host.approve(press.approval, press.decision, session=press.session, user=press.user)
        except (NotFoundError, InvalidRequestError):
            return self._notify(press, "This request has expired.", replace=True)
        except UnauthorizedError as error:
            return self._notify(press, f"{str(error)[:1].upper()}{str(error)[1:]}.", replace=False)
        return None

    async def _share_arguments(self, request: ApprovalRequest) -> None:
        """Share the complete arguments as a file, once for all attempts to post the request.

        Raises PlacementDeferred or RefusedError.
        """
        attached, name = self._files.get(request.id), _file_name(request)
        if attached is None:
            attached = _ArgumentsFile(await upload(self._api, name, request.in_full()))
            self._files[request.id] = attached
            if len(self._files) > _MOST:
                self._files.popitem(last=False)
        try:
            if attached.shared is None:
                attached.shared = await is_shared(self._api, attached.file, request.address.chat)
            if not attached.shared:
                await share(self._api, attached.file, name, request.address)
                attached.shared = True
        except PlacementUncertain as error:
            attached.shared = None
            raise PlacementDeferred(str(error), 1.0) from error

    async def _notify(self, press: ApprovalPressed, text: str, *, replace: bool) -> None:
        if not press.response_url:
            return
        message: Json = {"text": escape(text), "replace_original": replace, "response_type": "ephemeral"}
        if replace:
            message |= {"blocks": [_context_block(text)]}
        try:
            await self._api.post(press.response_url, json=message)
        except (RefusedError, PlacementDeferred, PlacementUncertain) as error:
            log.info("a user could not be notified about a button", reason=str(error))


def _body(request: ApprovalRequest, more: list[Json]) -> Json:
    asked = f"May I run {request.tool_name}?"
    arguments, cut = _arguments(request)
    if cut:
        more = [_context_block(f"The file {_file_name(request)} has the arguments in full."), *more]
    words: Json = {
        "type": "rich_text",
        "elements": [
            {"type": "rich_text_section", "elements": [{"type": "text", "text": asked}]},
            {"type": "rich_text_preformatted", "elements": [{"type": "text", "text": arguments}]},
        ],
    }
    return {"text": escape(asked), "blocks": [words, *more]}


def _arguments(request: ApprovalRequest) -> tuple[str, bool]:
    """Return every argument as text, and whether long values are cut in the middle.

    Raises PlacementRefused if there are too many.
    """
    try:
        return request.whole(_LONGEST_ARGUMENTS), False
    except PlacementRefused:
        return request.shortened(_LONGEST_ARGUMENTS), True


def _file_name(request: ApprovalRequest) -> str:
    """Return a file name unique to the request, since an earlier process may have shared another file."""
    return f"arguments-{request.id[:8]}.json"


def _buttons(request: ApprovalRequest) -> Json:
    """Return the row of buttons. The "always" button names its scope; a label has at most 75 characters."""
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
        "value": button_value(decision, request.id, request.session),
        **style,
    }


def _context_block(text: str) -> Json:
    return {"type": "context", "elements": [{"type": "plain_text", "text": text}]}
