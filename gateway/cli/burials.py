"""Dead letters as a command reaches them: through the gateway when one runs, else in the store itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar
from urllib.parse import quote

import msgspec

from gateway.app import die
from gateway.cli.options import REFUSED, fail
from gateway.cli.remote import call, running_gateway
from gateway.deadletters import DeadLetter, DeadLetters
from gateway.errors import StoreError, TrunklineError
from gateway.settings import Settings
from gateway.store import Store

T = TypeVar("T")


class Burials:
    """The dead letters that the settings lead to. What cannot be done ends the command with the reason."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.running = running_gateway(settings) is not None

    def list(self) -> list[DeadLetter]:
        """All of them, the latest first."""
        if not self.running:
            return _or_fail(lambda: self._locally(DeadLetters.list))
        answer = _or_fail(lambda: call(self._settings, "GET", "/api/dead"))
        return msgspec.convert(answer["dead"], list[DeadLetter])

    def replay(self, letter_id: str) -> None:
        """Have one answered after all."""
        self._do("POST", f"{_path(letter_id)}/replay", lambda dead: dead.replay(letter_id))

    def drop(self, letter_id: str) -> None:
        """Remove one for good."""
        self._do("DELETE", _path(letter_id), lambda dead: dead.drop(letter_id))

    def _do(self, method: str, path: str, locally: Callable[[DeadLetters], Awaitable[None]]) -> None:
        if self.running:
            _or_fail(lambda: call(self._settings, method, path))
        else:
            _or_fail(lambda: self._locally(locally))

    def _locally(self, work: Callable[[DeadLetters], Awaitable[T]]) -> T:
        async def run() -> T:
            store = Store.open(self._settings.store_url, self._settings.durability, die)
            try:
                return await work(DeadLetters(store))
            finally:
                await store.close()

        return asyncio.run(run())


def _path(letter_id: str) -> str:
    return f"/api/dead/{quote(letter_id, safe='')}"


def _or_fail(work: Callable[[], T]) -> T:
    try:
        return work()
    except StoreError as error:
        fail(str(error), REFUSED)
    except TrunklineError as error:
        fail(str(error))
