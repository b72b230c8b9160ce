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
from rich.table import Table

from gateway.cli.options import to_json

_CONTROL = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f"  # control codes, except tab and newline
    "\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"  # direction marks, lone surrogates
)
_FILE_WIDTH = 160
"""Columns of a table in a pipe or a file, where lines need not fit a screen."""

_LEAST_WIDTH = 12
"""Columns of a terminal for each column of a table, below which a table is hard to read."""


def plain(text: str) -> str:
    """Return the text without control characters and without marks that reverse its direction."""
    return _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def one_line(text: str) -> str:
    """Return the text as ``plain`` does, on one line: nothing in it can pass for a line of ours."""
    return " ".join(plain(text).split())


def readable(text: str) -> str:
    """Return an argument or input with � in place of each byte that is not text in UTF-8."""
    return text.encode(errors="surrogateescape").decode(errors="replace")


def moment(milliseconds: int) -> str:
    """Return a point in time in the local time zone."""
    return datetime.fromtimestamp(milliseconds / 1000).astimezone().strftime("%Y-%m-%d %H:%M")


def echo_json(value: Any) -> None:
    """Print a struct, or anything made of structs and builtins, as JSON."""
    typer.echo(to_json(msgspec.to_builtins(value)))


def print_table(table: RenderableType, width: int = _FILE_WIDTH, least: int = _LEAST_WIDTH) -> None:
    """Print a table as wide as the terminal; ``width`` columns wide where there is none.

    A terminal with fewer than ``least`` columns for each of the table gets each row as lines of title and
    value.
    """
    console = Console(highlight=False)
    if not console.is_terminal:
        Console(highlight=False, width=width).print(table)
    elif isinstance(table, Table) and console.width < least * len(table.columns):
        console.print(_as_records(table))
    else:
        console.print(table)


def _as_records(table: Table) -> Table:
    """Return the rows of a table below each other, with an empty line between two."""
    records = Table(box=None, show_header=False, title=table.title, title_justify="left")
    records.add_column(no_wrap=True, style="bold")
    records.add_column(overflow="fold")
    rows = [*zip(*(column.cells for column in table.columns), strict=True)]
    if table.show_footer:
        rows.append(tuple(column.footer for column in table.columns))
    for row in rows:
        if records.rows:
            records.add_row("", "")
        for column, cell in zip(table.columns, row, strict=True):
            if str(cell):
                records.add_row(column.header, cell)
    return records


@contextmanager
def quiet() -> Generator[None]:
    """Drop log lines: between lines of JSON they would break the parser that reads them."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)
