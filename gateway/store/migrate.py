"""Bringing a database to the schema this version expects. Alembic is only loaded when there is work."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Engine, inspect, text

_FOLDER = Path(__file__).parent / "migrations"


def head() -> str:
    """The newest revision there is: migrations are numbered, and named by their number."""
    return max(path.name.split("_")[0] for path in (_FOLDER / "versions").glob("[0-9]*.py"))


def current(engine: Engine) -> str | None:
    """The revision the database is at, or None for an empty one."""
    if not inspect(engine).has_table("alembic_version"):
        return None
    with engine.connect() as connection:
        return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def upgrade(engine: Engine) -> bool:
    """Apply what is missing. Returns whether there was anything to do."""
    if current(engine) == head():
        return False
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_FOLDER))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    return True
