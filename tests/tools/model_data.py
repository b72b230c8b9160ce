"""Prints the model data of genai-prices as JSON, a line for each model.

``make model-data`` writes it to ``gateway/models/model_data.json``, which ``catalog.py`` reads.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

from genai_prices import types as genai
from genai_prices.data_snapshot import get_snapshot

_MARKS = {"equals": "=", "starts_with": "^", "ends_with": "$", "contains": "*", "regex": "~"}
_PRICES = {
    "input": "input_mtok",
    "output": "output_mtok",
    "cached": "cache_read_mtok",
    "written": "cache_write_mtok",
    "request": "requests_kcount",
    "audio": "input_audio_mtok",
}


def model_data() -> str:
    """Return the data of all providers, with its license."""
    providers = get_snapshot().providers
    rules = {
        provider.id: _known(
            {"match": _rule(provider.provider_match), "fallback": provider.fallback_model_providers}
        )
        for provider in providers
    }
    models = ",\n".join(f"{_dump(provider.id)}:[\n{_lines(provider)}\n]" for provider in providers)
    return f'{{"license":{_dump(_license())},\n"providers":{_dump(rules)},\n"models":{{\n{models}\n}}}}\n'


def _license() -> str:
    files = importlib.metadata.files("genai-prices") or ()
    return next(file.read_text() for file in files if file.name.startswith("LICENSE"))


def _lines(provider: genai.Provider) -> str:
    return ",\n".join(_dump(_model(model)) for model in provider.models)


def _model(model: genai.ModelInfo) -> dict[str, Any]:
    rule = _rule(model.match)
    return _known(
        {
            "id": model.id,
            "match": None if rule == f"={model.id.lower()}" else rule,
            "name": model.name,
            "description": (model.description or "").strip() or None,
            "window": model.context_window,
            "deprecated": model.deprecated,
            "prices": list(_prices(model)),
        }
    )


def _prices(model: genai.ModelInfo) -> Iterator[dict[str, Any]]:
    if isinstance(model.prices, genai.ModelPrice):
        yield _price(None, model.prices)
    else:
        for each in model.prices:
            yield _price(each.constraint, each.prices)


def _price(when: object, price: genai.ModelPrice) -> dict[str, Any]:
    since = when.start_date if isinstance(when, genai.StartDateConstraint) else None
    hours = (when.start_time, when.end_time) if isinstance(when, genai.TimeOfDateConstraint) else None
    rates = {name: _rate(getattr(price, key)) for name, key in _PRICES.items()}
    return _known({"since": since, "hours": hours and [*map(_utc, hours)], **rates})


def _rate(rate: Decimal | genai.TieredPrices | None) -> list[Decimal | int] | None:
    """Return a price, then the limits above which others hold, with those."""
    if rate is None or isinstance(rate, Decimal):
        return None if rate is None else [rate]
    return [rate.base, *(value for tier in rate.tiers for value in (tier.start, tier.price))]


def _rule(clause: Any) -> Any:
    if clause is None:
        return None
    [(kind, operand)] = vars(clause).items()
    if kind == "and_":
        return {"all": [*map(_rule, operand)]}
    if kind == "or_":
        return [*map(_rule, operand)]
    return _MARKS[kind] + (operand if kind == "regex" else operand.lower())


def _utc(when: time) -> str:
    aware = datetime.combine(date(1970, 1, 1), when.replace(tzinfo=when.tzinfo or UTC))
    return aware.astimezone(UTC).strftime("%H:%M:%S")


def _known(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: fact for name, fact in facts.items() if fact is not None}


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=_plain)


def _plain(value: object) -> Any:
    assert isinstance(value, Decimal | date)
    return value.isoformat() if isinstance(value, date) else float(value)


if __name__ == "__main__":
    print(model_data(), end="")
