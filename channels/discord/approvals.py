"""Approvals: a person is asked with buttons whether a tool may run."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

from channels.discord.api import Api, Refused, refuse
from channels.discord.delivery import MESSAGE, MESSAGES, PROMPT, QUIET, SUPPRESS_EMBEDS, Places, Recent
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
_DECISIONS: dict[str, Decision] = {"o": "once", "a": "always", "d": "deny"}
_OUTCOMES = {
    "once": "✅ Allowed once.",
    "always": "✅ Always allowed here.",
    "deny": "❌ Denied.",
    "timeout": "⌛ Nobody answered in time: denied.",
    "cancelled": "⏹ No longer needed.",
}
_SHOWN = 1_200


class Prompts:
    """Asks, and takes what people press."""

    def __init__(self, api: Api, places: Places, host: Host) -> None:
        self._api = api
        self._places = places
        self._host = host
        self._sessions: Recent[str] = Recent()
        self._asked: Recent[tuple[str, str, str]] = Recent()

    async def ask(self, request: ApprovalRequest) -> Placed:
        """Ask. Returns the question's place; raises as a channel does."""
        self._sessions.put(request.id, request.session)
        shown, upload = _arguments(request)
        body: dict[str, Any] = {
            "content": f"{_title(request)}\n{shown}",
            "components": [{"type": 1, "components": _buttons(request)}],
            "allowed_mentions": QUIET,
            "flags": SUPPRESS_EMBEDS,
            "nonce": hashlib.blake2b(request.id.encode(), digest_size=12).hexdigest(),
            "enforce_nonce": True,
        }
        try:
            room = await self._places.room_of(request.address)
            told = await self._api.place(
                "POST", MESSAGES, body, uploads=() if upload is None else (upload,), channel_id=room
            )
        except Refused as refused:
            refuse(refused)
        message = snowflake(told.get("id"))
        self._places.note(room, message)
        self._asked.put(request.id, (room, message, body["content"]))
        return Placed(message, int(message))

    async def decided(self, request: ApprovalRequest, outcome: str) -> None:
        """Show what became of a request. Raises as a channel does."""
        self._sessions.pop(request.id)
        asked = self._asked.pop(request.id)
        if asked is None:
            return
        room, message, content = asked
        body: dict[str, Any] = {
            "content": f"{content}\n{_OUTCOMES.get(outcome, outcome)}",
            "components": [],
            "allowed_mentions": QUIET,
        }
        try:
            await self._api.place("PATCH", MESSAGE, body, channel_id=room, message_id=message)
        except Refused as refused:
            refuse(refused)

    async def press(self, custom_id: str, user: str) -> dict[str, Any]:
        """Somebody pressed a button. Returns what Discord is answered."""
        approval, _, letter = custom_id.removeprefix(PREFIX).rpartition(":")
        decision, session = _DECISIONS.get(letter), self._sessions.get(approval)
        if decision is None or session is None:
            return expired()
        try:
            await self._host.approve(approval, decision, session=session, user=user)
        except (NotFoundError, InvalidRequestError):
            return expired()
        except UnauthorizedError:
            return whisper("Only the person whose message asked for this may decide it.")
        return {"type": 6}


def expired() -> dict[str, Any]:
    """The question is not open any more, perhaps since before a restart: its buttons go."""
    return {"type": 7, "data": {"components": [], "allowed_mentions": QUIET}}


def whisper(text: str) -> dict[str, Any]:
    """An answer that only the one who asked can see."""
    return {"type": 4, "data": {"content": text, "flags": 1 << 6, "allowed_mentions": QUIET}}


def _title(request: ApprovalRequest) -> str:
    return f"{PROMPT}May {code(' '.join(request.tool_name.split())[:80])} run?"


def _arguments(request: ApprovalRequest) -> tuple[str, Upload | None]:
    """Every argument; long values are cut in the middle, and then a file has them in full.

    Raises PlacementRefused if there are too many.
    """
    try:
        return fenced(request.whole(_SHOWN), "json"), None
    except PlacementRefused:
        shown = request.shortened(_SHOWN)
    whole = Upload("arguments.json", request.in_full(), "application/json")
    return fenced(shown) + "\n-# The file has the arguments in full.", whole


def _buttons(request: ApprovalRequest) -> list[dict[str, Any]]:
    """The buttons. What "always" is good for stands on its button; a label may have 80 characters."""
    labels = [("o", "Allow once", 3), ("d", "Deny", 4)]
    if request.always is not None:
        labels.insert(1, ("a", f"Always: {request.always}", 1))
    return [
        {"type": 2, "style": style, "label": label, "custom_id": f"{PREFIX}{request.id}:{letter}"}
        for letter, label, style in labels
    ]
