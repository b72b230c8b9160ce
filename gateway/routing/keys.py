"""Credentials that a login left behind: in a file for this user alone, or in the system's keyring."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

from gateway.errors import SettingsError
from gateway.provider import ApiKey, Credential, OAuth
from gateway.routing.keyring import Keyring, system_keyring

log = structlog.get_logger("trunkline.keys")

NAME = "keys.json"
OTHERS = 0o077
"""What of a file's mode is for others than its owner."""


class InKeyring(Struct, frozen=True, tag_field="type", tag="keyring"):
    """Stands in the file for a credential that is in the keyring.

    ``at`` is when it was put there, in seconds since the epoch, so that the file tells when it is replaced.
    """

    at: float = 0.0


_Entry = ApiKey | OAuth | InKeyring | str
_decode = msgspec.json.Decoder(dict[str, _Entry]).decode
_decode_credential = msgspec.json.Decoder(ApiKey | OAuth).decode


class Place(Struct, frozen=True):
    """Where a credential is kept, and what it is; None if only its keyring can tell."""

    name: str
    credential: Credential | None


class KeptKeys:
    """The credentials in a data directory, by provider.

    The file lists all of them; of one that is in the keyring it only says so. ``keyring`` is for tests.
    """

    def __init__(self, data_dir: Path, keyring: Keyring | None = None) -> None:
        self._path = data_dir / NAME
        self._given = keyring
        self._known: dict[str, Credential] = {}
        self._stamp: tuple[int, ...] | None = None
        self._seen: Mapping[str, _Entry] = {}

    def places(self) -> Mapping[str, Place]:
        """Where each credential is kept; a keyring is not asked. Raises SettingsError if nobody can tell."""
        return {name: self._place(entry) for name, entry in self._entries().items()}

    def get(self, provider_id: str) -> Credential | None:
        """The credential of a provider. Raises SettingsError if it cannot be read."""
        entry = self._entries().get(provider_id)
        if isinstance(entry, InKeyring):
            return self._known.get(provider_id) or self._from_keyring(provider_id)
        return ApiKey(entry) if isinstance(entry, str) else entry

    def again(self, provider_id: str) -> Credential | None:
        """The credential of a provider as it is by now, also if that is in the keyring."""
        self._known.pop(provider_id, None)
        return self.get(provider_id)

    def load(self) -> None:
        """Fetch what is in the keyring, which may take its time, so that ``get`` need not."""
        self._stamp = self._stamped()
        self._seen = entries = self._entries()
        self._fetch(entries)

    def changed(self) -> frozenset[str]:
        """Whose credentials another process kept or removed since ``load`` and the last look.

        As long as the file is the same, it is not read. Raises SettingsError, once, if it cannot be.
        """
        stamp = self._stamped()
        if stamp == self._stamp:
            return frozenset()
        self._stamp = stamp
        before, self._seen = self._seen, self._entries()
        names = {*before, *self._seen}
        changed = frozenset(name for name in names if before.get(name) != self._seen.get(name))
        for name in changed:
            self._known.pop(name, None)
        self._fetch({name: self._seen[name] for name in changed & self._seen.keys()})
        return changed

    def keep(self, provider_id: str, credential: Credential, *, in_file: bool = False) -> str:
        """Add a credential, or replace it: in the keyring if there is one. Returns where it is kept."""
        keyring = None if in_file else self._keyring()
        with self._changing() as entries:
            if keyring is None:
                self._take_out(provider_id, entries)
                self._seen = {**self._seen, provider_id: credential}
                entries[provider_id] = credential
                return str(self._path)
            keyring.put(provider_id, msgspec.json.encode(credential).decode())
            entries[provider_id] = entry = InKeyring(time.time())
            self._seen = {**self._seen, provider_id: entry}
            self._known[provider_id] = credential
            return keyring.name

    def renew(self, provider_id: str, credential: OAuth) -> None:
        """Put a credential in the place of an older one, wherever that is kept."""
        self.keep(
            provider_id, credential, in_file=not isinstance(self._entries().get(provider_id), InKeyring)
        )

    def forget(self, provider_id: str) -> bool:
        """Remove a credential. Returns whether there was one."""
        with self._changing() as entries:
            self._take_out(provider_id, entries)
            return entries.pop(provider_id, None) is not None

    def _place(self, entry: _Entry) -> Place:
        if isinstance(entry, InKeyring):
            return Place("the keyring", None)
        return Place(str(self._path), ApiKey(entry) if isinstance(entry, str) else entry)

    def _take_out(self, provider_id: str, entries: Mapping[str, _Entry]) -> None:
        self._known.pop(provider_id, None)
        keyring = self._keyring() if isinstance(entries.get(provider_id), InKeyring) else None
        if keyring is not None:
            keyring.drop(provider_id)

    def _fetch(self, entries: Mapping[str, _Entry]) -> None:
        for provider_id, entry in entries.items():
            if isinstance(entry, InKeyring):
                try:
                    self._from_keyring(provider_id)
                except SettingsError as error:
                    log.error("a credential cannot be read", provider=provider_id, reason=str(error))

    def _stamped(self) -> tuple[int, ...] | None:
        """What tells one state of the file from another; None if there is no file."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _from_keyring(self, provider_id: str) -> Credential:
        keyring = self._keyring()
        if keyring is None:
            raise SettingsError(
                f"the credential of {provider_id} is kept in a keyring, and there is none here; "
                f"`trunkline auth login {provider_id} --file` keeps one in {self._path.parent}"
            )
        text = keyring.find(provider_id)
        try:
            credential = _decode_credential(text or "")
        except msgspec.DecodeError:
            raise SettingsError(
                f"{keyring.name} has no credential of {provider_id}; "
                f"`trunkline auth login {provider_id}` puts it there"
            ) from None
        self._known[provider_id] = credential
        return credential

    def _keyring(self) -> Keyring | None:
        if self._given is None:
            self._given = system_keyring(self._path.parent)
        return self._given

    def _entries(self) -> dict[str, _Entry]:
        try:
            with self._path.open("rb") as file:
                _guard(file.fileno(), self._path)
                return _decode(file.read())
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not what a login writes"
            raise SettingsError(
                f"the keys in {self._path} cannot be read: {why}; correct it, or remove it and sign in again"
            ) from None

    @contextmanager
    def _changing(self) -> Generator[dict[str, _Entry]]:
        """The entries, to be changed and written, by one process at a time."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._path.with_suffix(".lock"), os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            entries = self._entries()
            before = dict(entries)
            yield entries
            if entries != before:
                self._write(entries)
        finally:
            os.close(lock)

    def _write(self, entries: Mapping[str, _Entry]) -> None:
        text = msgspec.json.format(msgspec.json.encode(entries))
        fresh = self._path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(text + b"\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)


def _guard(descriptor: int, path: Path) -> None:
    """Take away what others may do with the file. Raises SettingsError if that cannot be done."""
    mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    if not mode & OTHERS:
        return
    try:
        os.fchmod(descriptor, mode & ~OTHERS)
    except OSError as error:
        raise SettingsError(
            f"others may read the keys in {path} (mode {mode:o}), and that cannot be changed: "
            f"{error.strerror}; `chmod 600 {path}` as its owner"
        ) from None
    log.warning("others could read the keys; the file is this user's alone again", file=str(path))
