"""Deleting a session: through the gateway when one runs, else in the store itself."""

from __future__ import annotations

import asyncio
from urllib.parse import quote

from gateway.app import die
from gateway.cli.remote import call, running_gateway
from gateway.session import Sessions
from gateway.settings import Settings
from gateway.store import Store


def remove(settings: Settings, session: str) -> None:
    """Delete a session with all its messages. Raises a TrunklineError when that is not possible."""
    if running_gateway(settings) is not None:
        call(settings, "DELETE", f"/api/sessions/{quote(session, safe='')}")
    else:
        asyncio.run(_remove(settings, session))


async def _remove(settings: Settings, session: str) -> None:
    store = Store.open(settings.store_url, settings.durability, die)
    try:
        await Sessions(store, settings.history_window).delete(session)
    finally:
        await store.close()
