"""The figure of the console's first screen: what it costs to look at a gateway that is busy."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException

from figures import Bench, Row, cost, each, row
from processes import Process

_RUNNING = 1_000


def followed(bench: Bench) -> Iterator[Row]:
    """1,000 running turns whose model takes 2 s, with and without a reader of the state now.

    So many end and begin all the time that the gateway has little time left. The floor is the same gateway
    without a reader.
    """
    gateways = {"relay": bench.lab.gateway(), "ours": bench.lab.gateway()}
    with _follower(gateways["ours"]) as received:
        results = bench.talks(gateways, mode="w20", clients=_RUNNING, seconds=8.0, spread=2.0, warm=4.0)
        count = received()
    bench.lab.stop(*gateways.values())
    label = f"{_RUNNING:,} running turns, followed on the page Now: processor for a turn"
    note = f"the floor is not followed; {count / 1024:,.0f} KiB of events"
    yield row(label, "µs", each(results, cost), 1.02, note=note)


@contextmanager
def _follower(gateway: Process) -> Iterator[Callable[[], int]]:
    """Read the changes of a gateway's state in a thread; yields the number of bytes so far."""
    response = urllib.request.urlopen(f"http://127.0.0.1:{gateway.port}/api/now/events")
    received = 0

    def read() -> None:
        nonlocal received
        try:
            while data := response.read1(65_536):
                received += len(data)
        except (OSError, HTTPException, ValueError):
            pass  # the gateway was stopped

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield lambda: received
    finally:
        thread.join(0)


NOW_FIGURES = {"followed": followed}
