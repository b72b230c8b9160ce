"""The file of an organization: fetched over https, with a copy that is used when its host is down.

The copy keeps the start independent of the network: a gateway starts with the copy, and refreshes it in the
background for the next start. Only a file without mistakes replaces the copy.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from pydantic import IPvAnyNetwork

from gateway.api.owned_files import replace_file
from gateway.contract.errors import AddressRefusedError, SettingsError, TrunklineError
from gateway.settings.documents import SUFFIXES, parse_document
from gateway.settings.entries import Entry
from gateway.settings.layers.files import MOST_BYTES
from gateway.settings.layers.rules import check_size

WELL_KNOWN = "/.well-known/trunkline.toml"
"""Path of the file if the address names only a host."""

SECONDS = 5.0
"""Time limit of a fetch; without a copy a start waits so long."""

_JSON = ("application/json", "application/json5", "application/jsonc")
_TYPES = (*_JSON, "application/toml", "application/octet-stream", "application/x-toml", "text/plain")
_UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))

Check = Callable[["Copy"], list[Entry]]
"""Returns the entries of a fetched file. Raises SettingsError with every mistake."""


class Copy(Struct, frozen=True):
    """A fetched settings file. ``fetched_at`` is in Unix seconds."""

    url: str
    fetched_at: float
    suffix: str
    text: str

    def entries(self) -> list[Entry]:
        """Parse the text; a place is the address with a line. Raises SettingsError."""
        found = parse_document(self.text, self.suffix, self.url, Path("/nonexistent"))
        check_size(found, self.url)
        return [msgspec.structs.replace(entry, layers=("organization",)) for entry in found]

    @property
    def age(self) -> str:
        """The time since the fetch in words, such as ``3 hours``."""
        seconds = max(1, int(time.time() - self.fetched_at))
        size, unit = next((size, unit) for size, unit in _UNITS if seconds >= size)
        count = seconds // size
        return f"{count} {unit}{'' if count == 1 else 's'}"


class Found(Struct, frozen=True):
    """A file with its entries; ``warning`` if it could not be copied."""

    copy: Copy
    entries: list[Entry]
    warning: str = ""


class RemoteFile(Struct, frozen=True):
    """The address of an organization's file, the folder of its copy, and private networks it may be in."""

    url: str
    folder: Path
    allow: tuple[IPvAnyNetwork, ...] = ()

    @property
    def address(self) -> str:
        """The address with the path of the file."""
        parts = urlsplit(self.url)
        return parts._replace(path=WELL_KNOWN).geturl() if parts.path in ("", "/") else self.url

    def copied(self, check: Check) -> Found | None:
        """Return the copy; None without one, or if it is damaged or not the user's own."""
        try:
            copy = msgspec.json.decode(_read_own(self._file), type=Copy)
            if copy.url == self.address:
                return Found(copy, check(copy))
        except (OSError, msgspec.MsgspecError, SettingsError):
            pass
        return None

    def fetch(self, check: Check) -> Found:
        """Fetch the file and keep a copy; called without an event loop. See ``refresh``."""
        return asyncio.run(self.refresh(check))

    async def refresh(self, check: Check) -> Found:
        """Fetch the file and keep a copy of it.

        Raises SettingsError if it cannot be fetched or has mistakes; then the earlier copy remains.
        """
        # Imported here: the HTTP client takes 0.1 s, and most settings have no organization.
        from gateway.fetching import Reach, fetch

        url = self.address
        reach = Reach(self.allow, MOST_BYTES, SECONDS, https_only=True)
        try:
            answer = await fetch(url, reach)
        except AddressRefusedError as error:
            advice = "networks of an organization can be listed in fetch.allow"
            raise SettingsError(f"{url}: cannot be fetched: {error}; {advice}") from None
        except TrunklineError as error:
            raise SettingsError(f"{url}: cannot be fetched: {error}") from None
        if answer.mime_type not in _TYPES:
            raise SettingsError(f"{url}: is {answer.mime_type}, not a settings file in TOML or JSON")
        try:
            text = answer.data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise SettingsError(f"{url}: is not UTF-8 text (byte {error.start})") from None
        suffix = Path(urlsplit(url).path).suffix
        if suffix not in SUFFIXES:
            suffix = ".json" if answer.mime_type in _JSON else ".toml"
        return self.keep(Copy(url, time.time(), suffix, text), check)

    def keep(self, copy: Copy, check: Check) -> Found:
        """Check a file and keep a copy of it. Raises SettingsError; then the earlier copy remains."""
        return Found(copy, check(copy), self._keep(copy))

    @property
    def _file(self) -> Path:
        name = hashlib.sha256(self.address.encode()).hexdigest()[:32]
        return self.folder / f"organization-{name}.json"

    def _keep(self, copy: Copy) -> str:
        """Write the copy so that a crash leaves the old or the new one. Return a warning if that fails."""
        try:
            replace_file(self._file, msgspec.json.encode(copy))
        except OSError as error:
            return f"{copy.url}: cannot be copied to {self._file}: {error.strerror}"
        return ""


def _read_own(file: Path) -> bytes:
    """Read a file that only the user can have written. Raises OSError."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as opened:
        found = os.fstat(opened.fileno())
        writable = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if found.st_uid != os.geteuid() or writable or not stat.S_ISREG(found.st_mode):
            raise PermissionError(f"{file} is not the user's own")
        return opened.read(4 * MOST_BYTES)
