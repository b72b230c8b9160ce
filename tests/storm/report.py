"""The output of storms: a progress line while they run, then a table of figures, or JSON."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from plan import UPGRADED, Outcome, Progress
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from tests.gateway.cluster.newer import REVISION

Show = Callable[[Progress], None]

_SHOWN = 12
_NAMES = {
    "duplicate": "doubled",
    "orphan": "half, or left over",
    "out_of_order": "out of order",
    "wrong": "answered wrongly",
    "seq": "numbers that went back",
    "dead": "given up",
}
_EVERY = 10


def complaints(outcome: Outcome) -> list[str]:
    """Return why a storm did not pass; empty if it did."""
    plan = outcome.plan
    found = [f"{_named(kind)}: {count}" for kind, count in outcome.verdict.counts.items() if count]
    if not outcome.drained:
        found.append(f"not everything was answered {plan.drain:g} s after the storm")
    if outcome.kills < plan.fewest_kills:
        found.append(f"only {outcome.kills} kills, which proves too little")
    found += _complaints_of_nodes(outcome)
    if outcome.messages < 0.8 * plan.rate * plan.seconds:
        found.append(f"only {outcome.messages} messages, which proves too little")
    silent = [name for name in plan.channels if name != "websocket" and not outcome.said[name]]
    if silent:
        found.append(f"no message in {', '.join(silent)}")
    if plan.plugins and not (outcome.blocked and outcome.exchanged):
        found.append(f"{outcome.blocked} calls blocked, {outcome.exchanged} plugins replaced: too few")
    if plan.needs_every_failpoint:
        found += [f"never killed {point}" for point, hits in outcome.hits.items() if not hits]
    if outcome.unexpected:
        found.append(f"ended by itself: {', '.join(sorted(set(outcome.unexpected)))}")
    if outcome.exit_status != 0:
        found.append(f"exit status {outcome.exit_status} when told to stop")
    return found


def _complaints_of_nodes(outcome: Outcome) -> list[str]:
    """Return why too few faults of nodes happened to prove anything."""
    plan = outcome.plan
    found = [
        f"{fault}: only {times} times, which proves too little"
        for fault, times in outcome.faults.items()
        if times < plan.fewest(fault)
    ]
    if UPGRADED in outcome.faults and outcome.revision != REVISION:
        found.append(f"the database is at revision {outcome.revision}, and the newer version has {REVISION}")
    if plan.needs_answers_in_outages and not outcome.answers_in_outages:
        found.append("no answer ended while RabbitMQ was away")
    return found


@contextmanager
def display(console: Console, engine: str, seconds: float) -> Generator[Show]:
    """Show the progress: one updated line on a terminal, a line now and then elsewhere."""
    if console.is_terminal:
        with Live(console=console, transient=True) as live:
            yield lambda progress: live.update(_moving(engine, seconds, progress))
        return
    next_at = 0.0

    def show(progress: Progress) -> None:
        nonlocal next_at
        if progress.elapsed >= next_at:
            next_at = progress.elapsed + _EVERY
            console.print("  ".join((f"{engine}: {progress.phase}", *_said(progress))), highlight=False)

    yield show


def _moving(engine: str, seconds: float, progress: Progress) -> Table:
    table = Table.grid(padding=(0, 2))
    bar = ProgressBar(total=seconds, completed=min(seconds, progress.elapsed), width=16)
    table.add_row(f"{engine}: {progress.phase}", bar, *_said(progress))
    return table


def _said(progress: Progress) -> tuple[str, ...]:
    return (
        f"{progress.elapsed:.0f} s",
        f"{progress.acked}/{progress.sent} accepted",
        f"{progress.kills} kills",
        f"{progress.points} failpoints",
    )


def print_outcomes(console: Console, outcomes: Sequence[Outcome], seed: int) -> None:
    """Print the figures of all storms side by side, the violations and the verdict."""
    console.print(_figures(outcomes), _failpoints(outcomes))
    for outcome in outcomes:
        for complaint in complaints(outcome):
            console.print(f"[red]{outcome.engine}: {complaint}[/red]", highlight=False)
        for kind, lines in outcome.verdict.found.items():
            for line in lines[:_SHOWN]:
                console.print(f"  {_named(kind)}: {line}", markup=False, highlight=False)
    if passed(outcomes):
        console.print("[green]passed[/green]")
    else:
        console.print(f"[red]FAILED[/red]; to see it again: --seed {seed} --keep", highlight=False)


def _figures(outcomes: Sequence[Outcome]) -> Table:
    table = _table("what became of the messages", outcomes)
    rows: dict[str, Callable[[Outcome], object]] = {
        "messages sent": lambda o: o.messages,
        **{f"  on {name}": _said_on(name) for name in outcomes[0].said},
        "accepted": lambda o: o.acked,
        "kill -9": lambda o: o.kills,
        **{f"  {fault}": _happened(fault) for fault in outcomes[0].faults},
        **{f"  node ended with {status}": _ended(status) for status in sorted(outcomes[0].exits)},
        **(_OF_NODES if outcomes[0].faults else {}),
        "answers that failed": lambda o: o.failures,
        "summaries": lambda o: o.summaries,
        "notices": lambda o: o.notices,
        "inquiries": lambda o: o.inquiries,
        "questions of the model": lambda o: o.choices,
        "tasks": lambda o: o.tasks,
        "edits and switches": lambda o: o.changes,
        "calls that a plugin blocked": lambda o: o.blocked,
        "plugins replaced": lambda o: o.exchanged,
        "runs of a plugin's job": lambda o: o.ticks,
        "drain until all was answered": lambda o: f"{o.drain_seconds:.1f} s",
    }
    for name, figure in rows.items():
        table.add_row(name, *(str(figure(outcome)) for outcome in outcomes))
    table.add_section()
    for kind in outcomes[0].verdict.counts:
        counts = [outcome.verdict.counts[kind] for outcome in outcomes]
        table.add_row(_named(kind), *(f"[red]{count}[/red]" if count else "0" for count in counts))
    return table


_OF_NODES: dict[str, Callable[[Outcome], object]] = {
    "answers while RabbitMQ was away": lambda outcome: outcome.answers_in_outages,
    "revision of the database": lambda outcome: outcome.revision,
}


def _said_on(platform: str) -> Callable[[Outcome], object]:
    return lambda outcome: outcome.said[platform]


def _happened(fault: str) -> Callable[[Outcome], object]:
    return lambda outcome: outcome.faults[fault]


def _ended(status: int) -> Callable[[Outcome], object]:
    return lambda outcome: outcome.exits[status]


def _failpoints(outcomes: Sequence[Outcome]) -> Table:
    table = _table("killed", outcomes)
    for point in outcomes[0].hits:
        table.add_row(point, *(str(outcome.hits[point]) for outcome in outcomes))
    others = [outcome.kills - sum(outcome.hits.values()) for outcome in outcomes]
    table.add_row("at any other moment", *map(str, others))
    return table


def _table(title: str, outcomes: Sequence[Outcome]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for outcome in outcomes:
        table.add_column(outcome.engine, justify="right")
    return table


def _named(kind: str) -> str:
    return _NAMES.get(kind, kind)


def passed(outcomes: Sequence[Outcome]) -> bool:
    """Return whether all storms passed."""
    return bool(outcomes) and not any(map(complaints, outcomes))


def summary(outcomes: Sequence[Outcome], seed: int) -> dict[str, object]:
    """Return the result as JSON data."""
    return {
        "passed": passed(outcomes),
        "seed": seed,
        "storms": [
            {
                "engine": outcome.engine,
                "seconds": outcome.plan.seconds,
                "planted": outcome.plan.planted,
                "messages": outcome.messages,
                "said": dict(outcome.said),
                "acked": outcome.acked,
                "kills": outcome.kills,
                "faults": dict(outcome.faults),
                "answers_in_outages": outcome.answers_in_outages,
                "revision": outcome.revision,
                "exits": {str(status): times for status, times in outcome.exits.items()},
                "failures": outcome.failures,
                "summaries": outcome.summaries,
                "notices": outcome.notices,
                "inquiries": outcome.inquiries,
                "choices": outcome.choices,
                "tasks": outcome.tasks,
                "changes": outcome.changes,
                "blocked": outcome.blocked,
                "exchanged": outcome.exchanged,
                "ticks": outcome.ticks,
                "failpoints": outcome.hits,
                "drain_seconds": round(outcome.drain_seconds, 1),
                **outcome.verdict.counts,
                "violations": {kind: lines for kind, lines in outcome.verdict.found.items() if lines},
                "channels": _by_channel(outcome),
                "complaints": complaints(outcome),
            }
            for outcome in outcomes
        ],
    }


def _by_channel(outcome: Outcome) -> dict[str, dict[str, int]]:
    """Return the violations by channel."""
    found = outcome.verdict.channels
    return {name: dict(found.get(name, {})) for name in (*outcome.plan.channels, *found)}
