"""Logging: one line per event, on standard error as text or JSON, and as JSON in files.

``trunkline logs`` reads the files.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
from collections.abc import MutableMapping
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

import structlog

from gateway.settings import LogSettings

_MAX_LENGTH = 8 * 1024
"""Characters of one value of a log line."""
_FOLDER = "logs"
_FILE = "trunkline.jsonl"
_FILES = 5
"""Number of log files, including the current one."""

Event = MutableMapping[str, Any]


def log_files(data_dir: Path) -> list[Path]:
    """Return the paths of the log files, oldest first; any of them may be missing."""
    path = data_dir / _FOLDER / _FILE
    return [*(path.with_name(f"{_FILE}.{number}") for number in range(_FILES - 1, 0, -1)), path]


def set_up_logs(settings: LogSettings, data_dir: Path | None = None) -> None:
    """Configure structlog and the logging module to write to standard error.

    With a data directory, and unless ``log.file`` is off, all lines are also written to files there, as JSON.
    """
    level = getattr(logging, settings.level.upper())
    console = settings.format == "console" or (settings.format == "auto" and sys.stderr.isatty())
    log_file = _LogFile(log_files(data_dir)[-1], settings) if data_dir is not None and settings.file else None
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            _truncate,
            *([log_file.write_event] if log_file is not None else []),
            structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=_StandardError,
        cache_logger_on_first_use=True,
    )
    stream = logging.StreamHandler(sys.stderr)
    stream.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    foreign: list[logging.Handler] = [stream]
    if log_file is not None:
        log_file.setFormatter(_AsJson())
        foreign.append(log_file)
    logging.basicConfig(level=max(level, logging.WARNING), handlers=foreign)


class _StandardError:
    """Logger that prints lines and ignores a closed terminal or pipe, so that logging never raises."""

    def __init__(self, *_args: Any) -> None:
        self._file = sys.stderr

    def msg(self, message: str) -> None:
        """Print a line."""
        with contextlib.suppress(OSError, ValueError):
            self._file.write(f"{message}\n")
            self._file.flush()

    debug = info = warning = warn = error = critical = exception = fatal = log = msg


class _LogFile(RotatingFileHandler):
    """Rotating log file that only the gateway's user can read.

    If the directory is not writable or the disk is full, lines are lost and the gateway goes on.
    """

    def __init__(self, path: Path, settings: LogSettings) -> None:
        super().__init__(
            path, maxBytes=settings.file_bytes, backupCount=_FILES - 1, encoding="utf-8", delay=True
        )
        self._render = structlog.processors.JSONRenderer()

    def write_event(self, logger: Any, method: str, event: Event) -> Event:
        """Write an event to the file and return it, as a structlog processor."""
        line = self._render(logger, method, dict(event))
        self.handle(logging.makeLogRecord({"msg": line, "ready": True}))
        return event

    def _open(self) -> io.TextIOWrapper:
        # Opened with its mode: a umask may let other users read, and log lines name people and chats.
        path = Path(self.baseFilename)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return os.fdopen(descriptor, "a", encoding="utf-8")

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop the line: the default handler would print a traceback for each one."""


class _AsJson(logging.Formatter):
    """Formats records of other libraries like the gateway's own lines."""

    def format(self, record: logging.LogRecord) -> str:
        if hasattr(record, "ready"):
            return record.getMessage()
        event: Event = {
            "event": record.getMessage(),
            "logger": record.name,
            "level": record.levelname.lower(),
        }
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        stamped = structlog.processors.TimeStamper(fmt="iso", utc=True)(None, "", event)
        return str(structlog.processors.JSONRenderer()(None, "", _truncate(None, "", stamped)))


def _truncate(_logger: Any, _method: str, event: Event) -> Event:
    """Truncate values that are too long for a log line."""
    for key, value in event.items():
        if isinstance(value, str) and len(value) > _MAX_LENGTH:
            event[key] = f"{value[:_MAX_LENGTH]}… ({len(value)} characters)"
    return event
