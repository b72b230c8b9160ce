"""Credentials saved by ``trunkline auth login``: in a file with mode 600, or in the system keyring."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, assert_never

import msgspec
import structlog
from msgspec import Struct

from gateway.api.owned_files import keep_owner, replace_file
from gateway.contract.errors import SettingsError
from gateway.contract.provider import ApiKey, Credential, OAuth

MIN_PRIORITY = 1
"""Lowest accepted priority of a keyring backend; lower ones store nothing, or store it unencrypted."""


class Keyring:
    """Texts by name in a ``backend`` of the keyring library, under one service name."""

    def __init__(self, backend: Any, service: str) -> None:
        self._backend = backend
        self._service = service
        self._failures: Any = import_module("keyring.errors")

    @property
    def name(self) -> str:
        """Display name."""
        return f"the keyring ({self._backend.name})"

    def get(self, name: str) -> str | None:
        """Return a text, or None. All methods here raise SettingsError if the keyring does not answer."""
        return self._call("get_password", name)

    def set(self, name: str, text: str) -> None:
        """Store a text."""
        self._call("set_password", name, text)

    def delete(self, name: str) -> None:
        """Delete a text if it exists."""
        if self._call("get_password", name) is not None:
            self._call("delete_password", name)

    def _call(self, method: str, *given: str) -> Any:
        try:
            return getattr(self._backend, method)(self._service, *given)
        except (self._failures.KeyringError, OSError) as error:
            raise SettingsError(
                f"{self.name} cannot be used: {type(error).__name__}; unlock it, or use --file"
            ) from None


def system_keyring(data_dir: Path) -> Keyring | None:
    """Return the keyring with one service per data directory; None without a backend that encrypts."""
    try:
        # An optional dependency that is slow to import, so it is loaded only when a credential is in it.
        backend = import_module("keyring").get_keyring()
    except ImportError:
        return None
    return Keyring(backend, f"trunkline {data_dir.resolve()}") if backend.priority >= MIN_PRIORITY else None


log = structlog.get_logger("trunkline.keys")

FILE_NAME = "keys.json"
OTHERS_MODE = 0o077
"""Mode bits that grant access to other users."""


class KeyringReference(Struct, frozen=True, tag_field="type", tag="keyring"):
    """The entry in the file for a credential that is in the keyring.

    ``at`` is the time of saving in seconds since the epoch, so that the file changes when the credential
    does.
    """

    at: float = 0.0


_Entry = ApiKey | OAuth | KeyringReference | str
_decode = msgspec.json.Decoder(dict[str, _Entry]).decode
_decode_credential = msgspec.json.Decoder(ApiKey | OAuth).decode


class StoredCredential(Struct, frozen=True):
    """Location and value of a saved credential; the value is None if it is in the keyring."""

    location: str
    credential: Credential | None


class CredentialStore:
    """The saved credentials of a data directory, by provider.

    The file lists all of them; for one in the keyring it holds a reference. ``keyring`` is for tests.
    """

    def __init__(self, data_dir: Path, keyring: Keyring | None = None) -> None:
        self._path = data_dir / FILE_NAME
        self._keyring_backend = keyring
        self._fetched: dict[str, Credential] = {}
        self._state: tuple[int, ...] | None = None
        self._seen: Mapping[str, _Entry] = {}

    def stored(self) -> Mapping[str, StoredCredential]:
        """Return the location of each credential without access to the keyring. Raises SettingsError."""
        return {name: self._stored(entry) for name, entry in self._entries().items()}

    def get(self, provider_id: str) -> Credential | None:
        """Return the credential of a provider, or None. Raises SettingsError if it cannot be read."""
        entry = self._entries().get(provider_id)
        if isinstance(entry, KeyringReference):
            return self._fetched.get(provider_id) or self._fetch(provider_id)
        return ApiKey(entry) if isinstance(entry, str) else entry

    def reload(self, provider_id: str) -> Credential | None:
        """Read the credential of a provider again, also from the keyring."""
        self._fetched.pop(provider_id, None)
        return self.get(provider_id)

    def load(self) -> None:
        """Read all credentials. A keyring may be slow; after this, ``get`` need not wait for it."""
        self._state = self._file_state()
        self._seen = entries = self._entries()
        self._fetch_all(entries)

    def secrets(self) -> list[str]:
        """Return the keys and tokens known since ``load``, so that they can be masked."""
        found: list[str] = []
        for entry in (*self._seen.values(), *self._fetched.values()):
            match entry:
                case str():
                    found.append(entry)
                case ApiKey():
                    found.append(entry.key)
                case OAuth():
                    found += (entry.access, entry.refresh)
                case KeyringReference():
                    pass  # the secret itself is in ``_fetched``
                case _:
                    assert_never(entry)
        return [secret for secret in found if secret]

    def poll_changes(self) -> frozenset[str]:
        """Return the providers with a credential that another process changed since ``load`` or the last
        call.

        An unchanged file is not read. Raises SettingsError, once per change, if the file cannot be read.
        """
        stamp = self._file_state()
        if stamp == self._state:
            return frozenset()
        self._state = stamp
        before, self._seen = self._seen, self._entries()
        names = {*before, *self._seen}
        changed = frozenset(name for name in names if before.get(name) != self._seen.get(name))
        for name in changed:
            self._fetched.pop(name, None)
        self._fetch_all({name: self._seen[name] for name in changed & self._seen.keys()})
        return changed

    def save(self, provider_id: str, credential: Credential, *, in_file: bool = False) -> str:
        """Add or replace a credential, in the keyring if there is one. Return its location."""
        keyring = None if in_file else self._keyring()
        with self._locked_entries() as entries:
            if keyring is None:
                self._delete_fetched(provider_id, entries)
                self._seen = {**self._seen, provider_id: credential}
                entries[provider_id] = credential
                return str(self._path)
            keyring.set(provider_id, msgspec.json.encode(credential).decode())
            entries[provider_id] = entry = KeyringReference(time.time())
            self._seen = {**self._seen, provider_id: entry}
            self._fetched[provider_id] = credential
            return keyring.name

    def replace(self, provider_id: str, credential: OAuth) -> None:
        """Replace a credential at its present location."""
        self.save(
            provider_id,
            credential,
            in_file=not isinstance(self._entries().get(provider_id), KeyringReference),
        )

    def delete(self, provider_id: str) -> bool:
        """Delete a credential. Return whether it existed."""
        with self._locked_entries() as entries:
            self._delete_fetched(provider_id, entries)
            return entries.pop(provider_id, None) is not None

    def _stored(self, entry: _Entry) -> StoredCredential:
        if isinstance(entry, KeyringReference):
            return StoredCredential("the keyring", None)
        return StoredCredential(str(self._path), ApiKey(entry) if isinstance(entry, str) else entry)

    def _delete_fetched(self, provider_id: str, entries: Mapping[str, _Entry]) -> None:
        self._fetched.pop(provider_id, None)
        keyring = self._keyring() if isinstance(entries.get(provider_id), KeyringReference) else None
        if keyring is not None:
            keyring.delete(provider_id)

    def _fetch_all(self, entries: Mapping[str, _Entry]) -> None:
        for provider_id, entry in entries.items():
            if isinstance(entry, KeyringReference):
                try:
                    self._fetch(provider_id)
                except SettingsError as error:
                    log.error("cannot read a credential", provider=provider_id, reason=str(error))

    def _file_state(self) -> tuple[int, ...] | None:
        """Return a value that changes with the file; None without a file."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _fetch(self, provider_id: str) -> Credential:
        keyring = self._keyring()
        if keyring is None:
            raise SettingsError(
                f"the credential of {provider_id} is in a keyring, but no keyring is available; "
                f"`trunkline auth login {provider_id} --file` saves one in {self._path.parent}"
            )
        text = keyring.get(provider_id)
        try:
            credential = _decode_credential(text or "")
        except msgspec.DecodeError:
            raise SettingsError(
                f"{keyring.name} has no credential of {provider_id}; "
                f"`trunkline auth login {provider_id}` saves one"
            ) from None
        self._fetched[provider_id] = credential
        return credential

    def _keyring(self) -> Keyring | None:
        if self._keyring_backend is None:
            self._keyring_backend = system_keyring(self._path.parent)
        return self._keyring_backend

    def _entries(self) -> dict[str, _Entry]:
        try:
            with self._path.open("rb") as file:
                _restrict_mode(file.fileno(), self._path)
                return _decode(file.read())
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "unknown format"
            raise SettingsError(
                f"cannot read the keys in {self._path}: {why}; correct it, or remove it and sign in again"
            ) from None

    @contextmanager
    def _locked_entries(self) -> Generator[dict[str, _Entry]]:
        """Yield the entries under an inter-process lock, and write them if they changed."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self._path.with_suffix(".lock"), os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            keep_owner(lock, self._path.parent)
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
        replace_file(self._path, text + b"\n")


def _restrict_mode(descriptor: int, path: Path) -> None:
    """Remove the access of other users. Raises SettingsError if that fails."""
    mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    if not mode & OTHERS_MODE:
        return
    try:
        os.fchmod(descriptor, mode & ~OTHERS_MODE)
    except OSError as error:
        raise SettingsError(
            f"other users can read the keys in {path} (mode {mode:o}), and the mode cannot be changed: "
            f"{error.strerror}; run `chmod 600 {path}` as its owner"
        ) from None
    log.warning("removed the access of other users to the keys", file=str(path))
