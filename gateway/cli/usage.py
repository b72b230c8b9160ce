"""``trunkline usage``: what calls of models took and cost."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import urlencode

import typer

from gateway.cli.options import AsJson, File, settings_from, to_json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from gateway.settings import Settings
    from gateway.spending.report import BudgetState, UsageQuery, UsageReport, Used

_BAR_WIDTH = 30

By = Annotated[
    Literal["day", "session", "channel", "user", "agent", "provider", "model"],
    typer.Option(help="What to tell amounts apart by."),
]
Days = Annotated[int, typer.Option(min=1, max=3660, help="Days to look back, today among them (UTC).")]
Only = Annotated[str | None, typer.Option(help="Count only this one.", show_default=False)]


def usage(
    by: By = "day",
    days: Days = 30,
    session: Only = None,
    channel: Only = None,
    user: Annotated[
        str | None, typer.Option(help="Count only this one, as telegram:42.", show_default=False)
    ] = None,
    agent: Only = None,
    provider: Only = None,
    as_json: AsJson = False,
    config: File = None,
) -> None:
    """Show what calls of models took and cost, and how the budgets stand.

    \b
    Examples:
      trunkline usage
      trunkline usage --by model --days 7
      trunkline usage --by user --channel telegram
      trunkline usage --json
    """
    from gateway.spending.report import UsageQuery

    asked = UsageQuery(by, days, session, channel, user, agent, provider)
    found = _found(settings_from(config), asked)
    if as_json:
        import msgspec

        typer.echo(to_json(msgspec.to_builtins(found)))
    else:
        _print(found)


def _found(settings: Settings, asked: UsageQuery) -> UsageReport:
    """What the running gateway tells; when none runs, what is in the store."""
    import msgspec

    from gateway.cli.either_way import EitherWay
    from gateway.spending import Budget, Ledger
    from gateway.spending.report import UsageReport, report

    way = EitherWay(settings)
    if way.running:
        return msgspec.convert(
            way.ask("GET", f"/api/usage?{urlencode(msgspec.to_builtins(asked))}"), UsageReport, strict=False
        )
    budgets = [Budget.of(name, budget) for name, budget in settings.budgets.items()]
    return way.in_store(lambda store: report(Ledger(store), budgets, asked))


def _print(found: UsageReport) -> None:
    from rich.console import Console

    console = Console()
    if found.rows:
        console.print(_table(found))
        if found.total.unpriced:
            console.print(
                "+ and calls whose price nobody knows; the table \\[models] can tell it", style="dim"
            )
    else:
        console.print(f"No model was called in the last {found.days} days.", style="dim")
    if found.budgets:
        _print_budgets(console, found.budgets)


def _table(found: UsageReport) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, show_footer=len(found.rows) > 1)
    table.add_column(found.by, "all", overflow="fold")
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
        table.add_row(*_cells(row), _bar(row.usd, most) if most else _bar(_tokens(row), tokens))
    return table


def _cells(row: Used) -> list[str]:
    from rich.markup import escape

    from gateway.cli.drawing import plain

    counts = (row.calls, row.input_tokens, row.cached_tokens, row.output_tokens)
    return [escape(plain(row.key)) or "-", *(f"{count:,}" for count in counts), _cost(row)]


def _cost(row: Used) -> str:
    """The cost; one of which a part is not known is marked."""
    from gateway.spending import shown

    if row.calls and row.unpriced == row.calls:
        return "[dim]unknown[/]"
    return f"{shown(row.usd)}{' +' if row.unpriced else ''}"


def _tokens(row: Used) -> Decimal:
    return Decimal(row.input_tokens + row.output_tokens)


def _bar(amount: Decimal, most: Decimal | int, color: str = "cyan") -> RenderableType:
    from rich.bar import Bar

    return Bar(float(most) or 1.0, 0, float(amount), width=_BAR_WIDTH, color=color)


def _print_budgets(console: Console, budgets: list[BudgetState]) -> None:
    from rich import box
    from rich.table import Table

    table = Table("budget", "period", "of", "spent", "limit", "", box=box.SIMPLE)
    for budget in budgets:
        for number, (holder, usd) in enumerate(_holders(budget)):
            named = (budget.name, budget.period) if not number else ("", "")
            table.add_row(*named, *_standing(budget, holder, usd))
    console.print(table)


def _holders(budget: BudgetState) -> list[tuple[str, Decimal]]:
    whose = [(holder.id, holder.usd) for holder in budget.holders]
    return whose or [("nobody yet", Decimal(0))]


def _standing(budget: BudgetState, holder: str, usd: Decimal) -> list[RenderableType]:
    from rich.markup import escape

    from gateway.cli.drawing import plain
    from gateway.spending import shown

    names = ("warn", "ask", "stop")
    limits = {name: amount for name in names if (amount := getattr(budget, name)) is not None}
    passed = [name for name, amount in limits.items() if usd >= amount]
    color = "red" if "stop" in passed else "yellow" if passed else "green"
    said = ", ".join(f"{name} {shown(amount)}" for name, amount in limits.items())
    bar = _bar(min(usd, max(limits.values())), max(limits.values()), color)
    return [escape(plain(holder)) or "everything", f"[{color}]{shown(usd)}[/]", said, bar]
