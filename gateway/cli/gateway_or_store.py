"""Access to the data of a gateway: through its API when it runs, else in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from gateway.app import die
from gateway.cli.gateway_client import call, running_gateway
from gateway.cli.options import REFUSED, fail, give_up, refuse
from gateway.cli.store_reader import check_store, is_locked, store_file
from gateway.contract.errors import StoreError, TrunklineError
from gateway.settings import Settings
from gateway.store import Store

T = TypeVar("T")


class GatewayOrStore:
    """The running gateway, or the store, of the settings. An error ends the command."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        url = running_gateway(settings)
        self.running = url is not None
        if self.running and not is_locked(settings):
            file = _or_fail(lambda: store_file(settings))
            advice = "name its settings with --config, or set another server.port"
            fail(f"the gateway at {url} does not use {file}, as these settings do; {advice}", REFUSED)

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Call the running gateway and return the JSON of its response."""
        return _or_fail(lambda: call(self.settings, method, path, body))

    def run_in_store(self, work: Callable[[Store], Awaitable[T]]) -> T:
        """Open the store, run ``work`` in it and return the result. A store of another version is refused."""
        _or_fail(lambda: check_store(self.settings))
        return _or_fail(lambda: work_in_store(self.settings, work))


def work_in_store(settings: Settings, work: Callable[[Store], Awaitable[T]]) -> T:
    """Open the store, run ``work`` in it and return the result. Raises StoreError."""

    async def run() -> T:
        store = Store.open(settings.store_url, settings.durability, die)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def _or_fail(work: Callable[[], T]) -> T:
    try:
        return work()
    except StoreError as error:
        refuse(error)
    except TrunklineError as error:
        give_up(error)
