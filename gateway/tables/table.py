"""Tables of plugins: durable JSON values by key, with compare-and-set.

One process writes the database, so a lock for each entry makes a comparison and its write one step.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any
from weakref import WeakValueDictionary

from sqlalchemy import func, select

from gateway.contract.errors import InvalidRequestError
from gateway.contract.messages import now_ms
from gateway.store import schema as t
from gateway.store.database import Store
from gateway.store.writer import Inserted
from gateway.store.writes import Op, Write, audit_op

PUT_ENTRY = Write("upsert", 77, t.plugin_entry, "id plugin name key value at")
DROP_ENTRY = Write("delete", 78, t.plugin_entry, "id")

_LONGEST_KEY = 512
_LARGEST_VALUE = 256 * 1024
_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)


class KeyLocks:
    """Locks by key, each held from a look-up until the write that depends on it is durable."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def commit(
        self, key: str, submit: Callable[[], Awaitable[asyncio.Future[Inserted] | None]]
    ) -> bool:
        """Call ``submit`` under the lock of a key and wait for the write that it returns.

        Returns False if it returns None because there is nothing to write.
        """
        lock = self._locks.setdefault(key, asyncio.Lock())
        await lock.acquire()
        written: asyncio.Future[Inserted] | None = None
        try:
            written = await submit()
        finally:
            # A caller that is cancelled does not stop the write, so the lock outlives it.
            if written is None:
                lock.release()
            else:
                written.add_done_callback(lambda _: lock.release())
        if written is None:
            return False
        await asyncio.shield(written)
        return True


class PluginTables:
    """Opens the tables of plugins."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._locks = KeyLocks()

    def open(self, plugin: str, name: str) -> PluginTable:
        """Return a table of a plugin. Raises InvalidRequestError for a name that cannot be used."""
        if not _NAME.fullmatch(name) or "\n" in plugin:
            raise InvalidRequestError(
                f"the table {name[:80]!r} of plugin {plugin!r} needs a name of 1 to 64 letters, digits, "
                "'_', '.' and '-'"
            )
        return PluginTable(self._store, self._locks, plugin, name)

    async def audit(
        self, plugin: str, action: str, subject: str, detail: str = "", *, actor: str = ""
    ) -> None:
        """Write into the audit log what a plugin permits or ends; see ``PluginContext.audit``."""
        await self._store.write(audit_op(actor or f"plugin {plugin}", action, subject, detail))


class PluginTable:
    """A table of one plugin; see ``gateway.contract.services.Table``."""

    def __init__(self, store: Store, locks: KeyLocks, plugin: str, name: str) -> None:
        self._store = store
        self._locks = locks
        self._plugin = plugin
        self._name = name

    async def get(self, key: str) -> Any:
        """Return the value of a key; None if there is none."""
        text = await self._read(self._id(key))
        return None if text is None else json.loads(text)

    async def put(self, key: str, value: Any, *, expected: Any = ...) -> bool:
        """Store a value. Returns False if the entry is not as expected."""
        row_id, text = self._id(key), self._encode(key, value)
        if len(text) > _LARGEST_VALUE:
            raise InvalidRequestError(
                f"the value of {key!r} in the table {self._name!r} has {len(text):,} bytes as JSON, and "
                f"at most {_LARGEST_VALUE:,} can be stored; divide it into several entries"
            )
        row = (row_id, self._plugin, self._name, key, text, now_ms())
        return await self._write(row_id, (PUT_ENTRY, row), key, expected)

    async def delete(self, key: str, *, expected: Any = ...) -> bool:
        """Remove an entry. Returns False if there is none, or it is not as expected."""
        row_id = self._id(key)
        return await self._write(row_id, (DROP_ENTRY, (row_id,)), key, expected, present=True)

    async def keys(self, prefix: str = "") -> list[str]:
        """Return the keys with a prefix, sorted."""
        return [key for key, _ in await self._entries(prefix)]

    async def items(self, prefix: str = "") -> list[tuple[str, Any]]:
        """Return the entries whose keys have a prefix, sorted by key."""
        return [(key, json.loads(text)) for key, text in await self._entries(prefix)]

    async def size(self, *, without: str = "") -> int:
        """Return the characters of all values as JSON, except that of one key."""
        e = t.plugin_entry.c
        query = select(func.coalesce(func.sum(func.length(e.value)), 0)).where(
            e.plugin == self._plugin, e.name == self._name, e.key != without
        )
        return await self._store.read(lambda c: c.execute(query).scalar_one())

    async def _write(self, row_id: str, op: Op, key: str, expected: Any, *, present: bool = False) -> bool:
        """Make a write if the entry is as expected; with ``present`` only if there is one."""
        wanted = None if expected is None or expected is ... else _canonical(self._encode(key, expected))

        async def submit() -> asyncio.Future[Inserted] | None:
            if expected is not ... or present:
                found = await self._read(row_id)
                is_expected = expected is ... or wanted == (None if found is None else _canonical(found))
                if not is_expected or (present and found is None):
                    return None
            return self._store.submit([op])

        return await self._locks.commit(row_id, submit)

    async def _read(self, row_id: str) -> str | None:
        query = select(t.plugin_entry.c.value).where(t.plugin_entry.c.id == row_id)
        return await self._store.read(lambda c: c.execute(query).scalar())

    async def _entries(self, prefix: str) -> list[tuple[str, str]]:
        e = t.plugin_entry.c
        query = select(e.key, e.value).where(e.plugin == self._plugin, e.name == self._name)
        if prefix:
            query = query.where(e.key.startswith(prefix, autoescape=True))
        found = await self._store.read(lambda c: [(row.key, row.value) for row in c.execute(query)])
        # SQLite ignores the case of a prefix, and databases differ in their order of texts.
        return sorted(entry for entry in found if entry[0].startswith(prefix))

    def _id(self, key: str) -> str:
        if not 0 < len(key) <= _LONGEST_KEY or not key.isprintable():
            raise InvalidRequestError(
                f"the key {key[:40]!r} of the table {self._name!r} is not a text of 1 to {_LONGEST_KEY} "
                "printable characters"
            )
        return f"{self._plugin}\n{self._name}\n{key}"

    def _encode(self, key: str, value: Any) -> str:
        try:
            text = json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequestError(
                f"the value of {key!r} in the table {self._name!r} cannot be stored as JSON: {error}"
            ) from None
        if value is None:
            raise InvalidRequestError(
                f"the value of {key!r} in the table {self._name!r} is None, which means no entry; delete it"
            )
        return text


def _canonical(text: str) -> str:
    """Return JSON with sorted keys, in which equal values have equal texts."""
    return json.dumps(json.loads(text), sort_keys=True)
