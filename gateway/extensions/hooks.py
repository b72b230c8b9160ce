"""Composition of the hooks of several plugins.

========================  =========================================================================
before_llm_call           fold: each gets the result of the previous one
after_llm_call            fold; a hook that raises is logged and skipped
before_tool_exec          fold; the first block ends the chain; a hook that raises blocks
after_tool_exec           fold over the text; a hook that raises is logged and skipped
filter_tools              fold; the result is cut to what was offered
transform_system_prompt   fold, left to right
transform_user_input      fold over the text; an intercept ends the chain
session_compacting        fold; a hook that raises is logged and skipped
after_agent_run           all are called; one that raises is logged
========================  =========================================================================

Elsewhere a hook that raises ends the turn with a PluginError that names plugin and hook. A hook that returns
another type than the table of types allows, or misses its deadline, counts as one that raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec
import structlog
from msgspec import Struct

from gateway.contract.errors import CATCHABLE, PluginError, is_cancellation_requested
from gateway.contract.messages import Message
from gateway.contract.plugin import (
    AgentEndReason,
    Compacting,
    Intercept,
    Pass,
    Plugin,
    ToolBlock,
    ToolCall,
    Transform,
    TurnContext,
    TurnResult,
    UserInput,
)
from gateway.contract.provider import ChatOptions
from gateway.contract.tool import Tool
from gateway.extensions.deadlines import Limit

log = structlog.get_logger("trunkline.hooks")

HOOKS = (
    "before_llm_call",
    "after_llm_call",
    "before_tool_exec",
    "after_tool_exec",
    "filter_tools",
    "transform_system_prompt",
    "transform_user_input",
    "session_compacting",
    "after_agent_run",
)


class AllowedResult(Struct, frozen=True):
    """The values a hook may return besides None, which changes nothing: one of some types, or a list."""

    types: tuple[type, ...]
    several: bool = False
    alone: tuple[type, ...] = ()
    """Types that may be returned as a single value instead of a list."""

    def accepts(self, answer: Any) -> bool:
        """Return whether a value is of these types."""
        if not self.several or isinstance(answer, self.alone):
            return isinstance(answer, (*self.types, *self.alone))
        if not isinstance(answer, (list, tuple)):
            return False
        return all(isinstance(item, self.types) for item in cast("Sequence[object]", answer))

    def __str__(self) -> str:
        names = " or ".join(kind.__name__ for kind in self.types)
        others = "".join(f" or a {kind.__name__}" for kind in self.alone)
        return f"a list of {names}{others}" if self.several else names


_SETTABLE = (
    "temperature",
    "top_p",
    "seed",
    "max_tokens",
    "stop_sequences",
    "response_format",
    "system_prompt",
)
"""The fields of ChatOptions that a hook may change; the gateway sets the others."""

_ALLOWED: Mapping[str, AllowedResult] = {
    "before_llm_call": AllowedResult((Message,), several=True, alone=(ChatOptions,)),
    "after_llm_call": AllowedResult((TurnResult,)),
    "before_tool_exec": AllowedResult((ToolCall, ToolBlock)),
    "after_tool_exec": AllowedResult((str,)),
    "filter_tools": AllowedResult((Tool,), several=True),
    "transform_system_prompt": AllowedResult((str,)),
    "transform_user_input": AllowedResult((Pass, Transform, Intercept)),
    "session_compacting": AllowedResult((Compacting,)),
}


class Hook:
    """One hook of one plugin."""

    __slots__ = ("_allowed", "_function", "_limit", "label")

    def __init__(self, plugin: Plugin, name: str, limit: Limit) -> None:
        self._limit = limit
        self.label = f"plugin {plugin.name!r} failed in {name}"
        self._function: Callable[..., Any] = getattr(plugin, name)
        self._allowed = _ALLOWED.get(name)

    async def __call__(self, *args: Any) -> Any:
        """Call the hook. An exception or a value of a wrong type raises PluginError."""
        try:
            answer = await self._limit.call(self._function, *args)
        except CATCHABLE as error:
            if is_cancellation_requested(error):
                raise
            raise PluginError(f"{self.label}: {type(error).__name__}: {error}") from error
        if answer is not None and self._allowed is not None and not self._allowed.accepts(answer):
            raise PluginError(f"{self.label}: it must return {self._allowed}, not {type(answer).__name__}")
        return answer


class Hooks:
    """The composed hooks of a list of plugins, each with a function that returns the time limit of a hook.

    A plugin without an override adds no call.
    """

    def __init__(self, plugins: Sequence[tuple[Plugin, Callable[[str], Limit]]] = ()) -> None:
        self._hooks = {
            name: tuple(Hook(one, name, limit(name)) for one, limit in plugins if overrides(one, name))
            for name in HOOKS
        }

    def uses(self, name: str) -> bool:
        """Return whether any plugin has this hook."""
        return bool(self._hooks[name])

    async def before_llm_call(
        self, messages: tuple[Message, ...], options: ChatOptions, ctx: TurnContext
    ) -> tuple[tuple[Message, ...], ChatOptions]:
        """Return the messages and options of the model call."""
        for hook in self._hooks["before_llm_call"]:
            answer = await hook(messages, options, ctx)
            if isinstance(answer, ChatOptions):
                changed = {name: getattr(answer, name) for name in _SETTABLE}
                options = msgspec.structs.replace(options, **changed)
            elif answer is not None:
                messages = tuple(answer)
        return messages, options

    async def after_llm_call(self, result: TurnResult, ctx: TurnContext) -> TurnResult:
        """Return the model's answer, as changed by the hooks."""
        for hook in self._hooks["after_llm_call"]:
            result = await _or_skip(hook, result, result, ctx)
        return result

    async def before_tool_exec(self, call: ToolCall, ctx: TurnContext) -> ToolCall | ToolBlock:
        """Return the tool call to run, or the block that replaces it."""
        for hook in self._hooks["before_tool_exec"]:
            try:
                answer = await hook(call, ctx)
            except PluginError as error:
                log.warning("a hook raised; the call is blocked", error=str(error), session=ctx.session)
                return ToolBlock(f"Error: {error}")
            if isinstance(answer, ToolBlock):
                return answer
            call = call if answer is None else answer
        return call

    async def after_tool_exec(self, call: ToolCall, result: str, ctx: TurnContext) -> str:
        """Return the tool's output, as changed by the hooks."""
        for hook in self._hooks["after_tool_exec"]:
            result = await _or_skip(hook, result, call, result, ctx)
        return result

    async def filter_tools(self, tools: tuple[Tool, ...], ctx: TurnContext) -> tuple[Tool, ...]:
        """Return the allowed tools, a subset of the given ones."""
        for hook in self._hooks["filter_tools"]:
            answer = await hook(tools, ctx)
            if answer is not None:
                kept = {tool.name for tool in answer}
                tools = tuple(tool for tool in tools if tool.name in kept)
        return tools

    async def transform_system_prompt(self, prompt: str, ctx: TurnContext) -> str:
        """Return the system prompt, as changed by the hooks."""
        for hook in self._hooks["transform_system_prompt"]:
            answer = await hook(prompt, ctx)
            prompt = prompt if answer is None else answer
        return prompt

    async def transform_user_input(self, text: str, ctx: TurnContext) -> UserInput:
        """Return the verdict on the user's text; a pass after a transform keeps the transformed text."""
        verdict: UserInput = Pass()
        for hook in self._hooks["transform_user_input"]:
            answer: UserInput | None = await hook(text, ctx)
            if isinstance(answer, Intercept):
                return answer
            if isinstance(answer, Transform):
                text, verdict = answer.text, answer
        return verdict

    async def session_compacting(self, compacting: Compacting, ctx: TurnContext) -> Compacting:
        """Return the instructions or the summary of a compaction, as changed by the hooks."""
        for hook in self._hooks["session_compacting"]:
            compacting = await _or_skip(hook, compacting, compacting, ctx)
        return compacting

    async def after_agent_run(self, reason: AgentEndReason, ctx: TurnContext) -> None:
        """Notify every plugin that the run ended."""
        for hook in self._hooks["after_agent_run"]:
            await _or_skip(hook, None, reason, ctx)


def overrides(plugin: Plugin, name: str) -> bool:
    """Return whether a plugin has a method of this name of its own."""
    return getattr(type(plugin), name, None) is not getattr(Plugin, name) or name in vars(plugin)


async def _or_skip(hook: Hook, unchanged: Any, *args: Any) -> Any:
    try:
        answer = await hook(*args)
    except PluginError as error:
        log.warning("a hook raised and was skipped", error=str(error))
        return unchanged
    return unchanged if answer is None else answer
