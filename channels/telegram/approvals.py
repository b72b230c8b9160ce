"""Asking a person in the room: a message with three buttons, which shows afterwards what was decided."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec
import structlog

from channels.telegram.api import CallError, RefusedError
from channels.telegram.courier import Courier
from channels.telegram.outcome import SAME
from channels.telegram.render import OUTCOMES, QUESTION, TextPage, code, cut
from channels.telegram.styling import styled
from channels.telegram.wire import CallbackQuery
from gateway import ApprovalRequest, Host, NotFoundError, PlacementDeferred, UnauthorizedError

log = structlog.get_logger("trunkline.telegram")

Decision = Literal["once", "always", "deny"]

_ATTEMPTS = 3
_LONGEST_WAIT = 20.0
_MOST_ARGUMENTS = 2500
_MOST_NAME = 100
_MARK = "a"
_BUTTONS: Mapping[str, tuple[Decision, str]] = {
    "o": ("once", "Allow once"),
    "a": ("always", "Always allow"),
    "d": ("deny", "Deny"),
}
_SAID: Mapping[str, str] = {"once": "Allowed once.", "always": "Always allowed.", "deny": "Denied."}
_EXPIRED = "This question has expired."


class _Prompt(NamedTuple):
    request: ApprovalRequest
    message_id: int | None = None
    """None while nobody knows where it stands, or whether it does."""


class Approvals:
    """The questions that are open, and the messages they stand in."""

    def __init__(self, host: Host, courier: Courier) -> None:
        self._host = host
        self._courier = courier
        self._open: dict[str, _Prompt] = {}

    async def ask(self, request: ApprovalRequest) -> None:
        """Show the question. Raises as ``Channel.send`` does."""
        shown = styled(_question(request))
        markup = {"inline_keyboard": [[_button(request.id, letter) for letter in _BUTTONS]]}
        self._open[request.id] = _Prompt(request)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                number = await self._courier.say(request.address, shown.text, shown.entities, markup)
            except PlacementDeferred as deferred:
                if attempt == _ATTEMPTS:
                    raise
                await asyncio.sleep(min(_LONGEST_WAIT, deferred.seconds or 1.0))
            else:
                self._stands(request.id, number)
                return

    async def decided(self, request: ApprovalRequest, outcome: str) -> None:
        """Show what became of a question; its buttons go. Raises as ``Channel.edit`` does."""
        prompt = self._open.pop(request.id, None)
        if prompt is not None and prompt.message_id is not None:
            shown = styled(
                f"{OUTCOMES.get(outcome, OUTCOMES['cancelled'])}: {code(cut(request.tool_name, _MOST_NAME))}"
            )
            page = TextPage(shown.text, shown.entities)
            await self._courier.change(request.address, prompt.message_id, page)

    async def pressed(self, query: CallbackQuery) -> None:
        """Somebody pressed a button: pass their word on, and tell them what came of it."""
        said, alert, expired = self._decide(query)
        answer: dict[str, Any] = {"callback_query_id": query.id, "text": said, "show_alert": alert}
        try:
            await self._courier.attend("answerCallbackQuery", **answer)
            if expired and query.message is not None:
                place = {"chat_id": query.message.chat.id, "message_id": query.message.message_id}
                await self._courier.attend("editMessageReplyMarkup", **place)
        except CallError as error:
            if not (isinstance(error, RefusedError) and error.says(SAME)):
                log.info("a pressed button was not answered", reason=str(error))

    def _decide(self, query: CallbackQuery) -> tuple[str, bool, bool]:
        """What to say to whoever pressed, whether loudly, and whether the buttons are of no more use."""
        mark, _, rest = query.data.partition(":")
        approval_id, _, letter = rest.rpartition(":")
        prompt = self._open.get(approval_id)
        if mark != _MARK or letter not in _BUTTONS or prompt is None:
            return _EXPIRED, True, True
        if query.message is not None:
            self._stands(approval_id, query.message.message_id)
        decision = _BUTTONS[letter][0]
        try:
            self._host.approve(
                approval_id, decision, session=prompt.request.session, user=str(query.sender.id)
            )
        except NotFoundError:
            return _EXPIRED, True, True
        except UnauthorizedError:
            return "Only the person whose message asked for this may decide it.", True, False
        return _SAID[decision], False, False

    def _stands(self, approval_id: str, message_id: int) -> None:
        """Where a question stands is known now, unless it was decided meanwhile."""
        prompt = self._open.get(approval_id)
        if prompt is not None:
            self._open[approval_id] = prompt._replace(message_id=message_id)


def _button(approval_id: str, letter: str) -> Mapping[str, str]:
    return {"text": _BUTTONS[letter][1], "callback_data": f"{_MARK}:{approval_id}:{letter}"}


def _question(request: ApprovalRequest) -> str:
    """What is asked, with the real arguments."""
    try:
        arguments = msgspec.json.format(msgspec.json.encode(request.arguments), indent=2).decode()
    except (TypeError, ValueError):
        arguments = repr(dict(request.arguments))
    fence = "`" * (3 + arguments.count("```"))
    shown = f"\n\n{fence}json\n{cut(arguments, _MOST_ARGUMENTS)}\n{fence}" if request.arguments else ""
    return f"**{QUESTION} {code(cut(request.tool_name, _MOST_NAME))}?**{shown}"
