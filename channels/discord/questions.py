"""Questions with buttons, such as those that ask a user if a tool may run."""

from __future__ import annotations

import hashlib
from typing import Any

from channels.discord.api import Api, Refused, refuse
from channels.discord.delivery import (
    MESSAGE,
    MESSAGES,
    NO_PINGS,
    QUESTION_PREFIX,
    SUPPRESS_EMBEDS,
    Delivery,
)
from channels.discord.files import Upload
from channels.discord.parse import snowflake
from channels.discord.render import code, escaped, fenced
from gateway import Answer, Choice, NotFoundError
from gateway.channel import (
    ApprovalRequest,
    Host,
    InvalidRequestError,
    Placed,
    PlacementRefused,
    Question,
    UnauthorizedError,
)

PREFIX = "approve:"
"""Beginning of the ``custom_id`` of every button; the id of the question and the choice's number follow."""
_STYLES = {"plain": 1, "good": 3, "bad": 4}
_OUTCOMES = {
    "once": "✅ Allowed once.",
    "always": "✅ Always allowed here.",
    "deny": "❌ Denied.",
    "timeout": "⌛ No answer in time: denied.",
    "cancelled": "⏹ No longer needed.",
}
_MAX_CONTENT = 2_000
"""Characters of a message."""
_MAX_ANSWER = 400
"""Characters of an answer that its question shows."""
_MAX_SHOWN = 1_200
"""Characters of the arguments that a question shows."""


class Questions:
    """Questions of a bot. The gateway keeps them and their places; this shows them."""

    def __init__(self, channel: str, api: Api, delivery: Delivery, host: Host) -> None:
        self._channel = channel
        self._api = api
        self._delivery = delivery
        self._host = host

    async def ask(self, question: Question) -> Placed:
        """Send the question. Raises the errors of a channel's ``send``."""
        content, upload = _content(question)
        body: dict[str, Any] = {
            "content": content,
            "components": _rows(question),
            "allowed_mentions": NO_PINGS,
            "flags": SUPPRESS_EMBEDS,
            "nonce": hashlib.blake2b(question.id.encode(), digest_size=12).hexdigest(),
            "enforce_nonce": True,
        }
        try:
            chat = await self._delivery.chat_for(question.address)
            response = await self._api.place(
                "POST", MESSAGES, body, uploads=() if upload is None else (upload,), channel_id=chat
            )
        except Refused as refused:
            refuse(refused)
        message = snowflake(response.get("id"))
        self._delivery.note(chat, message)
        return Placed(message, int(message))

    async def closed(self, question: Question, answer: Answer, shown: Placed | None) -> None:
        """Replace the buttons of a question by its outcome. Raises the errors of a channel's ``send``."""
        if shown is None:
            return
        outcome = _outcome(question, answer)
        content = f"{_content(question)[0]}\n{outcome}"
        if len(content) > _MAX_CONTENT:
            content = f"{_asked(question)}\n{outcome}"
        body: dict[str, Any] = {
            "content": content,
            "components": [],
            "allowed_mentions": NO_PINGS,
        }
        try:
            chat = await self._delivery.chat_for(question.address)
            await self._api.place("PATCH", MESSAGE, body, channel_id=chat, message_id=shown.platform_id)
        except Refused as refused:
            refuse(refused)

    async def press(self, custom_id: str, user: str, message: str | None) -> dict[str, Any]:
        """Answer a question as the button of ``message`` says. Returns the response to the interaction."""
        question_id, _, number = custom_id.removeprefix(PREFIX).rpartition(":")
        question = self._host.question(question_id)
        # Digits of other alphabets are digits to ``int``, too.
        if not (number.isascii() and number.isdigit()):
            return without_buttons()
        # The press of an ended question has no effect; the gateway replies with the reason.
        buttons = () if question is None else question.buttons
        pressed = next(iter(buttons[int(number) : int(number) + 1]), Choice(""))
        shown = None if message is None else Placed(message, int(message))
        try:
            await self._host.settle(question_id, pressed.value, channel=self._channel, user=user, shown=shown)
        except NotFoundError as error:
            if not error.known:
                return without_buttons()
            return private_reply(f"{str(error)[:1].upper()}{str(error)[1:]}.")
        except InvalidRequestError:
            return without_buttons()
        except UnauthorizedError:
            if isinstance(question, ApprovalRequest):
                return private_reply("Only the person whose message asked for this may decide it.")
            return private_reply("Only the person who was asked may answer this.")
        return {"type": 6}


def without_buttons() -> dict[str, Any]:
    """Return the response that removes the buttons of a question that is no longer open."""
    return {"type": 7, "data": {"components": [], "allowed_mentions": NO_PINGS}}


def private_reply(text: str) -> dict[str, Any]:
    """Return a response that only the user of the interaction sees."""
    return {"type": 4, "data": {"content": text, "flags": 1 << 6, "allowed_mentions": NO_PINGS}}


def _content(question: Question) -> tuple[str, Upload | None]:
    """Return the text of a question, and a file with the complete arguments if the text shortens them.

    Raises PlacementRefused if there are too many arguments to show.
    """
    if not isinstance(question, ApprovalRequest):
        asked = _asked(question)
        words = question.in_words(_MAX_CONTENT - len(asked) - 1, lambda text: len(escaped(text)))
        return f"{asked}\n{escaped(words)}".rstrip(), None
    asked = f"{QUESTION_PREFIX}May {code(' '.join(question.tool_name.split())[:80])} run?"
    title = f"{asked} {question.reason}".rstrip()
    try:
        return f"{title}\n{fenced(question.whole(_MAX_SHOWN), 'json')}", None
    except PlacementRefused:
        shown = question.shortened(_MAX_SHOWN)
    complete = Upload("arguments.json", question.in_full(), "application/json")
    return f"{title}\n{fenced(shown)}\n-# The file has the arguments in full.", complete


def _asked(question: Question) -> str:
    return f"{QUESTION_PREFIX}**{escaped(question.title)}**"


def _outcome(question: Question, answer: Answer) -> str:
    if isinstance(question, ApprovalRequest):
        return _OUTCOMES.get(answer.outcome, answer.outcome)
    if answer.state == "answered":
        return f"✅ {escaped(question.labels(answer.values)[:_MAX_ANSWER])}"
    return "⌛ No answer in time." if answer.state == "expired" else _OUTCOMES["cancelled"]


def _rows(question: Question) -> list[dict[str, Any]]:
    """Return the buttons in rows of five. The label of "always" names what it allows; a label has at most 80
    characters."""
    buttons = [
        {
            "type": 2,
            "style": _STYLES[choice.style],
            "label": choice.text,
            "custom_id": f"{PREFIX}{question.id}:{number}",
        }
        for number, choice in enumerate(question.buttons)
    ]
    rows = (buttons[start : start + 5] for start in range(0, len(buttons), 5))
    return [{"type": 1, "components": row} for row in rows]
