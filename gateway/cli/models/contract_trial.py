"""Contract tests of all adapters against fake servers: their run, progress and table of results."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from importlib import import_module

import structlog
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from gateway.cli.output import plain, print_table
from gateway.testing.contracts.trial import COLUMNS, Candidate, Trial, try_all

PLUGINS = ("providers", "cli_backends")
"""The plugins with adapters; each has a module ``candidates``."""

_MARKS = {
    True: Text("✓", style="green"),
    False: Text("✗", style="red"),
    None: Text("-", style="dim"),
}
_STATES = {"ok": "green", "failed": "red", "not installed": "yellow"}


class UnknownProviderError(Exception):
    """No adapter has this name."""


def run_trials(names: Sequence[str], environ: Mapping[str, str]) -> list[Trial]:
    """Test the adapters of these names, or all. Raises UnknownProviderError."""
    candidates = find_candidates(names, environ)
    # The fake servers cause every warning.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.disable(logging.CRITICAL)
    say = Console(stderr=True)
    progress = Progress(
        TextColumn("testing"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", style="dim"),
        console=say,
        transient=True,
        disable=not say.is_terminal,
    )
    with progress:
        task = progress.add_task("", total=sum(each.checks for each in candidates))

        def finished(trial: Trial) -> None:
            if not say.is_terminal:
                say.print(f"{trial.name}: {trial.outcome}", markup=False, highlight=False)

        def done(check: str) -> None:
            progress.update(task, advance=1, description=check.replace("_", " "))

        return asyncio.run(try_all(candidates, done, finished))


def all_passed(trials: Sequence[Trial], names: Sequence[str]) -> bool:
    """Return whether no trial failed; a program that is not installed fails only if it is named."""
    wrong = ("failed", "not installed") if names else ("failed",)
    return all(trial.outcome not in wrong for trial in trials)


def print_trials(trials: Sequence[Trial]) -> None:
    """Print a table, and below it each problem with advice."""
    table = Table(box=None, header_style="bold")
    for title in ("provider", "protocol"):
        table.add_column(title, no_wrap=True)
    columns = list(dict.fromkeys((*COLUMNS, *(column for trial in trials for column in trial.columns))))
    for title in columns:
        table.add_column(title, justify="center")
    table.add_column("first token", justify="right")
    table.add_column("", no_wrap=True)
    for trial in trials:
        marks = [_MARKS[trial.columns.get(column)] for column in columns]
        first = "" if trial.first_token_ms is None else f"{trial.first_token_ms:.1f} ms"
        state = Text(trial.outcome, style=_STATES[trial.outcome])
        table.add_row(trial.name, trial.protocol, *marks, first, state)
    print_table(table)
    console = Console(highlight=False)
    for trial in trials:
        for line in (*trial.problems, *([f"→ {trial.way_out}"] if trial.way_out else ())):
            console.print(Text(f"{trial.name}: {plain(line)}"), soft_wrap=True)
    counts = [sum(trial.outcome == state for trial in trials) for state in _STATES]
    console.print("{} ok, {} failed, {} not installed".format(*counts))


def find_candidates(names: Sequence[str], environ: Mapping[str, str]) -> list[Candidate]:
    """Return the adapters of these names, or all. Raises UnknownProviderError."""
    modules = [import_module(f"plugins.{plugin}.candidates") for plugin in PLUGINS]
    candidates: dict[str, Candidate] = {
        each.name: each for module in modules for each in module.candidates(environ)
    }
    if unknown := [name for name in names if name not in candidates]:
        raise UnknownProviderError(f"unknown provider {unknown[0]!r}; choose from {', '.join(candidates)}")
    return [candidates[name] for name in dict.fromkeys(names or candidates)]
