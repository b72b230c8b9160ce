"""Output of commands: tables, JSON, and texts of a chat that must not control the terminal."""

from __future__ import annotations

import logging
import re
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import msgspec
import structlog
import typer
from rich.console import Console, RenderableType

from gateway.cli.options import to_json

_CONTROL = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f"  # control codes, except tab and newline
    "\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"  # direction marks, lone surrogates
)
_FILE_WIDTH = 160
"""Columns of a table in a pipe or a file, where lines need not fit a screen."""


def plain(text: str) -> str:
    """Return the text without control characters and without marks that reverse its direction."""
    return _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def moment(milliseconds: int) -> str:
    """Return a point in time in the local time zone."""
    return datetime.fromtimestamp(milliseconds / 1000).astimezone().strftime("%Y-%m-%d %H:%M")


def echo_json(value: Any) -> None:
    """Print a struct, or anything made of structs and builtins, as JSON."""
    typer.echo(to_json(msgspec.to_builtins(value)))


def print_table(table: RenderableType, width: int = _FILE_WIDTH) -> None:
    """Print a table as wide as the terminal; ``width`` columns wide where there is none."""
    console = Console(highlight=False)
    (console if console.is_terminal else Console(highlight=False, width=width)).print(table)


@contextmanager
def quiet() -> Generator[None]:
    """Drop log lines: between lines of JSON they would break the parser that reads them."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)
