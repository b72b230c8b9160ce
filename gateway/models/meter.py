"""Metering: estimate, reserve and record the tokens and the cost of each model call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec
import structlog

from gateway.access import Access, UserRef
from gateway.access.approvals import Approvals
from gateway.contract.deltas import MetadataDelta, Tokens
from gateway.contract.errors import BudgetExceededError, ToolError
from gateway.contract.messages import (
    Message,
    TextPart,
    new_id,
    now_ms,
    to_json,
)
from gateway.contract.provider import ChatOptions, ToolDefinition
from gateway.contract.tool import Tool, ToolContext
from gateway.events.bus import EventBus
from gateway.events.types import BudgetExceeded, CostUpdated
from gateway.models.budgets import Account, Budget, Budgets
from gateway.models.catalog import ANSWER_TOKENS
from gateway.models.ledger import Caller, Ledger, State, format_usd, to_nano, to_usd
from gateway.models.prices import Prices, Tariff
from gateway.models.resolve import Models, Route
from gateway.session import Turn
from gateway.session.compaction import CHARACTERS_PER_TOKEN, tokens_of
from gateway.settings import Settings
from gateway.store import Store
from gateway.trail.recorder import BUDGET_TOOL

_TOKENS_PER_PROMPT = 8


def input_tokens(messages: Sequence[Message], options: ChatOptions) -> int:
    """Estimate the input tokens of a request, rather too high than too low."""
    return sum(map(tokens_of, messages)) + overhead_tokens(options)


def overhead_tokens(options: ChatOptions) -> int:
    """Estimate the tokens of the system prompt and the tools of a request."""
    tools = sum(len(to_json(tool)) for tool in options.tools)
    return (len(options.system_prompt) + tools) // CHARACTERS_PER_TOKEN + _TOKENS_PER_PROMPT


def output_tokens(characters: int) -> int:
    """Estimate the tokens of a text of this length."""
    return -(-characters // CHARACTERS_PER_TOKEN)


def prices_of(models: Models) -> Prices:
    """Return the prices of the settings and of the catalog."""
    return Prices(
        models.catalog,
        lambda provider, model: Tariff.of(models.rates(provider, model)),
        catalog_id=models.catalog_id,
    )


class CallCost(msgspec.Struct, frozen=True):
    """Tokens and cost of one call. ``usd`` is None without a known price."""

    tokens: Tokens
    usd: Decimal | None


NO_COST = CallCost(Tokens(0, 0), None)


class Meter:
    """Meters one call. ``options`` are the options of the request; ``at`` is its time in milliseconds."""

    def __init__(
        self,
        ledger: Ledger,
        prices: Prices,
        caller: Caller,
        messages: Sequence[Message],
        options: ChatOptions,
        at: int,
        on_spent: Callable[[CallCost], None] = lambda _spent: None,
    ) -> None:
        self.caller = caller
        self._on_spent = on_spent
        self.options = options
        self.at = at
        self._ledger = ledger
        self._prices = prices
        self._messages = messages
        self._sent_tokens: int | None = None
        self._reserved: tuple[str, int] | None = None
        self._accounts: Sequence[Account] = ()

    @property
    def sent_tokens(self) -> int:
        """Estimated input tokens."""
        if self._sent_tokens is None:
            self._sent_tokens = input_tokens(self._messages, self.options)
        return self._sent_tokens

    def usd(self, tokens: Tokens) -> Decimal | None:
        """Return the cost of these tokens with this model; None without a known price."""
        return self._prices.cost(self.caller.provider, self.caller.model, tokens)

    def cost_so_far(self, usage: MetadataDelta, said: int) -> CallCost:
        """Return the cost until now: as reported, or estimated from ``said`` characters of output."""
        if usage.input_tokens or usage.output_tokens:
            return self.reported_cost(usage)
        tokens = Tokens(self.sent_tokens, output_tokens(said))
        return CallCost(tokens, self.usd(tokens))

    def reported_cost(self, usage: MetadataDelta) -> CallCost:
        """Return the cost that the provider reported; its own price wins over ours."""
        tokens = Tokens.of(usage)
        return CallCost(tokens, Decimal(str(usage.cost)) if usage.cost else self.usd(tokens))

    async def reserve(self, accounts: Sequence[Account], amount: int, longest: int) -> None:
        """Reserve an amount durably for an answer of at most ``longest`` tokens. Once per call."""
        for account in accounts:
            account.reserved += amount
        call_id = new_id()
        self._accounts, self._reserved = accounts, (call_id, amount)
        await self._ledger.reserve(call_id, self.caller, self.at, Tokens(self.sent_tokens, longest), amount)

    def finish(self, usage: MetadataDelta, said: int, *, finished: bool) -> CallCost:
        """Record the cost of the call and return it. ``finished`` is whether the answer is complete."""
        if not finished and not said and not usage.output_tokens:
            self._settle(0)
            if self._reserved is not None:
                self._ledger.release(self._reserved[0])
            return NO_COST
        reported = bool(usage.input_tokens or usage.output_tokens)
        spent = self.cost_so_far(usage, said)
        amount = None if spent.usd is None else to_nano(spent.usd)
        self._settle(amount or 0)
        state: State = "counted" if reported and finished else "estimated"
        call_id = None if self._reserved is None else self._reserved[0]
        self._ledger.record(call_id, self.caller, self.at, state, spent.tokens, amount)
        self._on_spent(spent)
        return spent

    def _settle(self, amount: int) -> None:
        reserved = 0 if self._reserved is None else self._reserved[1]
        for account in self._accounts:
            account.reserved -= reserved
            account.spent += amount


def reservable(meter: Meter, left: int | None, longest: int | None) -> tuple[int, int] | None:
    """Return the amount to reserve and the tokens that it pays for: at most ``longest``, as many as fit in
    ``left``.

    None if ``left`` does not pay for a short answer. A model without a price costs nothing.
    """
    most = longest or min(filter(None, (meter.options.output_limit, ANSWER_TOKENS)))
    asked, whole = meter.usd(Tokens(meter.sent_tokens, 0)), meter.usd(Tokens(meter.sent_tokens, most))
    if asked is None or whole is None:
        return None if left is not None and left <= 0 else (0, most)
    if left is None or to_nano(whole) <= left:
        return to_nano(whole), most
    each = (whole - asked) / most
    affordable = int((to_usd(left) - asked) / each) if each else 0
    if affordable < min(_MIN_TOKENS, most):
        return None
    return min(to_nano(asked + each * affordable), left), affordable


_MIN_TOKENS = 64
"""Shortest answer that is worth a call, in tokens."""


log = structlog.get_logger("trunkline.spending")

INTERVAL_SECONDS = 0.5
"""Shortest time between two ``cost.updated`` of a session; calls in between are added to the later one."""


class CostEvents:
    """Reports costs to the event bus. Without a subscriber nothing is built or kept."""

    def __init__(self) -> None:
        self._later: dict[str, CostUpdated | None] = {}
        """The next event of each session that had one within the interval; None if there is none yet."""

    def spent(self, turn: Turn, caller: Caller, usd: float, tokens: int) -> None:
        """Report a call that was paid, at once or with the next ones of its session."""
        events, root = turn.session.events, turn.root
        if not events.wants(CostUpdated, caller.session):
            return
        # The running turn is added to its session when it ends.
        total = root.session.row.cost + float(root.usage.cost or 0) + usd
        event = CostUpdated(caller.session, total, caller.provider, caller.model, tokens)
        if caller.session not in self._later:
            self._emit(events, event)
            return
        earlier = self._later[caller.session]
        tokens += 0 if earlier is None else earlier.tokens
        self._later[caller.session] = msgspec.structs.replace(event, tokens=tokens)

    def refused(self, turn: Turn, account: Account) -> None:
        """Report a call that a budget refused."""
        events, session = turn.session.events, turn.root.session.id
        if events.wants(BudgetExceeded, session):
            budget = account.budget
            limit = float(to_usd(budget.stop or budget.ask or 0))
            events.emit(BudgetExceeded(session, budget.name, limit, float(to_usd(account.spent))))

    def _emit(self, events: EventBus, event: CostUpdated) -> None:
        self._later[event.session] = None
        events.emit(event)
        asyncio.get_running_loop().call_later(INTERVAL_SECONDS, self._emit_later, events, event.session)

    def _emit_later(self, events: EventBus, session: str) -> None:
        event = self._later.pop(session)
        if event is not None:
            self._emit(events, event)


class Spending:
    """Meters every model call, and refuses calls that a budget does not allow.

    ``payer`` returns the user of a turn as channel and user id; ``clock`` returns milliseconds.
    """

    def __init__(
        self,
        ledger: Ledger,
        prices: Prices,
        budgets: Budgets,
        approvals: Approvals,
        payer: Callable[[Turn], str],
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self.ledger = ledger
        self.budgets = budgets
        self.prices = prices
        self._approvals = approvals
        self._payer = payer
        self._clock = clock
        self._events = CostEvents()
        self._unpriced: set[str] = set()
        """Models without a price that were already logged."""

    @classmethod
    def of(
        cls, settings: Settings, store: Store, models: Models, access: Access, approvals: Approvals
    ) -> Spending:
        """Build it from budgets of the settings, prices of settings and data, and links of users."""

        async def linked(person: str) -> set[str]:
            return {str(user) for user in await access.links.same(UserRef.parse(person))}

        ledger = Ledger(store)
        prices = prices_of(models)
        written = [Budget.of(name, budget) for name, budget in settings.budgets.items()]
        budgets = Budgets(written, store, ledger, linked)
        return cls(
            ledger,
            prices,
            budgets,
            approvals,
            lambda turn: str(access.policy.user_of(turn.entry.channel, turn.entry.inbound)),
        )

    def meter(self, turn: Turn, route: Route, options: ChatOptions, messages: Sequence[Message]) -> Meter:
        """Return a meter for the next call."""
        caller = Caller(
            # A nested run is paid by its conversation, whose budgets so hold for it.
            session=turn.root.session.id,
            channel=turn.entry.channel,
            person=self._payer(turn),
            agent=turn.ctx.agent,
            provider=route.provider.id,
            model=route.model,
            plugin=turn.plugin,
            message=turn.root.entry.id,
        )

        def report(spent: CallCost) -> None:
            tokens = spent.tokens.input + spent.tokens.output
            self._events.spent(turn, caller, float(spent.usd or 0), tokens)

        return Meter(self.ledger, self.prices, caller, messages, options, self._clock(), report)

    async def permit(self, turn: Turn, meter: Meter) -> None:
        """Reserve the cost of a call where budgets apply; ask for approval and warn as they require.

        This may lower the ``max_tokens`` of the meter's options. Raises BudgetExceededError.
        """
        accounts = await self.budgets.accounts_for(meter.caller, meter.at, turn.plugin_limit)
        if not accounts:
            return
        self._check_price(meter, accounts)
        for account in accounts:
            await self._require_approval(turn, account)
        tightest = min(
            (a for a in accounts if a.remaining is not None), key=lambda a: a.remaining or 0, default=None
        )
        fitting = reservable(meter, tightest and tightest.remaining, meter.options.max_tokens)
        if fitting is None and tightest is not None:
            raise self._exceeded(turn, tightest, "which is not enough for another answer")
        amount, longest = fitting or (0, 0)
        if amount:
            meter.options = msgspec.structs.replace(meter.options, max_tokens=longest)
        # No await between reading the remaining amount and reserving: concurrent calls would overspend.
        await meter.reserve(accounts, amount, longest)
        # A turn without readers in a chat leaves the warning to the next one.
        warns = turn.durable and not turn.depth
        await self._warn(turn, [a for a in accounts if a.needs_warning and warns])
        meter.options = msgspec.structs.replace(meter.options, first_part=turn.writer.next_index)

    def _check_price(self, meter: Meter, accounts: Sequence[Account]) -> None:
        """Refuse a model without a known price, or log once that budgets do not cover it."""
        if meter.usd(Tokens(1, 1)) is not None:
            return
        model = f"{meter.caller.provider}/{meter.caller.model}"
        key = f'models."{model}".input_price'
        for account in accounts:
            if account.budget.unpriced == "refuse":
                text = f"{account.budget.describe()} excludes models without a known price, such as {model}"
                out = f'set {key} and output_price, or budgets.{account.budget.name}.unpriced = "allow"'
                raise BudgetExceededError(f"{text}; {out}", elsewhere=True)
        if model not in self._unpriced:
            self._unpriced.add(model)
            log.warning("budgets do not cover a model without a known price", model=model, setting=key)

    async def _require_approval(self, turn: Turn, account: Account) -> None:
        if not account.needs_approval:
            return
        if turn.entry.inbound.unattended:
            raise self._exceeded(turn, account, f"and no user is present to approve more: {_remedy(account)}")
        ruling = await self._approvals.ask(turn, _CONTINUE, _question(account))
        if ruling.outcome not in ("once", "always"):
            raise self._exceeded(turn, account, "and more was not approved")
        account.grant()
        log.info(
            "budget approved",
            budget=account.budget.name,
            by=ruling.by or turn.sender.id,
            spent=account.spent_text(),
        )
        await self.budgets.save(account, self._clock())

    def _exceeded(self, turn: Turn, account: Account, why: str) -> BudgetExceededError:
        self._events.refused(turn, account)
        text = f"{account.summary()}, {why}{account.reset_text()} (see {account.budget.key})"
        return BudgetExceededError(text, elsewhere=account.budget.scope in ("provider", "model"))

    async def _warn(self, turn: Turn, accounts: Sequence[Account]) -> None:
        for account in accounts:
            account.warned_at = self._clock()
            await self.budgets.save(account, account.warned_at)
        for account in accounts:
            turn.emit_part(TextPart(f"{account.summary()}{account.reset_text()}.", "notice"))


async def _refuse(arguments: Mapping[str, Any], context: ToolContext) -> str:
    raise ToolError("internal: budget approval cannot be executed as a tool")


_CONTINUE = Tool(
    definition=ToolDefinition(BUDGET_TOOL, "", {}),
    execute=_refuse,
    match_key=lambda given: f"{given['budget']} {given['period']}",
)
"""The request for approval. The answer "always" holds for the period of the budget."""


def _question(account: Account) -> dict[str, Any]:
    return {
        "budget": account.budget.name,
        "period": account.period.name,
        "spent": format_usd(to_usd(account.spent)),
        "more": format_usd(to_usd(account.budget.ask or 0)),
    }


def _remedy(account: Account) -> str:
    return f"raise budgets.{account.budget.name}.ask, or approve it in another chat that this budget covers"
