"""The fake Slack alone: ``python -m channels.slack.fake.serve`` prints its address, and has a page there."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Callable, Sequence

from channels.slack.fake.server import FakeSlack


async def serve(argv: Sequence[str] | None = None, on_applied: Callable[[], None] | None = None) -> None:
    """Run until cancelled; the first line of the output is the address, then come the app's secrets."""
    parser = argparse.ArgumentParser(description="A fake Slack.")
    parser.add_argument("--port", type=int, default=0, help="0 takes any free port")
    parser.add_argument("--faults", type=float, default=0, help="share of calls that go wrong")
    parser.add_argument("--repeats", type=float, default=0, help="share of events that come twice")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--pace", type=float, default=1, help="how fast its clock runs")
    parser.add_argument("--teams", default="acme", help="its workspaces, with commas between")
    given = vars(parser.parse_args(argv))
    teams = tuple(given.pop("teams").split(","))
    async with FakeSlack(**given, teams=teams, on_applied=on_applied) as fake:
        lines = [
            fake.url,
            f"bot token       {fake.bot_token}",
            f"app token       {fake.app_token}",
            f"signing secret  {fake.app.signing_secret}",
            f"base url        {fake.api_url}",
        ]
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve())
