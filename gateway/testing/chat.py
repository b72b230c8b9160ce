"""A gateway in the test's process: everything is real except the model, which follows a script.

::

    async with chatting(tmp_path, MyPlugin()) as chat:
        chat.model.then(Reply((Use("clock"),), "tools"), Reply((Say("Noon."),)))
        assert (await chat.say("What time is it?")).text == "Noon."
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from gateway.app import Gateway
from gateway.contract.channel import Address, InboundMessage, OutboundMessage, Placed, Receive, Sender
from gateway.contract.deltas import Complete, Delta, StopReason
from gateway.contract.errors import StreamAbortedError
from gateway.contract.messages import Message, new_id
from gateway.contract.plugin import Plugin, PluginContext
from gateway.contract.provider import AuthMethod, Capabilities, ChatOptions, ModelInfo, ProviderConfig
from gateway.host import Host
from gateway.provider_http.adapter import AnswerWriter, assemble
from gateway.session.feed import Feed
from gateway.session.frames import ApprovalAsked, Event, Frame, MessageFrame
from gateway.settings import Settings
from gateway.testing.database import place_database
from gateway.testing.fake_models.script import Cut, Gate, Pause, Reply, Say, Stop, Think, Use, UseTogether

CHANNEL = "test"

_STOPS: dict[Stop, StopReason] = {
    "end": "end_turn",
    "length": "max_tokens",
    "tools": "tool_use",
    "filter": "end_turn",
}


class Call(Struct, frozen=True):
    """A call of the model, as the provider received it."""

    messages: tuple[Message, ...]
    options: ChatOptions


class ScriptedModel:
    """A provider in this process. It answers with the replies given to ``then``, in order, and then repeats
    the user.

    An exception among the replies is raised. ``calls`` are all calls so far.
    """

    id = "script"
    name = "Script"
    api_endpoint = "in this process"
    auth_method: AuthMethod = "custom"
    capabilities = Capabilities()

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.closed = False
        self._next: deque[Reply | BaseException] = deque()

    def then(self, *replies: Reply | BaseException) -> None:
        """Set the next replies."""
        self._next.extend(replies)

    def forget(self) -> None:
        """Drop the unused replies."""
        self._next.clear()

    async def initialize(self, config: ProviderConfig) -> None:
        """Do nothing."""

    async def chat(self, messages: Sequence[Message], options: ChatOptions) -> Message:
        """Return the whole answer."""
        return await assemble(self.stream, messages, options)

    async def stream(self, messages: Sequence[Message], options: ChatOptions) -> AsyncGenerator[Delta]:
        """Yield the answer, one delta for each move of the script."""
        self.calls.append(Call(tuple(messages), options))
        reply = self._next.popleft() if self._next else _echo(messages)
        if isinstance(reply, BaseException):
            raise reply
        writer = AnswerWriter(options)
        for move in reply.moves:
            await _write_move(move, writer)
            for delta in writer.take():
                yield delta
        writer.stop(_STOPS[reply.stop])
        writer.usage(reply.tokens.input, reply.tokens.output, reply.tokens.cached)
        for delta in writer.close(options.model, self.id):
            yield delta

    async def list_models(self) -> Sequence[ModelInfo]:
        """Return the only model."""
        return [ModelInfo("one", self.id)]

    async def close(self) -> None:
        """Record that the provider was closed."""
        self.closed = True


def _echo(messages: Sequence[Message]) -> Reply:
    text = next((message.text for message in reversed(messages) if message.role == "user"), "")
    return Reply((Say(f"You said: {text}"),))


async def _write_move(move: object, writer: AnswerWriter) -> None:
    match move:
        case Say():
            writer.text(move.text)
        case Think():
            writer.text(move.text, "reasoning")
        case Use():
            _write_call(move, writer)
        case UseTogether():
            for call in move.calls:
                _write_call(call, writer)
        case Pause():
            await asyncio.sleep(move.ms / 1000)
        case Gate():
            await move.opened.wait()
        case Cut():
            raise StreamAbortedError("the script cut the stream", provider="script")
        case _:
            raise TypeError(f"a scripted model cannot {type(move).__name__.lower()}")


def _write_call(call: Use, writer: AnswerWriter) -> None:
    call_id = writer.call(call.name, call.id)
    for fragment in call.fragments():
        writer.arguments(call_id, fragment)


class _ScriptPlugin(Plugin):
    """The plugin that registers the scripted model."""

    name = "script"

    def __init__(self, model: ScriptedModel) -> None:
        self._model = model

    async def activate(self, ctx: PluginContext) -> None:
        if ctx.providers is not None:
            ctx.providers.register(self._model)


class _ClientChannel:
    """The default channel of ``written``, whose messages come in through the host."""

    id = CHANNEL
    follows_session: Literal[True] = True

    async def run(self, receive: Receive) -> None:
        await asyncio.get_running_loop().create_future()

    async def send(self, outbound: OutboundMessage) -> Placed:
        return Placed(outbound.message.id)


class _ClientPlugin(Plugin):
    """The plugin that registers the default channel, unless the test has one with the same id."""

    name = "client"

    async def activate(self, ctx: PluginContext) -> None:
        if ctx.channels is not None and ctx.channels.get(CHANNEL) is None:
            ctx.channels.register(_ClientChannel())


class Watcher:
    """A reader of a session's events."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self.events: list[Event] = []

    @property
    def frames(self) -> list[Frame]:
        """The frames so far, oldest first."""
        return [event.frame for event in self.events]

    async def until(self, wanted: Callable[[Any], bool]) -> Any:
        """Return the first frame that matches, also one that was received before."""
        while True:
            for frame in self.frames:
                if wanted(frame):
                    return frame
            self.events += await self._feed.take()


class Chat:
    """A running gateway with its scripted model, and a user."""

    def __init__(self, gateway: Gateway, host: Host, model: ScriptedModel) -> None:
        self.gateway = gateway
        self.host = host
        self.model = model

    async def say(self, text: str, session: str = "s", **fields: Any) -> Message:
        """Send a message and return the answer. Raises AssertionError if there is none."""
        answer = await self.host.submit(written(text, session, **fields))
        assert answer is not None, f"no answer to {text!r}"
        return answer

    async def accept(self, text: str, session: str = "s", **fields: Any) -> str:
        """Send a message and wait until it is accepted. Return the id of its answer."""
        message = written(text, session, **fields)
        return (await self.host.accept(message.address.channel, message)).answer_id

    async def answer(self, answer_id: str, session: str = "s") -> Message:
        """Return the answer to an accepted message once it is finished."""
        watcher = await self.watch(session)
        await watcher.until(lambda frame: _finishes(frame, answer_id))
        messages = (await self.gateway.parts.sessions.find(session)).messages()
        return next(message for message in messages if message.id == answer_id)

    async def decide(self, answer: str, session: str = "s") -> ApprovalAsked:
        """Answer the oldest open question of a session, once there is one, and return it.

        ``answer`` is ``once``, ``always`` or ``deny`` for the approval of a tool, else the value of a choice
        or a text.
        """
        watcher = await self.watch(session)
        asked = await watcher.until(self._is_open)
        await self.host.settle(asked.approval_id, answer, session=session)
        return asked

    def _is_open(self, frame: Frame) -> bool:
        return isinstance(frame, ApprovalAsked) and self.host.question(frame.approval_id) is not None

    async def watch(self, session: str = "s", after: int = 0) -> Watcher:
        """Read the events of an existing session."""
        feed = Feed()
        await self.host.follow(session, feed, after)
        return Watcher(feed)


def _finishes(frame: Frame, answer_id: str) -> bool:
    match frame:
        case Complete(message_id=finished):
            return finished == answer_id
        case MessageFrame(message=message):
            return message.id == answer_id
        case _:
            return False


def written(text: str, session: str = "s", user: str = "ada", **fields: Any) -> InboundMessage:
    """Return a message of an allowed user, as a channel with the id ``test`` would send it.

    With ``role=None`` the rules of the channel decide on the user's role.
    """
    channel, role = fields.pop("channel", CHANNEL), fields.pop("role", "user")
    return InboundMessage(
        session=session,
        dedup_key=fields.pop("dedup_key", None) or new_id(),
        address=Address(channel, "bot", "room"),
        sender=Sender(user),
        role=role,
        text=text,
        **fields,
    )


@asynccontextmanager
async def chatting(
    data_dir: Path, *plugins: Plugin, kind: type[Gateway] = Gateway, **settings: Any
) -> AsyncGenerator[Chat]:
    """Run a gateway for as long as the block, without channels unless ``settings`` have some.

    Every tool runs without approval unless ``permissions`` are given. Approvals can be answered: the default
    channel's clients read the events of the session.
    """
    model = ScriptedModel()
    settings = {
        "data_dir": data_dir,
        "model": "script/one",
        "channels": {},
        "permissions": {"*": "allow"},
        **settings,
    }
    place_database(data_dir / "trunkline.db")
    gateway = kind(Settings(**settings), plugins=[_ScriptPlugin(model), *plugins, _ClientPlugin()])
    async with gateway.running() as host:
        yield Chat(gateway, host, model)
