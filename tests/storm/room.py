"""The chat platform of a storm, in a process of its own.

python tests/storm/room.py DIRECTORY --faults 0.1 --repeats 0.1 --seed 1
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

from failpoints import Failpoints

from gateway.testing.platform import serve

if __name__ == "__main__":
    failpoints = Failpoints(Path(sys.argv[1]))
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(sys.argv[2:], lambda: failpoints.reach("placed, before the platform answers")))
