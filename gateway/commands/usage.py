"""/usage: tokens and cost of a conversation, a user or all users, and the state of the budgets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.access.policy import AccessPolicy
from gateway.contract.messages import now_ms
from gateway.contract.plugin import CommandContext, Plugin, SlashCommand
from gateway.models.ledger import Caller, format_usd
from gateway.models.meter import Spending
from gateway.models.report import UsageQuery, UsageTotals, total_of, usage_rows

_HOW = "Type `/usage`, or `/usage all` for all users."


class SpendingCommands(Plugin):
    """The /usage command. ``model`` returns the model of a session as provider/name."""

    name = "spending"

    def __init__(
        self,
        spending: Callable[[], Spending],
        policy: AccessPolicy,
        model: Callable[[str], str],
    ) -> None:
        self._spending = spending
        self._policy = policy
        self._model = model

    def commands(self) -> Sequence[SlashCommand]:
        """Return /usage."""
        description = "Show tokens, cost and budgets; for admins: /usage all"
        return (SlashCommand("usage", description, self._usage, at_once=True),)

    async def _usage(self, rest: str, ctx: CommandContext) -> str:
        if rest == "all":
            return await self._all_users() if ctx.role == "admin" else "`/usage all` is for admins."
        if rest:
            return _HOW
        user, spending = str(self._policy.user_of(ctx.channel, ctx.inbound)), self._spending()
        here = await self._total(UsageQuery(session=ctx.session, days=3660))
        lines = [_line("this conversation", here)]
        if not ctx.inbound.address.group:
            lines.append(_line("you, today", await self._total(UsageQuery(user=user, days=1))))
            lines.append(_line("you, in 30 days", await self._total(UsageQuery(user=user))))
        provider, _, model = self._model(ctx.session).partition("/")
        caller = Caller(ctx.session, ctx.channel, user, "main", provider, model)
        accounts = await spending.budgets.accounts_for(caller, now_ms())
        return "\n".join(lines + [f"- {account.summary()}{account.reset_text()}" for account in accounts])

    async def _all_users(self) -> str:
        spending = self._spending()
        today = await self._total(UsageQuery(days=1))
        month = await usage_rows(spending.ledger, UsageQuery("provider", 30))
        lines = [_line("all users, today", today), _line("all users, in 30 days", total_of(month))]
        return "\n".join(lines + [_line(f"`{row.key}`", row) for row in month])

    async def _total(self, asked: UsageQuery) -> UsageTotals:
        return total_of(await usage_rows(self._spending().ledger, asked))


def _line(whose: str, used: UsageTotals) -> str:
    unknown = f" ({used.unpriced:,} of {used.calls:,} calls have no known price)" if used.unpriced else ""
    tokens = f"{used.input_tokens:,} tokens in, {used.output_tokens:,} out"
    return f"- {whose}: {tokens}, {format_usd(used.usd)}{unknown}"
