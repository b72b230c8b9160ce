"""Workspaces at a host of repositories."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.store import Store
from gateway.testing.database import place_database
from tests.plugins.coding_agents.workspaces.forge import Desk, Hub, serving


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    """A host with the repository acme/app."""
    async with serving(tmp_path / "hub") as hub:
        hub.make()
        yield hub


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """A database."""
    place_database(tmp_path / "t.db")
    opened = Store.open(f"sqlite:///{tmp_path}/t.db", "full", lambda _: None)
    yield opened
    await opened.close()


@pytest.fixture
def desk(tmp_path: Path, hub: Hub, store: Store) -> Desk:
    """Workspaces that are not yet open."""
    return Desk(tmp_path / "base", hub, store)
