"""``trunkline sessions``: list, show, replay, export and delete sessions.

They are read while a gateway may run. Only ``delete`` writes: through the running gateway, else in the store.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal, NoReturn, assert_never
from urllib.parse import quote

import msgspec
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text
from sqlalchemy import Connection

from gateway.app import die
from gateway.cli.commands.replay import Pace, play, show_messages
from gateway.cli.gateway_client import call, running_gateway
from gateway.cli.options import AsJson, File, fail, refuse, settings_from, to_json
from gateway.cli.output import echo_json, moment, plain, print_table
from gateway.cli.store_reader import reading
from gateway.contract.errors import InvalidRequestError, StoreError, TrunklineError
from gateway.contract.messages import (
    ErrorPart,
    FilePart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from gateway.session import Sessions
from gateway.session.log import (
    SessionRow,
    find_session_id,
    read_errors,
    read_messages,
    read_session,
    read_sessions,
    read_tool_calls,
)
from gateway.settings import Settings
from gateway.store import Store

_SHORTEST_ID = 20
"""Width of the id column on a narrow terminal."""

SessionId = Annotated[
    str, typer.Argument(metavar="SESSION", help="Session id, or a unique prefix of it.", show_default=False)
]


def list_(
    limit: Annotated[int, typer.Option(min=1, help="Number of sessions.")] = 50,
    as_json: AsJson = False,
    config: File = None,
) -> None:
    """List sessions, newest first.

    \b
    Examples:
      trunkline sessions list
      trunkline sessions list --limit 1000 --json
    """
    with _reading(settings_from(config)) as connection:
        rows = read_sessions(connection, limit)
    if as_json:
        typer.echo(to_json([_described(row) for row in rows]))
    elif rows:
        _print_table(rows)
    else:
        typer.echo("There are no sessions yet.", err=True)


def show(session: SessionId, as_json: AsJson = False, config: File = None) -> None:
    """Print the messages of a session.

    \b
    Examples:
      trunkline sessions show s-1f2e3d4c5b6a7988
    """
    row, messages = _read(settings_from(config), session)
    if as_json:
        typer.echo("".join(as_json_lines(row, messages)), nl=False)
        return

    show_messages(Console(highlight=False), messages)


def errors(session: SessionId, as_json: AsJson = False, config: File = None) -> None:
    """List the errors in a session's answers, oldest first.

    \b
    Examples:
      trunkline sessions errors s-1f2e3d4c5b6a7988
    """
    with _reading(settings_from(config)) as connection:
        records = read_errors(connection, _existing(connection, session))
    if as_json:
        echo_json(records)
        return
    rows = [(moment(record.created_at), record.error.error_name, record.error.message) for record in records]
    _print_rows(("time", "error", "message"), rows, "This session has no errors.")


def tools(session: SessionId, as_json: AsJson = False, config: File = None) -> None:
    """List the tool calls of a session with their outcomes, oldest first.

    \b
    Examples:
      trunkline sessions tools s-1f2e3d4c5b6a7988 --json
    """
    with _reading(settings_from(config)) as connection:
        records = read_tool_calls(connection, _existing(connection, session))
    if as_json:
        echo_json(records)
        return
    rows = [
        (
            moment(record.created_at),
            record.call.tool_name,
            record.call.invalid_arguments or to_json(record.call.arguments, indent=None),
            "no result" if record.result is None else "failed" if record.result.is_error else "ok",
            _seconds(record.result),
        )
        for record in records
    ]
    _print_rows(("time", "tool", "arguments", "outcome", "took"), rows, "This session has no tool calls.")


def replay(
    session: SessionId,
    speed: Annotated[float, typer.Option(min=0.01, help="Playback speed (2 = double).")] = 1.0,
    longest_pause: Annotated[
        float, typer.Option("--max-pause", min=0, help="Maximum pause between messages, in seconds.")
    ] = 3.0,
    config: File = None,
) -> None:
    """Replay a session with its original timing. Ctrl-C stops it.

    \b
    Examples:
      trunkline sessions replay s-1f2e3d4c5b6a7988 --speed 4
    """
    _, messages = _read(settings_from(config), session)
    try:
        play(Console(highlight=False), messages, Pace(speed, longest_pause))
    except KeyboardInterrupt:
        raise typer.Exit from None


def export(
    session: SessionId,
    to: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="File; default: standard output.")
    ] = None,
    kind: Annotated[
        Literal["markdown", "json"], typer.Option("--format", help="Format of the export.")
    ] = "markdown",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    config: File = None,
) -> None:
    """Write a session as Markdown, or as JSON with all its data.

    \b
    Examples:
      trunkline sessions export s-1f2e3d4c5b6a7988 > talk.md
      trunkline sessions export s-1f2e3d4c5b6a7988 talk.json --format json
    """
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


def delete(
    session: SessionId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    config: File = None,
) -> None:
    """Delete a session with all its messages.

    \b
    Examples:
      trunkline sessions delete s-1f2e3d4c5b6a7988
    """

    settings = settings_from(config)
    row, messages = _read(settings, session)
    if not yes:
        typer.confirm(f"Delete {row.title or row.id!r} with {len(messages)} messages?", abort=True)
    try:
        remove(settings, row.id)
    except TrunklineError as error:
        fail(str(error))
    typer.echo(f"deleted {row.id}", err=True)


@contextmanager
def _reading(settings: Settings) -> Generator[Connection]:
    try:
        with reading(settings) as connection:
            yield connection
    except StoreError as error:
        refuse(error)


def _read(settings: Settings, session: str) -> tuple[SessionRow, list[Message]]:
    with _reading(settings) as connection:
        found = _existing(connection, session)
        row = read_session(connection, found)
        messages = [message for _, message in read_messages(connection, found)]
    if row is None:
        _fail_unknown(session)
    return row, messages


def _existing(connection: Connection, session: str) -> str:
    """Return the id of the named session. Ends the command if none or several match."""
    try:
        found = find_session_id(connection, session)
    except InvalidRequestError as error:
        fail(str(error))
    return _fail_unknown(session) if found is None else found


def _fail_unknown(session: str) -> NoReturn:
    fail(f"session {session!r} does not exist; `trunkline sessions list` shows all")


def _seconds(result: ToolResultPart | None) -> str:
    took = None if result is None or result.metadata is None else result.metadata.duration_ms
    return "" if took is None else f"{took / 1000:.2f} s"


def _print_rows(titles: Sequence[str], rows: Sequence[Sequence[str]], nothing: str) -> None:
    if not rows:
        typer.echo(nothing, err=True)
        return

    table = Table(*titles, box=None, header_style="bold")
    for row in rows:
        table.add_row(*(Text(plain(text)) for text in row))
    print_table(table)


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
    console = Console()
    # A pipe or a file has no width to fit, so ids are complete there.
    room = max(_SHORTEST_ID, console.width // 3) if console.is_terminal else None
    shown = shortened([row.id for row in rows], room)
    table = Table(box=None, header_style="bold")
    table.add_column("session", no_wrap=True, min_width=max(map(len, shown)))
    table.add_column("title", overflow="ellipsis", no_wrap=True)
    table.add_column("channel", no_wrap=True)
    for title in ("messages", "cost", "updated"):
        table.add_column(title, justify="right", no_wrap=True)
    for row, name in zip(rows, shown, strict=True):
        texts = (
            name,
            row.title,
            row.channel,
            str(row.messages),
            f"${row.cost:.4f}",
            moment(row.updated_at),
        )
        table.add_row(*(Text(plain(text)) for text in texts))
    print_table(table)


def shortened(ids: Sequence[str], room: int | None) -> list[str]:
    """Return each id, shortened to a unique prefix and "…" if it has more than ``room`` characters.

    Every command accepts a unique prefix. A prefix is longer than ``room`` if ids differ only later. None
    keeps all ids complete.
    """
    if room is None:
        return list(ids)
    texts: list[str] = []
    for session in ids:
        length = min(room - 1, len(session))
        while length < len(session) and sum(other.startswith(session[:length]) for other in ids) > 1:
            length += 1
        texts.append(session if len(session) <= room or length >= len(session) else f"{session[:length]}…")
    return texts


_NAMES = {"user": "User", "assistant": "Assistant", "system": "System"}


def as_markdown(row: SessionRow, messages: Sequence[Message]) -> Iterator[str]:
    """Yield the session as Markdown, one heading per message."""
    yield f"# {row.title or row.id}\n\nSession `{row.id}`, {row.messages} messages, ${row.cost:.4f}\n"
    for message in messages:
        body = "\n\n".join(filter(None, map(_part, message.parts)))
        yield f"\n## {_NAMES[message.role]}, {moment(message.created_at)}\n\n{body}\n"


def as_json_lines(row: SessionRow, messages: Sequence[Message]) -> Iterator[str]:
    """Yield the session as one JSON object ``{"session": …, "messages": […]}``, one message per line."""
    encode = msgspec.json.Encoder().encode
    yield f'{{"session": {encode(row).decode()},\n"messages": ['
    for index, message in enumerate(messages):
        yield f"{',' if index else ''}\n{encode(message).decode()}"
    yield "\n]}\n"


def write(file: Path, pieces: Iterable[str], count: int, *, replace: bool) -> None:
    """Write the pieces, about ``count``, to a file that appears when it is complete.

    Shows a progress bar on a terminal. Raises FileExistsError unless ``replace`` is true.
    """
    if file.exists() and not replace:
        raise FileExistsError(file)
    draft = file.with_name(f".{file.name}.part")
    watched = Console(stderr=True)
    try:
        with draft.open("w", encoding="utf-8") as out:
            for piece in track(
                pieces,
                "exporting",
                total=count,
                console=watched,
                transient=True,
                disable=not sys.stderr.isatty(),
            ):
                out.write(piece)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


def _part(part: Part) -> str:
    match part:
        case TextPart(kind="text"):
            return part.content.strip("\n")
        case TextPart():
            return _quoted(part.content.strip("\n"))
        case ToolCallPart():
            arguments = part.invalid_arguments or msgspec.json.encode(part.arguments).decode()
            return f"**Tool** `{part.tool_name}`\n\n{_fenced(arguments, 'json')}"
        case ToolResultPart():
            return f"**{'Tool failed' if part.is_error else 'Result'}**\n\n{_fenced(part.output)}"
        case ErrorPart():
            return f"**{part.error_name}**: {part.message}"
        case ImagePart():
            return f"![{part.alt_text or 'picture'}](data:{part.mime_type};base64,{part.data})"
        case FilePart():
            return f"**File** `{part.path}`\n\n{_fenced(part.content or '', part.language or '')}"
        case _:
            assert_never(part)


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.split("\n"))


def _fenced(text: str, language: str = "") -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def remove(settings: Settings, session: str) -> None:
    """Delete a session with all its messages. Raises TrunklineError on failure."""
    if running_gateway(settings) is not None:
        call(settings, "DELETE", f"/api/sessions/{quote(session, safe='')}")
    else:
        asyncio.run(_remove(settings, session))


async def _remove(settings: Settings, session: str) -> None:
    store = Store.open(settings.store_url, settings.durability, die)
    try:
        await Sessions(store, settings.history_window).delete(session)
    finally:
        await store.close()
