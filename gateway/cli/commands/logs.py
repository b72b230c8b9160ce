"""``trunkline logs`` and ``trunkline events``: the log files of the gateway, and what it reports now."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, cast
from urllib.parse import quote

import typer

from gateway.api.owned_files import exists
from gateway.cli.gateway_client import follow
from gateway.cli.options import REFUSED, File, fail, give_up, settings_from
from gateway.contract.errors import InvalidRequestError, TrunklineError
from gateway.logs import log_files, printable, printable_lines

_EVERY = 0.2
_MOST_LINES = 1_000_000
_LEVELS = ("debug", "info", "warning", "error", "critical")
_COLOURS = {"warning": typer.colors.YELLOW, "error": typer.colors.RED, "critical": typer.colors.RED}
_OWN = ("timestamp", "level", "event", "exception")

Line = Mapping[str, Any]


def logs(
    follow_: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines as they are logged.")
    ] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, max=_MOST_LINES, help="Number of latest lines.")
    ] = 50,
    level: Annotated[
        str | None,
        typer.Option(help=f"Minimum level: {', '.join(_LEVELS)}.", show_default=False),
    ] = None,
    session: Annotated[
        str | None, typer.Option(help="Only lines of this session.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the lines as JSON.")] = False,
    config: File = None,
) -> None:
    """Print the log of the gateway: turns, retries, warnings and errors.

    The gateway writes its log to the directory `logs` of `data_dir`, and prints it; see `[log]`. In a cluster
    each node has a directory there; this prints that of the node in the settings.

    \b
    Examples:
      trunkline logs
      trunkline logs --follow --level warning
      trunkline logs --session s-1f2e3d4c5b6a7988 --json
    """
    if level is not None and level not in _LEVELS:
        fail(f"--level: {level!r} is not one of {', '.join(_LEVELS)}", REFUSED)
    settings = settings_from(config)
    *older, newest = log_files(settings.cluster.log_folder(settings.data_dir))
    if not exists(newest) and not follow_:
        fail(f"{newest.parent} contains no logs; a gateway with log.file = true writes them")
    least = 0 if level is None else _LEVELS.index(level)

    def wanted(line: Line) -> bool:
        severe = str(line.get("level"))
        fits = severe not in _LEVELS or _LEVELS.index(severe) >= least
        return fits and (session is None or line.get("session") == session)

    tail = _Tail(newest)
    with suppress(KeyboardInterrupt, BrokenPipeError):
        kept = (line for path in older for line in _lines(path))
        for line in deque(filter(wanted, itertools.chain(kept, tail.read())), maxlen=lines):
            _print(line, as_json=as_json)
        while follow_:
            time.sleep(_EVERY)
            for line in filter(wanted, tail.read()):
                _print(line, as_json=as_json)
            sys.stdout.flush()


def events(
    types: Annotated[
        list[str] | None,
        typer.Option(
            "--type", help="Only events of this type; may be given several times.", show_default=False
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    config: File = None,
) -> None:
    """Print the events of the running gateway as they happen: turns, tools, channels, plugins.

    Detailed types, such as agent.progress, are printed only if named. Ctrl-C ends the command; it ends by
    itself when the gateway stops.

    \b
    Examples:
      trunkline events
      trunkline events --type turn.finished --type channel.health --json
    """
    query = f"?type={quote(','.join(types), safe=',')}" if types else ""
    with suppress(KeyboardInterrupt, BrokenPipeError):
        try:
            for event in follow(settings_from(config), f"/api/events{query}"):
                typer.echo(json.dumps(event) if as_json else _event_line(event))
                sys.stdout.flush()
        except InvalidRequestError as error:
            fail(f"--type: {error}", REFUSED)
        except TrunklineError as error:
            give_up(error)


def _event_line(event: Line) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(event["at"] / 1000))
    fields = [f"{key}={json.dumps(value)}" for key, value in event.items() if key not in ("at", "name")]
    return " ".join((at, event["name"], *fields))


class _Tail:
    """Reader of a growing file that is rotated by renaming."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIOWrapper | None = None
        self._rest = ""

    def read(self) -> Iterator[Line]:
        """Yield the complete lines since the last call."""
        while True:
            if self._file is None:
                if not exists(self._path):
                    return
                self._file = self._path.open(encoding="utf-8", errors="replace")
            # Checked before the rest is read: the gateway writes nothing to a file after its renaming.
            renamed = self._is_renamed(self._file)
            yield from self._whole(self._file)
            if not renamed:
                return
            self._file.close()
            self._file, self._rest = None, ""

    def _is_renamed(self, file: TextIOWrapper) -> bool:
        try:
            return self._path.stat().st_ino != os.fstat(file.fileno()).st_ino
        except FileNotFoundError:
            return True

    def _whole(self, file: TextIOWrapper) -> Iterator[Line]:
        self._rest += file.read()
        *whole, self._rest = self._rest.split("\n")
        yield from _parsed(whole)


def _lines(path: Path) -> Iterator[Line]:
    with suppress(FileNotFoundError):
        yield from _parsed(path.read_text(encoding="utf-8", errors="replace").split("\n"))


def _parsed(lines: list[str]) -> Iterator[Line]:
    """Yield the lines that are JSON objects; a crash may have cut one."""
    for text in lines:
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict):
            yield cast("Line", line)


def _print(line: Line, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(line))
        return
    level = str(line.get("level", ""))
    more = " ".join(f"{key}={_shown(value)}" for key, value in line.items() if key not in _OWN)
    when = str(line.get("timestamp", ""))[:19].replace("T", " ")
    typer.secho(printable(f"{when} {level:8} {line.get('event', '')}  {more}"), fg=_COLOURS.get(level))
    if trace := line.get("exception"):
        typer.echo(printable_lines(str(trace)))


def _shown(value: Any) -> str:
    return value if isinstance(value, str) and value and not set(value) & set(' "=') else json.dumps(value)
