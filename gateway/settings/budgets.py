"""Settings of budgets."""

from __future__ import annotations

from decimal import Decimal
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, model_validator

from gateway.settings.section import Section

BudgetScope = Literal["all", "user", "session", "channel", "agent", "provider", "model"]
Dollars = Annotated[Decimal, Field(ge=0, le=10**9)]


class BudgetSettings(Section):
    """How much may be spent on models. Amounts are US dollars."""

    scope: BudgetScope = Field(
        default="all", description="What it is for: everything together, or each of these on its own"
    )
    per: Literal["day", "month", "ever"] = Field(
        default="month", description="When it begins anew, at 00:00 UTC"
    )
    only: tuple[str, ...] = Field(
        default=(), description="Which of them it is for, by id (users as channel:id); all when not given"
    )
    warn: Dollars | None = Field(default=None, description="Spent so much, the chat is told once")
    ask: Dollars | None = Field(
        default=None, description="Spent so much, and each time as much again, a person must let it go on"
    )
    stop: Dollars | None = Field(
        default=None, description="No call of a model that could bring it above this"
    )

    unpriced: Literal["allow", "refuse"] = Field(
        default="allow",
        description="Calls of models without a known price: they count nothing, or are refused",
    )

    @model_validator(mode="after")
    def _ordered(self) -> BudgetSettings:
        given = [(name, getattr(self, name)) for name in ("warn", "ask", "stop")]
        amounts = [(name, amount) for name, amount in given if amount is not None]
        if not amounts:
            raise ValueError("needs at least one of warn, ask and stop, in US dollars")
        for (name, amount), (above, more) in pairwise(amounts):
            if amount > more:
                raise ValueError(f"{name} ({amount}) must not be above {above} ({more})")
        if self.ask == 0:
            raise ValueError("ask must be above 0; for a budget that is closed, write stop = 0")
        return self
