"""The settings: a table of the gateway's settings, and a JSON file of the same shape that is read again on
change.

Every key may be written ``like_this`` or ``likeThis``.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import structlog
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic.alias_generators import to_camel

log = structlog.get_logger("trunkline.cli_backends")

FILE = ".mia/mia.json"
"""The path of the JSON file below the home folder, unless the settings name another one."""
READ_SECONDS = 5


class Section(BaseModel):
    """A read-only table of settings that rejects unknown keys."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        loc_by_alias=False,
        hide_input_in_errors=True,
    )


class BackendSettings(Section):
    """The settings of one program. Times are milliseconds."""

    name: str = Field(default="", description="The same as its key in plugins; optional")
    enabled: bool = Field(default=True, description="Allow the use of this backend")
    binary: str | None = Field(
        default=None,
        min_length=1,
        description="Program, as a name or an absolute path",
    )
    model: str = Field(default="", description="Model id of the program; the program's default if empty")
    max_concurrency: int = Field(default=3, gt=0, description="Limit of concurrent conversations")
    timeout_ms: int = Field(default=1_800_000, gt=0, description="Time limit of a dispatch, in ms")
    stall_timeout_ms: int = Field(default=120_000, gt=0, description="Time limit without output, in ms")
    api_key: SecretStr | None = Field(default=None, description="API key; the program's own login if unset")
    api_url: str | None = Field(default=None, description="URL of the program's model service")
    system_prompt: str = Field(default="", description="System prompt of every conversation")
    extra_args: tuple[str, ...] = Field(default=(), description="Additional command line arguments")
    env: dict[str, SecretStr] = Field(default={}, description="Additional environment variables")


class FallbackSettings(Section):
    """The rules for the next backend."""

    enabled: bool = Field(default=True, description="Use the next backend if one is not available")
    on_dispatch_error: bool = Field(default=False, description="Also use it if a dispatch fails")


class DispatchSettings(Section):
    """The rules for a dispatch."""

    fallback: FallbackSettings = Field(default=FallbackSettings(), description="Rules for the next backend")


class CliSettings(Section):
    """All settings of the plugin."""

    active_plugin: str = Field(default="claude-code", description="Backend behind the model cli/active")
    fallback_plugins: tuple[str, ...] = Field(default=(), description="Backends to try next, in order")
    plugins: dict[str, BackendSettings] = Field(default={}, description="Settings of each backend, by name")
    plugin_dispatch: DispatchSettings = Field(default=DispatchSettings(), description="Rules for a dispatch")
    working_directory: str | None = Field(
        default=None, description="Folder for the programs; workspace in the data directory if unset"
    )
    file: str | None = Field(default=None, description="JSON file that overrides these settings")

    def of(self, name: str) -> BackendSettings:
        """Return the settings of a backend."""
        return self.plugins.get(name) or BackendSettings()


class SettingsSource:
    """The current settings. The file is read again when it has changed."""

    def __init__(self, table: CliSettings, home: str) -> None:
        """``home`` is the home folder, or empty."""
        self._table = table
        path = self._table.file
        if path is not None:
            self._file: Path | None = Path(path.replace("~", home, 1) if path.startswith("~/") else path)
        else:
            self._file = Path(home) / FILE if home else None
        self._seen: tuple[int, int] | None = None
        self.current = self._table

    async def refresh(self) -> CliSettings:
        """Return the settings after a look at the file. If it cannot be read, they stay as they are."""
        if self._file is not None:
            try:
                async with asyncio.timeout(READ_SECONDS):
                    await asyncio.to_thread(self._read, self._file)
            except TimeoutError:
                log.warning("settings file not read in time", file=str(self._file))
        return self.current

    def _read(self, file: Path) -> None:
        try:
            stat = file.stat()
        except OSError:
            self._seen, self.current = None, self._table
            return
        seen = (stat.st_mtime_ns, stat.st_size)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self.current = self._merged(msgspec.json.decode(file.read_bytes()))
        except (OSError, msgspec.DecodeError, RecursionError) as error:
            log.warning("settings file unreadable", file=str(file), reason=str(error))
        except ValidationError as error:
            log.warning("settings file invalid", file=str(file), reason=_describe(error))

    def _merged(self, content: object) -> CliSettings:
        """Return the table, overridden by the file. Unknown keys of the file are ignored."""
        given = CliSettings.model_validate(content, extra="ignore")
        changed = {name: getattr(given, name) for name in given.model_fields_set if name != "file"}
        if "plugins" in changed:
            changed["plugins"] = {**self._table.plugins, **given.plugins}
        return self._table.model_copy(update=changed)


def _describe(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, e['loc'])) or 'the table'}: {e['msg']}" for e in error.errors())
