"""Which of a provider's models comes nearest to another provider's.

The same model under its name there, if it has it: ``claude-sonnet-4-20250514`` in one place is
``anthropic/claude-sonnet-4`` in another. Else, of the models that cost about as much, the newest by the
number in its name; where none does, the one whose price is nearest. Where no price is known, nothing
comes near.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from gateway.routing.catalog import converses
from gateway.routing.facts import ModelFacts

_ABOUT = math.log(1.5)
"""How far the prices of models of one tier may lie apart."""

_OUT_PER_IN = 3
"""Tokens read for one that is written, as conversations go."""

_VENDORS = re.compile(r"^([a-z]+\.)+")
_DATES = re.compile(r"[-@]20\d\d-?\d\d-?\d\d")
_REVISION = re.compile(r"-v\d+$|-latest$")
_NUMBER = re.compile(r"(?<!\d)\d{1,2}(?:[.-]\d{1,2}(?!\d|[a-z]))*(?![\dbkmx])")


def equivalent(wanted: ModelFacts, offered: Sequence[ModelFacts]) -> str | None:
    """The id of the model among those offered that comes nearest, or None. The same ones give the same."""
    ordered = sorted(offered, key=lambda facts: (len(facts.id), facts.id))
    same = next((facts.id for facts in ordered if words(facts.id) == words(wanted.id)), None)
    return same or _like_it(
        wanted, [facts for facts in ordered if not facts.deprecated and converses(facts.id)]
    )


def words(model: str) -> tuple[str, ...]:
    """What a model is called, whoever offers it: vendor, date and revision left out, words before numbers."""
    bare = model.lower().rpartition("/")[2].partition(":")[0]
    bare = _REVISION.sub("", _DATES.sub("", _VENDORS.sub("", bare)))
    pieces = re.split(r"[-._]", bare)
    if pieces[-1] == "0":
        pieces.pop()
    return (*sorted(p for p in pieces if not p.isdigit()), *(p for p in pieces if p.isdigit()))


def _like_it(wanted: ModelFacts, offered: Sequence[ModelFacts]) -> str | None:
    price = _price(wanted)
    if price is None:
        return None
    away = {facts.id: abs(math.log(other / price)) for facts in offered if (other := _price(facts))}
    if not away:
        return None
    near = [facts for facts in offered if away.get(facts.id, math.inf) <= _ABOUT]
    if not near:
        return min(away, key=lambda model: away[model])
    return max(near, key=lambda facts: (_version(facts.id), _holds(facts, wanted), -away[facts.id])).id


def _price(facts: ModelFacts) -> float | None:
    """What a million tokens cost, as conversations go; None where that is unknown, or nothing."""
    rates = facts.rates
    if rates is None or rates.input is None or rates.output is None:
        return None
    return (_OUT_PER_IN * rates.input + rates.output) / (_OUT_PER_IN + 1) or None


def _version(model: str) -> tuple[int, ...]:
    """The number in a model's name: ``gpt-5.4-mini`` is (5, 4)."""
    found = _NUMBER.search(_DATES.sub("", _VENDORS.sub("", model.rpartition("/")[2])))
    return () if found is None else tuple(map(int, re.split(r"[.-]", found[0])))


def _holds(facts: ModelFacts, wanted: ModelFacts) -> bool:
    """Whether a conversation of the other one fits into it."""
    return (facts.context_window or 0) >= (wanted.context_window or 0)
