"""``python -m channels.slack.fake``."""

from __future__ import annotations

import asyncio
import contextlib

from channels.slack.fake.serving import serve

if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve())
