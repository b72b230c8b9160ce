"""The settings: a table of the gateway's, and a JSON file of the same shape that may change while it runs.

Every key may be written ``like_this`` or ``likeThis``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import structlog
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic.alias_generators import to_camel

from gateway import SettingsError

log = structlog.get_logger("trunkline.cli_backends")

FILE = ".mia/mia.json"
"""Where the JSON file lies below the home folder, unless the settings name another."""
READ_SECONDS = 5


class Section(BaseModel):
    """A table of settings, read-only, and closed to keys that it does not know."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        hide_input_in_errors=True,
    )


class BackendSettings(Section):
    """One program. Times are milliseconds."""

    name: str = Field(default="", description="The same as its key; files of others have it")
    enabled: bool = Field(default=True, description="Whether it may be used")
    binary: str | None = Field(default=None, min_length=1, description="Program, by name or absolute path")
    model: str = Field(default="", description="Model, in the program's own words")
    max_concurrency: int = Field(default=3, gt=0, description="Conversations it works for at once")
    timeout_ms: int = Field(default=1_800_000, gt=0, description="Longest dispatch")
    stall_timeout_ms: int = Field(default=120_000, gt=0, description="Longest silence in a dispatch")
    api_key: SecretStr | None = Field(default=None, description="Credential, where it has not logged in")
    api_url: str | None = Field(default=None, description="Address of its model service")
    system_prompt: str = Field(default="", description="Said before every conversation")
    extra_args: tuple[str, ...] = Field(default=(), description="Arguments behind its own")
    env: dict[str, SecretStr] = Field(default={}, description="Environment variables of its own")


class Fallback(Section):
    """When the next backend takes over."""

    enabled: bool = Field(default=True, description="When one is not available")
    on_dispatch_error: bool = Field(default=False, description="Also when one fails")


class Dispatching(Section):
    """How a dispatch goes."""

    fallback: Fallback = Field(default=Fallback(), description="When the next backend takes over")


class CliSettings(Section):
    """All of them."""

    active_plugin: str = Field(default="claude-code", description="Backend that cli/active stands for")
    fallback_plugins: tuple[str, ...] = Field(default=(), description="Backends to try after it, in order")
    plugins: dict[str, BackendSettings] = Field(default={}, description="The backends, by name")
    plugin_dispatch: Dispatching = Field(default=Dispatching(), description="How a dispatch goes")
    working_directory: str | None = Field(
        default=None, description="Folder to work in; workspace in the data folder when not given"
    )
    file: str | None = Field(default=None, description="JSON file that goes before these settings")

    def of(self, name: str) -> BackendSettings:
        """The settings of one backend."""
        return self.plugins.get(name) or BackendSettings()


class SettingsSource:
    """The settings as they are now. The file is read again when it has changed."""

    def __init__(self, table: Mapping[str, Any], home: str) -> None:
        """Raises SettingsError for a table that is wrong. ``home`` is the home folder, or empty."""
        try:
            self._table = CliSettings.model_validate(dict(table))
        except ValidationError as error:
            raise SettingsError(f"plugins.cli_backends: {_readable(error)}") from None
        named = self._table.file
        if named is not None:
            self._file: Path | None = Path(named.replace("~", home, 1) if named.startswith("~/") else named)
        else:
            self._file = Path(home) / FILE if home else None
        self._seen: tuple[int, int] | None = None
        self.now = self._table

    async def refresh(self) -> CliSettings:
        """Look whether the file has changed. If it cannot be read what was known before counts."""
        if self._file is not None:
            try:
                async with asyncio.timeout(READ_SECONDS):
                    await asyncio.to_thread(self._read, self._file)
            except TimeoutError:
                log.warning("a file of settings cannot be read in time", file=str(self._file))
        return self.now

    def _read(self, file: Path) -> None:
        try:
            stat = file.stat()
        except OSError:
            self._seen, self.now = None, self._table
            return
        seen = (stat.st_mtime_ns, stat.st_size)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self.now = self._merged(msgspec.json.decode(file.read_bytes()))
        except (OSError, msgspec.DecodeError, RecursionError) as error:
            log.warning("a file of settings cannot be read", file=str(file), reason=str(error))
        except ValidationError as error:
            log.warning("a file of settings is wrong", file=str(file), reason=_readable(error))

    def _merged(self, content: object) -> CliSettings:
        """The table with what the file says in its place; keys for others' eyes are passed over."""
        given = CliSettings.model_validate(content, extra="ignore")
        said = {name: getattr(given, name) for name in given.model_fields_set if name != "file"}
        if "plugins" in said:
            said["plugins"] = {**self._table.plugins, **given.plugins}
        return self._table.model_copy(update=said)


def _readable(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, e['loc'])) or 'it'}: {e['msg']}" for e in error.errors())
