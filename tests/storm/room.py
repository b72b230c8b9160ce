"""A chat platform of a storm, in its own process.

python tests/storm/room.py DIRECTORY PLATFORM --faults 0.1 --repeats 0.1 --seed 1
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

from failpoints import DELETED, Failpoints, placed_on
from platforms import server_of

if __name__ == "__main__":
    directory, platform, *flags = sys.argv[1:]
    failpoints = Failpoints(Path(directory))
    point = placed_on(platform)
    with contextlib.suppress(KeyboardInterrupt):
        more = [lambda: failpoints.reach(DELETED)] if platform == "line" else []
        asyncio.run(server_of(platform)(flags, lambda: failpoints.reach(point), *more))
