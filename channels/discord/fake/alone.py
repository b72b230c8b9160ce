"""Run the fake on its own, to try a bot against it by hand."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence

from channels.discord.fake.figures import relaxed
from channels.discord.fake.server import FakeDiscord


async def serve(argv: Sequence[str] | None = None, on_applied: Callable[[], None] | None = None) -> None:
    """Run until cancelled; the first line of the output is the address, where a page shows everything."""
    parser = argparse.ArgumentParser(description="A fake Discord.")
    parser.add_argument("--port", type=int, default=0, help="0 takes any free port")
    parser.add_argument("--faults", type=float, default=0, help="share of calls that go wrong")
    parser.add_argument("--repeats", type=float, default=0, help="share of events that come twice")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--token", default="fake-token", help="the bot's token")
    parser.add_argument("--no-limits", action="store_true", help="no limits on the rate of calls")
    given = vars(parser.parse_args(argv))
    figures = relaxed() if given.pop("no_limits") else None
    async with FakeDiscord(**given, figures=figures, on_applied=on_applied) as fake:
        sys.stdout.write(f"{fake.url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()
