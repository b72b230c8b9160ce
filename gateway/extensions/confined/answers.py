"""Answers of a plugin's handlers, as the values that the gateway's hooks return.

A handler answers with plain JSON: None for no change, a text, a list, or an object with some of the fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import structs

from gateway.contract.errors import PluginError
from gateway.contract.messages import Message
from gateway.contract.plugin import (
    Compacting,
    Intercept,
    ToolBlock,
    ToolCall,
    Transform,
    TurnResult,
    UserInput,
)
from gateway.contract.provider import ChatOptions
from gateway.contract.tool import Tool
from gateway.extensions.hooks import SETTABLE


def as_messages_or_options(answer: Any, options: ChatOptions) -> Sequence[Message] | ChatOptions:
    """Convert the answer of ``before_llm_call``: a list of messages, or changed options."""
    if isinstance(answer, list):
        return msgspec.convert(answer, list[Message])
    changed = {key: value for key, value in _object(answer).items() if key in SETTABLE}
    return msgspec.convert({**_settable(options), **changed}, ChatOptions)


def options_of(options: ChatOptions) -> dict[str, Any]:
    """Return the options of a model call that a handler may read; all but the model can be changed."""
    return {"model": options.model, **_settable(options)}


def _settable(options: ChatOptions) -> dict[str, Any]:
    return {"model": options.model} | {name: getattr(options, name) for name in SETTABLE}


def as_turn_result(answer: Any, result: TurnResult) -> TurnResult:
    """Convert the answer of ``after_llm_call``: the fields to change."""
    if isinstance(answer, str):
        return structs.replace(result, content=answer)
    return msgspec.convert({**msgspec.to_builtins(result), **_object(answer)}, TurnResult)


def as_call(answer: Any, call: ToolCall) -> ToolCall | ToolBlock:
    """Convert the answer of ``before_tool_exec``: a block has ``content``, a call the fields to change."""
    fields = _object(answer)
    if "content" in fields:
        return msgspec.convert(fields, ToolBlock)
    return msgspec.convert({**msgspec.to_builtins(call), **fields}, ToolCall)


def as_tools(answer: Any, tools: Sequence[Tool]) -> Sequence[Tool]:
    """Convert the answer of ``filter_tools``: a list of names, or of the given objects."""
    if not isinstance(answer, list):
        raise PluginError(f"the answer must be a list, not {type(answer).__name__}")
    items = cast("list[Any]", answer)
    kept = {item if isinstance(item, str) else str(_object(item).get("name")) for item in items}
    return [tool for tool in tools if tool.name in kept]


def as_text(answer: Any) -> str:
    """Return an answer that must be a text."""
    if not isinstance(answer, str):
        raise PluginError(f"the answer must be a text, not {type(answer).__name__}")
    return answer


def as_user_input(answer: Any) -> UserInput:
    """Convert a verdict: a text or ``text`` replaces the message, ``answer`` or ``reply`` answers it."""
    if isinstance(answer, str):
        return Transform(answer)
    fields = _object(answer)
    for key in ("answer", "reply"):
        if key in fields:
            return Intercept(as_text(fields[key]))
    return Transform(as_text(fields.get("text")))


def as_permission(answer: Any) -> bool | None:
    """Convert a decision: true, false, or ``{"allow": …}``."""
    decided = answer if isinstance(answer, bool) else _object(answer).get("allow")
    if not isinstance(decided, bool | None):
        raise PluginError("allow must be true or false")
    return decided


def as_compacting(answer: Any, compacting: Compacting) -> Compacting:
    """Convert a change of a summary: a text is the summary, an object has it or the instructions."""
    if isinstance(answer, str):
        return structs.replace(compacting, summary=answer)
    fields = _object(answer)
    changed = {
        key: as_text(fields[key]) for key in ("summary", "instructions") if fields.get(key) is not None
    }
    return structs.replace(compacting, **changed)


def _object(answer: Any) -> Mapping[str, Any]:
    if not isinstance(answer, dict):
        raise PluginError(f"the answer must be an object, not {type(answer).__name__}")
    return cast("dict[str, Any]", answer)
