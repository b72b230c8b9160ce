"""Silence for commands that tell themselves what went wrong."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager

import structlog


@contextmanager
def quiet() -> Generator[None]:
    """Let nobody log: lines of a log between the others would spoil what machines read."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)
