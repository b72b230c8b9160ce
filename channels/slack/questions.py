"""Questions, such as approval requests: messages with buttons, and their outcomes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Mapping

import structlog
from msgspec import Struct
from msgspec.structs import replace

from channels.slack.api import Api, Json, RefusedError
from channels.slack.delivery import is_response, is_shared, list_messages, share, upload
from channels.slack.parse import APPROVE, QuestionPressed, button_value, order_of
from channels.slack.render import escape
from gateway import Answer, Choice, NotFoundError
from gateway.channel import (
    Address,
    ApprovalRequest,
    Host,
    InvalidRequestError,
    Placed,
    PlacementDeferred,
    PlacementRefused,
    PlacementUncertain,
    Question,
    UnauthorizedError,
)

log = structlog.get_logger("trunkline.slack")

_LONGEST_ARGUMENTS = 2_000
_OUTCOMES = {
    "once": "✅ Allowed once",
    "always": "✅ Always allowed",
    "deny": "⛔ Denied",
    "timeout": "⌛ No answer in time",
    "cancelled": "▫️ Not needed any more",
}
_STYLES: Mapping[str, Json] = {"plain": {}, "good": {"style": "primary"}, "bad": {"style": "danger"}}
_MOST = 1_000
_CLOCK_SECONDS = 86_400.0
"""The time by which Slack's clock may be behind this machine's."""


class _ArgumentsFile(Struct):
    """File with the complete arguments. ``shared`` is None if it is unknown whether the chat shows it."""

    file: str
    shared: bool | None = False


class Questions:
    """Questions in one workspace. The gateway keeps them and their places; this shows them."""

    def __init__(self, channel: str, api: Api, host: Host) -> None:
        self._channel = channel
        self._api = api
        self._host = host
        self._files: OrderedDict[str, _ArgumentsFile] = OrderedDict()
        self._unknown: set[str] = set()
        """Questions that may have been posted: the request got no response."""

    async def ask(self, question: Question) -> Placed:
        """Post a question with its buttons, unless an earlier attempt has posted it.

        Long arguments are cut in the message; a file with the complete arguments is shared before the
        buttons.
        """
        address = await self._address(question)
        if posted := await self._find_tried(question, address):
            return posted
        shown = _body(question, _buttons(question))
        if isinstance(question, ApprovalRequest) and _arguments(question)[1]:
            await self._share_arguments(question, address)
        try:
            answer = await self._api.call(
                "chat.postMessage",
                channel=address.chat,
                thread_ts=address.thread,
                unfurl_links=False,
                unfurl_media=False,
                metadata=_metadata(question),
                **shown,
            )
        except PlacementUncertain:
            self._unknown.add(question.id)
            raise
        return _placed(answer)

    async def _address(self, question: Question) -> Address:
        """Return where a question is asked: if only its user sees the answer, in the chat with that user."""
        address = question.address
        if not is_response(address):
            return address
        user = (address.reply_to or "").partition("#")[2]
        try:
            opened = await self._api.call("conversations.open", users=user)
            return replace(address, chat=str(opened["channel"]["id"]), reply_to=None)
        except PlacementUncertain as error:
            raise PlacementDeferred(str(error), 1.0) from error

    async def _find_tried(self, question: Question, address: Address) -> Placed | None:
        """Return the place of a question that an earlier attempt may have posted, or None."""
        tried = question.restored or question.id in self._unknown
        found = await self._find(question, address) if tried else None
        self._unknown.discard(question.id)
        return found

    async def _find(self, question: Question, address: Address) -> Placed | None:
        """Return the place of a question that was posted, or None."""
        oldest, wanted = f"{question.created_at / 1000 - _CLOCK_SECONDS:.6f}", _metadata(question)
        try:
            async for message in list_messages(self._api, address, oldest):
                if message.get("metadata") == wanted:
                    return _placed(message)
        except RefusedError as refused:
            # Showing it twice is better than not at all.
            log.warning("the chat cannot be searched for a question", reason=str(refused))
        return None

    async def closed(self, question: Question, answer: Answer, shown: Placed | None) -> None:
        """Replace the buttons of a question by its outcome. Deletes the file of a question that was never
        posted.
        """
        address = await self._address(question)
        if shown is None:
            shown = await self._find_tried(question, address)
        attached = self._files.pop(question.id, None)
        if shown is None and attached is not None:
            await self._api.call("files.delete", file=attached.file)
        if shown is not None:
            body = _body(question, [_context_block(_outcome(question, answer))])
            await self._api.call(
                "chat.update",
                channel=address.chat,
                ts=shown.platform_id,
                metadata=_metadata(question),
                **body,
            )

    async def pressed(self, press: QuestionPressed) -> Awaitable[None] | None:
        """Commit a user's answer. Returns the notification to send if the answer has no effect."""
        question = self._host.question(press.question)
        # The press of an ended question has no effect; the gateway replies with the reason.
        buttons = () if question is None else question.buttons
        pressed = next(iter(buttons[press.number : press.number + 1]), Choice(""))
        try:
            shown = Placed(press.ts, order_of(press.ts)) if press.ts else None
            await self._host.settle(
                press.question, pressed.value, channel=self._channel, user=press.user, shown=shown
            )
        except (NotFoundError, InvalidRequestError, UnauthorizedError) as error:
            if isinstance(error, NotFoundError) and not error.known:
                return self._remove_buttons(press, _sentence(error))
            # Beside the question, because a second press must not replace what it was answered with.
            return self._notify(press, _sentence(error))
        return None

    async def _remove_buttons(self, press: QuestionPressed, reason: str) -> None:
        await self._notify(press, reason)
        if not press.ts:
            return
        text = f"{press.text}\n▫️ {escape(reason)}"
        try:
            await self._api.call("chat.update", channel=press.chat, ts=press.ts, text=text, blocks=[])
        except (RefusedError, PlacementDeferred, PlacementUncertain) as error:
            log.info("the buttons of an unknown question could not be removed", reason=str(error))

    async def _share_arguments(self, question: ApprovalRequest, address: Address) -> None:
        """Share the complete arguments as a file, once for all attempts to post the question.

        Raises PlacementDeferred or RefusedError.
        """
        attached, name = self._files.get(question.id), _file_name(question)
        if attached is None:
            attached = _ArgumentsFile(await upload(self._api, name, question.in_full()))
            self._files[question.id] = attached
            if len(self._files) > _MOST:
                self._files.popitem(last=False)
        try:
            if attached.shared is None:
                attached.shared = await is_shared(self._api, attached.file, address.chat)
            if not attached.shared:
                await share(self._api, attached.file, name, address)
                attached.shared = True
        except PlacementUncertain as error:
            attached.shared = None
            raise PlacementDeferred(str(error), 1.0) from error

    async def _notify(self, press: QuestionPressed, text: str) -> None:
        if not press.response_url:
            return
        message: Json = {"text": escape(text), "replace_original": False, "response_type": "ephemeral"}
        try:
            await self._api.post(press.response_url, json=message)
        except (RefusedError, PlacementDeferred, PlacementUncertain) as error:
            log.info("a user could not be notified about a button", reason=str(error))


def _sentence(error: Exception) -> str:
    return f"{str(error)[:1].upper()}{str(error)[1:]}."


def _metadata(question: Question) -> Json:
    return {"event_type": "trunkline_question", "event_payload": {"id": question.id}}


def _placed(message: Json) -> Placed:
    return Placed(str(message["ts"]), order_of(str(message["ts"])))


def _body(question: Question, more: list[Json]) -> Json:
    if isinstance(question, ApprovalRequest):
        asked = f"May I run {question.tool_name}? {question.reason}".rstrip()
        shown, cut = _arguments(question)
        if cut:
            more = [_context_block(f"The file {_file_name(question)} has the arguments in full."), *more]
    else:
        asked, shown = question.title, question.in_words(_LONGEST_ARGUMENTS)
    elements: list[Json] = [{"type": "rich_text_section", "elements": [{"type": "text", "text": asked}]}]
    if isinstance(question, ApprovalRequest):
        elements.append({"type": "rich_text_preformatted", "elements": [{"type": "text", "text": shown}]})
    elif shown:
        elements.append({"type": "rich_text_section", "elements": [{"type": "text", "text": f"\n{shown}"}]})
    return {"text": escape(asked), "blocks": [{"type": "rich_text", "elements": elements}, *more]}


def _outcome(question: Question, answer: Answer) -> str:
    if answer.state == "answered" and not isinstance(question, ApprovalRequest):
        return f"✅ {question.labels(answer.values)[:_LONGEST_ARGUMENTS]}"
    return _OUTCOMES.get(answer.outcome, answer.outcome)


def _arguments(request: ApprovalRequest) -> tuple[str, bool]:
    """Return every argument as text, and whether long values are cut in the middle.

    Raises PlacementRefused if there are too many.
    """
    try:
        return request.whole(_LONGEST_ARGUMENTS), False
    except PlacementRefused:
        return request.shortened(_LONGEST_ARGUMENTS), True


def _file_name(question: Question) -> str:
    """Return a file name unique to the question, since an earlier process may have shared another file."""
    return f"arguments-{question.id[:8]}.json"


def _buttons(question: Question) -> list[Json]:
    """Return the row of buttons. The "always" button names its scope; a label has at most 75 characters."""
    elements = [
        {
            "type": "button",
            "action_id": f"{APPROVE}_{number}",
            "text": {"type": "plain_text", "text": choice.text},
            "value": button_value(number, question.id),
            **_STYLES[choice.style],
        }
        for number, choice in enumerate(question.buttons)
    ]
    return [{"type": "actions", "elements": elements}] if elements else []


def _context_block(text: str) -> Json:
    return {"type": "context", "elements": [{"type": "plain_text", "text": text}]}
