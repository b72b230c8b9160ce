"""The kill storm: gateways are killed while clients write, and then every message is checked."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import sys
import tempfile
import uuid
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from forks import ForkServer
from lives import BrokenStormError
from nodes import PLANTED as PLANTED_IN_NODES
from plan import Outcome, Plan
from platforms import PLATFORMS, meant_by
from plugged import why_not
from report import Show, display, passed, print_outcomes, summary
from rich.console import Console
from servers import NoServersError, servers
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from storm import Storm

CHANNELS = ("websocket", *PLATFORMS)
PLANTED = (
    "ack-before-commit",
    "asked-anew",
    "blind-resend",
    "both-revisions",
    "ended-turns",
    "failed-turns",
    "forgotten-answers",
    "forgotten-keys",
    "left-standing",
    "loose-files",
    "mixed-accounts",
    "no-recovery",
    "second-runs",
    "torn-edits",
    "trusted-clock",
    "unblocked",
    "unkept-decisions",
    "unwritten-signals",
)
OF_PLUGINS = ("unblocked", "ended-turns")
"""The planted bugs that need the plugins; other storms with a planted bug run without them, to save time."""
VARIABLE = "TRUNKLINE_TEST_POSTGRES_URL"
SERVER = "postgresql+psycopg://postgres@127.0.0.1:5432/postgres"
EXAMPLE = "postgresql://user:password@host/name"

PASSED, FAILED, UNTRIED = 0, 1, 2

DESCRIPTION = """\
A fault-injection test: run a gateway, let clients write to it, kill it again and again, and check every
message.

Clients: twelve over websockets; six on each platform, in private chats, groups, threads and topics (two
bots on Telegram, by polling and by webhook; two bots on Discord; two apps in Slack, by socket and by
HTTP; one account on Matrix). They send files and ask for some, approve tools, stop answers, and edit and
delete messages. Editors change messages and switch between versions over HTTP. The model asks questions
and starts nested runs, a plugin announces notices and asks questions. Confined plugins crash, hang, block
and observe, and are replaced.

Faults: the gateway keeps only four messages of a chat in memory. It is killed with SIGKILL once or twice
a second, at random and at failpoints, and restarted at once, with a clock that is right or an hour off.
A tenth of all calls to the model and the platforms fail, and histories are unreadable for a quarter of
the time.

Checks: each message is answered once, completely, in order, in its latest revision and in its chat, and
all clients see that; its files and those of its answer arrive. Stopped answers, deletions and approvals
remain in effect. Each forbidden call is blocked, and no turn fails because of a plugin. Each notice is
there once, in its latest revision. The plugin and the model get each answer once. The version that was
selected last is shown, and the others are stored. Each nested run happens once.

With --nodes, this number of gateways forms a cluster with its own PostgreSQL and RabbitMQ, and clients
connect to any node. Nodes are also frozen, stopped, drained and cut off from the servers and from
platforms, the clock of one is up to 1.5 s off, calls of killed nodes arrive late, both servers are killed
and restarted, and the certificate between nodes is replaced. Once, all nodes are replaced one by one by a
newer version with one more migration."""

EPILOG = f"""\
The exit status is 0 if no violation was found and there were enough kills to prove that; 1 if not; 2 if
the storm could not run. PostgreSQL is the server that {VARIABLE}
names, with a user who may create databases (else {SERVER}).

examples:
  make storm                                          SQLite and, where there is a server, PostgreSQL
  make storm STORM_ARGS="--engine sqlite --seconds 20"
  make storm STORM_ARGS="--nodes 3"                    a cluster
  make storm STORM_ARGS="--planted blind-resend"       a bug that it has to find: exit status 1"""


class NoServerError(Exception):
    """PostgreSQL was asked for and cannot be used."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the requested storms. Returns the exit status."""
    given = _arguments(argv)
    fork_server = ForkServer(given.channels)
    console = Console(stderr=given.json)
    outcomes: list[Outcome] = []
    try:
        for engine in ["postgres"] if given.nodes > 1 else _engines(given.engine, console):
            with display(console, engine, given.seconds) as show:
                outcomes.append(_hold(engine, given, fork_server, console, show))
    except (NoServerError, NoServersError, BrokenStormError) as error:
        Console(stderr=True).print(f"[red]{error}[/red]", highlight=False, soft_wrap=True)
        return UNTRIED
    print_outcomes(console, outcomes, given.seed)
    if given.json:
        print(json.dumps(summary(outcomes, given.seed)))
    return PASSED if passed(outcomes) else FAILED


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="storm",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--engine", choices=("sqlite", "postgres", "both"), default="both", help="database (both)")
    add("--seconds", type=float, default=60, help="seconds of faults for each database (60)")
    add("--nodes", type=int, default=1, help="nodes of a cluster, on PostgreSQL with servers of its own (1)")
    add(
        "--channels",
        type=_channels,
        default=CHANNELS,
        help=f"channels, separated by commas ({','.join(CHANNELS)})",
    )
    add("--rate", type=float, default=18, help="messages per second in all (18)")
    add("--faults", type=float, default=0.1, help="share of model and platform calls that fail (0.1)")
    add(
        "--files",
        type=float,
        default=0.1,
        help="share of messages with a file, and of those that ask for one (0.1)",
    )
    add(
        "--drain",
        type=float,
        default=200,
        help="maximum seconds until all is answered after the faults (200)",
    )
    add("--seed", type=int, default=random.randrange(1_000_000), help="seed of all random choices (random)")
    add("--planted", choices=(*PLANTED, *PLANTED_IN_NODES), help="insert a bug that the storm has to find")
    add("--json", action="store_true", help="one JSON line on standard output, all else on standard error")
    add("--keep", action="store_true", help="keep the directory with the database and the gateways' log")
    given = parser.parse_args(argv)
    if given.nodes < 1:
        parser.error("--nodes is 1 or more")
    if given.nodes > 1 and given.engine == "sqlite":
        parser.error("--nodes needs PostgreSQL")
    if given.nodes == 1 and given.planted in PLANTED_IN_NODES:
        parser.error(f"--planted {given.planted} needs --nodes 2 or more")
    return given


def _channels(names: str) -> tuple[str, ...]:
    chosen: list[str] = []
    for name in names.split(","):
        found = ("websocket",) if name == "websocket" else meant_by(name)
        if not found:
            raise argparse.ArgumentTypeError(f"there is no channel {name!r}; there are {', '.join(CHANNELS)}")
        chosen += found
    return tuple(dict.fromkeys(chosen))


def _hold(
    engine: str, given: argparse.Namespace, fork_server: ForkServer, console: Console, show: Show
) -> Outcome:
    directory = Path(tempfile.mkdtemp(prefix="trunkline-storm-"))
    try:
        with ExitStack() as stack:
            found = stack.enter_context(servers()) if given.nodes > 1 else None
            if found is None:
                url = stack.enter_context(_database(engine, directory))
            else:
                url = found[0].url(found[0].port)
            plan = Plan(
                url,
                given.seconds,
                given.rate,
                given.faults,
                given.seed,
                given.planted,
                given.channels,
                given.files,
                given.drain,
                given.planted in (None, *OF_PLUGINS) and not why_not(),
                given.nodes,
            )
            return asyncio.run(Storm(plan, directory, fork_server, found).run(show))
    finally:
        if given.keep:
            console.print(f"kept: {directory}", highlight=False, soft_wrap=True)
        else:
            shutil.rmtree(directory)


def _engines(wanted: str, console: Console) -> list[str]:
    """Return the engines to test; PostgreSQL is skipped if it is unreachable, unless it was requested."""
    if wanted == "sqlite":
        return ["sqlite"]
    try:
        _reach_server()
    except NoServerError as error:
        if wanted == "postgres":
            raise
        console.print(f"{error}\nOnly SQLite is tested.", style="yellow", highlight=False, soft_wrap=True)
        return ["sqlite"]
    return ["postgres"] if wanted == "postgres" else ["sqlite", "postgres"]


def _reach_server() -> None:
    engine = create_engine(_server(), connect_args={"connect_timeout": 3})
    try:
        engine.connect().close()
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", error)).strip().splitlines()[0]
        raise NoServerError(
            f"PostgreSQL cannot be reached at {engine.url.render_as_string()}: {reason}\n"
            f"Name a server whose user may create databases: {VARIABLE}={EXAMPLE}"
        ) from None
    finally:
        engine.dispose()


def _server() -> str:
    try:
        url = make_url(os.environ.get(VARIABLE) or SERVER)
    except ArgumentError:
        raise NoServerError(
            f"{VARIABLE} is no address, such as postgresql://user:password@host/name"
        ) from None
    return url.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)


@contextmanager
def _database(kind: str, directory: Path) -> Generator[str]:
    """Create a database of a kind. Yields its URL."""
    if kind == "sqlite":
        yield f"sqlite:///{directory / 'trunkline.db'}"
        return
    server = create_engine(_server(), isolation_level="AUTOCOMMIT")
    name = f"trunkline_storm_{uuid.uuid4().hex[:12]}"
    try:
        with server.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
    except SQLAlchemyError as error:
        raise NoServerError(f"no database can be created: {getattr(error, 'orig', error)}") from None
    try:
        yield make_url(_server()).set(database=name).render_as_string(hide_password=False)
    finally:
        with server.connect() as connection:
            connection.execute(text(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
        server.dispose()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
