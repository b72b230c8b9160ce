"""A meter runs while a model is called: it knows what that takes, and settles what was reserved for it."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import msgspec

from gateway.deltas import MetadataDelta
from gateway.messages import Message, new_id
from gateway.provider import ChatOptions
from gateway.routing import Prices
from gateway.spending.budgets import Account
from gateway.spending.estimate import input_tokens, output_tokens
from gateway.spending.ledger import Caller, Ledger, State
from gateway.spending.money import dollars, nano
from gateway.tokens import Tokens


class Spent(msgspec.Struct, frozen=True):
    """What one call took. ``usd`` is None where no price is known."""

    tokens: Tokens
    usd: Decimal | None


NOTHING = Spent(Tokens(0, 0), None)


class Meter:
    """One call. ``options`` are how the model is to be asked; ``at`` is when, in milliseconds."""

    def __init__(
        self,
        ledger: Ledger,
        prices: Prices,
        caller: Caller,
        messages: Sequence[Message],
        options: ChatOptions,
        at: int,
    ) -> None:
        self.caller = caller
        self.options = options
        self.at = at
        self._ledger = ledger
        self._prices = prices
        self._messages = messages
        self._sent: int | None = None
        self._reserved: tuple[str, int] | None = None
        self._accounts: Sequence[Account] = ()

    @property
    def sent(self) -> int:
        """About how many tokens the model is sent."""
        if self._sent is None:
            self._sent = input_tokens(self._messages, self.options)
        return self._sent

    def usd(self, tokens: Tokens) -> Decimal | None:
        """What so many tokens of this model cost."""
        return self._prices.cost(self.caller.provider, self.caller.model, tokens)

    def so_far(self, usage: MetadataDelta, said: int) -> Spent:
        """What it took until now: by its backend, or where that is silent, by the characters ``said``."""
        if usage.input_tokens or usage.output_tokens:
            return self.reported(usage)
        tokens = Tokens(self.sent, output_tokens(said))
        return Spent(tokens, self.usd(tokens))

    def reported(self, usage: MetadataDelta) -> Spent:
        """What its backend says that it took; what a backend says of the cost counts."""
        tokens = Tokens.of(usage)
        return Spent(tokens, Decimal(str(usage.cost)) if usage.cost else self.usd(tokens))

    async def reserve(self, accounts: Sequence[Account], amount: int, longest: int) -> None:
        """Set an amount aside, durably, for an answer of at most so many tokens. Once a call."""
        for account in accounts:
            account.reserved += amount
        call_id = new_id()
        self._accounts, self._reserved = accounts, (call_id, amount)
        await self._ledger.reserve(call_id, self.caller, self.at, Tokens(self.sent, longest), amount)

    def end(self, usage: MetadataDelta, said: int, *, finished: bool) -> Spent:
        """The call is over, finished or not. Returns what it took, which is written down."""
        if not finished and not said and not usage.output_tokens:
            self._settle(0)
            if self._reserved is not None:
                self._ledger.release(self._reserved[0])
            return NOTHING
        reported = bool(usage.input_tokens or usage.output_tokens)
        spent = self.so_far(usage, said)
        amount = None if spent.usd is None else nano(spent.usd)
        self._settle(amount or 0)
        state: State = "counted" if reported and finished else "estimated"
        call_id = None if self._reserved is None else self._reserved[0]
        self._ledger.count(call_id, self.caller, self.at, state, spent.tokens, amount)
        return spent

    def _settle(self, amount: int) -> None:
        reserved = 0 if self._reserved is None else self._reserved[1]
        for account in self._accounts:
            account.reserved -= reserved
            account.spent += amount


def reservable(meter: Meter, room: int | None, longest: int | None) -> tuple[int, int] | None:
    """What to reserve, and for how many tokens: as many as there is money for, ``longest`` at most.

    None where there is not even enough for a short answer. A model without a price costs nothing.
    """
    most = longest or _USUAL
    asked, whole = meter.usd(Tokens(meter.sent, 0)), meter.usd(Tokens(meter.sent, most))
    if asked is None or whole is None:
        return None if room is not None and room <= 0 else (0, most)
    if room is None or nano(whole) <= room:
        return nano(whole), most
    each = (whole - asked) / most
    affordable = int((dollars(room) - asked) / each) if each else 0
    if affordable < min(_SHORTEST, most):
        return None
    return min(nano(asked + each * affordable), room), affordable


_USUAL = 4096
_SHORTEST = 64
"""Tokens of the shortest answer that is worth asking for."""
