"""The keys of model providers: the place of each one, and replacing it there.

A key of the settings is replaced in the settings file, with the code of ``trunkline config set``; any other
is stored as a login, with the code of ``trunkline auth login``, which precedes environment variables. Both
take effect without a restart, as far as the provider can change its credentials.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from msgspec import Struct

from gateway.app import Gateway
from gateway.contract.errors import AuthFailedError, InvalidRequestError, InvalidStateError, SettingsError
from gateway.contract.provider import ApiKey
from gateway.models.credentials import CredentialStore
from gateway.probes import check_key
from gateway.settings import ProviderSettings, Settings
from gateway.settings.entries import Entry, KeyPath, references
from gateway.settings.layers.changing import SettingsFile, command_of

Way = Literal["settings", "login", "move", "terminal"]
"""The place of a replaced key: the settings file, a login, or a login instead of a reference in the settings
file. ``terminal``: a page cannot replace it.
"""


class KeyPlace(Struct, frozen=True):
    """A key of a provider. ``position`` counts from 1, as in the settings; its alias is ``key 1``.

    ``place`` is a file with its line, a variable, or the store of logins. ``way`` is how it is replaced,
    ``command`` the equal command, and ``reason`` why no page replaces it, empty if one does.
    """

    position: int
    place: str
    way: Way
    command: str
    reason: str = ""


class ProviderKeys:
    """The keys of the providers of a running gateway."""

    def __init__(self, gateway: Gateway, file: SettingsFile) -> None:
        self._gateway = gateway
        self._file = file
        self._changing = asyncio.Lock()

    def places(self, provider_id: str) -> list[KeyPlace]:
        """Return the keys of a provider, in the order of their positions. Reads files. Raises SettingsError.

        Without a key it returns the place of a first one.
        """
        settings, command = self._gateway.settings, f"trunkline auth login {provider_id}"
        given = settings.providers.get(provider_id, ProviderSettings())
        if given.auth is not None:
            return [KeyPlace(1, given.auth, "terminal", command, "a plugin signs in to this provider")]
        if slots := list(_slots(given)):
            entries = {entry.path: entry for entry in settings.entries}
            return [
                _of_settings(provider_id, number, field, entries) for number, field in enumerate(slots, 1)
            ]
        try:
            owner = self._gateway.providers.key_owner(provider_id)
        except SettingsError as error:
            return [KeyPlace(1, "", "terminal", command, str(error))]
        return [self._of_login(settings, provider_id, owner)]

    async def replace(
        self, provider_id: str, position: int, key: str, *, check: bool
    ) -> tuple[KeyPlace, str]:
        """Test a key and put it in the place of another one. Returns that place, and how the test ended.

        Raises InvalidStateError if no page replaces it, if the provider rejects the new key, or if the place
        cannot be written; then nothing changes.
        """
        if any(True for _ in references(key)):
            raise InvalidRequestError("a key cannot refer to variables or files")
        async with self._changing:
            place = await asyncio.to_thread(self._place, provider_id, position)
            tested = await self._checked(provider_id, key) if check else ""
            await asyncio.to_thread(self._write, provider_id, place, key)
            await self._apply(provider_id, place)
            return place, tested

    def _place(self, provider_id: str, position: int) -> KeyPlace:
        places = self.places(provider_id)
        place = next((each for each in places if each.position == position), None)
        if place is None:
            raise InvalidRequestError(f"{provider_id} has {len(places)} keys, and no key {position}")
        if place.way == "terminal":
            raise InvalidStateError(f"{place.reason}; use a terminal: {place.command}")
        return place

    async def _checked(self, provider_id: str, key: str) -> str:
        try:
            return await check_key(self._gateway.providers, provider_id, key)
        except AuthFailedError as error:
            raise InvalidStateError(
                f"{provider_id} rejected this key, so nothing was changed: {error}"
            ) from None

    def _write(self, provider_id: str, place: KeyPlace, key: str) -> None:
        table: KeyPath = ("providers", provider_id)
        try:
            if place.way == "settings":
                path, value = self._changed(table, place.position, key)
                self._file.save(path, value)
                return
            owner = self._gateway.providers.key_owner(provider_id)
            CredentialStore(self._gateway.settings.data_dir).save(owner, ApiKey(key))
            if place.way == "move":
                # After the login is stored: a crash between the two leaves the old key in use.
                self._file.save((*table, "api_key"), None)
        except SettingsError as error:
            raise InvalidStateError(str(error)) from None

    def _changed(self, table: KeyPath, position: int, key: str) -> tuple[KeyPath, Any]:
        """Return the setting that has the key at a position, and its new value."""
        settings = self._gateway.settings
        field = list(_slots(settings.providers[table[1]]))[position - 1]
        if field == "api_key":
            return (*table, field), key
        entry = next(each for each in settings.reread().entries if each.path == (*table, "api_keys"))
        keys = list(entry.value)
        if keys != [each.get_secret_value() for each in settings.providers[table[1]].api_keys if each]:
            raise InvalidStateError(f"{entry.place} was changed since the start; restart the gateway first")
        keys[int(field.rpartition(".")[2])] = key
        return (*table, "api_keys"), keys

    async def _apply(self, provider_id: str, place: KeyPlace) -> None:
        if place.way in ("settings", "move"):
            await self._read(provider_id)
        if place.way in ("login", "move"):
            await self._gateway.logins.check()
        await self._gateway.logins.renew(provider_id)

    def reloads(self, provider_id: str) -> bool:
        """Return whether new keys of a provider take effect without a restart."""
        return self._gateway.providers.reloads(provider_id)

    async def reload(self, provider_id: str) -> None:
        """Let a provider use the keys that the settings have now. Raises SettingsError."""
        async with self._changing:
            await self._read(provider_id)
            await self._gateway.logins.renew(provider_id)

    async def _read(self, provider_id: str) -> None:
        gateway = self._gateway
        gateway.settings = await asyncio.to_thread(gateway.settings.with_keys_again, provider_id)

    def _of_login(self, settings: Settings, provider_id: str, owner: str) -> KeyPlace:
        command = f"trunkline auth login {owner}"
        kept = CredentialStore(settings.data_dir).stored().get(owner)
        if kept is not None:
            if self._gateway.providers.configured(owner).oauth is not None:
                reason = "it is a login, not a key"
                return KeyPlace(1, kept.location, "terminal", command, reason)
            return KeyPlace(1, kept.location, "login", command)
        if settings.providers.get(provider_id, ProviderSettings()).credentials:
            command = f"trunkline config set providers.{provider_id}.credentials.NAME"
            return KeyPlace(1, "", "terminal", command, "this provider uses credentials other than a key")
        names = self._gateway.providers.variables(owner)["api_key"]
        variable = next((name for name in names if self._gateway.environ.get(name)), "")
        return KeyPlace(1, variable, "login", command)


def _slots(given: ProviderSettings) -> Iterator[str]:
    """Yield the fields that have the keys of a provider, in the order of their positions, without repeats."""
    seen: set[str] = set()
    fields = [("api_key", given.api_key), *((f"api_keys.{n}", key) for n, key in enumerate(given.api_keys))]
    for field, secret in fields:
        value = "" if secret is None else secret.get_secret_value()
        if value and value not in seen:
            seen.add(value)
            yield field


def _of_settings(provider_id: str, number: int, field: str, entries: Mapping[KeyPath, Entry]) -> KeyPlace:
    path: KeyPath = ("providers", provider_id, field.partition(".")[0])
    entry, command = entries.get(path), command_of(path, "")
    if entry is None:
        return KeyPlace(number, "", "terminal", command, "its place in the settings is not known")
    if not {"environment", "flags"}.isdisjoint(entry.layers):
        reason = f"{entry.place} sets it; change it there, and restart the gateway"
        return KeyPlace(number, entry.place, "terminal", command, reason)
    if entry.written is None:
        return KeyPlace(number, entry.place, "settings", command)
    if field == "api_key" and entry.layers == ("operator",):
        return KeyPlace(
            number,
            f"{entry.place} ({entry.written})",
            "move",
            f"trunkline config unset {entry.key} && trunkline auth login {provider_id}",
        )
    reason = f"{entry.place} refers to a variable or a file; change it there, and restart the gateway"
    return KeyPlace(number, entry.place, "terminal", command, reason)
