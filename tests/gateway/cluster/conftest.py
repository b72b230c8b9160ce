"""A RabbitMQ for nodes, and a cluster of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from channels.telegram.fake import FakeTelegram
from gateway.testing.fake_models.server import FakeModels
from tests.gateway.cluster.broker import Broker
from tests.gateway.cluster.nodes import Cluster


@pytest.fixture
def postgres_url(migrated_postgres_url: str) -> str:
    """A database with the newest schema: to create it takes half a second more. Storms begin with none."""
    return migrated_postgres_url


# One for all modules, as its start takes five seconds of processor time.
@pytest.fixture(scope="session")
def broker(rabbitmq_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A running RabbitMQ. A token that one test leaves in its queue goes to the first node of the next."""
    started = Broker(rabbitmq_path, tmp_path_factory.mktemp("rabbit"))
    try:
        started.start()
        yield started
    finally:
        started.kill()


@pytest.fixture
async def cluster(tmp_path: Path, postgres_url: str, broker: Broker) -> AsyncIterator[Cluster]:
    async with FakeTelegram() as telegram, FakeModels() as models:
        made = Cluster(tmp_path, postgres_url, broker, telegram, models)
        yield made
        made.close()
