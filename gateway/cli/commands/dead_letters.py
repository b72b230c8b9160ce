"""``trunkline dead``: list, show, replay and drop messages that failed and events that were unreadable.

Uses the running gateway, which answers a replayed message at once; without one, changes the store, and the
next start answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from gateway.cli.gateway_or_store import GatewayOrStore
from gateway.cli.options import REFUSED, AsJson, File, fail, settings_from
from gateway.cli.output import echo_json, moment, plain, print_table
from gateway.settings import Settings
from gateway.why.dead_letters import DeadLetter, DeadLetters


class DeadLetterClient:
    """Client for dead letters. An error ends the command."""

    def __init__(self, settings: Settings) -> None:
        self._access = GatewayOrStore(settings)
        self.running = self._access.running

    def list(self) -> list[DeadLetter]:
        """Return all dead letters, newest first."""
        if not self.running:
            return self._access.run_in_store(lambda store: DeadLetters(store).list())
        return msgspec.convert(self._access.request("GET", "/api/dead")["dead"], list[DeadLetter])

    def replay(self, letter_id: str) -> None:
        """Process a message again."""
        self._do("POST", f"{_path(letter_id)}/replay", lambda dead: dead.replay(letter_id))

    def drop(self, letter_id: str) -> None:
        """Delete one."""
        self._do("DELETE", _path(letter_id), lambda dead: dead.drop(letter_id))

    def _do(self, method: str, path: str, locally: Callable[[DeadLetters], Awaitable[None]]) -> None:
        if self.running:
            self._access.request(method, path)
        else:
            self._access.run_in_store(lambda store: locally(DeadLetters(store)))


def _path(letter_id: str) -> str:
    return f"/api/dead/{quote(letter_id, safe='')}"


Ids = Annotated[
    list[str] | None, typer.Argument(metavar="ID...", help="Ids of dead letters.", show_default=False)
]
All = Annotated[bool, typer.Option("--all", help="All dead letters.")]


def list_(as_json: AsJson = False, config: File = None) -> None:
    """List dead letters, newest first.

    \b
    Examples:
      trunkline dead list
      trunkline dead list --json
    """
    letters = _client(config).list()
    if as_json:
        echo_json(letters)
    elif letters:
        _print_table(letters)
    else:
        typer.echo("There are no dead letters.", err=True)


def show(
    letter_id: Annotated[str, typer.Argument(metavar="ID", help="Id of a dead letter.", show_default=False)],
    as_json: AsJson = False,
    config: File = None,
) -> None:
    """Print one dead letter with the traceback of its failure.

    \b
    Examples:
      trunkline dead show 6f1c0d52-6b1e-4a53-9d6a-0f0f3e0a7c11
    """
    letter = next((x for x in _client(config).list() if x.id == letter_id), None)
    if letter is None:
        fail(f"no dead letter {letter_id!r}; `trunkline dead list` shows all")
    if as_json:
        echo_json(letter)
    else:
        _print_one(letter)


def replay(ids: Ids = None, everything: All = False, config: File = None) -> None:
    """Process messages again, and delete their error notices.

    \b
    Examples:
      trunkline dead replay 6f1c0d52-6b1e-4a53-9d6a-0f0f3e0a7c11
      trunkline dead replay --all
    """
    client = _client(config)
    chosen = ids if not everything else [x.id for x in client.list() if x.kind == "message"]
    for letter_id in _some(chosen, everything):
        client.replay(letter_id)
        typer.echo(f"{'replayed' if client.running else 'replayed at the next start'}: {letter_id}")


def drop(ids: Ids = None, everything: All = False, config: File = None) -> None:
    """Delete dead letters; the notices in their sessions remain.

    \b
    Examples:
      trunkline dead drop 6f1c0d52-6b1e-4a53-9d6a-0f0f3e0a7c11
      trunkline dead drop --all
    """
    client = _client(config)
    for letter_id in _some([x.id for x in client.list()] if everything else ids, everything):
        client.drop(letter_id)
        typer.echo(f"dropped: {letter_id}")


def _client(config: Path | None) -> DeadLetterClient:
    return DeadLetterClient(settings_from(config))


def _some(ids: list[str] | None, everything: bool) -> list[str]:
    if not (ids or everything):
        fail("give the ids of dead letters, or --all", REFUSED)
    return ids or []


def _print_table(letters: list[DeadLetter]) -> None:
    table = Table(box=None, header_style="bold")
    for title, width in (("id", 36), ("kind", 7), ("channel", 9), ("tries", 5), ("at", 16)):
        table.add_column(title, no_wrap=True, min_width=width)
    for title in ("reason", "text"):
        table.add_column(title, no_wrap=True, overflow="ellipsis")
    for letter in letters:
        tries = str(letter.attempts or "")
        cells = (letter.id, letter.kind, letter.channel, tries, moment(letter.at), letter.reason, letter.text)
        table.add_row(*(Text(" ".join(plain(cell).split())) for cell in cells))
    print_table(table)


def _print_one(letter: DeadLetter) -> None:
    for name in ("id", "kind", "session", "channel", "attempts", "reason"):
        if value := getattr(letter, name):
            typer.echo(f"{name:>8}  {plain(str(value))}")
    typer.echo(f"{'at':>8}  {moment(letter.at)}\n\n{plain(letter.text)}")
    if letter.trace:
        typer.echo(f"\n{plain(letter.trace)}")
