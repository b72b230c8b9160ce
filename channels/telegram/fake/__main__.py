"""``python -m channels.telegram.fake``."""

from __future__ import annotations

import asyncio
import contextlib

from channels.telegram.fake.serving import serve

if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve())
