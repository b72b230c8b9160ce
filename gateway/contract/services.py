"""The services that a plugin finds in its ``PluginContext``, as protocols.

The gateway's own classes satisfy them structurally, so that the contract imports no implementation. A service
that the host does not have is ``None`` in the context.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from gateway.contract.channel import Address, Channel, InboundMessage, Responder
from gateway.contract.events import Activity, ActivityKind, AgentEvent, BusEvent, SubAgentEvent
from gateway.contract.messages import Message
from gateway.contract.provider import Capabilities, Provider, ProviderConfig, TurnOptions
from gateway.contract.questions import Answer, Choice

if TYPE_CHECKING:
    from pydantic import BaseModel

E = TypeVar("E", bound=BusEvent)
M = TypeVar("M", bound="BaseModel")

Unregister = Callable[[], None]
NoticeLevel = Literal["info", "success", "warning", "error"]


class SessionMessages(Protocol):
    """The messages of one session, as plugins read and extend them."""

    def append(self, message: Message) -> None:
        """Show a message now; the model never sees it. Raises PartValidationError or InvalidPartTypeError."""
        ...

    def inject_next(self, message: Message) -> None:
        """Add a message to the transcript after the next user message; the model sees it then."""
        ...

    def get(self) -> tuple[Message, ...]:
        """Return the transcript."""
        ...

    def subscribe(self, listener: Callable[[tuple[Message, ...]], None]) -> Unregister:
        """Call ``listener`` with the transcript now and after each change, until the result is called."""
        ...


class ProviderService(Protocol):
    """The registry of model providers."""

    def register(self, entry: Provider) -> Unregister:
        """Add a provider. Raises AlreadyRegisteredError; the result removes it."""
        ...

    def add_factory(
        self,
        provider_id: str,
        factory: Callable[[ProviderConfig], Provider],
        *,
        variables: Mapping[str, Sequence[str]] | None = None,
        first_model: str = "",
        optional: bool = False,
        load: Callable[[], object] | None = None,
        stand_in: str = "",
        needs_key: bool = True,
        key_of: str = "",
    ) -> Unregister:
        """Register a provider that is created on first use. Raises AlreadyRegisteredError.

        ``variables`` maps a setting to the environment variables that it is read from besides
        ``<ID>_API_KEY``; ``load`` is called in a thread when the provider may be needed soon.
        """
        ...

    def get(self, entry_id: str) -> Provider | None:
        """Return a provider that was created, or None."""
        ...

    def configured(self, provider_id: str) -> ProviderConfig:
        """Return the configuration that the settings have for a provider."""
        ...

    def key_owner(self, provider_id: str) -> str:
        """Return the id of the provider that owns the API key of this one."""
        ...

    def stand_in_of(self, provider_id: str) -> str | None:
        """Return the id of the provider that answers by default when this one cannot be used."""
        ...


class ModelRoute(Protocol):
    """A model and the provider that serves it."""

    @property
    def name(self) -> str:
        """The full name, ``provider/model``."""
        ...

    @property
    def provider(self) -> Provider:
        """The provider."""
        ...

    @property
    def model(self) -> str:
        """The model's id at its provider."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """The model's capabilities."""
        ...


class ModelDetails(Protocol):
    """The known facts of a model; None for what no source says."""

    @property
    def context_window(self) -> int | None:
        """Tokens that input and output may have together."""
        ...

    @property
    def output_limit(self) -> int | None:
        """Tokens that one answer may have."""
        ...

    @property
    def rates(self) -> object | None:
        """Dollars per million tokens, by kind of token."""
        ...

    @property
    def retires(self) -> str | None:
        """The date from which its provider no longer serves it, such as ``2026-05-14``."""
        ...


class ModelService(Protocol):
    """Finds models by name."""

    async def resolve(self, name: str) -> ModelRoute:
        """Return the route for an alias, ``provider/model`` or model id. Raises ProviderResolutionError."""
        ...

    async def facts(self, provider_id: str, model: str) -> ModelDetails:
        """Return what is known of a model, from offline data and, once an hour, its provider's list."""
        ...


class ChannelService(Protocol):
    """The registry of channels."""

    def register(self, entry: Channel) -> Unregister:
        """Add a channel, to be started with the others. Raises AlreadyRegisteredError.

        The result removes it.
        """
        ...

    def get(self, entry_id: str) -> Channel | None:
        """Return a channel by id, or None."""
        ...

    def list(self) -> tuple[Channel, ...]:
        """Return all channels, in order of registration."""
        ...


class SessionView(Protocol):
    """One session: its id, its messages, and the events of its turns."""

    @property
    def id(self) -> str:
        """The session's id."""
        ...

    def messages(self) -> tuple[Message, ...]:
        """Return the messages that are in memory."""
        ...

    def subscribe(self, listener: Callable[[AgentEvent], None]) -> Unregister:
        """Call ``listener`` with each agent event of the session, until the result is called."""
        ...


class SessionService(Protocol):
    """The sessions."""

    def get(self, session_id: str) -> SessionView | None:
        """Return a session that is in memory, or None."""
        ...

    def live(self) -> Sequence[SessionView]:
        """Return the sessions that are in memory."""
        ...

    async def find(self, session_id: str) -> SessionView:
        """Return a stored session. Raises NotFoundError."""
        ...


class EventService(Protocol):
    """The event bus. Subscriptions end with their plugin; past events are not replayed.

    A handler may be an async function, whose events then wait in a bounded queue; see ``EventBus``.
    """

    def subscribe(self, kind: type[E], handler: Callable[[E], object], *, session: str = "") -> Unregister:
        """Call ``handler`` with each event of exactly this type, until the result is called."""
        ...

    def subscribe_all(self, handler: Callable[[BusEvent], object]) -> Unregister:
        """Call ``handler`` with each event whose type is not detailed, until the result is called."""
        ...

    def once(self, kind: type[E], handler: Callable[[E], object], *, session: str = "") -> Unregister:
        """Call ``handler`` with the next such event alone, unless the result is called before."""
        ...

    def wants(self, kind: type[BusEvent], session: str = "") -> bool:
        """Return whether there is a subscriber to such an event, so that building it is worth it."""
        ...

    def emit(self, event: BusEvent) -> None:
        """Notify the subscribers."""
        ...


class ActivityService(Protocol):
    """The activity of the gateway: agents, tools, tasks and nested runs. Past events are not replayed."""

    def subscribe(self, listener: Callable[[Activity], None]) -> Unregister:
        """Call ``listener`` with each activity, until the result is called."""
        ...

    def emit(
        self, kind: ActivityKind, source: str, summary: str, detail: Mapping[str, Any] | None = None
    ) -> None:
        """Publish an activity."""
        ...

    def subscribe_sub_agent(self, listener: Callable[[SubAgentEvent], None]) -> Unregister:
        """Call ``listener`` with each event of a nested run, until the result is called."""
        ...


class AgentService(Protocol):
    """The registry of folders that hold agent definitions."""

    def register_source(self, folder: Path) -> Unregister:
        """Add a folder (absolute). Raises PluginError if it is relative; the result removes it."""
        ...

    def list(self) -> tuple[Path, ...]:
        """Return the folders, oldest first."""
        ...


class Submit(Protocol):
    """Submits a message as if a channel had received it, and returns the answer once it is durable."""

    async def __call__(
        self,
        message: InboundMessage,
        responder: Responder | None = None,
        *,
        exclusive: bool = False,
        model: str | None = None,
        agent: str | None = None,
        options: TurnOptions | None = None,
    ) -> Message | None: ...


AnyAddress = Address | Mapping[str, Any]


class Announce(Protocol):
    """Sends a message to a chat outside of a turn. Returns once it is durable.

    It is delivered exactly once for each ``key`` of the plugin, after the running answer. The same key with
    other content edits the message where the channel can edit, and does nothing with the same content. Text
    is Markdown. The address is that of an earlier message, or plain data with its fields, as a table stores
    it; ``reply_to`` is ignored.

    Waits until the gateway has started, except during ``activate``. Raises InvalidStateError there,
    InvalidRequestError for an address, key or message that cannot be used, ForbiddenError for a private chat
    whose user may no longer use the bot, OverloadedError if too many messages wait or the gateway is
    stopping, and StoreError if the database fails. Nothing was stored then.
    """

    async def __call__(self, address: AnyAddress, message: Message | str, key: str) -> None: ...


TakesAnswer = Callable[[Answer], Awaitable[None]]


class QuestionService(Protocol):
    """Questions of one plugin in chats, also outside of a turn.

    A question, its end and the withdrawal are durable when the call returns or the handler is called.
    """

    async def ask(
        self,
        address: AnyAddress,
        title: str,
        key: str,
        *,
        answerers: Sequence[str],
        admins: bool = False,
        detail: str = "",
        choices: Sequence[Choice] = (),
        multiple: bool = False,
        free_text: bool = False,
        timeout_ms: int = 86_400_000,
    ) -> str:
        """Ask a question in a chat. Returns its id once it is durable.

        Each ``key`` of the plugin asks once: with an earlier key nothing is asked, and the result is the id
        of the first question. Only the users ``answerers`` may answer, by their ids on the platform, and the
        owner of the gateway on the web page; with ``admins`` also admins of the channel at that time.
        Without ``choices``, or with ``free_text``, any text is an answer. With ``multiple`` an answer has one
        choice or more.

        Waits until the gateway has started, except during ``activate``. Raises InvalidStateError there,
        InvalidRequestError for a question or an address that cannot be used, ForbiddenError for a private
        chat whose user may no longer use the bot, OverloadedError for too many open questions, and
        StoreError. Nothing was stored then.
        """
        ...

    async def withdraw(self, question_id: str) -> bool:
        """Close an open question of this plugin. Returns whether it was open; the handler is not called."""
        ...

    def on_answer(self, handler: TakesAnswer) -> Unregister:
        """Call a handler when a question ends: answered, expired, or withdrawn if no chat can show it.

        It is called again, also after a restart, until it returns. So it may be called twice with an answer,
        and with several answers at once. Raises AlreadyRegisteredError if there is a handler.
        """
        ...


class TaskService(Protocol):
    """The background tasks of a plugin. They are cancelled when it is unregistered or the gateway stops."""

    def create_task(self, work: Coroutine[Any, Any, object], *, name: str = "") -> asyncio.Task[None]:
        """Start a task; the result can cancel it. A failure is logged and affects no other task.

        Raises InvalidStateError once the plugin has ended.
        """
        ...


class Table(Protocol):
    """A durable table of JSON values, of one plugin. A write is durable when its call returns.

    ``expected`` makes a write conditional: it is made only if the entry has this value, or if there is no
    entry for None. Raises InvalidRequestError for a key or value that cannot be stored, and StoreError.
    """

    async def get(self, key: str) -> Any:
        """Return the value of a key; None if there is none."""
        ...

    async def put(self, key: str, value: Any, *, expected: Any = ...) -> bool:
        """Store a value. Returns False if the entry is not as expected."""
        ...

    async def delete(self, key: str, *, expected: Any = ...) -> bool:
        """Remove an entry. Returns False if there is none, or it is not as expected."""
        ...

    async def keys(self, prefix: str = "") -> list[str]:
        """Return the keys with a prefix, sorted."""
        ...

    async def items(self, prefix: str = "") -> list[tuple[str, Any]]:
        """Return the entries whose keys have a prefix, sorted by key."""
        ...


class ReadOptions(Protocol):
    """Reads the plugin's own settings as a pydantic model.

    Raises SettingsError that names each unknown key and each wrong value with its place.
    """

    def __call__(self, model: type[M], /) -> M: ...


class UIService(Protocol):
    """Notices for the operator, and questions to the user of the running turn, in its chat.

    A question is asked once, also if the turn is repeated after a crash; time limits of hooks do not run
    while the user is waited for. Outside a turn, and where no user can be asked, it is answered at once.
    """

    def notify(self, message: str, level: NoticeLevel = "info") -> None:
        """Show a notice."""
        ...

    async def confirm(self, title: str, message: str) -> bool:
        """Ask a yes-or-no question. Returns False without a user, and without an answer in time."""
        ...

    async def select(self, title: str, options: Sequence[str]) -> str | None:
        """Ask to pick an option. Returns the first one without a user, None without an answer in time."""
        ...

    async def input(self, title: str, placeholder: str = "") -> str | None:
        """Ask for a line of text. Returns None without a user, and without an answer in time."""
        ...
