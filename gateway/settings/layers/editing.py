"""A settings file that commands and the gateway edit: comments and order stay.

No change leaves wrong settings.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

from gateway.api.owned_files import exists, keep_owner
from gateway.contract.errors import SettingsError, TrunklineError
from gateway.settings.loader import load_settings


class EditedFile:
    """A TOML settings file that keeps its comments and order when a value changes."""

    def __init__(self, path: Path, *, create: bool = True) -> None:
        import tomlkit  # at first use: a gateway seldom edits its settings
        from tomlkit.exceptions import TOMLKitError

        self._toml = tomlkit
        self.path = path
        if path.suffix != ".toml":
            raise SettingsError(f"{path}: only TOML files are edited; name one with --config")
        try:
            self._before = path.read_text(encoding="utf-8-sig") if exists(path) else ""
            self._first = self._before
            self._document = tomlkit.parse(self._before)
        except (OSError, UnicodeDecodeError, TOMLKitError) as error:
            raise SettingsError(f"{path}: cannot be read: {error}") from None
        if create and not exists(path):
            self._write("# Settings of Trunkline; config/example.toml shows every key.\n")
            self._document = tomlkit.parse(self._before)

    def put(
        self,
        section: tuple[str, ...],
        values: Mapping[str, Any],
        check: Callable[[], object] | None = None,
    ) -> None:
        """Set values of a table and write the file. Tables inside are merged; None removes a key.

        Raises SettingsError if the settings would be wrong, or what ``check`` raises; then nothing changes.
        """
        self._merge(section, values)
        before = self._before
        self._write(self._toml.dumps(self._document))
        try:
            (check or partial(load_settings, self.path))()
        except TrunklineError as error:
            self._write(before)
            self._document = self._toml.parse(before)
            if not isinstance(error, SettingsError):
                raise
            # Its line is one of the text that is not there any more.
            name = re.escape(self.path.name)
            raise SettingsError(re.sub(rf"(?m)^(.*?{name}):\d+: ", r"\1: ", str(error))) from None

    @property
    def text(self) -> str:
        """The text of the file as it was read or last written."""
        return self._before

    def changed(self, section: tuple[str, ...], values: Mapping[str, Any]) -> str:
        """Return the text that ``put`` would write."""
        self._merge(section, values)
        text = self._toml.dumps(self._document)
        self._document = self._toml.parse(self._before)
        return text

    def _merge(self, section: tuple[str, ...], values: Mapping[str, Any]) -> None:
        table: Any = self._document
        try:
            for name in section:
                if name not in table:
                    table[name] = self._toml.table(is_super_table=name != section[-1])
                table = table[name]
            _merge(table, values)
        except (TypeError, ValueError) as error:  # TOML has no null, and no numbers of any size
            self._document = self._toml.parse(self._before)
            raise SettingsError(f"{self.path}: a value cannot be written: {error}") from None

    def drop(self, section: tuple[str, str]) -> None:
        """Remove a table and write the file."""
        parent, name = section
        self._document[parent].remove(name)  # type: ignore[union-attr]
        self._write(self._toml.dumps(self._document))

    def change_plugins(self, key: str, *, add: str = "", remove: str = "") -> bool:
        """Add a text to a list of ``[plugins]``, or remove it, and write the file. Return whether it changed.

        Raises SettingsError if the settings would be wrong, and then changes nothing.
        """
        document: Any = self._document
        listed: Any = document.get("plugins", {}).get(key)
        items: list[Any] = [*(listed or ())]
        values: list[str] = [each["name"] if hasattr(each, "keys") else each for each in items]
        if (add and add in values) or (remove and remove not in values):
            return False
        if listed is None:
            self.put(("plugins",), {key: [add]})
            return True
        if add:
            listed.append(add)
        else:
            del listed[values.index(remove)]
        self.put(("plugins",), {})
        return True

    def restore(self) -> None:
        """Write the text that the file had when it was opened."""
        self._write(self._first)

    def _write(self, text: str) -> None:
        """Replace the file. Raises SettingsError if it changed since it was read, or cannot be written."""
        draft = self.path.with_name(f".{self.path.name}.part")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists() and self.path.read_text(encoding="utf-8-sig") != self._before:
                raise SettingsError(f"{self.path}: was changed meanwhile; try again")
            # The file may have secrets, so it keeps its mode.
            mode = stat.S_IMODE(self.path.stat().st_mode) if self.path.exists() else 0o644
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                keep_owner(descriptor, self.path if self.path.exists() else self.path.parent)
                os.fchmod(descriptor, mode)
                file.write(text)
                file.flush()
                os.fsync(descriptor)
            draft.replace(self.path)
        except OSError as error:
            raise SettingsError(f"{self.path}: cannot be written: {error.strerror}") from None
        self._before = text


def _merge(table: Any, values: Mapping[str, Any]) -> None:
    """Merge values into a table of a document, as JSON Merge Patch (RFC 7396) does."""
    for key, value in values.items():
        if value is None:
            table.pop(key, None)
        elif isinstance(value, Mapping) and hasattr(table.get(key), "keys"):
            _merge(table[key], cast("Mapping[str, Any]", value))
        else:
            # A new table has no nulls, either.
            table[key] = merged_values({}, {key: value})[key]


def merged_values(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with changes, as JSON Merge Patch (RFC 7396) does: None removes a key, tables merge."""
    found = dict(values)
    for key, value in changes.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, Mapping):
            inner, old = cast("Mapping[str, Any]", value), found.get(key)
            found[key] = merged_values(
                cast("Mapping[str, Any]", old) if isinstance(old, Mapping) else {}, inner
            )
        else:
            found[key] = value
    return found
