"""Prices: what a call of a model costs, in US dollars, from data that is part of the installation."""

from __future__ import annotations

from gateway.deltas import MetadataDelta


class Prices:
    """Costs by provider and model. The data is loaded with the first call whose provider is known."""

    def __init__(self) -> None:
        self._unknown: set[tuple[str, str]] = {("demo", "demo")}

    def cost(self, provider: str, model: str, call: MetadataDelta) -> float | None:
        """The cost of one call, or None where no price is known."""
        if (provider, model) in self._unknown or not (call.input_tokens or call.output_tokens):
            return None
        from genai_prices import Usage, calc_price  # 27 MB and 0.2 s: only when a priced model is used

        usage = Usage(
            input_tokens=call.input_tokens,
            output_tokens=call.output_tokens,
            cache_read_tokens=min(call.cached_tokens, call.input_tokens) or None,
        )
        try:
            return float(calc_price(usage, model_ref=model, provider_id=provider).total_price)
        except (LookupError, ValueError):
            self._unknown.add((provider, model))
            return None
