"""Logging: one line per event, for people or for machines."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

from gateway.settings import LogSettings

_LONGEST = 8 * 1024


def set_up_logs(settings: LogSettings) -> None:
    """Configure structlog, and what other libraries log, to write to standard error."""
    level = getattr(logging, settings.level.upper())
    console = settings.format == "console" or (settings.format == "auto" and sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            _bounded,
            structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(stream=sys.stderr, level=max(level, logging.WARNING), format="%(name)s: %(message)s")


def _bounded(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Cut what is too long for a log line."""
    for key, value in event.items():
        if isinstance(value, str) and len(value) > _LONGEST:
            event[key] = f"{value[:_LONGEST]}… ({len(value)} characters)"
    return event
