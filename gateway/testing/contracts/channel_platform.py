"""The platform side of the contract suite for channels, and the gateway that the suite connects to it.

An author of a channel writes one ``Platform``: a fake of the platform on a real socket, and what its users
can do. ``Trial`` runs gateways against it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn

from gateway.app import Gateway
from gateway.contract.channel import Health, ReportsHealth
from gateway.contract.errors import OverloadedError
from gateway.server import Server
from gateway.settings import Settings
from gateway.testing.database import place_database
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.fake_platform import Fault
from gateway.testing.served import until

Feature = Literal["edits", "deletions", "rooms", "files", "reordering", "sending", "events"]
"""A feature that some platforms lack.

``edits``, ``deletions``: users can edit and delete their messages, and bots learn of it. ``rooms``: chats
with several people. ``files``: users can send files. ``reordering``: events may arrive out of order.
``sending``: the channel places messages, instead of clients that read the session. ``events``: the platform
sends events that can be malformed or arrive twice.
"""
_TIMEOUT_SECONDS = 60.0


class Platform(ABC):
    """A platform with a bot and a user who has a private chat with it, for the contract suite of channels.

    It is an async context manager that starts and stops the fake. ``name`` is the name of the channel, as in
    ``[channels.NAME]``. ``lacks`` declares the features that the platform does not have, each with the
    reason; methods for them need no code. Keys of messages are the fake's own.
    """

    name: ClassVar[str]
    lacks: ClassVar[Mapping[Feature, str]] = {}
    longest: ClassVar[int]
    """The most characters of a message of the bot."""

    @abstractmethod
    async def __aenter__(self) -> Platform: ...

    @abstractmethod
    async def __aexit__(self, *failure: Any) -> None: ...

    @abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """Return the table of the channel in the settings, which admits the user."""

    @abstractmethod
    async def connected(self, gateway: Gateway, url: str) -> None:
        """Wait until the channel receives events; ``url`` is the gateway's own server."""

    @abstractmethod
    def write(self, text: str) -> Any:
        """Write a message in the private chat. Return its key."""

    @abstractmethod
    def shown(self) -> Sequence[str]:
        """Return the texts of the bot that the private chat shows, oldest first; of a file its content."""

    @abstractmethod
    def check(self) -> None:
        """Raise AssertionError if the bot broke a rule of the platform, such as a wait that was asked for."""

    def fail(self, fault: Fault) -> None:
        """Let the next call that places a message fail in this way."""
        self._absent("sending")

    def malformed(self) -> None:
        """Send several events that cannot be parsed."""
        self._absent("events")

    def repeat(self) -> None:
        """Send each event twice from now on."""
        self._absent("events")

    def reordered(self) -> AbstractContextManager[object]:
        """Hold the events of the block back, and send them in reverse order after it."""
        self._absent("reordering")

    def edit(self, key: Any, text: str) -> None:
        """Edit a message of the user."""
        self._absent("edits")

    def delete(self, key: Any) -> None:
        """Delete a message of the user."""
        self._absent("deletions")

    def write_in_room(self, text: str, *, addressed: bool, file: bytes | None = None) -> Any:
        """Write a message in a room with several people, with a mention of the bot if it is addressed."""
        self._absent("rooms")

    def shown_in_room(self) -> Sequence[str]:
        """Return the texts of the bot that the room shows, in all of its threads."""
        self._absent("rooms")

    def downloads(self) -> int:
        """Return how many files the bot has downloaded."""
        self._absent("files")

    def _absent(self, feature: Feature) -> NoReturn:
        raise TypeError(f"{type(self).__name__} neither has {feature!r} nor declares that it lacks it")


class Trial:
    """A platform, and the gateways that run against it one after another, with one data directory."""

    def __init__(self, platform: Platform, directory: Path, models: FakeModels) -> None:
        self.platform = platform
        self.models = models
        self.failures: list[str] = []
        """The reasons for which the channel had to be restarted."""
        self._directory = directory

    @asynccontextmanager
    async def gateway(
        self, *, limits: Mapping[str, int] | None = None, **rules: Any
    ) -> AsyncGenerator[Gateway]:
        """Run a gateway until the end of the block. At the end it does not wait for running turns."""
        name, openai = self.platform.name, {"base_url": self.models.openai_url, "api_key": "k"}
        table = {**self.platform.settings(), **rules}
        given = {
            "data_dir": self._directory,
            "model": "openai/fake-small",
            "providers": {"openai": {**openai, "max_retries": 0}},
            "channels": {name: table},
            "permissions": {"*": "allow"},
            "server": {"port": 0},
            "limits": {"drain_seconds": 0, **(limits or {})},
        }
        place_database(self._directory / "trunkline.db")
        gateway = Gateway(Settings.model_validate(given))
        async with gateway.running(), Server(gateway) as server, asyncio.TaskGroup() as tasks:
            assert not gateway.left_out, gateway.left_out
            watch = tasks.create_task(self._watch(gateway))
            try:
                async with asyncio.timeout(_TIMEOUT_SECONDS):
                    await self.platform.connected(gateway, server.url)
                yield gateway
            finally:
                watch.cancel()

    async def shows(self, *wanted: str) -> None:
        """Wait until the private chat shows exactly these messages of the bot."""
        try:
            await until(lambda: [*self.platform.shown()] == [*wanted])
        except TimeoutError:
            raise AssertionError(f"the chat shows {self.platform.shown()} instead of {[*wanted]}") from None

    def asked(self) -> list[str]:
        """Return the user's text of each model request, in order."""
        return [request.user_text for request in self.models.requests]

    async def _watch(self, gateway: Gateway) -> None:
        supervisor = next(one for one in gateway.supervisors if one.channel.id == self.platform.name)
        channel = supervisor.channel
        while True:
            health = supervisor.health()
            own = channel.health() if isinstance(channel, ReportsHealth) else Health(True, "starting")
            if not health.ok and health.detail not in (own.detail, *self.failures):
                self.failures.append(health.detail)
            await asyncio.sleep(0.01)


@asynccontextmanager
async def trial(platform: Platform, directory: Path) -> AsyncGenerator[Trial]:
    """Start the platform and a fake model server, and check the rules of the platform at the end."""
    async with platform, FakeModels() as models:
        yield Trial(platform, directory, models)
        platform.check()


async def settled(gateway: Gateway) -> None:
    """Wait until no accepted message waits for its answer."""
    await until(lambda: gateway.parts.dispatcher.waiting == 0)


def freeze_after_placing(gateway: Gateway, channel_id: str) -> asyncio.Event:
    """Block the channel after its next placement, and hide the result of that from the gateway.

    This is the state of a process that is killed after the platform has stored a message. The event is set
    when it has.
    """
    channel: Any = gateway.channels.get(channel_id)
    placed, send = asyncio.Event(), channel.send

    async def place_and_freeze(*given: Any) -> Any:
        if not placed.is_set():
            await send(*given)
            placed.set()
        return await asyncio.get_running_loop().create_future()

    def frozen(method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*given: Any) -> Any:
            if placed.is_set():
                return await asyncio.get_running_loop().create_future()
            return await method(*given)

        return call

    channel.send = place_and_freeze
    for name in ("edit", "delete", "draft", "find", "typing"):
        if hasattr(channel, name):
            setattr(channel, name, frozen(getattr(channel, name)))
    return placed


def refusals_of(gateway: Gateway) -> Callable[[], int]:
    """Return a function that counts how often ``receive`` has raised OverloadedError since now."""
    count, intake = 0, gateway.parts.intake
    accept = intake.accept

    async def counting(*given: Any, **more: Any) -> Any:
        nonlocal count
        try:
            return await accept(*given, **more)
        except OverloadedError:
            count += 1
            raise

    intake.accept = counting
    return lambda: count
