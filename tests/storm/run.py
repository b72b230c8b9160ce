"""The kill storm: real gateways are killed while real clients write, and every message is accounted for.

    python tests/storm/run.py [--seconds 45] [--rate 18] [--store sqlite|postgres|both] [--seed N]
        [--faults 0.1] [--planted ack-before-commit|blind-resend|no-recovery] [--json] [--keep]

Exit status 0: nothing lost, doubled, left over or out of order, and enough was killed to say so.
"""

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from failpoints import POINTS
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import SQLAlchemyError
from storm import Outcome, Plan, Progress, Storm

PLANTED = ("ack-before-commit", "blind-resend", "no-recovery")
SERVER = "postgresql+psycopg://postgres@127.0.0.1:5432/postgres"
_KILLS_PER_SECOND = 60 / 45
_SHOWN = 12


def main(argv: Sequence[str] | None = None) -> int:
    """Run the storms that are asked for. Returns the exit status."""
    given = _arguments(argv)
    console = Console(stderr=given.json)
    outcomes: list[Outcome] = []
    for kind in _stores(given.store, console):
        directory = Path(tempfile.mkdtemp(prefix="trunkline-storm-"))
        with _database(kind, directory) as url:
            plan = Plan(url, given.seconds, given.rate, given.faults, given.seed, given.planted, given.drain)
            storm = Storm(plan, directory)
            with _display(console, kind, given.seconds) as show:
                outcomes.append(asyncio.run(storm.run(show)))
        if given.keep:
            console.print(f"kept: {directory}")
        else:
            shutil.rmtree(directory)
        _print_outcome(console, outcomes[-1])
    passed = bool(outcomes) and all(not _complaints(outcome) for outcome in outcomes)
    print(json.dumps(_summary(outcomes, given.seed, passed)))
    return 0 if passed else 1


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Kill gateways under load, and account for every message.")
    parser.add_argument("--seconds", type=float, default=45, help="how long each store is stormed")
    parser.add_argument("--rate", type=float, default=18, help="messages per second, all clients together")
    parser.add_argument("--store", choices=("sqlite", "postgres", "both"), default="both")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument(
        "--faults", type=float, default=0.1, help="share of model and platform calls that fail"
    )
    parser.add_argument("--drain", type=float, default=60, help="how long the calm afterwards may take")
    parser.add_argument("--planted", choices=PLANTED, help="a bug that has to be found")
    parser.add_argument("--json", action="store_true", help="nothing but the JSON line on standard output")
    parser.add_argument("--keep", action="store_true", help="keep the directory with database and log")
    return parser.parse_args(argv)


def _stores(wanted: str, console: Console) -> list[str]:
    """The stores to storm; PostgreSQL is left out where it cannot be reached, unless it was asked for."""
    if wanted != "both":
        return [wanted]
    engine = create_engine(_server(), connect_args={"connect_timeout": 3})
    try:
        engine.connect().close()
    except SQLAlchemyError:
        console.print("PostgreSQL cannot be reached (TRUNKLINE_TEST_POSTGRES_URL); only SQLite is stormed")
        return ["sqlite"]
    finally:
        engine.dispose()
    return ["sqlite", "postgres"]


@contextmanager
def _database(kind: str, directory: Path) -> Iterator[str]:
    """A fresh database of a kind, as a URL."""
    if kind == "sqlite":
        yield f"sqlite:///{directory / 'trunkline.db'}"
        return
    server = create_engine(_server(), isolation_level="AUTOCOMMIT")
    name = f"trunkline_storm_{uuid.uuid4().hex[:12]}"
    try:
        with server.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        yield make_url(_server()).set(database=name).render_as_string(hide_password=False)
    finally:
        with server.connect() as connection:
            connection.execute(text(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
        server.dispose()


def _server() -> str:
    url = os.environ.get("TRUNKLINE_TEST_POSTGRES_URL") or SERVER
    return make_url(url).set(drivername="postgresql+psycopg").render_as_string(hide_password=False)


def _complaints(outcome: Outcome) -> list[str]:
    """Why a storm did not pass; empty when it did."""
    plan = outcome.plan
    found = [f"{kind} {count}" for kind, count in outcome.verdict.counts.items() if count]
    if not outcome.drained:
        found.append("it never drained")
    if outcome.kills < plan.seconds * _KILLS_PER_SECOND:
        found.append(f"only {outcome.kills} kills")
    if outcome.messages < 0.8 * plan.rate * plan.seconds:
        found.append(f"only {outcome.messages} messages")
    if plan.seconds >= 45:
        found += [f"never killed {point}" for point, hits in outcome.hits.items() if not hits]
    if outcome.unexpected:
        found.append(f"ended by itself: {', '.join(sorted(set(outcome.unexpected)))}")
    if outcome.exit_status != 0:
        found.append(f"exit status {outcome.exit_status} when told to stop")
    return found


@contextmanager
def _display(console: Console, kind: str, seconds: float) -> Iterator[Callable[[Progress], None]]:
    """Something to look at meanwhile: one line that moves on a terminal, a line now and then elsewhere."""
    if not console.is_terminal:
        yield lambda _progress: None
        return
    with Live(console=console, transient=True) as live:
        yield lambda progress: live.update(_line(kind, seconds, progress))


def _line(kind: str, seconds: float, progress: Progress) -> Table:
    table = Table.grid(padding=(0, 2))
    bar = ProgressBar(total=seconds, completed=min(seconds, progress.elapsed), width=24)
    table.add_row(
        f"{kind}: {progress.phase}",
        bar,
        f"{progress.elapsed:.0f} s",
        f"{progress.sent} sent, {progress.acked} acknowledged",
        f"{progress.kills} kills",
        f"{progress.points}/{len(POINTS)} failpoints",
    )
    return table


def _print_outcome(console: Console, outcome: Outcome) -> None:
    table = Table(title=f"{outcome.engine}: {'passed' if not _complaints(outcome) else 'FAILED'}")
    for column in ("messages", "kills", "lives", *outcome.verdict.counts, "drain"):
        table.add_column(column.replace("_", " "), justify="right")
    figures = (outcome.messages, outcome.kills, outcome.lives, *outcome.verdict.counts.values())
    table.add_row(*map(str, figures), f"{outcome.drain_seconds:.1f} s")
    console.print(table)
    hits = Table(title="killed at", show_header=False)
    for point, count in outcome.hits.items():
        hits.add_row(point, str(count))
    console.print(hits)
    for complaint in _complaints(outcome):
        console.print(f"[red]{complaint}[/red]")
    for kind, lines in outcome.verdict.found.items():
        for line in lines[:_SHOWN]:
            console.print(f"{kind}: {line}", markup=False)


def _summary(outcomes: Sequence[Outcome], seed: int, passed: bool) -> dict[str, object]:
    return {
        "passed": passed,
        "seed": seed,
        "storms": [
            {
                "store": outcome.engine,
                "seconds": outcome.plan.seconds,
                "planted": outcome.plan.planted,
                "messages": outcome.messages,
                "acked": outcome.acked,
                "kills": outcome.kills,
                "failpoints": outcome.hits,
                "drain_seconds": round(outcome.drain_seconds, 1),
                **outcome.verdict.counts,
                "complaints": _complaints(outcome),
            }
            for outcome in outcomes
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
