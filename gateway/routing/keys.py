"""Keys that a login left behind: a file in the data directory that only this user can read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gateway.errors import SettingsError

NAME = "keys.json"


class KeptKeys:
    """The keys in a data directory, by provider."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / NAME

    def read(self) -> Mapping[str, str]:
        """All of them. Raises SettingsError if the file cannot be read."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, str])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise SettingsError(f"the keys in {self._path} cannot be read: {error}") from None

    def keep(self, provider_id: str, key: str) -> Path:
        """Add a key, or replace it. Returns where it is kept."""
        text = msgspec.json.format(msgspec.json.encode({**self.read(), provider_id: key}))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(text + b"\n")
        fresh.replace(self._path)
        return self._path
