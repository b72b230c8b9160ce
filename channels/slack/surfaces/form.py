"""Form for a long question: a modal that ``/ask`` without a text opens."""

from __future__ import annotations

import asyncio

import structlog

from channels.slack.api import Api, Json, RefusedError
from channels.slack.parse import FORM, QUESTION, TEXT, FormAsked, form_origin
from channels.slack.render import escape
from gateway.channel import Host, InboundMessage, PlacementDeferred, PlacementUncertain

log = structlog.get_logger("trunkline.slack")

_TRIGGER_SECONDS = 2.5
"""Time to open a form, of the three seconds that a trigger is valid."""
_LONGEST = 3_000
"""Most characters that a field takes."""
_NO_ACCESS = "You may not use this bot."
_DISABLED = "The bot is switched off in this chat."
_NOT_OPENED = "The form could not be opened. Try again, or write the question after the command."


class Form:
    """Forms of one workspace."""

    def __init__(self, api: Api, host: Host, channel: str) -> None:
        self._api = api
        self._host = host
        self._channel = channel

    async def open(self, asked: FormAsked) -> None:
        """Open a form for a user, or show the user why there is none."""
        try:
            async with asyncio.timeout(_TRIGGER_SECONDS):
                problem = await self.problem(asked.message)
                if not problem:
                    await self._api.call("views.open", trigger_id=asked.trigger, view=_view(asked))
        except (RefusedError, PlacementDeferred, TimeoutError) as error:
            log.info("a form was not opened", reason=str(error) or type(error).__name__)
            problem = _NOT_OPENED
        except PlacementUncertain as error:  # it may be open
            log.info("a form may not be open", reason=str(error))
            return
        if problem:
            await self._tell(asked.response_url, problem)

    async def problem(self, message: InboundMessage) -> str:
        """Return why a message of a form would not be answered; empty if it would be."""
        if await self._host.role(self._channel, message) is None:
            return _NO_ACCESS
        return "" if self._host.attention(self._channel, message) == "answer" else _DISABLED

    async def _tell(self, response_url: str, text: str) -> None:
        try:
            await self._api.post(response_url, json={"text": escape(text), "response_type": "ephemeral"})
        except (RefusedError, PlacementDeferred, PlacementUncertain) as error:
            log.info("the reason why a form did not open could not be shown", reason=str(error))


def _view(asked: FormAsked) -> Json:
    field: Json = {"type": "plain_text_input", "action_id": TEXT, "multiline": True}
    field |= {"max_length": _LONGEST, "focus_on_load": True}
    return {
        "type": "modal",
        "callback_id": FORM,
        "private_metadata": form_origin(asked),
        "title": _plain("Ask"),
        "submit": _plain("Send"),
        "close": _plain("Cancel"),
        "blocks": [
            {"type": "input", "block_id": QUESTION, "label": _plain("Your message"), "element": field}
        ],
    }


def _plain(text: str) -> Json:
    return {"type": "plain_text", "text": text}
