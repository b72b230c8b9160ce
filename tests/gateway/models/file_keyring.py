"""A keyring that keeps its secrets in a file: a real backend of the library, chosen by its own variable.

``PYTHON_KEYRING_BACKEND=tests.gateway.models.file_keyring.FileKeyring``; ``KEYRING_FILE`` names the file.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from keyring.backend import KeyringBackend
from keyring.errors import KeyringLocked, PasswordDeleteError


class FileKeyring(KeyringBackend):
    """Texts by service and name. A file that is a directory is a keyring that is locked."""

    priority = 9
    name = "file"

    def __init__(self, path: Path | None = None) -> None:
        super().__init__()
        self._path = path or Path(os.environ["KEYRING_FILE"])

    def get_password(self, service: str, username: str) -> str | None:
        return self._read().get(f"{service}/{username}")

    def set_password(self, service: str, username: str, password: str) -> None:
        self._path.write_text(json.dumps({**self._read(), f"{service}/{username}": password}))

    def delete_password(self, service: str, username: str) -> None:
        held = self._read()
        if held.pop(f"{service}/{username}", None) is None:
            raise PasswordDeleteError("no such password")
        self._path.write_text(json.dumps(held))

    def _read(self) -> dict[str, str]:
        if self._path.is_dir():
            raise KeyringLocked("locked")
        return json.loads(self._path.read_text()) if self._path.exists() else {}
