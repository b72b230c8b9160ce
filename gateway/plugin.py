"""The plugin contract: a class that overrides what it cares about and answers by return value.

Every hook may be sync or async and may return ``None`` for "unchanged". Hooks of several plugins run in
the order the plugins were registered; ``gateway/hooks.py`` says how their answers combine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from msgspec import Struct

from gateway.channel import InboundMessage, Sender, SenderRole
from gateway.events import AgentEvent
from gateway.messages import Message
from gateway.provider import ChatOptions
from gateway.tool import Tool, ToolOutput

if TYPE_CHECKING:
    from gateway.backends import ProviderRegistry
    from gateway.bus import ActivityBus, MessageBus
    from gateway.registry import AgentSources, ChannelRegistry, RegistryView
    from gateway.routing import Models
    from gateway.session import Sessions
    from gateway.submission import Submit
    from gateway.ui import UIService

AgentEndReason = Literal["complete", "aborted"]


class TurnContext(Struct, frozen=True):
    """What a hook knows of the moment it is called in.

    ``messages`` is the session's own bus, ``inbound`` what the channel received, with audio and raw event.
    ``role`` is what the sender may do.
    """

    session: str
    sender: Sender
    messages: MessageBus
    inbound: InboundMessage
    agent: str = "main"
    role: SenderRole = "user"


class ToolCall(Struct, frozen=True):
    """A call the model asks for; ``arguments`` is the parsed JSON object."""

    id: str
    name: str
    arguments: Mapping[str, Any]


class ToolBlock(Struct, frozen=True):
    """The call must not run; ``content`` is what the model gets instead."""

    content: str
    is_error: bool = True


class TurnResult(Struct, frozen=True):
    """What one call of the model gave. ``usage`` counts tokens, in and out."""

    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    usage: int
    cached_tokens: int = 0


class Pass(Struct, frozen=True):
    """Leave the user's text as it is."""


class Transform(Struct, frozen=True):
    """Go on with this text instead."""

    text: str


class Intercept(Struct, frozen=True):
    """Stop here; no model is called. ``reply`` is shown to the user when there is one."""

    reply: str = ""


UserInput = Pass | Transform | Intercept


class CommandContext(Struct, frozen=True):
    """What a slash command knows. ``channel`` is where it was typed, ``role`` what its sender may do."""

    session: str
    messages: Sequence[Message]
    cwd: str
    config: Mapping[str, Any]
    sender: Sender
    channel: str
    inbound: InboundMessage
    role: SenderRole = "user"


class SlashCommand(Struct, frozen=True):
    """A command typed as ``/name rest``. What ``execute`` returns is shown; None shows nothing.

    With ``admin`` it is for admins alone; nobody else is even told of it.
    """

    name: str
    description: str
    execute: Callable[[str, CommandContext], Awaitable[str | None]]
    admin: bool = False


class StatusSegment(Struct, frozen=True):
    """A piece of the status line."""

    text: str
    color: str | None = None
    dim: bool = False


class MentionCompletion(Struct, frozen=True):
    """One entry of a mention picker; ``label`` defaults to the value."""

    value: str
    label: str = ""
    description: str = ""


MentionProvider = Callable[[str], "Sequence[MentionCompletion] | Awaitable[Sequence[MentionCompletion]]"]
MessageRenderer = Callable[[Message], "str | None"]
ShortcutHandler = Callable[[], Any]
Unregister = Callable[[], None]


class AgentLoop(Protocol):
    """A strategy that replaces the built-in loop. It yields agent events with cumulative texts."""

    @property
    def name(self) -> str: ...

    def run(self, run: LoopRun) -> AsyncIterator[AgentEvent]: ...


class LoopRun(Struct, frozen=True):
    """What a custom loop works with: ``call_model`` streams one call, ``call_tool`` runs one tool."""

    messages: tuple[Message, ...]
    options: ChatOptions
    tools: tuple[Tool, ...]
    call_model: Callable[[Sequence[Message]], Awaitable[TurnResult]]
    call_tool: Callable[[ToolCall], Awaitable[ToolOutput]]


class PluginContext(Struct, frozen=True, kw_only=True):
    """What a plugin is given when it is activated. What the host does not have is None: check first."""

    cwd: str
    config: Mapping[str, Any]
    environ: Mapping[str, str] = {}
    """The environment variables that the gateway was started with; they may hold secrets."""
    registry: RegistryView
    get_plugin: Callable[[str], Plugin | None]
    set_status_line: Callable[[Sequence[StatusSegment]], None]
    register_message_renderer: Callable[[str, MessageRenderer], Unregister]
    register_shortcut: Callable[[str, ShortcutHandler], Unregister]
    register_mention_provider: Callable[[str, MentionProvider], Unregister]
    ui: UIService | None = None
    shutdown: Callable[[int], None] | None = None
    submit: Submit | None = None
    providers: ProviderRegistry | None = None
    models: Models | None = None
    """Finds models by name: what they can do (``(await models.resolve(name)).capabilities``) and cost."""
    channels: ChannelRegistry | None = None
    sessions: Sessions | None = None
    activity: ActivityBus | None = None
    agents: AgentSources | None = None


class Plugin:
    """A plugin. Only ``name`` is required; override the hooks you need.

    Attributes of a subclass are open to sibling plugins through ``ctx.get_plugin(name)``.
    """

    name: str = ""
    version: str = "0"
    system_prompt: str | Callable[[PluginContext], str | Awaitable[str]] = ""
    agent_loop: AgentLoop | None = None

    def tools(self) -> Sequence[Tool]:
        """Tools offered to the model; read again for every call."""
        return ()

    def commands(self) -> Sequence[SlashCommand]:
        """Slash commands."""
        return ()

    async def activate(self, ctx: PluginContext) -> None:
        """Called once, when the plugin is registered."""

    async def deactivate(self) -> None:
        """Called once, before the plugin is removed."""

    async def before_llm_call(
        self, messages: tuple[Message, ...], options: ChatOptions, ctx: TurnContext
    ) -> Sequence[Message] | None:
        """Change what the model sees in this call; the session keeps its own transcript."""

    async def after_llm_call(self, result: TurnResult, ctx: TurnContext) -> TurnResult | None:
        """Change what the model answered."""

    async def before_tool_exec(self, call: ToolCall, ctx: TurnContext) -> ToolCall | ToolBlock | None:
        """Rewrite a call or block it; the first block ends the chain. Raising blocks too."""

    async def after_tool_exec(self, call: ToolCall, result: str, ctx: TurnContext) -> str | None:
        """Change a tool's output; also called for blocked calls."""

    async def filter_tools(self, tools: tuple[Tool, ...], ctx: TurnContext) -> Sequence[Tool] | None:
        """Narrow the tools; what was not offered cannot be added."""

    async def transform_system_prompt(self, prompt: str, ctx: TurnContext) -> str | None:
        """Change the system prompt."""

    async def transform_user_input(self, text: str, ctx: TurnContext) -> UserInput | None:
        """Pass, transform or intercept what the user wrote."""

    async def after_agent_run(self, reason: AgentEndReason, ctx: TurnContext) -> None:
        """A turn ended, complete or aborted."""
