"""A RabbitMQ for nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gateway.cluster.broker import Broker


@pytest.fixture(scope="module")
def broker(rabbitmq_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A running RabbitMQ. A token that one test leaves in its queue goes to the first node of the next."""
    started = Broker(rabbitmq_path, tmp_path_factory.mktemp("rabbit"))
    try:
        started.start()
        yield started
    finally:
        started.kill()
