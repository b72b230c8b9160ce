"""The fake platform alone, to try an app against: ``python -m channels.slack.fake``."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence

from channels.slack.fake.server import FakeSlack


async def serve(argv: Sequence[str] | None = None, on_applied: Callable[[], None] | None = None) -> None:
    """Run until cancelled. The first line of the output is the address; what an app has to know follows."""
    parser = argparse.ArgumentParser(description="A fake Slack, and a page to write to the app.")
    parser.add_argument("--host", default="127.0.0.1", help="where to listen")
    parser.add_argument("--port", type=int, default=0, help="0 takes any free port")
    parser.add_argument("--teams", default="acme", help="the workspaces, with commas between")
    parser.add_argument("--uninstalled", action="store_true", help="the app is yet to be installed")
    parser.add_argument("--faults", type=float, default=0, help="share of calls that go wrong")
    parser.add_argument("--repeats", type=float, default=0, help="share of events that come twice")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--pace", type=float, default=1, help="how fast its clock runs")
    parser.add_argument("--limits", action="store_true", help="count calls as the platform does")
    parser.add_argument("--events", metavar="URL", help="deliver by HTTP to this address, not by sockets")
    given = vars(parser.parse_args(argv))
    teams = tuple(given.pop("teams").split(","))
    installed, limited, events = not given.pop("uninstalled"), given.pop("limits"), given.pop("events")
    async with FakeSlack(**given, teams=teams, installed=installed, on_applied=on_applied) as fake:
        fake.switches.limited = limited
        fake.webhooks.url = events
        sys.stdout.write("\n".join([fake.url, *_facts(fake)]) + "\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def _facts(fake: FakeSlack) -> list[str]:
    """What an app has to know, and a room for each of two persons if it is installed."""
    facts = [
        f"api {fake.api_url}",
        f"app_token {fake.app_token}",
        f"signing_secret {fake.app.signing_secret}",
        f"client_id {fake.app.client_id}",
        f"client_secret {fake.app.client_secret}",
    ]
    for team in fake.state.teams.values():
        if team.bot is not None:
            fake.room("@ada", team.id)
            fake.room("@ben", team.id)
            facts.append(f"bot_token {fake.token(team.id)} {team.name}")
    return facts
