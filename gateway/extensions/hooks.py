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
tool_execute_before       the first block ends the chain; a hook that raises blocks
permission_ask            the first refusal ends the chain, else the first approval; raising refuses
chat_message              fold over the text, as transform_user_input; a hook that raises is skipped
after_agent_run           all are called; one that raises is logged
========================  =========================================================================

Elsewhere a hook that raises ends the turn with a PluginError that names plugin and hook. A hook that returns
another type than the table of types allows, or misses its deadline, counts as one that raises.

``on_failure`` of a plugin, in its manifest or in the settings, changes both: ``closed`` blocks what the hook
was called for where it would be skipped, ``open`` skips it where it would block.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from copy import deepcopy
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Literal, cast

import msgspec
import structlog
from msgspec import Struct

from gateway.contract.errors import CATCHABLE, NO_REASON, PluginError, is_cancellation_requested
from gateway.contract.events import ChatMessage, PermissionAsked, ToolStarting
from gateway.contract.messages import Message, Part, TextPart
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
DECISIONS = ("tool_execute_before", "permission_ask", "chat_message")
"""The hooks behind events that decide: ``tool.execute.before``, ``permission.ask`` and ``chat.message``."""

_OPEN = frozenset(
    ("after_llm_call", "after_tool_exec", "session_compacting", "chat_message", "after_agent_run")
)
"""The hooks that are skipped when they fail, unless the settings of their plugin say otherwise."""
_SIMILAR = 0.9
"""Similarity from which a name is taken for a mistake; 1 is equal."""
_SECONDS = {"session_compacting": 30.0}
"""Time limits of hooks that may call a model or a program."""

OnFailure = Literal["open", "closed"]

Observe = Callable[[str, str, str, float, str], None]
"""Takes plugin, hook, verdict (pass, changed, allowed, intercepted, blocked or failed), seconds and error."""
observing: ContextVar[Observe | None] = ContextVar("observing", default=None)
"""The observer of the hooks that the current task calls, if any."""


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


SETTABLE = (
    "temperature",
    "top_p",
    "seed",
    "max_tokens",
    "stop_sequences",
    "response_format",
    "effort",
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
    "tool_execute_before": AllowedResult((ToolBlock,)),
    "permission_ask": AllowedResult((bool,)),
    "chat_message": AllowedResult((Pass, Transform, Intercept)),
}


_TEXTS: Mapping[type, str] = {Transform: "text", Intercept: "reply", ToolBlock: "content"}
"""The fields of answers that must be texts."""


class Hook:
    """One hook of one plugin."""

    __slots__ = ("_allowed", "_function", "_limit", "is_closed", "label", "name", "plugin")

    def __init__(self, plugin: Plugin, name: str, limit: Limit, on_failure: OnFailure | None = None) -> None:
        self.plugin, self.name = plugin, name
        seconds = max(limit.seconds, _SECONDS.get(name, 0))
        self._limit = limit if seconds == limit.seconds else msgspec.structs.replace(limit, seconds=seconds)
        self.is_closed = name not in _OPEN if on_failure is None else on_failure == "closed"
        shown = name.replace("_", ".") if name in DECISIONS else name
        self.label = f"plugin {plugin.name!r} failed in {shown}"
        self._function: Callable[..., Any] = getattr(plugin, name)
        self._allowed = _ALLOWED.get(name)

    async def call(self, *args: Any) -> Any:
        """Call the hook. If it fails, raise PluginError if it is closed; else log that, and return None."""
        begun, observe = time.monotonic(), observing.get()
        try:
            answer = await self._call(*args)
        except PluginError as error:
            if observe is not None:
                observe(self.plugin.name, self.name, "failed", time.monotonic() - begun, str(error))
            if self.is_closed:
                raise
            log.warning("a hook raised and was skipped", error=str(error))
            return None
        if observe is not None:
            observe(self.plugin.name, self.name, _verdict(answer, args), time.monotonic() - begun, "")
        return answer

    async def _call(self, *args: Any) -> Any:
        """Call the hook. An exception or a value of a wrong type raises PluginError."""
        try:
            answer = await self._limit.call(self._function, *args)
        except CATCHABLE as error:
            if is_cancellation_requested(error):
                raise
            failure = PluginError(f"{self.label}: {type(error).__name__}: {error}")
            failure.shown = f"{self.label}: {str(error) or NO_REASON}"
            raise failure from error
        if answer is not None and self._allowed is not None and not self._allowed.accepts(answer):
            raise PluginError(f"{self.label}: it must return {self._allowed}, not {type(answer).__name__}")
        for kind, field in _TEXTS.items():
            if isinstance(answer, kind) and not isinstance(text := getattr(answer, field), str):
                found = type(text).__name__
                raise PluginError(f"{self.label}: {kind.__name__}.{field} must be str, not {found}")
        return answer


def _verdict(answer: Any, args: Sequence[Any]) -> str:
    """Return what the answer of a hook means for what it was called with."""
    if answer is None or isinstance(answer, Pass) or answer is args[0]:
        return "pass"
    if isinstance(answer, Intercept):
        return "intercepted"
    if isinstance(answer, ToolBlock) or answer is False:
        return "blocked"
    if answer is True:
        return "allowed"
    return "pass" if isinstance(answer, str) and answer == args[0] else "changed"


class Hooks:
    """The composed hooks of a list of plugins, each with a function that returns the time limit of a hook.

    A plugin without an override adds no call. ``on_failure`` is the value of the setting by plugin, from the
    settings or the manifest.
    """

    def __init__(
        self,
        plugins: Sequence[tuple[Plugin, Callable[[str], Limit]]] = (),
        on_failure: Mapping[str, OnFailure | None] = MappingProxyType({}),
    ) -> None:
        self._hooks = {
            name: tuple(
                Hook(one, name, limit(name), on_failure.get(one.name))
                for one, limit in plugins
                if overrides(one, name)
            )
            for name in (*HOOKS, *DECISIONS)
        }

    def uses(self, name: str) -> bool:
        """Return whether any plugin has this hook."""
        return bool(self._hooks[name])

    async def before_llm_call(
        self, messages: tuple[Message, ...], options: ChatOptions, ctx: TurnContext
    ) -> tuple[tuple[Message, ...], ChatOptions]:
        """Return the messages and options of the model call."""
        for hook in self._hooks["before_llm_call"]:
            answer = await hook.call(messages, options, ctx)
            if isinstance(answer, ChatOptions):
                changed = {name: getattr(answer, name) for name in SETTABLE}
                options = msgspec.structs.replace(options, **changed)
            elif answer is not None:
                messages = tuple(answer)
        return messages, options

    async def after_llm_call(self, result: TurnResult, ctx: TurnContext) -> TurnResult:
        """Return the model's answer, as changed by the hooks."""
        for hook in self._hooks["after_llm_call"]:
            answer = await hook.call(result, ctx)
            result = result if answer is None else answer
        return result

    async def before_tool_exec(self, call: ToolCall, ctx: TurnContext) -> ToolCall | ToolBlock:
        """Return the tool call to run, or the block that replaces it."""
        for hook in self._hooks["before_tool_exec"]:
            try:
                # Of its own, because what a hook changes in place would run without being permitted.
                given = msgspec.structs.replace(call, arguments=deepcopy(dict(call.arguments)))
                answer = await hook.call(given, ctx)
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
            try:
                answer = await hook.call(call, result, ctx)
            except PluginError as error:
                answer = f"Error: {error}"
            result = result if answer is None else answer
        return result

    async def filter_tools(self, tools: tuple[Tool, ...], ctx: TurnContext) -> tuple[Tool, ...]:
        """Return the allowed tools, a subset of the given ones."""
        for hook in self._hooks["filter_tools"]:
            answer = await hook.call(tools, ctx)
            if answer is not None:
                kept = {tool.name for tool in answer}
                tools = tuple(tool for tool in tools if tool.name in kept)
        return tools

    async def transform_system_prompt(self, prompt: str, ctx: TurnContext) -> str:
        """Return the system prompt, as changed by the hooks."""
        for hook in self._hooks["transform_system_prompt"]:
            answer = await hook.call(prompt, ctx)
            prompt = prompt if answer is None else answer
        return prompt

    async def transform_user_input(self, text: str, ctx: TurnContext) -> UserInput:
        """Return the verdict on the user's text; a pass after a transform keeps the transformed text."""
        verdict: UserInput = Pass()
        for hook in self._hooks["transform_user_input"]:
            answer: UserInput | None = await hook.call(text, ctx)
            if isinstance(answer, Intercept):
                return answer
            if isinstance(answer, Transform):
                text, verdict = answer.text, answer
        return verdict

    async def chat_messages(
        self,
        messages: Sequence[Message],
        asked: Collection[str],
        ctx: TurnContext,
        emit: Callable[[ChatMessage], object],
    ) -> list[Message] | Intercept:
        """Return the messages of a turn with texts and quotes as the plugins change them, or their answer.

        Every text that a user wrote is asked about: a filter that got the newest message only would let those
        that were queued before it pass. ``asked`` are the ids of the messages that the turn answers; others
        that a plugin answers are left out.
        """
        kept: list[Message] = []
        for message in messages:
            changed = message if message.role != "user" else await self._ask_about(message, ctx, emit)
            if isinstance(changed, Message):
                kept.append(changed)
            elif message.id in asked:
                return changed
        return kept

    async def _ask_about(
        self, message: Message, ctx: TurnContext, emit: Callable[[ChatMessage], object]
    ) -> Message | Intercept:
        kinds = tuple(
            str(type(p).__struct_config__.tag) for p in message.parts if not isinstance(p, TextPart)
        )
        sender = ctx.sender.id if message.origin is None else message.origin.user
        parts: list[Part] = []
        for part in message.parts if message.text else (*message.parts, TextPart("")):
            if isinstance(part, TextPart):
                event = ChatMessage(ctx.session, part.content, sender, kinds)
                emit(event)
                verdict = await self.chat_message(event, ctx)
                if isinstance(verdict, Intercept):
                    return verdict
                part = TextPart(verdict.text, part.kind) if isinstance(verdict, Transform) else part
            if part != TextPart(""):
                parts.append(part)
        return msgspec.structs.replace(message, parts=tuple(parts))

    async def chat_message(self, event: ChatMessage, ctx: TurnContext) -> UserInput:
        """Return the verdict on a text that is about to reach the agent."""
        verdict: UserInput = Pass()
        for hook in self._hooks["chat_message"]:
            answer: UserInput | None = await hook.call(event, ctx)
            if isinstance(answer, Intercept):
                return answer
            if isinstance(answer, Transform):
                event, verdict = msgspec.structs.replace(event, text=answer.text), answer
        return verdict

    async def tool_execute_before(self, event: ToolStarting, ctx: TurnContext) -> ToolBlock | None:
        """Return the block of the first plugin that refuses a call, or None."""
        for hook in self._hooks["tool_execute_before"]:
            try:
                # As in ``before_tool_exec``.
                answer = await hook.call(msgspec.structs.replace(event, args=deepcopy(dict(event.args))), ctx)
            except PluginError as error:
                log.warning("a hook raised; the call is blocked", error=str(error), session=ctx.session)
                return ToolBlock(f"Error: {error}")
            if answer is not None:
                return answer
        return None

    async def permission_ask(
        self, event: PermissionAsked, ctx: TurnContext, may_allow: Callable[[Plugin], bool]
    ) -> tuple[bool, Plugin] | None:
        """Return a decision and the plugin that made it; None leaves it to the user.

        ``may_allow`` returns whether the approval of a plugin counts. Deny overrides allow, so that an
        approval still asks the plugins after it.
        """
        allowed: Plugin | None = None
        for hook in self._hooks["permission_ask"]:
            try:
                answer = await hook.call(msgspec.structs.replace(event, args=deepcopy(dict(event.args))), ctx)
            except PluginError as error:
                log.warning("a hook raised; the call is refused", error=str(error), session=ctx.session)
                answer = False
            if answer is False:
                return False, hook.plugin
            if answer and allowed is None and may_allow(hook.plugin):
                allowed = hook.plugin
        return None if allowed is None else (True, allowed)

    async def session_compacting(self, compacting: Compacting, ctx: TurnContext) -> Compacting:
        """Return the instructions or the summary of a compaction, as changed by the hooks."""
        for hook in self._hooks["session_compacting"]:
            answer = await hook.call(compacting, ctx)
            compacting = compacting if answer is None else answer
        return compacting

    async def after_agent_run(self, reason: AgentEndReason, ctx: TurnContext) -> None:
        """Notify every plugin that the run ended."""
        for hook in self._hooks["after_agent_run"]:
            try:
                await hook.call(reason, ctx)
            except PluginError as error:
                # The run has ended: there is nothing to block.
                log.warning("a hook raised and was skipped", error=str(error))


def check_names(plugin: Plugin) -> None:
    """Raise PluginError for a public method whose name resembles that of a hook: it would never be called."""
    public = {name for name in dir(plugin) if not name.startswith("_")}
    for name in sorted(public - {*dir(Plugin)}):
        if near := get_close_matches(name, (*HOOKS, *DECISIONS), n=1, cutoff=_SIMILAR):
            raise PluginError(
                f"plugin {plugin.name!r} has a method {name!r}, which is not a hook; "
                f"did you mean {near[0]!r}? If it is a method of your own, give it another name"
            )


def overrides(plugin: Plugin, name: str) -> bool:
    """Return whether a plugin has a method of this name of its own."""
    return getattr(type(plugin), name, None) is not getattr(Plugin, name) or name in vars(plugin)
