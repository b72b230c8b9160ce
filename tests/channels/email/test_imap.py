"""The IMAP client, with a server in memory."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from channels.email.imap import Imap
from channels.email.inflow import Inflow, LoopGuard
from channels.email.options import Options
from channels.email.parse import Bot
from gateway.channel import Host
from tests.channels.email.mail_servers import ADDRESS, SERVER
from tests.virtual_time import VirtualTimeLoop

LOGIN = {"address": ADDRESS, "password": "p", "imap_host": "localhost", "smtp_host": "localhost"}


class QuietServer(asyncio.Transport):
    """A server without new mail. ``idle`` are the seconds of each IDLE command."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        super().__init__()
        self._reader = reader
        self._tag = b""
        self._began = 0.0
        self._closed = False
        self.idle: list[float] = []

    def write(self, data: Any) -> None:
        now = asyncio.get_running_loop().time()
        tag, _, command = bytes(data).strip().partition(b" ")
        if tag == b"DONE":
            self.idle.append(now - self._began)
            self._reader.feed_data(self._tag + b" OK\r\n")
        elif command == b"IDLE":
            self._tag, self._began = tag, now
            self._reader.feed_data(b"+ idling\r\n")
        else:
            self._reader.feed_data(b"* OK [UIDVALIDITY 1]\r\n* OK [UIDNEXT 1]\r\n" + tag + b" OK\r\n")

    def is_closing(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True


class NoHost:
    """The host of a channel that ran never before."""

    async def cursors(self, channel: str) -> tuple[()]:
        return ()


def test_a_connection_is_used_before_routers_forget_it() -> None:
    """Some forget a connection after four minutes without data: the server's news would then be lost."""

    async def follow() -> list[float]:
        reader = asyncio.StreamReader()
        server = QuietServer(reader)
        protocol = asyncio.StreamReaderProtocol(reader)
        writer = asyncio.StreamWriter(server, protocol, reader, asyncio.get_running_loop())
        imap = Imap(reader, writer, 1_000)
        imap.capabilities = frozenset({"IDLE"})

        async def receive(*_: object, **__: object) -> tuple[()]:
            return ()

        options = Options.model_validate(LOGIN)
        bot = Bot("email", ADDRESS, SERVER)
        inflow = Inflow(cast(Host, NoHost()), bot, options, receive, LoopGuard())
        following = asyncio.create_task(inflow.follow(imap, lambda: None))
        await asyncio.sleep(3_600)
        following.cancel()
        writer.close()
        return server.idle

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        idle = runner.run(follow())
    assert len(idle) > 10
    assert max(idle) < 240


class SlowServer(QuietServer):
    """A server that sends a mail of 12 MB with 100 kB in a second."""

    def write(self, data: Any) -> None:
        asyncio.get_running_loop().create_task(self._send(bytes(data).split()[0]))

    async def _send(self, tag: bytes) -> None:
        self._reader.feed_data(b"* 1 FETCH (UID 1 RFC822.SIZE 12000000 BODY[] {12000000}\r\n")
        for _ in range(12):
            await asyncio.sleep(10)
            self._reader.feed_data(b"x" * 1_000_000)
        self._reader.feed_data(b")\r\n" + tag + b" OK\r\n")


def test_a_large_mail_may_take_longer_than_other_answers() -> None:
    """If it ended in a timeout each time, no later mail would be read."""

    async def fetch() -> int:
        reader = asyncio.StreamReader(limit=2**24)
        protocol = asyncio.StreamReaderProtocol(reader)
        writer = asyncio.StreamWriter(SlowServer(reader), protocol, reader, asyncio.get_running_loop())
        found = await Imap(reader, writer, 2**24).fetch(1, "", size=12_000_000)
        writer.close()
        return 0 if found is None else len(found.sections[""])

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(fetch()) == 12_000_000
