"""``trunkline dead``: messages that could not be answered, and events that could not be read.

A running gateway is asked to do it, so that what is replayed is answered at once; when none runs, the store
is changed directly and the next start answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.options import REFUSED, AsJson, File, fail, settings_from, to_json

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.cli.burials import Burials
    from gateway.deadletters import DeadLetter

_FILE_WIDTH = 160

app = typer.Typer(no_args_is_help=True, help="List, show, replay and drop what could not be answered.")

Ids = Annotated[
    list[str] | None, typer.Argument(metavar="ID...", help="Ids of dead letters.", show_default=False)
]
All = Annotated[bool, typer.Option("--all", help="All of them.")]


@app.command("list")
def list_(as_json: AsJson = False, config: File = None) -> None:
    """List dead letters, the latest first.

    \b
    Examples:
      trunkline dead list
      trunkline dead list --json
    """
    letters = _burials(config).list()
    if as_json:
        import msgspec

        typer.echo(to_json([msgspec.to_builtins(letter) for letter in letters]))
    elif letters:
        _print_table(letters)
    else:
        typer.echo("There are no dead letters.", err=True)


@app.command()
def show(
    letter_id: Annotated[str, typer.Argument(metavar="ID", help="A dead letter's id.", show_default=False)],
    as_json: AsJson = False,
    config: File = None,
) -> None:
    """Print one dead letter, with the trace of its failure.

    \b
    Examples:
      trunkline dead show 6f1c0d52-6b1e-4a53-9d6a-0f0f3e0a7c11
    """
    letter = next((x for x in _burials(config).list() if x.id == letter_id), None)
    if letter is None:
        fail(f"no dead letter {letter_id!r}; `trunkline dead list` shows those there are")
    if as_json:
        import msgspec

        typer.echo(to_json(msgspec.to_builtins(letter)))
    else:
        _print_one(letter)


@app.command()
def replay(ids: Ids = None, everything: All = False, config: File = None) -> None:
    """Have messages answered after all: their notices are taken back, and they are tried anew.

    \b
    Examples:
      trunkline dead replay 6f1c0d52-6b1e-4a53-9d6a-0f0f3e0a7c11
      trunkline dead replay --all
    """
    burials = _burials(config)
    chosen = ids if not everything else [x.id for x in burials.list() if x.kind == "message"]
    for letter_id in _some(chosen, everything):
        burials.replay(letter_id)
        typer.echo(f"{'replayed' if burials.running else 'answered at the next start'}: {letter_id}")


@app.command()
def drop(ids: Ids = None, everything: All = False, config: File = None) -> None:
    """Remove dead letters for good; the notices in their sessions stay.

    \b
    Examples:
      trunkline dead drop 6f1c0d52-6b1e-4a53-9d6a-0f0f3e0a7c11
      trunkline dead drop --all
    """
    burials = _burials(config)
    for letter_id in _some([x.id for x in burials.list()] if everything else ids, everything):
        burials.drop(letter_id)
        typer.echo(f"dropped: {letter_id}")


def _burials(config: Path | None) -> Burials:
    from gateway.cli.burials import Burials

    return Burials(settings_from(config))


def _some(ids: list[str] | None, everything: bool) -> list[str]:
    if not (ids or everything):
        fail("which ones? give their ids, or --all", REFUSED)
    return ids or []


def _print_table(letters: list[DeadLetter]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from gateway.cli.drawing import moment, plain

    table = Table(box=None, header_style="bold")
    for title, width in (("id", 36), ("kind", 7), ("channel", 9), ("tries", 5), ("at", 16)):
        table.add_column(title, no_wrap=True, min_width=width)
    for title in ("reason", "text"):
        table.add_column(title, no_wrap=True, overflow="ellipsis")
    for letter in letters:
        tries = str(letter.attempts or "")
        cells = (letter.id, letter.kind, letter.channel, tries, moment(letter.at), letter.reason, letter.text)
        table.add_row(*(Text(" ".join(plain(cell).split())) for cell in cells))
    # Nobody reads along in a pipe or a file, so lines need not fit a screen there.
    console = Console()
    (console if console.is_terminal else Console(width=_FILE_WIDTH)).print(table)


def _print_one(letter: DeadLetter) -> None:
    from gateway.cli.drawing import moment, plain

    for name in ("id", "kind", "session", "channel", "attempts", "reason"):
        if value := getattr(letter, name):
            typer.echo(f"{name:>8}  {plain(str(value))}")
    typer.echo(f"{'at':>8}  {moment(letter.at)}\n\n{plain(letter.text)}")
    if letter.trace:
        typer.echo(f"\n{plain(letter.trace)}")
