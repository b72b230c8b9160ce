"""The token's queue in a real RabbitMQ that falls silent, or loses the queue."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import aio_pika
import pytest
from structlog.testing import capture_logs

from gateway.cluster.token import TokenQueue
from tests.gateway.cluster.broker import Broker
from tests.gateway.cluster.nodes import until

pytestmark = pytest.mark.slow


@asynccontextmanager
async def subscribing(tokens: TokenQueue) -> AsyncGenerator[asyncio.Task[None]]:
    running = asyncio.create_task(tokens.run())
    try:
        yield running
    finally:
        running.cancel()
        await asyncio.wait([running])
        await tokens.close()


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_node_subscribes_again_when_the_broker_fell_silent(broker: Broker, when: str) -> None:
    tokens = TokenQueue(broker.url, f"test.silent.{when}")
    await tokens.connect()
    async with AsyncExitStack() as stack:
        stack.callback(broker.wake)
        if when == "before":
            broker.freeze()
        logs = stack.enter_context(capture_logs())
        running = await stack.enter_async_context(subscribing(tokens))
        if when == "after":
            await until(lambda: tokens.connected and tokens.subscribed_at)
            broker.freeze()
        await until(lambda: logs or running.done())
        assert [log["event"] for log in logs] == ["no connection to RabbitMQ; retrying each second"]
        broker.wake()
        await until(lambda: tokens.connected)
        await tokens.put()
        async with asyncio.timeout(60):
            await tokens.held.wait()


async def test_a_deleted_queue_is_declared_again(broker: Broker) -> None:
    tokens = TokenQueue(broker.url, "test.deleted")
    async with subscribing(tokens):
        await until(lambda: tokens.connected and tokens.subscribed_at)
        await tokens.put()
        async with asyncio.timeout(60):
            await tokens.held.wait()
        before = tokens.subscribed_at
        connection = await aio_pika.connect(broker.url)
        async with connection, connection.channel() as channel:
            await channel.queue_delete("test.deleted")
        await until(lambda: tokens.subscribed_at > before and tokens.connected)
        assert not tokens.held.is_set()
        await tokens.put()
        async with asyncio.timeout(60):
            await tokens.held.wait()


def test_a_refused_connection_is_collected_in_silence() -> None:
    code = """
import asyncio, contextlib, gc
from gateway.cluster.token import TokenQueue
from gateway.contract.errors import StoreUnavailableError

async def main():
    gc.disable()
    with contextlib.suppress(StoreUnavailableError):
        await TokenQueue("amqp://127.0.0.1:1/", "test.refused").connect()
    await asyncio.to_thread(gc.collect)

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "never awaited" not in done.stderr
