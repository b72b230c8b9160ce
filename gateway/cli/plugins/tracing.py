"""``trunkline plugin trace | logs``: what a confined plugin did, was denied, and wrote to stderr."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from gateway.cli.gateway_client import call, running_gateway
from gateway.cli.options import AsJson, File, refuse, settings_from, to_json
from gateway.cli.output import echo_json, moment, one_line, plain
from gateway.cli.plugins.operator import Name, one_line_errors
from gateway.cli.store_reader import reading
from gateway.contract.errors import PluginError, StoreError
from gateway.extensions.admission.admission import Admission
from gateway.plugin_services import Action, read_actions
from gateway.settings import Settings

_POLL_SECONDS = 0.5

Last = Annotated[int, typer.Option("--last", min=1, max=10_000, help="Number of latest actions; default 50.")]
Follow = Annotated[bool, typer.Option("--follow", help="Wait for further actions, until Ctrl-C.")]


def trace(
    name: Name, last: Last = 50, follow: Follow = False, as_json: AsJson = False, config: File = None
) -> None:
    """Show each use of a capability by a plugin, granted or denied, and its starts and deaths.

    \b
    Examples:
      trunkline plugin trace weather
      trunkline plugin trace weather --follow
      trunkline plugin trace weather --last 500 --json
    """
    settings = settings_from(config)
    try:
        if as_json and not follow:
            found = _read(settings, name, "", last)
            if not found:
                _check_known(settings, name)
            echo_json(found)
            return
        some = False
        for action in _actions(settings, name, last, follow=follow):
            some = True
            if as_json:
                echo_json(action)
            else:
                typer.echo(line_of(action))
        if not some:
            _check_known(settings, name)
            typer.echo(f"Plugin {plain(name)!r} has done nothing yet.", err=True)
    except StoreError as error:
        refuse(error)
    except KeyboardInterrupt:
        return


def logs(name: Name, follow: Follow = False, as_json: AsJson = False, config: File = None) -> None:
    """Show what a confined plugin wrote to stderr: the last 64 KiB, of the running gateway.

    \b
    Examples:
      trunkline plugin logs weather
      trunkline plugin logs weather --follow
    """
    settings = settings_from(config)
    with one_line_errors():
        if running_gateway(settings) is None:
            raise PluginError("no gateway runs; only a running one keeps what its plugins write to stderr")
        try:
            for log in _logs(settings, name, follow=follow):
                if as_json:
                    typer.echo(to_json(log, None))
                elif log["text"]:
                    typer.echo(plain(log["text"]), nl=False)
        except KeyboardInterrupt:
            return


def _logs(settings: Settings, name: str, *, follow: bool) -> Iterator[dict[str, Any]]:
    end = 0
    while True:
        query = urlencode({"name": name, "after": end})
        log = call(settings, "GET", f"/api/plugins/log?{query}")
        if log["text"] or not follow:
            yield log
        end = log["end"]
        if not follow:
            return
        time.sleep(_POLL_SECONDS)


def _actions(settings: Settings, name: str, last: int, *, follow: bool) -> Iterator[Action]:
    after = ""
    while True:
        for action in _read(settings, name, after, last):
            after = action.id
            yield action
        if not follow:
            return
        time.sleep(_POLL_SECONDS)


def _check_known(settings: Settings, name: str) -> None:
    """End the command with an error if the plugin is unknown. A removed plugin may have actions."""
    home = os.environ.get("HOME")
    with one_line_errors():
        Admission(settings, home=Path(home) if home else None).find(name)


def _read(settings: Settings, name: str, after: str, limit: int) -> list[Action]:
    with reading(settings) as connection:
        return read_actions(connection, name, after, limit)


def line_of(action: Action) -> str:
    """Return an action as a line of text."""
    verdict = "allowed" if action.allowed else "DENIED "
    rest = (f"{action.microseconds:,} µs", action.version, f"arguments {action.arguments[:12]}")
    return (
        f"{moment(action.at)}  {verdict}  risk {action.risk:>3}  {action.action:<18} {one_line(action.value)}"
        f"  ({', '.join(filter(None, rest))})"
    )
