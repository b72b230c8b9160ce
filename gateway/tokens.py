"""Tokens: what a call of a model took."""

from __future__ import annotations

from msgspec import Struct

from gateway.deltas import MetadataDelta


class Tokens(Struct, frozen=True, gc=False):
    """What a call took. ``cached`` and ``cache_write`` are part of the input."""

    input: int
    output: int
    cached: int = 0
    cache_write: int = 0

    @classmethod
    def of(cls, call: MetadataDelta) -> Tokens:
        """Those that a backend reported; parts are never more than the whole."""
        cached = min(call.cached_tokens, call.input_tokens)
        written = min(call.cache_write_tokens, call.input_tokens - cached)
        return cls(call.input_tokens, call.output_tokens, cached, written)
