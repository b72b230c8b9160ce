"""A RabbitMQ and a PostgreSQL for nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.gateway.cluster.broker import Broker


@pytest.fixture
async def broker(rabbitmq_path: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    """A running RabbitMQ."""
    # Not below the test's own folder: its database file names would become too long.
    folder: Path = tmp_path_factory.mktemp("rabbit")
    started = Broker(rabbitmq_path, folder)
    try:
        await started.start()
        yield started
    finally:
        started.kill()
