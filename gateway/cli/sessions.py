"""``trunkline sessions``: look at conversations, play them, export and delete them.

They are read beside a running gateway. Only ``delete`` changes something: it asks the gateway when one
runs, and does it itself when none does.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gateway.cli.options import REFUSED, AsJson, File, fail, settings_from, to_json

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from gateway.messages import Message
    from gateway.session.log import SessionRow
    from gateway.settings import Settings

_FILE_WIDTH = 160

app = typer.Typer(no_args_is_help=True, help="List, show, play, export and delete sessions.")

SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.", show_default=False)]


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 50,
    as_json: AsJson = False,
    config: File = None,
) -> None:
    """List sessions, the latest first.

    \b
    Examples:
      trunkline sessions list
      trunkline sessions list --limit 1000 --json
    """
    from gateway.session.log import read_sessions

    with _reading(settings_from(config)) as connection:
        rows = read_sessions(connection, limit)
    if as_json:
        typer.echo(to_json([_described(row) for row in rows]))
    elif rows:
        _print_table(rows)
    else:
        typer.echo("There are no sessions yet.", err=True)


@app.command()
def show(session: SessionId, as_json: AsJson = False, config: File = None) -> None:
    """Print the messages of a session.

    \b
    Examples:
      trunkline sessions show s-1f2e3d4c5b6a7988
    """
    row, messages = _read(settings_from(config), session)
    if as_json:
        from gateway.cli.exporting import as_json_lines

        typer.echo("".join(as_json_lines(row, messages)), nl=False)
        return
    from rich.console import Console

    from gateway.cli.playing import show_messages

    show_messages(Console(highlight=False), messages)


@app.command()
def replay(
    session: SessionId,
    speed: Annotated[float, typer.Option(min=0.01, help="2 is twice as fast as it was.")] = 1.0,
    longest_pause: Annotated[
        float, typer.Option("--max-pause", min=0, help="Seconds that a silence is cut to.")
    ] = 3.0,
    config: File = None,
) -> None:
    """Play a session again, in the time it took. Ctrl-C ends it.

    \b
    Examples:
      trunkline sessions replay s-1f2e3d4c5b6a7988 --speed 4
    """
    from rich.console import Console

    from gateway.cli.playing import Pace, play

    _, messages = _read(settings_from(config), session)
    try:
        play(Console(highlight=False), messages, Pace(speed, longest_pause))
    except KeyboardInterrupt:
        raise typer.Exit from None


@app.command()
def export(
    session: SessionId,
    to: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Where to; standard output when not given.")
    ] = None,
    kind: Annotated[
        Literal["markdown", "json"], typer.Option("--format", help="How to write it.")
    ] = "markdown",
    force: Annotated[bool, typer.Option("--force", help="Replace the file if there is one.")] = False,
    config: File = None,
) -> None:
    """Write a session as Markdown, or as JSON with everything that is known of it.

    \b
    Examples:
      trunkline sessions export s-1f2e3d4c5b6a7988 > talk.md
      trunkline sessions export s-1f2e3d4c5b6a7988 talk.json --format json
    """
    from gateway.cli.exporting import as_json_lines, as_markdown, write

    row, messages = _read(settings_from(config), session)
    pieces = as_json_lines(row, messages) if kind == "json" else as_markdown(row, messages)
    if to is None:
        for piece in pieces:
            typer.echo(piece, nl=False)
        return
    try:
        write(to, pieces, len(messages) + 1, replace=force)
    except FileExistsError:
        fail(f"{to} exists; --force replaces it")
    except OSError as error:
        fail(f"cannot write {to}: {error.strerror}")
    typer.echo(f"{len(messages)} messages written to {to}", err=True)


@app.command()
def delete(
    session: SessionId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: File = None,
) -> None:
    """Delete a session with all its messages, for good.

    \b
    Examples:
      trunkline sessions delete s-1f2e3d4c5b6a7988
    """
    from gateway.cli.removing import remove
    from gateway.errors import TrunklineError

    settings = settings_from(config)
    row, messages = _read(settings, session)
    if not yes:
        typer.confirm(f"Delete {row.title or session!r} with {len(messages)} messages?", abort=True)
    try:
        remove(settings, session)
    except TrunklineError as error:
        fail(str(error))
    typer.echo(f"deleted {session}", err=True)


@contextmanager
def _reading(settings: Settings) -> Generator[Connection]:
    from gateway.cli.reading import reading
    from gateway.errors import StoreError

    try:
        with reading(settings) as connection:
            yield connection
    except StoreError as error:
        fail(str(error), REFUSED)


def _read(settings: Settings, session: str) -> tuple[SessionRow, list[Message]]:
    from gateway.session.log import read_messages, read_session

    with _reading(settings) as connection:
        row = read_session(connection, session)
        messages = [message for _, message in read_messages(connection, session)]
    if row is None:
        fail(f"there is no session {session!r}; `trunkline sessions list` shows those there are")
    return row, messages


def _described(row: SessionRow) -> dict[str, object]:
    return {
        "id": row.id,
        "title": row.title,
        "channel": row.channel,
        "model": row.model,
        "messages": row.messages,
        "input_tokens": row.input_tokens,
        "output_tokens": row.output_tokens,
        "cost": row.cost,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
    }


def _print_table(rows: list[SessionRow]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from gateway.cli.drawing import moment, plain

    table = Table(box=None, header_style="bold")
    table.add_column("session", no_wrap=True, overflow="fold")
    table.add_column("title", overflow="ellipsis", no_wrap=True)
    table.add_column("channel", no_wrap=True)
    for title in ("messages", "cost", "updated"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        texts = (
            row.id,
            row.title,
            row.channel,
            str(row.messages),
            f"${row.cost:.4f}",
            moment(row.updated_at),
        )
        table.add_row(*(Text(plain(text)) for text in texts))
    # Nobody reads along in a pipe or a file, so lines need not fit a screen there.
    console = Console()
    console.print(table, width=None if console.is_terminal else _FILE_WIDTH)
