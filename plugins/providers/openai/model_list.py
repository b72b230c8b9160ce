"""Model lists of servers with OpenAI's protocol; each adds limits and capabilities in its own fields."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from gateway import ModelInfo
from plugins.providers.protocol import decode_models

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
    """Copilot's ``limits`` and ``supports``, or Mistral's flags."""

    limits: _Limits | None = None
    supports: _Supports | None = None
    function_calling: bool | None = None
    vision: bool | None = None
    reasoning: bool | None = None


class _Architecture(Struct):
    input_modalities: tuple[str, ...] | None = None


class _Names(Struct):
    names: tuple[str, ...] | None = None


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

    def info(self, provider_id: str) -> ModelInfo:
        can = _read(self.capabilities, _Capabilities)
        limits, supports = can.limits or _Limits(), can.supports or _Supports()
        nested = self.metadata.context_length if self.metadata else None
        own = self.context_window or self.context_length or self.max_context_length or self.max_model_len
        top = _read(self.top_provider, _TopProvider)
        modalities = _read(self.architecture, _Architecture).input_modalities
        parameters = _read({"names": self.supported_parameters}, _Names).names
        return ModelInfo(
            self.id,
            provider_id,
            self.name or "",
            own or nested or limits.max_context_window_tokens,
            self.max_completion_tokens or limits.max_output_tokens or top.max_completion_tokens,
            tools=_first(can.function_calling, supports.tool_calls, _contains(parameters, "tools")),
            images=_first(can.vision, supports.vision, _contains(modalities, "image")),
            reasoning=_first(can.reasoning, _contains(parameters, "reasoning")),
        )


class _Models(Struct):
    data: list[_Model]


_decode = msgspec.json.Decoder(_Models | list[_Model]).decode


def parse_model_list(body: bytes, provider_id: str) -> list[ModelInfo]:
    """Parse a list of models. Raises DeltaParseError."""
    listed = decode_models(_decode, body)
    models = listed.data if isinstance(listed, _Models) else listed
    return [model.info(provider_id) for model in models]


def _read(given: Any, kind: type[S]) -> S:
    """Convert a value, or return an empty ``kind``: servers use the same field names for other things."""
    try:
        return msgspec.convert(given or {}, kind)
    except msgspec.ValidationError:
        return kind()


def _contains(names: tuple[str, ...] | None, name: str) -> bool | None:
    return None if names is None else name in names


def _first(*values: bool | None) -> bool | None:
    return next((value for value in values if value is not None), None)
