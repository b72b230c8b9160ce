"""``trunkline db``: state, integrity and upgrade of the database."""

from __future__ import annotations

from typing import Any

import typer
from sqlalchemy import Connection, Engine, func, make_url, select
from sqlalchemy.exc import DatabaseError

from gateway.api.owned_files import exists
from gateway.cli.database_copy import find_problems
from gateway.cli.options import FAILED, AsJson, File, refuse, settings_from, to_json
from gateway.cli.output import quiet
from gateway.cli.store_reader import reader, store_file
from gateway.contract.errors import StoreError
from gateway.settings import Settings
from gateway.store import migrate, open_locked
from gateway.store import schema as t
from gateway.store.engine import open_error

_SAYS = {
    "current": "up to date",
    "behind": "needs `trunkline db upgrade` (a starting gateway does it, too)",
    "newer": "made by a newer Trunkline; run that one",
    "empty": "empty; `trunkline run` fills it",
    "damaged": "damaged; run `trunkline db check`",
    "missing": "does not exist yet; `trunkline run` creates it",
}


def upgrade(as_json: AsJson = False, config: File = None) -> None:
    """Upgrade the database to the schema of this version. Stop the gateway first.

    \b
    Examples:
      trunkline db upgrade
    """

    settings = settings_from(config)
    try:
        with quiet(), open_locked(settings.store_url, settings.durability) as base:
            before = None if base.created else migrate.current(base.engine)
            if before in migrate.revisions()[:-1]:
                text = f"upgrading from {before} to {migrate.head()}; an interrupted upgrade changes nothing"
                typer.echo(text, err=True)
            changed = migrate.upgrade(base.engine) or base.created
    except StoreError as error:
        refuse(error)
    if as_json:
        typer.echo(to_json({"from": before, "to": migrate.head(), "changed": changed}))
    elif changed:
        typer.echo(f"upgraded from {before or 'nothing'} to {migrate.head()}")
    else:
        typer.echo(f"the database is up to date: {migrate.head()}")


def status(as_json: AsJson = False, config: File = None) -> None:
    """Show the state of the database; exit with 1 unless this version can use it.

    \b
    Examples:
      trunkline db status
      trunkline db status --json
    """

    settings = settings_from(config)
    try:
        found = _status(settings)
    except StoreError as error:
        refuse(error)
    if as_json:
        typer.echo(to_json(found))
    else:
        _print(found)
    if found["state"] in ("behind", "newer", "damaged"):
        raise typer.Exit(FAILED)


def check(as_json: AsJson = False, config: File = None) -> None:
    """Check the whole database; exit with 1 if it is damaged.

    The gateway may run during the check.

    \b
    Examples:
      trunkline db check
    """

    settings = settings_from(config)
    try:
        engine = reader(settings)
        try:
            found = list(find_problems(engine))
        finally:
            engine.dispose()
    except StoreError as error:
        refuse(error)
    if as_json:
        typer.echo(to_json({"path": _where(settings), "problems": found}))
    else:
        typer.echo("\n".join([f"{_where(settings)}: {'damaged' if found else 'no damage found'}", *found]))
    if found:
        raise typer.Exit(FAILED)


def path(as_json: AsJson = False, config: File = None) -> None:
    """Print the path of the database, or the URL of its server without the password.

    \b
    Examples:
      sqlite3 "$(trunkline db path)"
    """
    where = _where(settings_from(config))
    typer.echo(to_json({"path": where}) if as_json else where)


def _where(settings: Settings) -> str:
    try:
        file = store_file(settings)
    except StoreError as error:
        refuse(error)
    return make_url(settings.store_url).render_as_string() if file is None else str(file.absolute())


def _status(settings: Settings) -> dict[str, Any]:
    file = store_file(settings)
    found: dict[str, Any] = {"path": _where(settings), "state": "missing", "newest": migrate.head()}
    if file is not None and not exists(file):
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
    try:
        damaged = migrate.find_damage(engine) is not None
        revision = migrate.current(engine)
        state = "damaged" if damaged else _state(revision)
        with engine.connect() as connection:
            counts = _counts(connection) if state == "current" else {}
    except DatabaseError as error:
        raise open_error(engine, error) from None
    return {"revision": revision, "state": state, **counts}


def _state(revision: str | None) -> str:
    if revision is None:
        return "empty"
    if revision == migrate.head():
        return "current"
    return "behind" if revision in migrate.revisions() else "newer"


def _counts(connection: Connection) -> dict[str, int]:
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
        typer.echo(f"  schema {found['revision'] or 'none'}, current {found['newest']}")
    for name in ("bytes", "sessions", "messages", "waiting", "dead"):
        if name in found:
            typer.echo(f"  {name} {found[name]:,}")
