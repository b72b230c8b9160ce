"""/usage: what a conversation, its user, or everybody spent, and how the budgets stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.access.door import Door
from gateway.messages import now_ms
from gateway.plugin import CommandContext, Plugin, SlashCommand
from gateway.spending.ledger import Caller
from gateway.spending.money import shown
from gateway.spending.report import UsageQuery, Used, report
from gateway.spending.spending import Spending

_HOW = "Type `/usage` alone, or `/usage all` for everybody."


class SpendingCommands(Plugin):
    """What was spent. ``model`` is the one that answers in a session, as provider/name."""

    name = "spending"

    def __init__(
        self,
        spending: Callable[[], Spending],
        door: Door,
        model: Callable[[str], str],
    ) -> None:
        self._spending = spending
        self._door = door
        self._model = model

    def commands(self) -> Sequence[SlashCommand]:
        """The one."""
        told = "Show tokens and cost, and how the budgets stand; for admins: /usage all"
        return (SlashCommand("usage", told, self._usage),)

    async def _usage(self, rest: str, ctx: CommandContext) -> str:
        if rest == "all":
            return await self._everybody() if ctx.role == "admin" else "`/usage all` is for admins."
        if rest:
            return _HOW
        user, spending = str(self._door.who(ctx.channel, ctx.inbound)), self._spending()
        here = await self._total(UsageQuery(session=ctx.session, days=3660))
        lines = [_line("this conversation", here)]
        if not ctx.inbound.address.group:
            lines.append(_line("you, today", await self._total(UsageQuery(user=user, days=1))))
            lines.append(_line("you, in 30 days", await self._total(UsageQuery(user=user))))
        provider, _, model = self._model(ctx.session).partition("/")
        caller = Caller(ctx.session, ctx.channel, user, "main", provider, model)
        accounts = await spending.budgets.of(caller, now_ms())
        return "\n".join(lines + [f"- {account.state()}{account.over()}" for account in accounts])

    async def _everybody(self) -> str:
        spending = self._spending()
        today = await self._total(UsageQuery(days=1))
        month = await report(spending.ledger, (), UsageQuery("provider", 30))
        lines = [_line("everybody, today", today), _line("everybody, in 30 days", month.total)]
        return "\n".join(lines + [_line(f"`{row.key}`", row) for row in month.rows])

    async def _total(self, asked: UsageQuery) -> Used:
        return (await report(self._spending().ledger, (), asked)).total


def _line(whose: str, used: Used) -> str:
    unknown = f" ({used.unpriced:,} of {used.calls:,} calls have no known price)" if used.unpriced else ""
    tokens = f"{used.input_tokens:,} tokens in, {used.output_tokens:,} out"
    return f"- {whose}: {tokens}, {shown(used.usd)}{unknown}"
