"""Measures Trunkline against floors in the same run, and says which goals are met.

Servers run on one core, their load and the model on another. What is compared is measured in turns, a
round each; the medians of the rounds and of their ratios count. The exit status is 0; with ``--strict`` it
is 1 if a goal is missed.

To see what a change costs, name a checkout without it, with its own .venv:
run.py --only saturated,accept --against ../main
Its gateway is measured in the same rounds, and the column "change" has ours as a multiple of the other's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from agent_figures import AGENT_FIGURES
from capacity import CAPACITY_FIGURES
from channel_figures import CHANNEL_FIGURES
from cluster_figures import CLUSTER_FIGURES
from coding import CODING_FIGURES
from database_figures import DATABASE_FIGURES
from figures import FIGURES, Bench, Row
from life_figures import LIFE_FIGURES
from mcp_figures import MCP_FIGURES
from now_figures import NOW_FIGURES
from page_figures import PAGE_FIGURES
from plugin_figures import PLUGIN_FIGURES
from processes import HERE, TREE, cores, laboratory
from provider_figures import PROVIDER_FIGURES
from rich.console import Console
from rich.table import Table
from search_figures import SEARCH_FIGURES

_ALL = {
    **FIGURES,
    **LIFE_FIGURES,
    **DATABASE_FIGURES,
    **CLUSTER_FIGURES,
    **CAPACITY_FIGURES,
    **CHANNEL_FIGURES,
    **PROVIDER_FIGURES,
    **SEARCH_FIGURES,
    **MCP_FIGURES,
    **CODING_FIGURES,
    **AGENT_FIGURES,
    **PLUGIN_FIGURES,
    **NOW_FIGURES,
    **PAGE_FIGURES,
}
RIVAL = TREE / ".venv-bench"
PLAIN = TREE / ".venv-bench-plain"


def main() -> int:
    """Run what is asked for and show it."""
    options = _options()
    say = Console(stderr=True)
    server, load = cores()
    if server == load:
        say.print("[yellow]there is one core only: servers and their load share it[/]")
    rival = _rival(say) if "saturated" in options.only else None
    plain = _plain(say) if {*LIFE_FIGURES, "channels_idle"} & set(options.only) else None
    rows: list[Row] = []
    with laboratory() as lab:
        rounds, seconds = (3, 1.0) if options.quick else (5, 2.0)
        bench = Bench(lab, options.rounds or rounds, seconds, rival, plain, options.quick, options.against)
        for name in options.only:
            begun = time.monotonic()
            with say.status(f"measuring: {name}"):
                rows += _measured(bench, name)
            say.print(f"{name}: {time.monotonic() - begun:.0f} s")
    _show(rows, as_json=options.json)
    return int(options.strict and any(row.met is False for row in rows))


def _measured(bench: Bench, name: str) -> Iterator[Row]:
    """Yield the rows of a figure. If it cannot be measured to its end, the others are still measured."""
    try:
        yield from _ALL[name](bench)
    except (RuntimeError, OSError, ValueError, subprocess.SubprocessError) as error:
        bench.lab.reset()
        yield Row(name, "", None, note=f"failed: {error}", failed=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=_names, default=list(_ALL), help=f"of {','.join(_ALL)}")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--rounds", type=int, help="how often each is measured, instead of 5 times (quick: 3)"
    )
    parser.add_argument("--strict", action="store_true", help="fail if a goal is missed")
    parser.add_argument("--against", type=_checkout, metavar="CHECKOUT", help="measure another gateway, too")
    return parser.parse_args()


def _names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in _ALL:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(_ALL)}")
    return names


def _checkout(text: str) -> Path:
    folder = Path(text).resolve()
    if folder == TREE or not (folder / ".venv/bin/python").exists():
        raise argparse.ArgumentTypeError(f"{text!r} is not another checkout with a .venv")
    return folder


def _rival(say: Console) -> Path | None:
    """The Python of an environment with NoneBot2; None if that cannot be."""
    return _environment(say, "NoneBot2", RIVAL, HERE / "requirements.txt")


def _plain(say: Console) -> Path | None:
    """The Python of an environment with what users install, and nothing that only tests need."""
    return _environment(say, "what Trunkline needs", PLAIN, TREE / "requirements.txt")


def _environment(say: Console, what: str, folder: Path, requirements: Path) -> Path | None:
    """The Python of an environment, made at the first run and when its requirements change."""
    python, mark = folder / "bin" / "python", folder / ".installed"
    if mark.exists() and mark.read_text() == requirements.read_text():
        return python
    with say.status(f"installing {what}"):
        made = subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], capture_output=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "-r", str(requirements)]
        if made.returncode or subprocess.run(command, capture_output=True).returncode:
            say.print(f"[yellow]{what} could not be installed; it is left out[/]")
            return None
    (folder / ".gitignore").write_text("*\n")
    mark.write_text(requirements.read_text())
    return python


def _show(rows: Sequence[Row], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([{**asdict(row), "ratio": row.ratio, "met": row.met} for row in rows], indent=1))
        return
    other = ("other", "change") if any(row.other for row in rows) else ()
    table = Table("figure", "unit", title="Trunkline against its floors")
    for column in (*other, "ours", "floor", "ratio", "goal"):
        table.add_column(column, justify="right")
    table.add_column("met")
    table.add_column("note", style="dim")
    for row in rows:
        table.add_row(
            row.figure,
            row.unit,
            *map(_number, (row.other, row.change)[: len(other)]),
            *map(_number, (row.ours, row.floor, row.ratio)),
            _goal(row),
            _met(row),
            row.note,
        )
    Console(width=None if sys.stdout.isatty() else 150).print(table)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _goal(row: Row) -> str:
    if row.goal is None:
        return ""
    return f"{'≥' if row.at_least else '≤'} {_number(row.goal)}{'' if row.absolute else ' x'}"


def _met(row: Row) -> str:
    return {None: "", True: "[green]yes[/]", False: "[red]no[/]"}[row.met]


if __name__ == "__main__":
    sys.exit(main())
