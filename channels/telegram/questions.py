"""Questions in a chat, such as tool approvals: a message with buttons, which is replaced by the outcome."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import structlog

from channels.telegram.api import CallError, RefusedError, upload
from channels.telegram.delivery import SAME, Delivery, placed_in
from channels.telegram.render import (
    ANSWERED,
    ASKED,
    OUTCOMES,
    QUESTION,
    TextPage,
    code,
    cut,
    plain,
    styled,
)
from channels.telegram.updates.chats import chat_of, target_of
from channels.telegram.updates.objects import CallbackQuery
from gateway import Answer, Choice, NotFoundError
from gateway.channel import (
    ApprovalRequest,
    Host,
    InvalidRequestError,
    Placed,
    PlacementDeferred,
    PlacementMismatch,
    PlacementRefused,
    Question,
    UnauthorizedError,
)

log = structlog.get_logger("trunkline.telegram")

_ATTEMPTS = 3
_LONGEST_WAIT = 20.0
_MAX_ARGUMENTS = 2500
_MAX_WITH_FILE = 800
"""Maximum characters of arguments in a caption; with the tool's name they stay below Telegram's limit of
1,024."""
_MAX_NAME = 100
_PREFIX = "a"
_MAX_PRESSED = 1000
_MAX_IN_ROW = 20
"""Characters of a label that leaves room for a second button beside it."""
_RESPONSES: Mapping[str, str] = {"once": "Allowed once.", "always": "Always allowed.", "deny": "Denied."}
_EXPIRED = "This question has expired."


class Questions:
    """Questions of one bot. The gateway keeps them and their places; this shows them."""

    def __init__(self, channel: str, host: Host, delivery: Delivery) -> None:
        self._channel = channel
        self._host = host
        self._delivery = delivery
        self._responses: OrderedDict[str, tuple[str, bool, bool]] = OrderedDict()

    async def ask(self, question: Question) -> Placed:
        """Send the question; retries if the platform asks to wait. Raises the errors of ``Channel.send``."""
        text, content = _question(question)
        shown = styled(text)
        page = TextPage(shown.text, shown.entities)
        file = None if content is None else upload(content, "arguments.json")
        markup = {"inline_keyboard": _buttons(question)}
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await self._delivery.send_prompt(question.address, page, markup, file)
            except PlacementDeferred as deferred:
                if attempt == _ATTEMPTS:
                    raise
                await asyncio.sleep(min(_LONGEST_WAIT, deferred.seconds or 1.0))
        raise AssertionError("the last attempt returns or raises")

    async def closed(self, question: Question, answer: Answer, shown: Placed | None) -> None:
        """Replace a question and its buttons with the outcome. Raises the errors of ``Channel.edit``."""
        if shown is None:
            return
        words = styled(_outcome(question, answer))
        page = TextPage(words.text, words.entities)
        under_file = _question(question)[1] is not None
        try:
            await self._delivery.edit(question.address, shown.platform_id, page, under_file=under_file)
        except PlacementMismatch as mismatch:
            log.info("a question is gone", chat=question.address.chat, reason=str(mismatch))

    async def decide(self, query: CallbackQuery) -> None:
        """Store the answer of a pressed button; ``answer`` shows the result afterwards."""
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
                place = {**target_of(chat_of(query.message)), "message_id": query.message.message_id}
                await self._delivery.call_best_effort("editMessageReplyMarkup", **place)
        except CallError as error:
            if not (isinstance(error, RefusedError) and error.says(SAME)):
                log.info("could not answer a pressed button", reason=str(error))

    async def _decide(self, query: CallbackQuery) -> tuple[str, bool, bool]:
        """Return the text to show, whether to show it as an alert, and whether the buttons have to be
        removed."""
        prefix, _, rest = query.data.partition(":")
        question_id, _, number = rest.rpartition(":")
        question = self._host.question(question_id)
        # Digits of other alphabets are digits to ``int``, too.
        if prefix != _PREFIX or not (number.isascii() and number.isdigit()):
            return _EXPIRED, True, True
        # The press of an ended question has no effect; the gateway replies with the reason.
        buttons = () if question is None else question.buttons
        pressed = next(iter(buttons[int(number) : int(number) + 1]), Choice(""))
        shown = None
        if query.message is not None:
            chat = chat_of(query.message)
            asked_in = chat if question is None else question.address.chat
            shown = placed_in(asked_in, chat, query.message.message_id)
        try:
            await self._host.settle(
                question_id,
                pressed.value,
                channel=self._channel,
                user=str(query.sender.id),
                shown=shown,
            )
        except NotFoundError as error:
            return f"{str(error)[:1].upper()}{str(error)[1:]}.", True, True
        except InvalidRequestError:
            return _EXPIRED, True, True
        except UnauthorizedError:
            if isinstance(question, ApprovalRequest):
                return "Only the person whose message asked for this may decide it.", True, False
            return "Only the person who was asked may answer this.", True, False
        return _RESPONSES.get(pressed.value, cut(pressed.text, _MAX_NAME)), False, False


def _buttons(question: Question) -> list[list[Mapping[str, str]]]:
    """Return rows of buttons: two short ones beside each other, and each longer one in its own row."""
    rows: list[list[Mapping[str, str]]] = []
    room = False
    for number, choice in enumerate(question.buttons):
        button = {"text": choice.text, "callback_data": f"{_PREFIX}:{question.id}:{number}"}
        short = len(choice.text) <= _MAX_IN_ROW and not choice.text.startswith("Always")
        if room and short:
            rows[-1].append(button)
            room = False
        else:
            rows.append([button])
            room = short
    return rows


def _outcome(question: Question, answer: Answer) -> str:
    outcome = OUTCOMES.get(answer.outcome, OUTCOMES["cancelled"])
    if isinstance(question, ApprovalRequest):
        return f"{outcome}: {code(cut(question.tool_name, _MAX_NAME))}"
    if answer.state == "answered":
        outcome = f"{ANSWERED}: {plain(cut(question.labels(answer.values), _MAX_ARGUMENTS))}"
    return f"{outcome}\n\n{plain(question.title)}"


def _question(question: Question) -> tuple[str, bytes | None]:
    """Return the question with all arguments, and a file with the arguments if they had to be shortened.

    Raises PlacementRefused if the arguments are too large even for a file.
    """
    if not isinstance(question, ApprovalRequest):
        words = question.in_words(_MAX_ARGUMENTS)
        return f"{ASKED}**{plain(question.title)}**" + (f"\n\n{_lines(words)}" if words else ""), None
    why = f"\n\n{question.reason}" if question.reason else ""
    asked = f"**{QUESTION} {code(question.tool_name)}?**{why}"
    try:
        arguments = question.whole(_MAX_ARGUMENTS)
    except PlacementRefused:
        shown = _fenced(question.shortened(_MAX_WITH_FILE))
        return f"{asked}\n\n{shown}\n\nThe file has the arguments in full.", question.in_full()
    return (f"{asked}\n\n{_fenced(arguments, 'json')}" if question.arguments else asked), None


def _lines(text: str) -> str:
    """Return a plain text as Markdown that keeps its lines."""
    return "\n".join(f"{plain(line)}  " for line in text.split("\n"))


def _fenced(text: str, language: str = "") -> str:
    fence = "`" * (3 + text.count("```"))
    return f"{fence}{language}\n{text}\n{fence}"
