"""Dead letters as a command reaches them: through the gateway when one runs, else in the store itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import quote

import msgspec

from gateway.cli.either_way import EitherWay
from gateway.deadletters import DeadLetter, DeadLetters
from gateway.settings import Settings


class Burials:
    """The dead letters that the settings lead to. What cannot be done ends the command with the reason."""

    def __init__(self, settings: Settings) -> None:
        self._way = EitherWay(settings)
        self.running = self._way.running

    def list(self) -> list[DeadLetter]:
        """All of them, the latest first."""
        if not self.running:
            return self._way.in_store(lambda store: DeadLetters(store).list())
        return msgspec.convert(self._way.ask("GET", "/api/dead")["dead"], list[DeadLetter])

    def replay(self, letter_id: str) -> None:
        """Have one answered after all."""
        self._do("POST", f"{_path(letter_id)}/replay", lambda dead: dead.replay(letter_id))

    def drop(self, letter_id: str) -> None:
        """Remove one for good."""
        self._do("DELETE", _path(letter_id), lambda dead: dead.drop(letter_id))

    def _do(self, method: str, path: str, locally: Callable[[DeadLetters], Awaitable[None]]) -> None:
        if self.running:
            self._way.ask(method, path)
        else:
            self._way.in_store(lambda store: locally(DeadLetters(store)))


def _path(letter_id: str) -> str:
    return f"/api/dead/{quote(letter_id, safe='')}"
