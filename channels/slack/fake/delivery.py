"""One thing that the platform tells the app, from the first attempt until it is acknowledged or lost."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, Literal

from channels.slack.fake.workspace import Json

Envelope = Literal["events_api", "interactive", "slash_commands"]


class Delivery:
    """``attempts`` counts how often it was tried, ``reasons`` says why each failed.

    ``answer`` is what the app sent along with its acknowledgement, ``refused`` names what the person sees who
    acted in vain (``operation_timeout`` or ``dispatch_failed``).
    """

    def __init__(self, kind: Envelope, team: str, payload: Json, *, answerable: bool = False) -> None:
        self.kind: Envelope = kind
        self.team = team
        self.payload = payload
        self.answerable = answerable
        self.envelope = str(uuid.uuid4())
        self.attempts = 0
        self.reasons: list[str] = []
        self.answer: Any = None
        self.acknowledged = False
        self.refused: str | None = None
        self._settled = asyncio.Event()

    @property
    def lost(self) -> bool:
        """Whether every attempt failed."""
        return self._settled.is_set() and not self.acknowledged

    def acknowledge(self, answer: object = None) -> None:
        """The app has it. Only the first time counts."""
        if not self._settled.is_set():
            self.acknowledged, self.answer = True, answer
            self._settled.set()

    def give_up(self) -> None:
        """Nobody will try again."""
        self._settled.set()

    async def settled(self) -> Delivery:
        """Wait until it is acknowledged or lost."""
        await self._settled.wait()
        return self
