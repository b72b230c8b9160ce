"""Lists of models, as servers of OpenAI's protocol give them: each tells more, and in a way of its own."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from gateway import GARBLED, DeltaParseError, ModelInfo

S = TypeVar("S", bound=Struct)


class _Metadata(Struct):
    context_length: int | None = None


class _Limits(Struct):
    max_context_window_tokens: int | None = None
    max_output_tokens: int | None = None


class _Supports(Struct):
    tool_calls: bool | None = None
    vision: bool | None = None


class _Capabilities(Struct):
    """Copilot's ``limits`` and ``supports``, or Mistral's words for what a model can do."""

    limits: _Limits | None = None
    supports: _Supports | None = None
    function_calling: bool | None = None
    vision: bool | None = None
    reasoning: bool | None = None


class _Architecture(Struct):
    input_modalities: tuple[str, ...] | None = None


class _Words(Struct):
    words: tuple[str, ...] | None = None


class _TopProvider(Struct):
    max_completion_tokens: int | None = None


class _Model(Struct):
    """``architecture``, ``top_provider`` and ``supported_parameters`` are OpenRouter's."""

    id: str
    name: str | None = None
    context_window: int | None = None
    context_length: int | None = None
    max_context_length: int | None = None
    max_model_len: int | None = None
    max_completion_tokens: int | None = None
    metadata: _Metadata | None = None
    capabilities: Any = None
    architecture: Any = None
    top_provider: Any = None
    supported_parameters: Any = None

    def told(self, provider_id: str) -> ModelInfo:
        can = _read(self.capabilities, _Capabilities)
        limits, supports = can.limits or _Limits(), can.supports or _Supports()
        below = self.metadata.context_length if self.metadata else None
        own = self.context_window or self.context_length or self.max_context_length or self.max_model_len
        top = _read(self.top_provider, _TopProvider)
        sees = _read(self.architecture, _Architecture).input_modalities
        takes = _read({"words": self.supported_parameters}, _Words).words
        return ModelInfo(
            self.id,
            provider_id,
            self.name or "",
            own or below or limits.max_context_window_tokens,
            self.max_completion_tokens or limits.max_output_tokens or top.max_completion_tokens,
            tools=_first(can.function_calling, supports.tool_calls, _within("tools", takes)),
            images=_first(can.vision, supports.vision, _within("image", sees)),
            reasoning=_first(can.reasoning, _within("reasoning", takes)),
        )


class _Models(Struct):
    data: list[_Model]


_decode = msgspec.json.Decoder(_Models | list[_Model]).decode


def models_listed(body: bytes, provider_id: str) -> list[ModelInfo]:
    """The models of a list. Raises DeltaParseError."""
    try:
        listed = _decode(body)
    except GARBLED as error:
        raise DeltaParseError(f"the list of models cannot be read: {error}") from None
    models = listed.data if isinstance(listed, _Models) else listed
    return [model.told(provider_id) for model in models]


def _read(given: Any, kind: type[S]) -> S:
    """What stands there as ours, or nothing: elsewhere the same name stands for other things."""
    try:
        return msgspec.convert(given or {}, kind)
    except msgspec.ValidationError:
        return kind()


def _within(word: str, words: tuple[str, ...] | None) -> bool | None:
    return None if words is None else word in words


def _first(*said: bool | None) -> bool | None:
    """What is said first, if anything is."""
    return next((each for each in said if each is not None), None)
