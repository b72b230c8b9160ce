"""``trunkline sessions`` and ``search``: list, show, find, replay, export, share, undo and delete sessions.

They are read while a gateway may run. What writes does so through the running gateway, else in the store;
``undo`` and ``redo`` need the gateway, which changes the chats.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal, NoReturn
from urllib.parse import quote

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text
from sqlalchemy import Connection

from gateway.cli.commands.replay import Pace, play, show_messages
from gateway.cli.gateway_or_store import GatewayOrStore
from gateway.cli.options import REFUSED, AsJson, File, fail, refuse, settings_from, to_json
from gateway.cli.output import echo_json, moment, one_line, plain, print_table
from gateway.cli.store_reader import reading
from gateway.contract.errors import InvalidRequestError, StoreError
from gateway.contract.messages import Message, ToolResultPart, now_ms
from gateway.conversations import (
    ChangeSummary,
    HiddenVersion,
    SearchSort,
    Share,
    Shares,
    as_json_lines,
    as_markdown,
    read_changes,
    read_hidden_versions,
    read_shares,
    search_messages,
    search_ranked,
)
from gateway.delivery.feedback import read_feedback
from gateway.files import ToolOutputs
from gateway.session import Sessions
from gateway.session.log import (
    ChildSession,
    SessionRow,
    find_session_id,
    read_child_sessions,
    read_children,
    read_errors,
    read_messages,
    read_session,
    read_sessions,
    read_tool_calls,
)
from gateway.session.redaction import NO_SECRETS
from gateway.settings import Settings
from gateway.store import Store

_CLI = "cli"
"""The user of shares in the audit log."""
_MOST_ROWS = 1_000_000
_SHORTEST_ID = 20
"""Width of the id column on a narrow terminal."""

SessionId = Annotated[
    str, typer.Argument(metavar="SESSION", help="Session id, or a unique prefix of it.", show_default=False)
]


def list_(
    limit: Annotated[int, typer.Option(min=1, max=_MOST_ROWS, help="Number of sessions.")] = 50,
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


def search(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="WORDS",
            help="Words that a message must contain; the last one may be the beginning of a word.",
        ),
    ],
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Number of results.")] = 50,
    sort: Annotated[
        SearchSort, typer.Option(help="Order: newest first, or best match first among the newest 1,000.")
    ] = "newest",
    as_json: AsJson = False,
    config: File = None,
) -> None:
    """Find messages and titles by their words, newest or best match first.

    \b
    Examples:
      trunkline search deploy friday
      trunkline search '"out of memory"' --sort match --json
    """
    with _reading(settings_from(config)) as connection:
        find = search_ranked if sort == "match" else search_messages
        found = find(connection, " ".join(words), limit)
    if as_json:
        echo_json(found.results)
        return
    if not found.results:
        typer.echo("No message contains these words.", err=True)
        return
    table = Table("time", "session", "author", "text", box=None, header_style="bold")
    for hit in found.results:
        shown = Text(plain(hit.snippet))
        for start, end in hit.matches:
            shown.stylize("bold", start, end)
        facts = (moment(hit.created_at), plain(hit.session), hit.role or "title")
        table.add_row(*map(Text, facts), shown)
    print_table(table)


def show(session: SessionId, as_json: AsJson = False, config: File = None) -> None:
    """Print the messages of a session.

    Tables of its tasks and of the files that its tools changed follow; --json has the contents of the
    files before and after.

    \b
    Examples:
      trunkline sessions show s-1f2e3d4c5b6a7988
    """
    row, messages, changes = _read(settings_from(config), session)
    if as_json:
        children = _child_sessions(settings_from(config), row, messages)
        typer.echo("".join(as_json_lines(row, messages, changes, children)), nl=False)
        return

    show_messages(Console(highlight=False), messages)
    with _reading(settings_from(config)) as connection:
        children = read_children(connection, row)
    if children:
        titles = ("task session", "task", "messages")
        typer.echo()
        _print_rows(titles, [(one.id, one.title, str(one.messages)) for one in children], "")
    if not changes.files:
        return
    table = Table("file", box=None, header_style="bold")
    for title in ("+", "\N{MINUS SIGN}"):
        table.add_column(title, justify="right")
    for one in changes.changes:
        table.add_row(Text(plain(one.path)), str(one.added), str(one.removed))
    print_table(table)


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


def feedback(
    limit: Annotated[int, typer.Option(min=1, max=_MOST_ROWS, help="Number of entries.")] = 50,
    as_json: AsJson = False,
    config: File = None,
) -> None:
    """List the feedback of users on answers, newest first.

    \b
    Examples:
      trunkline sessions feedback --limit 10
    """
    with _reading(settings_from(config)) as connection:
        records = read_feedback(connection, limit)
    if as_json:
        echo_json(records)
        return
    rows = [(moment(one.at), one.value, f"{one.channel}:{one.user_id}", one.session) for one in records]
    _print_rows(("time", "value", "user", "session"), rows, "No answer has feedback.")


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
    _, messages, _ = _read(settings_from(config), session)
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
    branch: Annotated[
        Literal["shown", "all"],
        typer.Option("--branch", help="The version of the conversation that is shown, or all versions."),
    ] = "shown",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    config: File = None,
) -> None:
    """Write a session as Markdown, or as JSON with all its data; also the sessions of its tasks.

    \b
    Examples:
      trunkline sessions export s-1f2e3d4c5b6a7988 > talk.md
      trunkline sessions export s-1f2e3d4c5b6a7988 talk.json --format json --branch all
    """
    if to is not None and to.is_dir():
        fail(f"{to} is a directory; name a file in it", REFUSED)
    row, messages, changes = _read(settings_from(config), session)
    hidden = _hidden_versions(settings_from(config), row) if branch == "all" else None
    every = [*messages, *(message for version in hidden or () for message in version.messages)]
    children = _child_sessions(settings_from(config), row, every)
    if kind == "json":
        pieces = as_json_lines(row, messages, changes, children, hidden)
    else:
        pieces = as_markdown(row, messages, children, hidden or ())
    if to is None:
        for piece in pieces:
            typer.echo(piece, nl=False)
        return
    try:
        write(to, pieces, len(every) + 1, replace=force)
    except FileExistsError:
        fail(f"{to} exists; --force replaces it")
    except OSError as error:
        fail(f"cannot write {to}: {error.strerror}")
    typer.echo(f"{len(every)} messages written to {to}", err=True)


def share(
    session: SessionId,
    days: Annotated[
        int | None, typer.Option(min=1, max=365, help="Days until the link expires; default share.days.")
    ] = None,
    config: File = None,
) -> None:
    """Create a public read-only page of a session.

    It shows what the session holds now. Prints the address.

    \b
    Examples:
      trunkline sessions share s-1f2e3d4c5b6a7988 --days 30
    """
    settings = settings_from(config)
    row, _, _ = _read(settings, session)
    where = GatewayOrStore(settings)
    if where.running:
        body = {} if days is None else {"days": days}
        url = where.request("POST", f"/api/sessions/{quote(row.id, safe='')}/share", body)["url"]
    else:

        async def create(store: Store) -> str:
            found = await Sessions(store).find(row.id)
            return (await Shares(store, settings.share, NO_SECRETS).create(found, _CLI, days)).url

        url = where.run_in_store(create)
    typer.echo(url)


def shares(
    session: Annotated[
        str | None, typer.Argument(metavar="[SESSION]", help="Session id, or a unique prefix of it.")
    ] = None,
    as_json: AsJson = False,
    config: File = None,
) -> None:
    """List the public pages of sessions, newest first.

    \b
    Examples:
      trunkline sessions shares
    """
    found = _shares(settings_from(config), session)
    if as_json:
        echo_json(found)
        return
    rows = [
        (one.id, one.session, one.title, moment(one.created_at), moment(one.expires_at), str(one.views))
        for one in found
    ]
    _print_rows(("share", "session", "title", "created", "expires", "views"), rows, "Nothing is shared.")


def unshare(
    share: Annotated[
        str, typer.Argument(metavar="SHARE", help="Id of a public page, or of a session with such pages.")
    ],
    config: File = None,
) -> None:
    """Revoke a public page, or all of a session.

    \b
    Examples:
      trunkline sessions unshare s-1f2e3d4c5b6a7988
    """
    settings = settings_from(config)
    found = [one for one in _shares(settings, None) if share in (one.id, one.session)]
    if not found:
        fail(f"no public page and no session with one has the id {share!r}")
    where = GatewayOrStore(settings)
    for one in found:
        if where.running:
            where.request("DELETE", f"/api/shares/{one.id}")
        else:
            where.run_in_store(lambda s, i=one.id: Shares(s, settings.share, NO_SECRETS).revoke(i, _CLI))
    typer.echo(f"revoked: {len(found)}", err=True)


def undo(session: SessionId, config: File = None) -> None:
    """Hide the last message of a session and its answer.

    \b
    Examples:
      trunkline sessions undo s-1f2e3d4c5b6a7988
    """
    _change_log(settings_from(config), session, "undo")


def redo(session: SessionId, config: File = None) -> None:
    """Restore what was undone last, unless a message was answered since.

    \b
    Examples:
      trunkline sessions redo s-1f2e3d4c5b6a7988
    """
    _change_log(settings_from(config), session, "redo")


def _change_log(settings: Settings, session: str, kind: Literal["undo", "redo"]) -> None:
    with _reading(settings) as connection:
        found = _existing(connection, session)
    where = GatewayOrStore(settings)
    if not where.running:
        fail(f"`trunkline sessions {kind}` needs the running gateway; start it with `trunkline run`")
    result = where.request("POST", f"/api/sessions/{quote(found, safe='')}/{kind}")
    typer.echo(f"{kind}: {len(result['messages'])} messages of {found}", err=True)
    if result["remains"]:
        typer.echo("The chat still shows the answer: its channel cannot delete messages.", err=True)
    for path, reason in result["kept"]:
        typer.echo(f"{plain(path)} stays as it is: {reason}", err=True)


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
    row, messages, _ = _read(settings, session)
    if not yes:
        typer.confirm(f"Delete {row.title or row.id!r} with {len(messages)} messages?", abort=True)
    where = GatewayOrStore(settings)
    if where.running:
        where.request("DELETE", f"/api/sessions/{quote(row.id, safe='')}")
    else:

        async def remove(store: Store) -> None:
            sessions = Sessions(store)
            sessions.on_delete = ToolOutputs(settings.data_dir / "tool_outputs", 0).forget
            await sessions.delete(row.id)

        where.run_in_store(remove)
    typer.echo(f"deleted {row.id}", err=True)


@contextmanager
def _reading(settings: Settings) -> Generator[Connection]:
    try:
        with reading(settings) as connection:
            yield connection
    except StoreError as error:
        refuse(error)


def _read(settings: Settings, session: str) -> tuple[SessionRow, list[Message], ChangeSummary]:
    with _reading(settings) as connection:
        found = _existing(connection, session)
        row = read_session(connection, found)
        messages = [message for _, message in read_messages(connection, found)]
        changes = read_changes(connection, found)
    if row is None:
        _fail_unknown(session)
    return row, messages, changes


def _child_sessions(
    settings: Settings, row: SessionRow, messages: Sequence[Message]
) -> tuple[ChildSession, ...]:
    with _reading(settings) as connection:
        return read_child_sessions(connection, row, messages)


def _hidden_versions(settings: Settings, row: SessionRow) -> tuple[HiddenVersion, ...]:
    with _reading(settings) as connection:
        return read_hidden_versions(connection, row.id)


def _shares(settings: Settings, session: str | None) -> Sequence[Share]:
    with _reading(settings) as connection:
        return read_shares(connection, now_ms(), session and _existing(connection, session))


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
        "parent": None if row.parent is None else {"session": row.parent, "message_id": row.parent_message},
    }


def _print_table(rows: list[SessionRow]) -> None:
    console = Console()
    # A pipe or a file has no width to fit, so ids are complete there.
    width = max(_SHORTEST_ID, console.width // 4) if console.is_terminal else None
    shown = shortened([row.id for row in rows], width)
    table = Table(box=None, header_style="bold")
    table.add_column("session", no_wrap=True, min_width=max(map(len, shown)))
    table.add_column("title")
    table.add_column("channel", no_wrap=True)
    for title in ("messages", "cost", "updated"):
        table.add_column(title, justify="right", no_wrap=True)
    for row, name in zip(rows, shown, strict=True):
        texts = (
            name,
            row.channel,
            str(row.messages),
            f"${row.cost:.4f}",
            moment(row.updated_at),
        )
        first, *rest = (Text(plain(text)) for text in texts)
        # Only the title may be cut: rich narrows columns that wrap before others.
        table.add_row(first, Text(one_line(row.title), no_wrap=True, overflow="ellipsis"), *rest)
    print_table(table)


def shortened(ids: Sequence[str], width: int | None) -> list[str]:
    """Return each id, shortened to a unique prefix and "…" if it has more than ``width`` characters.

    Every command accepts a unique prefix. A prefix is longer than ``width`` if ids differ only later. None
    keeps all ids complete.
    """
    if width is None:
        return list(ids)
    texts: list[str] = []
    for session in ids:
        length = min(width - 1, len(session))
        while length < len(session) and sum(other.startswith(session[:length]) for other in ids) > 1:
            length += 1
        texts.append(session if len(session) <= width or length >= len(session) else f"{session[:length]}…")
    return texts


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
