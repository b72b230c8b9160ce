"""A channel in the test's process."""

from __future__ import annotations

import asyncio

from gateway.contract.channel import InboundMessage, OutboundMessage, Placed, Receipt, Receive


class Letterbox:
    """A channel of a test: ``write`` sends a message of a user; ``sent`` are the gateway's messages, oldest
    first.
    """

    def __init__(self, channel_id: str = "letters") -> None:
        self.id = channel_id
        self.sent: list[OutboundMessage] = []
        self.open = asyncio.Event()
        self._arrived = asyncio.Condition()
        self._receive: Receive | None = None

    async def run(self, receive: Receive) -> None:
        """Receive messages of ``write`` until cancelled."""
        self._receive = receive
        self.open.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.open.clear()

    async def send(self, outbound: OutboundMessage) -> Placed:
        """Record a message of the gateway."""
        async with self._arrived:
            self.sent.append(outbound)
            self._arrived.notify_all()
        return Placed(str(len(self.sent)))

    async def write(self, message: InboundMessage) -> Receipt:
        """Pass a message to the gateway and wait until it is accepted."""
        await self.open.wait()
        assert self._receive is not None
        return (await self._receive(message))[0]

    async def until(self, count: int) -> list[OutboundMessage]:
        """Wait until the gateway has sent ``count`` messages, and return all of them."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.sent) >= count)
        return self.sent
