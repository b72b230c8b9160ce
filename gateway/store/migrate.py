"""The schema of a database: its revision, its migrations, and the signs of lost contents.

An empty database is created with the newest schema; Alembic is loaded only to migrate existing data.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Column, Connection, Engine, MetaData, String, Table, insert, inspect, text

from gateway.api.owned_files import exists
from gateway.contract.errors import StoreError
from gateway.store.schema import metadata

_FOLDER = Path(__file__).parent / "migrations"
_FIRST = {
    *("audit", "cursor", "dead_letter", "inbox", "messages"),
    *("outbox", "parts", "quarantine", "sessions", "turn_step"),
}
"""The tables of the first revision, which every later revision also has."""
_REVISION = Table("alembic_version", MetaData(), Column("version_num", String(32), primary_key=True))
"""The table in which Alembic keeps the revision."""


def revisions() -> list[str]:
    """Return all revisions, oldest first: migration files are named by their number."""
    return sorted(path.name.split("_")[0] for path in (_FOLDER / "versions").glob("[0-9]*.py"))


def head() -> str:
    """Return the newest revision."""
    return revisions()[-1]


def current(engine: Engine) -> str | None:
    """Return the revision of the database, or None for an empty one."""
    if not inspect(engine).has_table("alembic_version"):
        return None
    with engine.connect() as connection:
        return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def find_damage(engine: Engine) -> str | None:
    """Return the evidence that a database lost its contents, with the remedy; None if there is none.

    A database without any table is not damaged: it is the first start.
    """
    file = database_file(engine)
    if file is not None and exists(file) and not file.stat().st_size:
        return f"{file} has 0 bytes, so its contents are lost; {_recovery_hint(engine)}"
    found = set(inspect(engine).get_table_names())
    where = file or engine.url.render_as_string()
    if _REVISION.name not in found:
        if lost := sorted(found & metadata.tables.keys()):
            return f"{where} has the table {lost[0]} but no alembic_version; {_recovery_hint(engine)}"
        return None
    revision = current(engine)
    if revision is None:
        return f"{where} has an empty alembic_version; {_recovery_hint(engine)}"
    expected = set(metadata.tables) if revision == head() else _FIRST
    if revision in revisions() and (lost := sorted(expected - found)):
        return f"{where} is at revision {revision} but lacks {', '.join(lost)}; {_recovery_hint(engine)}"
    return None


def database_file(engine: Engine) -> Path | None:
    """Return the file of a SQLite database; None for a server."""
    return Path(engine.url.database or "") if engine.dialect.name == "sqlite" else None


def _recovery_hint(engine: Engine) -> str:
    reset = "remove the file" if database_file(engine) else "drop its tables, including alembic_version,"
    return f"restore a backup with `trunkline restore FILE`, or {reset} to start with an empty database"


def upgrade(engine: Engine) -> bool:
    """Apply the missing migrations, all or nothing. Return whether there were any.

    Raises StoreError for a database of a newer version, or one that lost its tables.
    """
    if (lost := find_damage(engine)) is not None:
        raise StoreError(lost)
    found = current(engine)
    if found == head():
        return False
    if found is not None and found not in revisions():
        raise StoreError(
            f"the database is at revision {found}, and this version supports up to {head()}; "
            "a newer Trunkline made it: run that version or a later one"
        )
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            # Rewriting a large table may take longer than any statement of a running gateway.
            connection.execute(text("SET LOCAL statement_timeout = 0"))
        if found is None:
            create_schema(connection)
        else:
            run_migrations(connection)
    return True


def create_schema(connection: Connection) -> None:
    """Create the newest schema in an empty database."""
    metadata.create_all(connection, checkfirst=False)
    _REVISION.create(connection)
    connection.execute(insert(_REVISION).values(version_num=head()))


def run_migrations(connection: Connection, revision: str = "head") -> None:
    """Run the missing migrations up to a revision, from any revision or none."""
    # Imported here because few starts migrate, and Alembic is slow to import.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_FOLDER))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)
