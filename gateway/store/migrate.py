"""Bringing a database to the schema this version expects.

An empty database is given the schema as it stands; Alembic is only loaded where data has to be carried over.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Column, Connection, Engine, MetaData, String, Table, insert, inspect, text

from gateway.errors import StoreError
from gateway.store.schema import metadata

_FOLDER = Path(__file__).parent / "migrations"
_REVISION = Table("alembic_version", MetaData(), Column("version_num", String(32), primary_key=True))
"""Where Alembic keeps the revision."""


def revisions() -> list[str]:
    """All revisions, oldest first: migrations are numbered, and named by their number."""
    return sorted(path.name.split("_")[0] for path in (_FOLDER / "versions").glob("[0-9]*.py"))


def head() -> str:
    """The newest revision there is."""
    return revisions()[-1]


def current(engine: Engine) -> str | None:
    """The revision the database is at, or None for an empty one."""
    if not inspect(engine).has_table("alembic_version"):
        return None
    with engine.connect() as connection:
        return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def upgrade(engine: Engine) -> bool:
    """Apply what is missing, all or nothing. Returns whether there was anything to do.

    Raises StoreError for a database that a newer version has made.
    """
    found = current(engine)
    if found == head():
        return False
    if found is not None and found not in revisions():
        raise StoreError(
            f"the database is at revision {found}, and this version knows {head()} at most; "
            "a newer Trunkline made it, so run that one"
        )
    with engine.begin() as connection:
        if found is None:
            create(connection)
        else:
            migrate(connection)
    return True


def create(connection: Connection) -> None:
    """Make the newest schema in an empty database."""
    metadata.create_all(connection, checkfirst=False)
    _REVISION.create(connection)
    connection.execute(insert(_REVISION).values(version_num=head()))


def migrate(connection: Connection, revision: str = "head") -> None:
    """Run the migrations that are missing up to a revision, from any or from none."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_FOLDER))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)
