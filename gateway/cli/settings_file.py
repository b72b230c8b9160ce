"""A settings file that commands edit: comments and order stay, and no change leaves wrong settings."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from gateway.contract.errors import SettingsError
from gateway.settings import load_settings


class SettingsFile:
    """A TOML settings file that keeps its comments and order when a value changes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.suffix != ".toml":
            raise SettingsError(f"{path}: commands edit TOML files only; name one with --config")
        try:
            self._before = path.read_text(encoding="utf-8") if path.exists() else ""
            self._document = tomlkit.parse(self._before)
        except (OSError, UnicodeDecodeError, TOMLKitError) as error:
            raise SettingsError(f"{path}: cannot be read: {error}") from None
        if not path.exists():
            self._write("# Settings of Trunkline; config/example.toml shows every key.\n")
            self._document = tomlkit.parse(self._before)

    def put(self, section: tuple[str, ...], values: Mapping[str, Any]) -> None:
        """Set values of a table and write the file. Raises SettingsError if one is wrong."""
        table: Any = self._document
        for name in section:
            if name not in table:
                table[name] = tomlkit.table(is_super_table=name != section[-1])
            table = table[name]
        for key, value in values.items():
            table[key] = value
        before = self._before
        self._write(tomlkit.dumps(self._document))
        try:
            load_settings(self.path)
        except SettingsError:
            self._write(before)
            self._document = tomlkit.parse(before)
            raise

    def drop(self, section: tuple[str, str]) -> None:
        """Remove a table and write the file."""
        parent, name = section
        self._document[parent].remove(name)  # type: ignore[union-attr]
        self._write(tomlkit.dumps(self._document))

    def change_list(self, section: tuple[str, ...], key: str, *, add: str = "", remove: str = "") -> bool:
        """Add a text to a list, or remove it, and write the file. Return whether the list changed.

        Raises SettingsError if the settings would be wrong, and then changes nothing.
        """
        table: Any = self._document
        for name in section:
            table = table.get(name, {})
        listed: Any = table.get(key)
        items: list[Any] = [*(listed or ())]
        values: list[str] = [each["name"] if hasattr(each, "keys") else each for each in items]
        if (add and add in values) or (remove and remove not in values):
            return False
        if listed is None:
            self.put(section, {key: [add]})
            return True
        if add:
            listed.append(add)
        else:
            del listed[values.index(remove)]
        self.put(section, {})
        return True

    def _write(self, text: str) -> None:
        draft = self.path.with_name(f".{self.path.name}.part")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # The file may have secrets, so it keeps its mode.
            mode = stat.S_IMODE(self.path.stat().st_mode) if self.path.exists() else 0o644
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                os.fchmod(descriptor, mode)
                file.write(text)
                file.flush()
                os.fsync(descriptor)
            draft.replace(self.path)
        except OSError as error:
            raise SettingsError(f"{self.path}: cannot be written: {error.strerror}") from None
        self._before = text
