"""Approvals: questions with buttons that ask a user if a tool may run."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

from channels.discord.api import Api, Refused, refuse
from channels.discord.delivery import (
    MESSAGE,
    MESSAGES,
    NO_PINGS,
    QUESTION_PREFIX,
    SUPPRESS_EMBEDS,
    Delivery,
    Recent,
)
from channels.discord.files import Upload
from channels.discord.parse import snowflake
from channels.discord.render import code, fenced
from gateway.channel import (
    ApprovalRequest,
    Host,
    InvalidRequestError,
    NotFoundError,
    Placed,
    PlacementRefused,
    UnauthorizedError,
)

Decision = Literal["once", "always", "deny"]

PREFIX = "approve:"
"""Beginning of the ``custom_id`` of every button; the id of the request and the decision follow."""
_DECISIONS: dict[str, Decision] = {"o": "once", "a": "always", "d": "deny"}
_OUTCOMES = {
    "once": "✅ Allowed once.",
    "always": "✅ Always allowed here.",
    "deny": "❌ Denied.",
    "timeout": "⌛ No answer in time: denied.",
    "cancelled": "⏹ No longer needed.",
}
_MAX_SHOWN = 1_200
"""Characters of the arguments that a question shows."""


class Approvals:
    """Open questions of a bot, in memory only: a restart forgets them."""

    def __init__(self, api: Api, delivery: Delivery, host: Host) -> None:
        self._api = api
        self._delivery = delivery
        self._host = host
        self._sessions: Recent[str] = Recent()
        self._questions: Recent[tuple[str, str, str]] = Recent()

    async def ask(self, request: ApprovalRequest) -> Placed:
        """Send the question. Raises the errors of a channel's ``send``."""
        self._sessions.put(request.id, request.session)
        shown, upload = _arguments(request)
        body: dict[str, Any] = {
            "content": f"{_title(request)}\n{shown}",
            "components": [{"type": 1, "components": _buttons(request)}],
            "allowed_mentions": NO_PINGS,
            "flags": SUPPRESS_EMBEDS,
            "nonce": hashlib.blake2b(request.id.encode(), digest_size=12).hexdigest(),
            "enforce_nonce": True,
        }
        try:
            chat = await self._delivery.chat_for(request.address)
            response = await self._api.place(
                "POST", MESSAGES, body, uploads=() if upload is None else (upload,), channel_id=chat
            )
        except Refused as refused:
            refuse(refused)
        message = snowflake(response.get("id"))
        self._delivery.note(chat, message)
        self._questions.put(request.id, (chat, message, body["content"]))
        return Placed(message, int(message))

    async def show_outcome(self, request: ApprovalRequest, outcome: str) -> None:
        """Replace the buttons of a question by its outcome. Raises the errors of a channel's ``send``."""
        self._sessions.pop(request.id)
        question = self._questions.pop(request.id)
        if question is None:
            return
        chat, message, content = question
        body: dict[str, Any] = {
            "content": f"{content}\n{_OUTCOMES.get(outcome, outcome)}",
            "components": [],
            "allowed_mentions": NO_PINGS,
        }
        try:
            await self._api.place("PATCH", MESSAGE, body, channel_id=chat, message_id=message)
        except Refused as refused:
            refuse(refused)

    async def press(self, custom_id: str, user: str) -> dict[str, Any]:
        """Decide a request as the button says. Returns the response to the interaction."""
        approval, _, letter = custom_id.removeprefix(PREFIX).rpartition(":")
        decision, session = _DECISIONS.get(letter), self._sessions.get(approval)
        if decision is None or session is None:
            return without_buttons()
        try:
            await self._host.approve(approval, decision, session=session, user=user)
        except (NotFoundError, InvalidRequestError):
            return without_buttons()
        except UnauthorizedError:
            return private_reply("Only the person whose message asked for this may decide it.")
        return {"type": 6}


def without_buttons() -> dict[str, Any]:
    """Return the response that removes the buttons of a question that is no longer open."""
    return {"type": 7, "data": {"components": [], "allowed_mentions": NO_PINGS}}


def private_reply(text: str) -> dict[str, Any]:
    """Return a response that only the user of the interaction sees."""
    return {"type": 4, "data": {"content": text, "flags": 1 << 6, "allowed_mentions": NO_PINGS}}


def _title(request: ApprovalRequest) -> str:
    return f"{QUESTION_PREFIX}May {code(' '.join(request.tool_name.split())[:80])} run?"


def _arguments(request: ApprovalRequest) -> tuple[str, Upload | None]:
    """Return the arguments as text, and as a file with the complete values if the text shortens them.

    Raises PlacementRefused if there are too many arguments to show.
    """
    try:
        return fenced(request.whole(_MAX_SHOWN), "json"), None
    except PlacementRefused:
        shown = request.shortened(_MAX_SHOWN)
    complete = Upload("arguments.json", request.in_full(), "application/json")
    return fenced(shown) + "\n-# The file has the arguments in full.", complete


def _buttons(request: ApprovalRequest) -> list[dict[str, Any]]:
    """Return the buttons. The label of "always" names what it allows; a label has at most 80 characters."""
    labels = [("o", "Allow once", 3), ("d", "Deny", 4)]
    if request.always is not None:
        labels.insert(1, ("a", f"Always: {request.always}", 1))
    return [
        {"type": 2, "style": style, "label": label, "custom_id": f"{PREFIX}{request.id}:{letter}"}
        for letter, label, style in labels
    ]
