"""``python -m channels.discord.fake``."""

import asyncio
import contextlib

from channels.discord.fake.alone import serve

if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve())
