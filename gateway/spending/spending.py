"""Spending as the agent sees it: meters for calls of models, held to the budgets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import structlog

from gateway.access import Access, Who
from gateway.approvals import Approvals
from gateway.errors import BudgetExceededError, ToolError
from gateway.messages import Message, TextPart, now_ms
from gateway.provider import ChatOptions, ToolDefinition
from gateway.routing import Models, Prices, Route, Tariff
from gateway.session import Turn
from gateway.settings import Settings
from gateway.spending.budgets import Account, Budget, Budgets
from gateway.spending.ledger import Caller, Ledger
from gateway.spending.meter import Meter, reservable
from gateway.spending.money import dollars, shown
from gateway.store import Store
from gateway.tokens import Tokens
from gateway.tool import Tool, ToolContext

log = structlog.get_logger("trunkline.spending")


class Spending:
    """Counts every call of a model, and lets none begin that a budget forbids.

    ``who`` names whose turn it is, as channel and user id; ``clock`` tells milliseconds.
    """

    def __init__(
        self,
        ledger: Ledger,
        prices: Prices,
        budgets: Budgets,
        approvals: Approvals,
        who: Callable[[Turn], str],
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self.ledger = ledger
        self.budgets = budgets
        self._prices = prices
        self._approvals = approvals
        self._who = who
        self._clock = clock
        self._unpriced: set[str] = set()
        """Models of which the operator was told that no budget holds them."""

    @classmethod
    def of(
        cls, settings: Settings, store: Store, models: Models, access: Access, approvals: Approvals
    ) -> Spending:
        """That of a gateway: budgets by its settings, prices by these and the data, people by its access."""

        async def linked(person: str) -> set[str]:
            return {str(who) for who in await access.linking.same(Who.named(person))}

        ledger = Ledger(store)
        prices = Prices(lambda provider, model: Tariff.of(models.rates(provider, model)), kind=models.kind)
        written = [Budget.of(name, budget) for name, budget in settings.budgets.items()]
        budgets = Budgets(written, store, ledger, linked)
        return cls(
            ledger,
            prices,
            budgets,
            approvals,
            lambda turn: str(access.door.who(turn.entry.channel, turn.entry.inbound)),
        )

    def meter(self, turn: Turn, route: Route, options: ChatOptions, messages: Sequence[Message]) -> Meter:
        """A meter for a call that is about to be made."""
        caller = Caller(
            session=turn.session.id,
            channel=turn.entry.channel,
            person=self._who(turn),
            agent=turn.ctx.agent,
            provider=route.provider.id,
            model=route.model,
        )
        return Meter(self.ledger, self._prices, caller, messages, options, self._clock())

    async def permit(self, turn: Turn, meter: Meter) -> None:
        """Reserve what a call may cost, where there are budgets; ask and warn as they say.

        The answer may have to be shorter then. Raises BudgetExceededError.
        """
        accounts = await self.budgets.of(meter.caller, meter.at)
        if not accounts:
            return
        self._check_price(meter, accounts)
        for account in accounts:
            await self._ask(turn, account)
        tightest = min((a for a in accounts if a.room is not None), key=lambda a: a.room or 0, default=None)
        fitting = reservable(meter, tightest and tightest.room, meter.options.max_tokens)
        if fitting is None and tightest is not None:
            raise _exceeded(tightest, "which is not enough for another answer")
        amount, longest = fitting or (0, 0)
        if amount:
            meter.options = msgspec.structs.replace(meter.options, max_tokens=longest)
        # Nothing may come between what there is room for and its reservation.
        await meter.reserve(accounts, amount, longest)
        await self._warn(turn, [account for account in accounts if account.warns])
        meter.options = msgspec.structs.replace(meter.options, first_part=turn.writer.next_index)

    def _check_price(self, meter: Meter, accounts: Sequence[Account]) -> None:
        """Refuse a model whose price is not known, or tell the operator, once, that no budget holds it."""
        if meter.usd(Tokens(1, 1)) is not None:
            return
        model = f"{meter.caller.provider}/{meter.caller.model}"
        key = f'models."{model}".input_price'
        for account in accounts:
            if account.budget.unpriced == "refuse":
                said = (
                    f"{account.budget.told()} is for models whose price is known, and that of {model} is not"
                )
                out = f"{key} and output_price give it one (budgets.{account.budget.name}.unpriced says so)"
                raise BudgetExceededError(f"{said}; {out}", elsewhere=True)
        if model not in self._unpriced:
            self._unpriced.add(model)
            log.warning("no budget holds a model whose price is not known", model=model, setting=key)

    async def _ask(self, turn: Turn, account: Account) -> None:
        if not account.asks:
            return
        if turn.entry.inbound.unattended:
            raise _exceeded(account, f"and nobody can be asked here whether to go on: {_way_out(account)}")
        outcome = await self._approvals.ask(turn, _GO_ON, "", _question(account))
        if outcome not in ("once", "always"):
            raise _exceeded(account, "and nobody let it go on")
        account.grant()
        log.info(
            "a budget may be passed", budget=account.budget.name, by=turn.sender.id, spent=account.spent_of()
        )
        await self.budgets.keep(account, self._clock())

    async def _warn(self, turn: Turn, accounts: Sequence[Account]) -> None:
        for account in accounts:
            account.warned_at = self._clock()
            await self.budgets.keep(account, account.warned_at)
        for account in accounts:
            turn.emit_part(TextPart(f"*{account.state()}{account.over()}.*"))


async def _never(arguments: Mapping[str, Any], context: ToolContext) -> str:
    raise ToolError("this is a question, and no tool")


_GO_ON = Tool(
    definition=ToolDefinition("spend-more", "", {}),
    execute=_never,
    match_key=lambda given: f"{given['budget']} {given['period']}",
)
"""What a person is asked to allow. An "always" is good for the budget's period."""


def _question(account: Account) -> dict[str, Any]:
    return {
        "budget": account.budget.name,
        "period": account.period.name,
        "spent": shown(dollars(account.spent)),
        "more": shown(dollars(account.budget.ask or 0)),
    }


def _way_out(account: Account) -> str:
    return f"raise budgets.{account.budget.name}.ask, or let it go on in a chat that spends of it, too"


def _exceeded(account: Account, why: str) -> BudgetExceededError:
    said = f"{account.state()}, {why}{account.over()} (budgets.{account.budget.name} says so)"
    return BudgetExceededError(said, elsewhere=account.budget.scope in ("provider", "model"))
