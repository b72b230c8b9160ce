"""Fixtures of the server's tests: requests at a lower level than HTTP clients allow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

RawAsk = Callable[[str, bytes], Awaitable[bytes]]


@pytest.fixture
def raw_ask() -> RawAsk:
    """Send bytes to the host of a URL, and read what comes until the connection ends."""

    async def ask(url: str, request: bytes) -> bytes:
        host, port = url.removeprefix("http://").rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(request)
            async with asyncio.timeout(60):
                return await reader.read()
        finally:
            writer.close()
            await writer.wait_closed()

    return ask
