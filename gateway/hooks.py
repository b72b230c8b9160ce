"""How the hooks of several plugins combine.

========================  =========================================================================
before_llm_call           fold: each sees what the one before it returned
after_llm_call            fold; a hook that raises is logged and skipped
before_tool_exec          fold; the first block ends the chain; a hook that raises blocks
after_tool_exec           fold over the text; a hook that raises is logged and skipped
filter_tools              fold; the result is cut to what was offered
transform_system_prompt   fold, left to right
transform_user_input      fold over the text; an intercept ends the chain
after_agent_run           all are called; one that raises is logged
========================  =========================================================================

Elsewhere a hook that raises ends the turn with a PluginError that names plugin and hook. One that
answers with something of another type than the hook takes counts as one that raises.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import structlog
from msgspec import Struct

from gateway.errors import FAILURES, PluginError, asked_for
from gateway.messages import Message
from gateway.plugin import (
    AgentEndReason,
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
from gateway.provider import ChatOptions
from gateway.tool import Tool

log = structlog.get_logger("trunkline.hooks")

HOOKS = (
    "before_llm_call",
    "after_llm_call",
    "before_tool_exec",
    "after_tool_exec",
    "filter_tools",
    "transform_system_prompt",
    "transform_user_input",
    "after_agent_run",
)


class Takes(Struct, frozen=True):
    """What a hook may answer beside None, which changes nothing: one of some types, or a list of them."""

    types: tuple[type, ...]
    several: bool = False

    def fits(self, answer: Any) -> bool:
        """Whether an answer is of these types."""
        if not self.several:
            return isinstance(answer, self.types)
        if not isinstance(answer, (list, tuple)):
            return False
        return all(isinstance(item, self.types) for item in cast("Sequence[object]", answer))

    def __str__(self) -> str:
        names = " or ".join(kind.__name__ for kind in self.types)
        return f"a list of {names}" if self.several else names


_TAKES: Mapping[str, Takes] = {
    "before_llm_call": Takes((Message,), several=True),
    "after_llm_call": Takes((TurnResult,)),
    "before_tool_exec": Takes((ToolCall, ToolBlock)),
    "after_tool_exec": Takes((str,)),
    "filter_tools": Takes((Tool,), several=True),
    "transform_system_prompt": Takes((str,)),
    "transform_user_input": Takes((Pass, Transform, Intercept)),
}


class Hook:
    """One plugin's version of one hook."""

    __slots__ = ("_function", "_takes", "label")

    def __init__(self, plugin: Plugin, name: str) -> None:
        self.label = f"plugin {plugin.name!r} failed in {name}"
        self._function: Callable[..., Any] = getattr(plugin, name)
        self._takes = _TAKES.get(name)

    async def __call__(self, *args: Any) -> Any:
        """The hook's answer; whatever it raises, or answers wrongly, comes out as a PluginError."""
        try:
            answer = self._function(*args)
            if inspect.isawaitable(answer):
                answer = await answer
        except FAILURES as error:
            if asked_for(error):
                raise
            raise PluginError(f"{self.label}: {type(error).__name__}: {error}") from error
        if answer is not None and self._takes is not None and not self._takes.fits(answer):
            raise PluginError(f"{self.label}: it must return {self._takes}, not {type(answer).__name__}")
        return answer


class Hooks:
    """The hooks of a list of plugins, composed. Plugins that leave a hook alone cost nothing."""

    def __init__(self, plugins: Sequence[Plugin] = ()) -> None:
        self._hooks = {name: tuple(Hook(p, name) for p in plugins if _overrides(p, name)) for name in HOOKS}

    def uses(self, name: str) -> bool:
        """Whether any plugin has this hook."""
        return bool(self._hooks[name])

    async def before_llm_call(
        self, messages: tuple[Message, ...], options: ChatOptions, ctx: TurnContext
    ) -> tuple[Message, ...]:
        """What the model will see."""
        for hook in self._hooks["before_llm_call"]:
            answer = await hook(messages, options, ctx)
            messages = messages if answer is None else tuple(answer)
        return messages

    async def after_llm_call(self, result: TurnResult, ctx: TurnContext) -> TurnResult:
        """What counts as the model's answer."""
        for hook in self._hooks["after_llm_call"]:
            result = await _or_skip(hook, result, result, ctx)
        return result

    async def before_tool_exec(self, call: ToolCall, ctx: TurnContext) -> ToolCall | ToolBlock:
        """The call to run, or the block that replaces it."""
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
        """The tool's output."""
        for hook in self._hooks["after_tool_exec"]:
            result = await _or_skip(hook, result, call, result, ctx)
        return result

    async def filter_tools(self, tools: tuple[Tool, ...], ctx: TurnContext) -> tuple[Tool, ...]:
        """The tools that may be used, never more than were given."""
        for hook in self._hooks["filter_tools"]:
            answer = await hook(tools, ctx)
            if answer is not None:
                kept = {tool.name for tool in answer}
                tools = tuple(tool for tool in tools if tool.name in kept)
        return tools

    async def transform_system_prompt(self, prompt: str, ctx: TurnContext) -> str:
        """The system prompt."""
        for hook in self._hooks["transform_system_prompt"]:
            answer = await hook(prompt, ctx)
            prompt = prompt if answer is None else answer
        return prompt

    async def transform_user_input(self, text: str, ctx: TurnContext) -> UserInput:
        """The verdict on the user's text; a pass after a transform keeps the transformed text."""
        verdict: UserInput = Pass()
        for hook in self._hooks["transform_user_input"]:
            answer: UserInput | None = await hook(text, ctx)
            if isinstance(answer, Intercept):
                return answer
            if isinstance(answer, Transform):
                text, verdict = answer.text, answer
        return verdict

    async def after_agent_run(self, reason: AgentEndReason, ctx: TurnContext) -> None:
        """Tell every plugin that the run ended."""
        for hook in self._hooks["after_agent_run"]:
            await _or_skip(hook, None, reason, ctx)


def _overrides(plugin: Plugin, name: str) -> bool:
    return getattr(type(plugin), name, None) is not getattr(Plugin, name) or name in vars(plugin)


async def _or_skip(hook: Hook, unchanged: Any, *args: Any) -> Any:
    try:
        answer = await hook(*args)
    except PluginError as error:
        log.warning("a hook raised and was skipped", error=str(error))
        return unchanged
    return unchanged if answer is None else answer
