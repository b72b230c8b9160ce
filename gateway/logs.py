"""Logging: one line per event, on standard error as text or JSON, and as JSON in files.

``trunkline logs`` reads the files.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
from collections.abc import Callable, MutableMapping
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

import msgspec
import structlog

from gateway.settings import LogSettings

log = structlog.get_logger("trunkline.logs")

_MAX_LENGTH = 8 * 1024
"""Characters of one value of a log line."""
_FILE = "trunkline.jsonl"
_FILES = 5
"""Number of log files, including the current one."""

Event = MutableMapping[str, Any]
Render = Callable[[Any, str, Event], str]


def log_files(folder: Path) -> list[Path]:
    """Return the paths of the log files in a folder, oldest first; any of them may be missing."""
    path = folder / _FILE
    return [*(path.with_name(f"{_FILE}.{number}") for number in range(_FILES - 1, 0, -1)), path]


def set_up_logs(settings: LogSettings, folder: Path | None = None, node: str | None = None) -> None:
    """Configure structlog and the logging module to write to standard error.

    With a folder, and unless ``log.file`` is off, all lines are also written to files there, as JSON. Each
    line has the name of the ``node``, if this process is one of a cluster.
    """

    def add_node(_logger: Any, _method: str, event: Event) -> Event:
        event.setdefault("node", node)
        return event

    level = getattr(logging, settings.level.upper())
    console = settings.format == "console" or (settings.format == "auto" and sys.stderr.isatty())
    log_file = None
    if folder is not None and settings.file:
        log_file = _LogFile(log_files(folder)[-1], settings)
        log_file.setFormatter(_JsonFormatter(node))
    structlog.configure(
        processors=[
            *([] if node is None else [add_node]),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            _truncate,
            _Output(log_file, structlog.dev.ConsoleRenderer() if console else None),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=_StandardError,
        cache_logger_on_first_use=True,
    )
    stream = logging.StreamHandler(sys.stderr)
    stream.setFormatter(_TextFormatter("%(name)s: %(message)s") if console else _JsonFormatter(node))
    foreign: list[logging.Handler] = [stream]
    if log_file is not None:
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


class _TextFormatter(logging.Formatter):
    """Formatter of records of other libraries for a terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        """Return the lines of an exception."""
        return printable_lines(super().formatException(ei))


class _JsonFormatter(logging.Formatter):
    """Formatter that gives records of other libraries the form of the gateway's own lines."""

    def __init__(self, node: str | None) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as JSON."""
        event: Event = {
            "event": record.getMessage(),
            "logger": record.name,
            "level": record.levelname.lower(),
        }
        if self._node is not None:
            event["node"] = self._node
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        stamped = structlog.processors.TimeStamper(fmt="iso", utc=True)(None, "", event)
        return _to_json(_truncate(None, "", stamped))


class _Output:
    """Last structlog processor: writes an event to the log file, and returns its line for standard error."""

    def __init__(self, log_file: _LogFile | None, console: Render | None) -> None:
        self._log_file = log_file
        self._console = console

    def __call__(self, logger: Any, method: str, event: Event) -> str:
        line = "" if self._console is not None and self._log_file is None else _to_json(event)
        if self._log_file is not None:
            self._log_file.write(line)
        return line if self._console is None else self._console(logger, method, _for_terminal(event))


class _LogFile(RotatingFileHandler):
    """Rotating log file that only the gateway's user can read.

    If the directory is not writable or the disk is full, lines are lost and the gateway continues. The first
    of them is followed by the reason, on standard error.
    """

    def __init__(self, path: Path, settings: LogSettings) -> None:
        super().__init__(
            path, maxBytes=settings.file_bytes, backupCount=_FILES - 1, encoding="utf-8", delay=True
        )
        self._size = self._inode = 0
        self._fails = False

    def write(self, line: str) -> None:
        """Append a line, to a new file if the current one is full."""
        # ``emit`` of the base class asks the file system twice for each line, and every turn logs one.
        data = line.encode("utf-8", "replace") + b"\n"
        with self.lock or contextlib.nullcontext():
            failed = self._fails
            try:
                self._append(data)
                self._fails = False
            except (OSError, ValueError) as error:
                self._fails = True
                if not failed:
                    log.error(
                        "cannot write the log file, lines are lost; make room, or let this user write there",
                        file=self.baseFilename,
                        reason=str(error),
                    )

    def _append(self, data: bytes) -> None:
        if self.stream is not None and self._was_moved():
            self.close()
        stream = self.stream or self._open()
        self.stream = stream
        if self._size and self._size + len(data) > self.maxBytes > 0:
            self.doRollover()
            self.stream = stream = self._open()
        self._size += len(data)
        stream.buffer.write(data)
        stream.flush()

    def _was_moved(self) -> bool:
        """Return whether another program moved or deleted the open file, so that readers miss new lines."""
        try:
            return Path(self.baseFilename).stat().st_ino != self._inode
        except FileNotFoundError:
            return True

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record of another library."""
        self.write(self.format(record))

    def _open(self) -> io.TextIOWrapper:
        # Opened with its mode: a umask may let other users read, and log lines name people and chats.
        path = Path(self.baseFilename)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        opened = os.fstat(descriptor)
        self._size, self._inode = opened.st_size, opened.st_ino
        return os.fdopen(descriptor, "a", encoding="utf-8", errors="replace")


_encode = msgspec.json.Encoder(enc_hook=repr).encode


def _to_json(event: Event) -> str:
    """Encode an event; values of other types by their ``repr``."""
    try:
        return _encode(event).decode()
    except (TypeError, ValueError, RecursionError):  # such as lone surrogates, or keys that are not text
        return str(structlog.processors.JSONRenderer()(None, "", event))


def _for_terminal(event: Event) -> Event:
    """Escape what could steer a terminal or begin a line: users and plugins write some of the texts."""
    shown = {key: printable(value) if isinstance(value, str) else value for key, value in event.items()}
    return shown | {key: printable_lines(str(event[key])) for key in ("exception", "stack") if key in event}


def printable(text: str) -> str:
    """Return the text with control characters, and marks that reverse its direction, escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """Return the lines of a text, each escaped."""
    return "\n".join(map(printable, text.split("\n")))


def _truncate(_logger: Any, _method: str, event: Event) -> Event:
    """Truncate values that are too long for a log line."""
    for key, value in event.items():
        if isinstance(value, str) and len(value) > _MAX_LENGTH:
            event[key] = f"{value[:_MAX_LENGTH]}… ({len(value)} characters)"
    return event
