"""``trunkline usage``: tokens and cost of model calls, and budgets."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated
from urllib.parse import urlencode

import msgspec
import typer
from rich import box
from rich.bar import Bar
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table

from gateway.cli.gateway_or_store import GatewayOrStore
from gateway.cli.options import AsJson, File, settings_from
from gateway.cli.output import echo_json, plain, print_table
from gateway.models import Budget, Ledger, format_usd
from gateway.models.report import (
    BudgetHolder,
    BudgetState,
    UsageQuery,
    UsageReport,
    UsageTotals,
    usage_report,
)
from gateway.models.report import By as Key
from gateway.settings import Settings

_BAR_WIDTH = 30
_LEAST_WIDTH = 9
"""Columns of a terminal for each column of these tables: most are numbers."""

By = Annotated[Key, typer.Option(help="Group by.")]
Split = Annotated[Key | None, typer.Option(help="Second grouping, within each group.", show_default=False)]
Days = Annotated[int, typer.Option(min=1, max=3660, help="Number of days, including today (UTC).")]
Only = Annotated[str | None, typer.Option(help="Count only this one.", show_default=False)]


def usage(
    by: By = "day",
    days: Days = 30,
    session: Only = None,
    channel: Only = None,
    user: Annotated[
        str | None, typer.Option(help="Count only this user, such as telegram:42.", show_default=False)
    ] = None,
    agent: Only = None,
    provider: Only = None,
    model: Only = None,
    plugin: Only = None,
    split: Split = None,
    room: Annotated[
        str | None, typer.Option(help="Count only this chat, such as telegram:-100123.", show_default=False)
    ] = None,
    as_json: AsJson = False,
    config: File = None,
) -> None:
    """Show tokens and cost of model calls, and the state of budgets.

    \b
    Examples:
      trunkline usage
      trunkline usage --by model --days 7
      trunkline usage --by user --channel telegram
      trunkline usage --by day --split provider
      trunkline usage --json
    """

    asked = UsageQuery(by, days, session, channel, user, agent, provider, model, plugin, split, room)
    found = _found(settings_from(config), asked)
    if as_json:
        echo_json(found)
    else:
        _print(found)


def _found(settings: Settings, asked: UsageQuery) -> UsageReport:
    """Return the report of the running gateway; without one, that of the store."""

    access = GatewayOrStore(settings)
    if access.running:
        return msgspec.convert(
            access.request("GET", f"/api/usage?{urlencode(msgspec.to_builtins(asked))}"),
            UsageReport,
            strict=False,
        )
    budgets = [Budget.of(name, budget) for name, budget in settings.budgets.items()]
    return access.run_in_store(lambda store: usage_report(Ledger(store), budgets, asked))


def _print(found: UsageReport) -> None:
    console = Console()
    if found.rows:
        print_table(_table(found), least=_LEAST_WIDTH)
        for line in _lines(found):
            console.print(line, style="dim")
    else:
        console.print(f"No model was called in the last {found.days} days.", style="dim")
    if found.budgets:
        _print_budgets(found.budgets)


def _lines(found: UsageReport) -> list[str]:
    """Return what the report says beside its rows: the other periods, and models without a price."""
    lines: list[str] = []
    if found.previous.calls:
        lines.append(f"The {found.days} days before: {format_usd(found.previous.usd)}.")
    if found.projection.expected_usd is not None:
        today, expected = format_usd(found.projection.usd), format_usd(found.projection.expected_usd)
        lines.append(f"Today: {today}; expected by midnight (UTC): {expected}.")
    if found.unpriced:
        names = ", ".join(escape(plain(row.key)) for row in found.unpriced)
        lines.append(f"+ calls without a known price; set it in \\[models]: {names}")
    return lines


def _table(found: UsageReport) -> Table:
    table = Table(box=box.SIMPLE, show_footer=len(found.rows) > 1)
    table.add_column(found.by, "all", overflow="fold")
    if found.split:
        table.add_column(found.split, overflow="fold")
    total = found.total
    for name, footer in (
        ("calls", f"{total.calls:,}"),
        ("input", f"{total.input_tokens:,}"),
        ("cached", f"{total.cached_tokens:,}"),
        ("output", f"{total.output_tokens:,}"),
        ("cost", _cost(total)),
    ):
        table.add_column(name, footer, justify="right")
    table.add_column("")
    most = max(row.usd for row in found.rows)
    tokens = max(row.input_tokens + row.output_tokens for row in found.rows)
    for row in found.rows:
        bar = _bar(row.usd, most) if most else _bar(_tokens(row), tokens)
        table.add_row(_name(row.key), *([""] if found.split else []), *_cells(row), bar)
        for part in row.parts:
            table.add_row("", _name(part.key), *_cells(part), style="dim")
    return table


def _name(key: str) -> str:
    return escape(plain(key)) or "-"


def _cells(row: UsageTotals) -> list[str]:
    counts = (row.calls, row.input_tokens, row.cached_tokens, row.output_tokens)
    return [*(f"{count:,}" for count in counts), _cost(row)]


def _cost(row: UsageTotals) -> str:
    """Return the cost, with a mark if the price of some calls is unknown."""
    if row.calls and row.unpriced == row.calls:
        return "[dim]unknown[/]"
    return f"{format_usd(row.usd)}{' +' if row.unpriced else ''}"


def _tokens(row: UsageTotals) -> Decimal:
    return Decimal(row.input_tokens + row.output_tokens)


def _bar(amount: Decimal, most: Decimal | int, color: str = "cyan") -> RenderableType:
    return Bar(float(most) or 1.0, 0, float(amount), width=_BAR_WIDTH, color=color)


def _print_budgets(budgets: list[BudgetState]) -> None:
    table = Table("budget", "period", "of", "spent", "limit", "", "at this pace", box=box.SIMPLE)
    for budget in budgets:
        for number, holder in enumerate(budget.holders or [BudgetHolder("none yet", Decimal(0))]):
            named = (budget.name, budget.period) if not number else ("", "")
            table.add_row(*named, *_standing(budget, holder), _forecast(holder))
    print_table(table, least=_LEAST_WIDTH)


def _standing(budget: BudgetState, holder: BudgetHolder) -> list[RenderableType]:
    names = ("warn", "ask", "stop")
    limits = {name: amount for name in names if (amount := getattr(budget, name)) is not None}
    passed = [name for name, amount in limits.items() if holder.usd >= amount]
    color = "red" if "stop" in passed else "yellow" if passed else "green"
    text = ", ".join(f"{name} {format_usd(amount)}" for name, amount in limits.items())
    bar = _bar(min(holder.usd, max(limits.values())), max(limits.values()), color)
    return [escape(plain(holder.id)) or "everything", f"[{color}]{format_usd(holder.usd)}[/]", text, bar]


def _forecast(holder: BudgetHolder) -> str:
    if holder.reaches is not None and holder.reaches_at is not None:
        return (
            f"{holder.reaches} on {datetime.fromtimestamp(holder.reaches_at / 1000, UTC):%Y-%m-%d %H:%M} UTC"
        )
    return "" if holder.expected_usd is None else f"{format_usd(holder.expected_usd)} at its end"
