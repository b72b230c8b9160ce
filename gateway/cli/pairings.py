"""Pairing as a command reaches it: through the gateway when one runs, else in the store itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar
from urllib.parse import quote

import msgspec

from gateway.access import THE_OWNER, Access, Who
from gateway.channel import SenderRole
from gateway.cli.either_way import EitherWay
from gateway.registry import ChannelRegistry
from gateway.server.pairs import Let, Pairs
from gateway.settings import Settings
from gateway.store import Store

T = TypeVar("T")


class Pairings:
    """Strangers and members that the settings lead to. What cannot be done ends the command."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._way = EitherWay(settings)

    def list(self) -> Pairs:
        """Who waits, and who was let in."""
        if self._way.running:
            return msgspec.convert(self._way.ask("GET", "/api/pairs"), Pairs)
        return self._locally(Pairs.of)

    def approve(self, code: str, role: SenderRole) -> Let:
        """Let in whoever has this code."""
        if self._way.running:
            return msgspec.convert(self._way.ask("POST", "/api/pairs", {"code": code, "role": role}), Let)

        async def approved(access: Access) -> Let:
            return Let.of(await access.pairing.approve(code, THE_OWNER, "admin", role))

        return self._locally(approved)

    def revoke(self, channel: str, user: str) -> None:
        """Let a member out again."""
        if self._way.running:
            self._way.ask("DELETE", f"/api/pairs/{quote(channel, safe='')}/{quote(user, safe='')}")
        else:
            self._locally(lambda access: access.revoke(Who(channel, user), THE_OWNER))

    def _locally(self, work: Callable[[Access], Awaitable[T]]) -> T:
        async def run(store: Store) -> T:
            access = Access(store, self._settings.rules, ChannelRegistry())
            await access.load()
            return await work(access)

        return self._way.in_store(run)
