"""Durable values and secrets of confined plugins."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any

from msgspec import Struct

from gateway.contract.errors import InvalidRequestError, NotFoundError
from gateway.extensions.broker.gate import Gate, Use
from gateway.extensions.broker.services import SizedTable

_LONGEST_KEY = 256
"""Bytes of a key."""
_MEGABYTE = 1_000_000


class KeyCall(Struct, frozen=True, forbid_unknown_fields=True):
    """A call that names a value."""

    key: str
    session: str = ""


class SetCall(Struct, frozen=True, forbid_unknown_fields=True):
    """A value to store: any JSON value but null."""

    key: str
    value: Any
    session: str = ""


class ListCall(Struct, frozen=True, forbid_unknown_fields=True):
    """A query of keys."""

    prefix: str = ""
    session: str = ""


class SecretCall(Struct, frozen=True, forbid_unknown_fields=True):
    """A secret's name."""

    name: str
    session: str = ""


class Values:
    """The durable values of one plugin, at most ``storage_mb`` megabytes of JSON."""

    def __init__(self, storage_mb: int, gate: Gate, table: SizedTable) -> None:
        self._most = storage_mb * _MEGABYTE
        self._gate = gate
        self._table = table

    async def get(self, call: KeyCall) -> Any:
        """Return a value; None if there is none."""
        await self._check(call.key, call.session)
        return await self._table.get(call.key)

    async def set(self, call: SetCall) -> None:
        """Store a value. It is durable when this returns."""
        await self._check(call.key, call.session)
        added = len(json.dumps(call.value))
        if await self._table.size(without=call.key) + added > self._most:
            raise InvalidRequestError(
                f"kv.set: {call.key!r} has {added:,} bytes, and all values of the plugin may have "
                f"{self._most:,} (storage_mb); delete some"
            )
        await self._table.put(call.key, call.value)

    async def delete(self, call: KeyCall) -> bool:
        """Remove a value. Returns whether there was one."""
        await self._check(call.key, call.session)
        return await self._table.delete(call.key)

    async def list(self, call: ListCall) -> list[str]:
        """Return the keys with a prefix, sorted."""
        await self._check(call.prefix, call.session)
        return await self._table.keys(call.prefix)

    async def _check(self, key: str, session: str) -> None:
        if len(key.encode(errors="replace")) > _LONGEST_KEY:
            raise InvalidRequestError(f"kv: a key has at most {_LONGEST_KEY} bytes")
        grant = "storage" if self._most else None
        action = f"store up to {self._most // _MEGABYTE} MB of its own data"
        await self._gate.check(
            Use("storage", key, grant, action, "capabilities.storage_mb: 1", session, (key,))
        )


class Secrets:
    """The secrets that a plugin's manifest names. ``read`` returns the value of one, None if it has none."""

    def __init__(
        self, names: Collection[str], plugin: str, gate: Gate, read: Callable[[str], str | None]
    ) -> None:
        self._names = names
        self._gate = gate
        self._plugin = plugin
        self._read = read

    async def get(self, call: SecretCall) -> str:
        """Return a secret."""
        name = call.name[:100]
        use = Use("secrets", name, None, "read a secret", f"secrets: [{name}]", call.session, (name,))
        if call.name not in self._names:
            await self._gate.check(use)
        # The operator grants a secret by setting it.
        self._gate.record(use, allowed=True)
        value = self._read(call.name)
        if value is None:
            raise NotFoundError(
                f"the secret {call.name!r} is not set; set it with: "
                f"trunkline plugin secret set {self._plugin} {call.name}"
            )
        return value
