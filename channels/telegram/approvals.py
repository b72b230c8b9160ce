"""Tool approvals in a chat: a question with buttons, which is replaced by the decision."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import structlog

from channels.telegram.api import CallError, RefusedError, upload
from channels.telegram.delivery import SAME, Delivery
from channels.telegram.parse import CallbackQuery
from channels.telegram.render import OUTCOMES, QUESTION, TextPage, code, cut, styled
from gateway.channel import (
    ApprovalRequest,
    Host,
    InvalidRequestError,
    NotFoundError,
    Placed,
    PlacementDeferred,
    PlacementRefused,
    UnauthorizedError,
)

log = structlog.get_logger("trunkline.telegram")

Decision = Literal["once", "always", "deny"]

_ATTEMPTS = 3
_LONGEST_WAIT = 20.0
_MAX_ARGUMENTS = 2500
_MAX_WITH_FILE = 800
"""Maximum characters of arguments in a caption; with the tool's name they stay below Telegram's limit of
1,024."""
_MAX_NAME = 100
_PREFIX = "a"
_DECISIONS: Mapping[str, Decision] = {"o": "once", "a": "always", "d": "deny"}
_MAX_PRESSED = 1000
_RESPONSES: Mapping[str, str] = {"once": "Allowed once.", "always": "Always allowed.", "deny": "Denied."}
_EXPIRED = "This question has expired."


class _Prompt(NamedTuple):
    request: ApprovalRequest
    under_file: bool
    """True if the question is the caption of a file with the complete arguments."""
    message_id: int | None = None
    """Id of the message with the question; None until it is known, as the send may have failed."""


class Approvals:
    """Open approval requests of one bot and the messages that show them."""

    def __init__(self, host: Host, delivery: Delivery) -> None:
        self._host = host
        self._delivery = delivery
        self._open: dict[str, _Prompt] = {}
        self._responses: OrderedDict[str, tuple[str, bool, bool]] = OrderedDict()

    async def ask(self, request: ApprovalRequest) -> Placed:
        """Send the question; retries if the platform asks to wait. Raises the errors of ``Channel.send``."""
        question, content = _question(request)
        shown = styled(question)
        page = TextPage(shown.text, shown.entities)
        file = None if content is None else upload(content, "arguments.json")
        markup = {"inline_keyboard": _buttons(request)}
        self._open[request.id] = _Prompt(request, file is not None)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                number = await self._delivery.send_prompt(request.address, page, markup, file)
            except PlacementDeferred as deferred:
                if attempt == _ATTEMPTS:
                    raise
                await asyncio.sleep(min(_LONGEST_WAIT, deferred.seconds or 1.0))
            else:
                self._set_message_id(request.id, number)
                return Placed(str(number), number)
        raise AssertionError("the last attempt returns or raises")

    async def decided(self, request: ApprovalRequest, outcome: str) -> None:
        """Replace a question and its buttons with the outcome. Raises the errors of ``Channel.edit``."""
        prompt = self._open.pop(request.id, None)
        if prompt is not None and prompt.message_id is not None:
            shown = styled(
                f"{OUTCOMES.get(outcome, OUTCOMES['cancelled'])}: {code(cut(request.tool_name, _MAX_NAME))}"
            )
            page = TextPage(shown.text, shown.entities)
            place = request.address, prompt.message_id
            await self._delivery.edit(*place, page, under_file=prompt.under_file)

    async def decide(self, query: CallbackQuery) -> None:
        """Store the decision of a pressed button; ``answer`` shows the result afterwards."""
        # An update may be delivered again, also after its batch did not fit into the inbox.
        if query.id not in self._responses:
            self._responses[query.id] = await self._decide(query)
        while len(self._responses) > _MAX_PRESSED:
            self._responses.popitem(last=False)

    async def answer(self, query: CallbackQuery) -> None:
        """Show the result of ``decide`` to the user that pressed the button, and remove expired buttons."""
        said, alert, expired = self._responses.pop(query.id, (_EXPIRED, True, True))
        answer: dict[str, Any] = {"callback_query_id": query.id, "text": said, "show_alert": alert}
        try:
            await self._delivery.call_best_effort("answerCallbackQuery", **answer)
            if expired and query.message is not None:
                place = {"chat_id": query.message.chat.id, "message_id": query.message.message_id}
                await self._delivery.call_best_effort("editMessageReplyMarkup", **place)
        except CallError as error:
            if not (isinstance(error, RefusedError) and error.says(SAME)):
                log.info("could not answer a pressed button", reason=str(error))

    async def _decide(self, query: CallbackQuery) -> tuple[str, bool, bool]:
        """Return the text to show, whether to show it as an alert, and whether the buttons have to be
        removed."""
        prefix, _, rest = query.data.partition(":")
        approval_id, _, letter = rest.rpartition(":")
        prompt = self._open.get(approval_id)
        if prefix != _PREFIX or letter not in _DECISIONS or prompt is None:
            return _EXPIRED, True, True
        if query.message is not None:
            self._set_message_id(approval_id, query.message.message_id)
        decision = _DECISIONS[letter]
        try:
            await self._host.approve(
                approval_id, decision, session=prompt.request.session, user=str(query.sender.id)
            )
        except (NotFoundError, InvalidRequestError):
            return _EXPIRED, True, True
        except UnauthorizedError:
            return "Only the person whose message asked for this may decide it.", True, False
        return _RESPONSES[decision], False, False

    def _set_message_id(self, approval_id: str, message_id: int) -> None:
        """Record the id of the message with a question, unless the question was decided in the meantime."""
        prompt = self._open.get(approval_id)
        if prompt is not None:
            self._open[approval_id] = prompt._replace(message_id=message_id)


def _buttons(request: ApprovalRequest) -> list[list[Mapping[str, str]]]:
    """Return rows of buttons. The "always" button names its scope and has its own row, as it is longer."""
    once, deny = _button(request.id, "o", "Allow once"), _button(request.id, "d", "Deny")
    if request.always is None:
        return [[once, deny]]
    return [[once, deny], [_button(request.id, "a", f"Always: {request.always}")]]


def _button(approval_id: str, letter: str, label: str) -> Mapping[str, str]:
    return {"text": label, "callback_data": f"{_PREFIX}:{approval_id}:{letter}"}


def _question(request: ApprovalRequest) -> tuple[str, bytes | None]:
    """Return the question with all arguments, and a file with the arguments if they had to be shortened.

    Raises PlacementRefused if the arguments are too large even for a file.
    """
    asked = f"**{QUESTION} {code(request.tool_name)}?**"
    try:
        arguments = request.whole(_MAX_ARGUMENTS)
    except PlacementRefused:
        shown = _fenced(request.shortened(_MAX_WITH_FILE))
        return f"{asked}\n\n{shown}\n\nThe file has the arguments in full.", request.in_full()
    return (f"{asked}\n\n{_fenced(arguments, 'json')}" if request.arguments else asked), None


def _fenced(text: str, language: str = "") -> str:
    fence = "`" * (3 + text.count("```"))
    return f"{fence}{language}\n{text}\n{fence}"
