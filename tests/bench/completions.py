"""Clients of ``POST /v1/chat/completions`` in one process: each asks so often, one time after the other.

The plan is JSON on the command line; every line of the input starts a measurement, and its result is a line.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import cast

import procfs
import uvloop

_STAMP = re.compile(rb"@([0-9]{8}\.[0-9]{6});")
_END = b"data: [DONE]"


@dataclass
class Seen:
    """What one measurement saw. Seconds; ``cpu`` is the server's, ``late`` how old each token was."""

    seconds: float = 0.0
    cpu: float = 0.0
    requests: int = 0
    took: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)


class Client(asyncio.Protocol):
    """One connection."""

    def __init__(self, seen: Seen, model: str) -> None:
        body = json.dumps({"model": model, "stream": True, "messages": [{"role": "user", "content": "Hi"}]})
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
        self._request = f"{head}Content-Type: application/json\r\n\r\n{body}".encode()
        self._seen = seen
        self._tail = b""
        self._begun = 0.0
        self._first = True
        self._transport: asyncio.Transport
        self._done: asyncio.Future[None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    async def ask(self) -> None:
        """One request, to the end of its answer."""
        self._done = asyncio.get_running_loop().create_future()
        self._begun, self._first, self._tail = time.monotonic(), True, b""
        self._transport.write(self._request)
        await self._done
        self._seen.took.append(time.monotonic() - self._begun)
        self._seen.requests += 1

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        if self._first and b'"content":"' in data:
            self._first = False
            self._seen.first.append(now - self._begun)
        text = self._tail + data
        self._seen.late += [now - float(stamp) for stamp in _STAMP.findall(text)]
        self._tail = text[text.rfind(b";") + 1 :][-40:]
        if b'"error"' in text:
            self._done.set_exception(RuntimeError(text[:500].decode()))
        elif _END in text:
            self._done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if hasattr(self, "_done") and not self._done.done():
            self._done.set_exception(ConnectionError("the server hung up"))


async def measure(port: int, pid: int, model: str, clients: int, requests: int, spread: float = 0.0) -> Seen:
    """Everybody asks so often; they begin one after the other within ``spread`` seconds."""
    seen = Seen()
    loop = asyncio.get_running_loop()
    made = [
        (await loop.create_connection(lambda: Client(seen, model), "127.0.0.1", port))[1]
        for _ in range(clients)
    ]

    async def talk(number: int, client: Client) -> None:
        await asyncio.sleep(spread * number / clients)
        for _ in range(requests):
            await client.ask()

    begun, cpu = time.monotonic(), procfs.cpu_seconds(pid)
    await asyncio.gather(*(talk(number, client) for number, client in enumerate(made)))
    seen.seconds, seen.cpu = time.monotonic() - begun, procfs.cpu_seconds(pid) - cpu
    for client in made:
        client._transport.abort()
    return seen


async def main(plan: dict[str, int | str]) -> None:
    """Measure whenever a line comes."""
    print(f"ready: http://127.0.0.1:{plan['port']}", flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(asdict(await measure(**plan))), flush=True)  # type: ignore[arg-type]


if __name__ == "__main__":
    uvloop.run(main(json.loads(sys.argv[1])))
