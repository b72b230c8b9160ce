"""``trunkline db``: where the database is, in which state, and bringing it up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from gateway.cli.options import FAILED, REFUSED, AsJson, File, fail, settings_from, to_json

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

    from gateway.settings import Settings

app = typer.Typer(no_args_is_help=True, help="Find, inspect and upgrade the database.")

_SAYS = {
    "current": "up to date",
    "behind": "needs `trunkline db upgrade` (a starting gateway does it, too)",
    "newer": "made by a newer Trunkline; run that one",
    "empty": "nothing in it yet; `trunkline run` fills it",
    "missing": "not there yet; `trunkline run` makes it",
}


@app.command()
def upgrade(as_json: AsJson = False, config: File = None) -> None:
    """Bring the database to the schema this version needs. Stop the gateway first.

    \b
    Examples:
      trunkline db upgrade
    """
    from gateway.errors import StoreError
    from gateway.store import exclusive, migrate

    settings = settings_from(config)
    try:
        with exclusive(settings.store_url, settings.durability) as base:
            before = migrate.current(base.engine)
            changed = migrate.upgrade(base.engine)
    except StoreError as error:
        fail(str(error), REFUSED)
    if as_json:
        typer.echo(to_json({"from": before, "to": migrate.head(), "changed": changed}))
    elif changed:
        typer.echo(f"upgraded from {before or 'nothing'} to {migrate.head()}")
    else:
        typer.echo(f"nothing to do: the database is at {migrate.head()}")


@app.command()
def status(as_json: AsJson = False, config: File = None) -> None:
    """Say in which state the database is; exit with 1 unless this version can use it as it is.

    \b
    Examples:
      trunkline db status
      trunkline db status --json
    """
    from gateway.errors import StoreError

    settings = settings_from(config)
    try:
        found = _status(settings)
    except StoreError as error:
        fail(str(error), REFUSED)
    if as_json:
        typer.echo(to_json(found))
    else:
        _print(found)
    if found["state"] in ("behind", "newer"):
        raise typer.Exit(FAILED)


@app.command()
def path(as_json: AsJson = False, config: File = None) -> None:
    """Print where the database is: a file, or the address of a server without its password.

    \b
    Examples:
      sqlite3 "$(trunkline db path)"
    """
    where = _where(settings_from(config))
    typer.echo(to_json({"path": where}) if as_json else where)


def _where(settings: Settings) -> str:
    from sqlalchemy import make_url

    from gateway.cli.reading import store_file
    from gateway.errors import StoreError

    try:
        file = store_file(settings)
    except StoreError as error:
        fail(str(error), REFUSED)
    return make_url(settings.store_url).render_as_string() if file is None else str(file.absolute())


def _status(settings: Settings) -> dict[str, Any]:
    from gateway.cli.reading import reader, store_file
    from gateway.store import migrate

    file = store_file(settings)
    found: dict[str, Any] = {"path": _where(settings), "state": "missing", "newest": migrate.head()}
    if file is not None and not file.exists():
        return found
    engine = reader(settings)
    try:
        found |= _looked_at(engine)
    finally:
        engine.dispose()
    if file is not None:
        found["bytes"] = sum(p.stat().st_size for p in file.parent.glob(f"{file.name}*"))
    return found


def _looked_at(engine: Engine) -> dict[str, Any]:
    from sqlalchemy.exc import DatabaseError

    from gateway.store import migrate
    from gateway.store.engine import unusable

    try:
        revision = migrate.current(engine)
        state = _state(revision)
        with engine.connect() as connection:
            counts = _counts(connection) if state == "current" else {}
    except DatabaseError as error:
        raise unusable(engine, error) from None
    return {"revision": revision, "state": state, **counts}


def _state(revision: str | None) -> str:
    from gateway.store import migrate

    if revision is None:
        return "empty"
    if revision == migrate.head():
        return "current"
    return "behind" if revision in migrate.revisions() else "newer"


def _counts(connection: Connection) -> dict[str, int]:
    from sqlalchemy import func, select

    from gateway.store import schema as t

    def count(table: Any, *where: Any) -> int:
        return connection.execute(select(func.count()).select_from(table).where(*where)).scalar_one()

    return {
        "sessions": count(t.sessions),
        "messages": count(t.messages),
        "waiting": count(t.inbox, t.inbox.c.state == "new"),
        "dead": count(t.dead_letter) + count(t.quarantine),
    }


def _print(found: dict[str, Any]) -> None:
    typer.echo(f"{found['path']}: {_SAYS[found['state']]}")
    if "revision" in found:
        typer.echo(f"  schema {found['revision'] or 'none'}, newest {found['newest']}")
    for name in ("bytes", "sessions", "messages", "waiting", "dead"):
        if name in found:
            typer.echo(f"  {name} {found[name]:,}")
