"""Budgets as the settings describe them, and the periods they are for."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

from gateway.models.budgets import PeriodKind, period_at
from gateway.models.ledger import format_usd, to_nano, to_usd
from gateway.settings import BudgetSettings


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({}, "needs warn, ask or stop, in US dollars"),
        ({"warn": 2, "stop": 1}, "warn (2) must not be above stop (1)"),
        ({"ask": 2, "stop": 1}, "ask (2) must not be above stop (1)"),
        ({"ask": 0}, "set stop = 0"),
        ({"stop": -1}, "greater than or equal to 0"),
        ({"stop": "nan"}, "finite"),
        ({"stop": 1, "scope": "planet"}, "'all'"),
        ({"stop": 1, "per": "week"}, "'day'"),
        ({"stop": 1, "most": 2}, "most"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(written: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as refused:
        BudgetSettings(**written)
    assert said in str(refused.value)


def test_a_closed_budget_can_be_written() -> None:
    assert BudgetSettings(stop=Decimal(0)).stop == 0


@pytest.mark.parametrize(
    ("every", "name", "begins", "ends"),
    [
        ("day", "2028-02-29", (2028, 2, 29), (2028, 3, 1)),
        ("month", "2028-02", (2028, 2, 1), (2028, 3, 1)),
        ("ever", "ever", None, None),
    ],
)
def test_days_and_months_are_those_of_utc(
    every: PeriodKind, name: str, begins: tuple[int, int, int] | None, ends: tuple[int, int, int] | None
) -> None:
    now = round(datetime(2028, 2, 29, 23, 59, 59, tzinfo=UTC).timestamp() * 1000)
    found = period_at(every, now)
    assert found.name == name
    assert found.begins == (0 if begins is None else datetime(*begins, tzinfo=UTC).timestamp() * 1000)
    assert found.ends == (None if ends is None else datetime(*ends, tzinfo=UTC))


def test_december_is_followed_by_january() -> None:
    now = round(datetime(2026, 12, 31, tzinfo=UTC).timestamp() * 1000)
    assert period_at("month", now).ends == datetime(2027, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        ("0", "$0.00"),
        ("1234.5", "$1,234.50"),
        ("0.28", "$0.28"),
        ("0.0123", "$0.01"),
        ("0.00123", "$0.0012"),
        ("0.000000001", "$0.000000001"),
    ],
)
def test_amounts_are_shown_as_people_read_them(usd: str, text: str) -> None:
    assert format_usd(Decimal(usd)) == text


def test_an_amount_is_stored_exactly_and_what_is_smaller_is_rounded_up() -> None:
    assert to_usd(to_nano(Decimal("0.000000001"))) == Decimal("0.000000001")
    assert to_nano(Decimal("0.0000000001")) == 1
    assert to_nano(Decimal(0)) == 0
