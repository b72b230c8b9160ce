"""Databases to try the store on: a SQLite file, and a PostgreSQL server where there is one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.store import Store
from gateway.testing.database import place_database

_engines = pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])


@_engines
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new database without tables, on each engine."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/t.db"
    return request.getfixturevalue("postgres_url")


@_engines
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new database with the newest schema, on each engine."""
    if request.param == "sqlite":
        place_database(tmp_path / "t.db")
        return f"sqlite:///{tmp_path}/t.db"
    return request.getfixturevalue("migrated_postgres_url")


@pytest.fixture
def fatal() -> list[BaseException]:
    """What the store's ``on_fatal`` was called with."""
    return []


@pytest.fixture
async def store(database_url: str, fatal: list[BaseException]) -> AsyncIterator[Store]:
    """An open store, which has to be well in the end unless the test expected it to fail."""
    opened = Store.open(database_url, "full", fatal.append)
    yield opened
    await opened.close()


@_engines
def engine_settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The settings of a gateway that keeps its data in a new database, on each engine."""
    if request.param == "sqlite":
        return {}
    return {"store": {"url": request.getfixturevalue("migrated_postgres_url")}}
