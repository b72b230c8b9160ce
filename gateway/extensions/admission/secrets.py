"""Secrets of plugins: those that a manifest names, and the operator gives. Each plugin has its own file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from gateway.api.owned_files import replace_file
from gateway.contract.errors import PluginError
from gateway.extensions.admission.manifest import is_name

FOLDER = "plugin_secrets"


class PluginSecrets:
    """The secrets of all plugins, in files with mode 600 below the data directory."""

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / FOLDER

    def of(self, plugin: str) -> Mapping[str, str]:
        """Return the secrets of a plugin by name, as they are now. Raises PluginError."""
        return _read(self._file(plugin))

    def values(self) -> list[str]:
        """Return the secrets of all plugins, so that they can be masked. Raises PluginError."""
        return [value for file in sorted(self._folder.glob("*.json")) for value in _read(file).values()]

    def put(self, plugin: str, name: str, value: str) -> None:
        """Store a secret; durable afterwards. Raises PluginError."""
        self._write(plugin, {**self.of(plugin), name: value})

    def drop(self, plugin: str, name: str) -> bool:
        """Delete a secret. Return whether there was one. Raises PluginError."""
        found = dict(self.of(plugin))
        if found.pop(name, None) is None:
            return False
        self._write(plugin, found)
        return True

    def forget(self, plugin: str) -> None:
        """Delete all secrets of a plugin."""
        self._file(plugin).unlink(missing_ok=True)

    def _file(self, plugin: str) -> Path:
        if not is_name(plugin):
            raise PluginError(
                f"{plugin!r} is not the name of a plugin; write one like audit-log or @scope/name"
            )
        return self._folder / f"{plugin.replace('/', '+')}.json"

    def _write(self, plugin: str, secrets: Mapping[str, str]) -> None:
        file = self._file(plugin)
        try:
            replace_file(file, msgspec.json.encode(secrets))
        except OSError as error:
            raise PluginError(f"{file} cannot be written: {error.strerror}") from None


def _read(file: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, str])
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise PluginError(f"{file} cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise PluginError(f"{file} cannot be read: {error}; delete it and set the secrets again") from None
