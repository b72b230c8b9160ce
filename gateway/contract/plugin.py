"""The plugin contract: a class that overrides hooks and acts through their return values.

Every hook may be sync or async and may return ``None`` for "unchanged". Hooks of several plugins run in
the order the plugins were registered; ``gateway/extensions/hooks.py`` defines how results combine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from msgspec import Struct

from gateway.confinement.programs import NodeService, PermissionService, ProcessService
from gateway.contract.channel import InboundMessage, Sender, SenderRole
from gateway.contract.errors import TrunklineError
from gateway.contract.events import AgentEvent, ChatMessage, PermissionAsked, ToolStarting
from gateway.contract.messages import Message
from gateway.contract.provider import ChatOptions
from gateway.contract.services import (
    ActivityService,
    AgentService,
    Announce,
    ChannelService,
    EventService,
    ModelService,
    ProviderService,
    QuestionService,
    ReadOptions,
    SessionMessages,
    SessionService,
    Submit,
    Table,
    TaskService,
    UIService,
    Unregister,
)
from gateway.contract.tool import Tool, ToolOutput

if TYPE_CHECKING:
    from pydantic import BaseModel

PathT = TypeVar("PathT")
QueryT = TypeVar("QueryT")
BodyT = TypeVar("BodyT")
AgentEndReason = Literal["complete", "aborted"]


class TurnContext(Struct, frozen=True):
    """The context of a hook call.

    ``messages`` are the session's messages, ``inbound`` is the received message with audio and raw event.
    ``role`` is the sender's role.
    """

    session: str
    sender: Sender
    messages: SessionMessages
    inbound: InboundMessage
    agent: str = "main"
    role: SenderRole = "user"


class RegistryView(Protocol):
    """The read-only side of the plugin registry; turns get their tools and prompts by these methods, too."""

    def get_tools(self) -> tuple[Tool, ...]:
        """Return the tools of all plugins."""
        ...

    async def get_filtered_tools(self, ctx: TurnContext) -> tuple[Tool, ...]:
        """Return the tools that the hooks of all plugins allow in a turn."""
        ...

    def get_commands(self) -> Sequence[SlashCommand]:
        """Return the slash commands of all plugins, sorted by name."""
        ...

    def get_hooks(self) -> Any:
        """Return the hooks of all plugins as one object with a method for each hook."""
        ...

    async def get_system_prompts(self) -> tuple[str, ...]:
        """Return the system prompts of all plugins, in order of registration."""
        ...

    async def apply_system_prompt_transforms(self, prompt: str, ctx: TurnContext) -> str:
        """Return a system prompt after all ``transform_system_prompt`` hooks."""
        ...


class ToolCall(Struct, frozen=True):
    """A tool call of the model; ``arguments`` is the parsed JSON object."""

    id: str
    name: str
    arguments: Mapping[str, Any]


class ToolBlock(Struct, frozen=True):
    """A refusal of a tool call; the model gets ``content`` as its result."""

    content: str
    is_error: bool = True


class TurnResult(Struct, frozen=True):
    """The result of one model call. ``usage`` counts input and output tokens."""

    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    usage: int
    cached_tokens: int = 0


class Pass(Struct, frozen=True):
    """Leave the user's text as it is."""


class Transform(Struct, frozen=True):
    """Replace the user's text."""

    text: str


class Intercept(Struct, frozen=True):
    """End the turn without a model call. ``reply`` is shown to the user unless empty."""

    reply: str = ""


UserInput = Pass | Transform | Intercept


class Compacting(Struct, frozen=True):
    """A summary that is about to be made of a session's earlier messages.

    ``trigger`` is ``auto`` if they no longer fit in the model's context, ``manual`` for /compact.
    ``instructions`` say what to keep. With a ``summary`` no model is called.
    """

    trigger: Literal["auto", "manual"]
    session: str
    instructions: str = ""
    summary: str | None = None


class CommandContext(Struct, frozen=True):
    """The context of a slash command. ``channel`` is its channel's id, ``role`` the sender's role.

    ``compact`` summarizes the session's messages for the model, with instructions, and returns the reply.
    """

    session: str
    messages: Sequence[Message]
    cwd: str
    config: Mapping[str, Any]
    sender: Sender
    channel: str
    inbound: InboundMessage
    role: SenderRole = "user"
    compact: Callable[[str], Awaitable[str]] | None = None


class SlashCommand(Struct, frozen=True):
    """A command typed as ``/name rest``. The result of ``execute`` is shown; None shows nothing.

    With ``admin`` only admins can see and run it. ``choices`` returns what a user can select as ``rest``, for
    the text typed so far; those without that text are left out. ``execute`` may accept any other rest, too.

    With ``at_once`` it also runs while an answer of its conversation is being made, instead of after it. It
    must only read, because it runs at the same time as the answer.
    """

    name: str
    description: str
    execute: Callable[[str, CommandContext], Awaitable[str | None]]
    admin: bool = False
    choices: MentionProvider | None = None
    at_once: bool = False


class StatusSegment(Struct, frozen=True):
    """A piece of the status line. ``texts`` has its text in other languages, by code, such as ``de``."""

    text: str
    color: str | None = None
    dim: bool = False
    texts: Mapping[str, str] = {}


class MentionCompletion(Struct, frozen=True):
    """One entry of a mention picker; ``label`` defaults to the value."""

    value: str
    label: str = ""
    description: str = ""


MentionProvider = Callable[[str], "Sequence[MentionCompletion] | Awaitable[Sequence[MentionCompletion]]"]
MessageRenderer = Callable[[Message], "str | None"]
ShortcutHandler = Callable[[], Any]


class AgentLoop(Protocol):
    """A strategy that replaces the built-in loop. It yields agent events with cumulative texts."""

    @property
    def name(self) -> str: ...

    def run(self, run: LoopRun) -> AsyncIterator[AgentEvent]: ...


class LoopRun(Struct, frozen=True):
    """The input of a custom loop: ``call_model`` streams one call, ``call_tool`` runs one tool."""

    messages: tuple[Message, ...]
    options: ChatOptions
    tools: tuple[Tool, ...]
    call_model: Callable[[Sequence[Message]], Awaitable[TurnResult]]
    call_tool: Callable[[ToolCall], Awaitable[ToolOutput]]


class ApiCall(Struct, Generic[PathT, QueryT, BodyT], frozen=True):
    """A parsed request: path and query parameters, body, and the authenticated user.

    ``key`` is the header ``Idempotency-Key`` of a POST request, or "".
    """

    path: PathT
    query: QueryT
    body: BodyT
    user: str
    key: str = ""


class ApiRoute(Struct, frozen=True):
    """A route of a plugin: ``path`` follows ``/api/plugins/NAME``, such as ``/texts/{name}``.

    A path that begins with one of ``Plugin.api_prefixes`` is complete, such as ``/api/workspaces/{id}``.
    ``handler`` is an async function of one ``ApiCall[Path, Query, Body]``, each a Struct or None, and returns
    a Struct or None (status 204). ``errors`` are those that it raises. ``needs_proof`` is for routes that
    decide what may act: a page then asks the user for the token again, unless it did so a moment ago.
    """

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str
    summary: str
    handler: Callable[[ApiCall[Any, Any, Any]], Awaitable[Struct | None]]
    errors: tuple[type[TrunklineError], ...] = ()
    needs_proof: bool = False


class ApiConnection(Protocol):
    """The connection of a client to an ``ApiSocket``. A frame has at most 1 MiB.

    The first call of a method accepts the client. Keep a call of ``receive`` open: it shows that the client
    left. One task may receive while another one sends.
    """

    async def receive(self) -> str | bytes | None:
        """Return the next frame; None after the client closed."""
        ...

    async def send(self, data: str | bytes) -> None:
        """Send a frame, and wait while the client does not read.

        Raises ConnectionError if the client is gone, also if it was dropped because it did not read for long.
        """
        ...


class ApiSocket(Struct, frozen=True):
    """A websocket of a plugin, with a path as that of an ``ApiRoute``.

    ``handler`` is an async function of one ``ApiCall[Path, Query, None]`` and one ``ApiConnection``; the
    socket closes when it ends. Of ``errors``, those that it raises before the client is accepted are HTTP
    responses, later ones close codes: 4000 and their status. It is cancelled when the plugin ends, the
    gateway stops or the client's token is valid no longer.
    """

    path: str
    summary: str
    handler: Callable[[ApiCall[Any, Any, None], ApiConnection], Awaitable[None]]
    errors: tuple[type[TrunklineError], ...] = ()
    method: Literal["GET"] = "GET"
    """The method of the request that is upgraded."""


class Figure(Struct, frozen=True):
    """A metric of a plugin, shown as ``trunkline_plugin_NAME_name``. A ``counter`` never decreases."""

    name: str
    description: str
    value: float
    kind: Literal["gauge", "counter"] = "gauge"
    labels: Mapping[str, str] = {}


class PluginContext(Struct, frozen=True, kw_only=True):
    """The context of a plugin's activation. A service that the host does not have is None."""

    cwd: str
    config: Mapping[str, Any]
    options: ReadOptions
    """Validates ``config`` with a pydantic model and returns it as one."""
    environ: Mapping[str, str] = {}
    """The environment variables that the plugin declares in ``Plugin.environ``, as far as they are set."""
    node: str = ""
    """The name of this node of the cluster; "" without one. Other nodes may run on other machines."""
    nodes: NodeService | None = None
    """Connects to programs that run on the machines of other nodes; None without a cluster."""
    registry: RegistryView
    get_plugin: Callable[[str], Plugin | None]
    set_status_line: Callable[[Sequence[StatusSegment]], None]
    register_message_renderer: Callable[[str, MessageRenderer], Unregister]
    register_shortcut: Callable[[str, ShortcutHandler], Unregister]
    register_mention_provider: Callable[[str, MentionProvider], Unregister]
    ui: UIService | None = None
    shutdown: Callable[[int], None] | None = None
    processes: ProcessService | None = None
    """Runs scripts and programs that the kernel confines."""
    submit: Submit | None = None
    announce: Announce | None = None
    questions: QuestionService | None = None
    permissions: PermissionService | None = None
    """Decides about actions of programs that the plugin runs for users."""
    tasks: TaskService | None = None
    table: Callable[[str], Table] | None = None
    """Opens a durable table by its name: letters, digits, ``_``, ``.`` and ``-``, at most 64."""
    audit: Callable[..., Awaitable[None]] | None = None
    """Writes into the audit log: ``await audit(action, subject, detail, actor=user_id)``, durable on return.
    Without ``actor`` it is the plugin.
    """
    providers: ProviderService | None = None
    models: ModelService | None = None
    """Finds models by name: what they can do (``(await models.resolve(name)).capabilities``) and cost."""
    channels: ChannelService | None = None
    sessions: SessionService | None = None
    activity: ActivityService | None = None
    events: EventService | None = None
    """The event bus; its event types are in ``gateway.events``."""
    set_panel: Callable[[str], None] | None = None
    """Show Markdown in the plugin's panel on the chat page; "" removes it."""
    agents: AgentService | None = None
    """The agents registry: the one that an earlier plugin published, or the gateway's own."""
    set_agents_registry: Callable[[AgentService], None] | None = None
    """Publish an agents registry: plugins activated later get it as ``agents``."""


class Plugin:
    """A plugin. Only ``name`` is required; override the hooks you need.

    Attributes of a subclass are open to sibling plugins through ``ctx.get_plugin(name)``. ``environ`` names
    the environment variables that ``ctx.environ`` is to hold. ``settings_model`` is the pydantic model of the
    plugin's own settings: ``trunkline config check`` and the gateway, before ``activate``, validate them with
    it. None accepts any settings. ``api_prefixes`` are paths such as ``/api/workspaces`` for its routes; only
    plugins that come with Trunkline have them. With ``asks_by_default`` its tools need an approval unless a
    rule of the settings names them, also where the default allows other tools. ``on_failure`` is what a
    failing hook does unless the settings say it: ``closed`` blocks what it was called for, ``open`` changes
    nothing.
    """

    name: str = ""
    version: str = "0"
    environ: Sequence[str] = ()
    api_prefixes: Sequence[str] = ()
    asks_by_default: bool = False
    on_failure: Literal["open", "closed"] | None = None
    settings_model: type[BaseModel] | None = None
    system_prompt: str | Callable[[PluginContext], str | Awaitable[str]] = ""
    agent_loop: AgentLoop | None = None

    def tools(self) -> Sequence[Tool]:
        """Return the tools offered to the model; called again for every model call."""
        return ()

    def commands(self) -> Sequence[SlashCommand]:
        """Return the slash commands."""
        return ()

    def routes(self) -> Sequence[ApiRoute | ApiSocket]:
        """Return the HTTP routes and websockets; called once, after ``activate``."""
        return ()

    def figures(self) -> Sequence[Figure] | Awaitable[Sequence[Figure]]:
        """Return the metrics; called for each request of ``/metrics``, with the time limit of hooks."""
        return ()

    async def activate(self, ctx: PluginContext) -> None:
        """Start the plugin; called once, at registration."""

    async def find_problem(self) -> str:
        """Return what would fail now, such as a server that refuses the key; "" if nothing.

        Called by ``trunkline doctor`` after ``activate``. It may make requests.
        """
        return ""

    async def deactivate(self) -> None:
        """Release resources; called once, before the plugin is removed."""

    async def before_llm_call(
        self, messages: tuple[Message, ...], options: ChatOptions, ctx: TurnContext
    ) -> Sequence[Message] | ChatOptions | None:
        """Change the messages or options of this model call; the session's transcript is unaffected.

        Of ChatOptions these fields count: ``temperature``, ``top_p``, ``seed``, ``max_tokens``,
        ``stop_sequences``, ``response_format``, ``effort`` and ``system_prompt``.
        """

    async def after_llm_call(self, result: TurnResult, ctx: TurnContext) -> TurnResult | None:
        """Change the model's answer."""

    async def before_tool_exec(self, call: ToolCall, ctx: TurnContext) -> ToolCall | ToolBlock | None:
        """Rewrite a call or block it; the first block ends the chain. Raising blocks too."""

    async def after_tool_exec(self, call: ToolCall, result: str, ctx: TurnContext) -> str | None:
        """Change a tool's output; also called for blocked calls."""

    async def filter_tools(self, tools: tuple[Tool, ...], ctx: TurnContext) -> Sequence[Tool] | None:
        """Narrow the tools; tools that were not offered cannot be added."""

    async def transform_system_prompt(self, prompt: str, ctx: TurnContext) -> str | None:
        """Change the system prompt."""

    async def transform_user_input(self, text: str, ctx: TurnContext) -> UserInput | None:
        """Pass, transform or intercept the user's text."""

    async def session_compacting(self, compacting: Compacting, ctx: TurnContext) -> Compacting | None:
        """Change the instructions of a summary, or give the summary."""

    async def tool_execute_before(self, event: ToolStarting, ctx: TurnContext) -> ToolBlock | None:
        """Block a call that was permitted, before ``before_tool_exec``. Raising blocks too."""

    async def permission_ask(self, event: PermissionAsked, ctx: TurnContext) -> bool | None:
        """Allow or refuse a call that a user would be asked about; None leaves it to the user.

        A refusal of any plugin counts. An approval does not count for the plugin's own tools, where a rule
        demands the question, and in a conversation with content of others.
        """

    async def chat_message(self, event: ChatMessage, ctx: TurnContext) -> UserInput | None:
        """Pass, transform or intercept a text of a user that is about to reach a model.

        It is called for each: the message after ``transform_user_input``, those that waited, quotes, context.
        """

    async def after_agent_run(self, reason: AgentEndReason, ctx: TurnContext) -> None:
        """React to the end of a turn, complete or aborted."""
