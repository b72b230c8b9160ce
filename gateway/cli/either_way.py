"""Doing a command's work either way: through the gateway when one runs, else in the store itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from gateway.app import die
from gateway.cli.options import REFUSED, fail
from gateway.cli.remote import call, running_gateway
from gateway.errors import StoreError, TrunklineError
from gateway.settings import Settings
from gateway.store import Store

T = TypeVar("T")


class EitherWay:
    """The gateway, or the store, that the settings lead to. What cannot be done ends the command."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.running = running_gateway(settings) is not None

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """What the running gateway answers."""
        return _or_fail(lambda: call(self.settings, method, path, body))

    def in_store(self, work: Callable[[Store], Awaitable[T]]) -> T:
        """What comes of work in the store, which is opened for it."""

        async def run() -> T:
            store = Store.open(self.settings.store_url, self.settings.durability, die)
            try:
                return await work(store)
            finally:
                await store.close()

        return _or_fail(lambda: asyncio.run(run()))


def _or_fail(work: Callable[[], T]) -> T:
    try:
        return work()
    except StoreError as error:
        fail(str(error), REFUSED)
    except TrunklineError as error:
        fail(str(error))
