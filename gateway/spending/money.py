"""Money: thousand-millionths of a US dollar where it is stored and added, decimal where it is told."""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal
from typing import NewType

Nano = NewType("Nano", int)
"""A thousand-millionth of a US dollar."""

_NANO = Decimal(1_000_000_000)
_CENT = Decimal("0.01")


def nano(usd: Decimal) -> Nano:
    """An amount to be stored; what is smaller still is rounded up."""
    return Nano(int((usd * _NANO).to_integral_value(ROUND_CEILING)))


def dollars(amount: int) -> Decimal:
    """A stored amount in US dollars, exactly."""
    return Decimal(amount) / _NANO


def shown(usd: Decimal) -> str:
    """An amount as people read it: to the cent, or to two digits where it is less."""
    if usd >= _CENT or not usd:
        return f"${usd:,.2f}"
    places = max(2, 1 - usd.adjusted())
    return f"${usd:.{min(places, 9)}f}"
