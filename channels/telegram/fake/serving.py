"""The fake platform alone, to try a bot against: ``python -m channels.telegram.fake``."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence

from channels.telegram.fake.server import TOKEN, FakeTelegram


async def serve(argv: Sequence[str] | None = None, on_applied: Callable[[], None] | None = None) -> None:
    """Run until cancelled, with some people and rooms. The first line of the output is the address."""
    parser = argparse.ArgumentParser(
        description="A fake Telegram: the Bot API, and a page to write to the bot."
    )
    parser.add_argument("--host", default="127.0.0.1", help="where to listen")
    parser.add_argument("--port", type=int, default=0, help="0 takes any free port")
    parser.add_argument("--token", default=TOKEN, help="the token of the bot")
    parser.add_argument("--faults", type=float, default=0, help="share of calls that go wrong")
    parser.add_argument("--repeats", type=float, default=0, help="share of updates that come twice")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--limits", action="store_true", help="count calls as the platform does")
    parser.add_argument("--topics", action="store_true", help="private chats have topics")
    given = parser.parse_args(argv)
    async with FakeTelegram(**vars(given), on_applied=on_applied) as fake:
        fake.private("Ada")
        fake.private("Ben")
        fake.group("Lab", "Ada", "Ben", admin=True)
        fake.group("Street", "Ada", "Ben")
        fake.group("Forum", "Ada", "Ben", forum=True, admin=True)
        sys.stdout.write(f"{fake.url}\ntoken {fake.token}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()
