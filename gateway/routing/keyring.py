"""The keyring of the operating system, by the extra ``keyring``, where a backend that encrypts is there."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from gateway.errors import SettingsError

LEAST_PRIORITY = 1
"""The library's own rank of its backends; those that keep nothing, or keep it in the clear, are below."""


class Keyring:
    """Texts by name, kept by ``backend``, one of the library's, under the name of a service."""

    def __init__(self, backend: Any, service: str) -> None:
        self._backend = backend
        self._service = service
        self._failures: Any = import_module("keyring.errors")

    @property
    def name(self) -> str:
        """What it is called."""
        return f"the keyring ({self._backend.name})"

    def find(self, name: str) -> str | None:
        """A text, or None. Raises SettingsError if the keyring does not answer, as the others do."""
        return self._asked("get_password", name)

    def put(self, name: str, text: str) -> None:
        """Keep a text."""
        self._asked("set_password", name, text)

    def drop(self, name: str) -> None:
        """Remove a text; one that is not there is no matter."""
        if self._asked("get_password", name) is not None:
            self._asked("delete_password", name)

    def _asked(self, method: str, *given: str) -> Any:
        try:
            return getattr(self._backend, method)(self._service, *given)
        except (self._failures.KeyringError, OSError) as error:
            raise SettingsError(
                f"{self.name} cannot be used: {type(error).__name__}; unlock it, or use --file"
            ) from None


def system_keyring(data_dir: Path) -> Keyring | None:
    """The keyring, with a service for each data directory; None if there is none that is safe."""
    try:
        # An extra, and slow to load: only who keeps something in it needs it.
        backend = import_module("keyring").get_keyring()
    except ImportError:
        return None
    return Keyring(backend, f"trunkline {data_dir.resolve()}") if backend.priority >= LEAST_PRIORITY else None
