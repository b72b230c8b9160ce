"""Everything the fake knows, and who is told when it changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

from msgspec import Struct, field

from channels.slack.fake.clock import Clock, Stamps
from channels.slack.fake.delivery import Delivery, Envelope
from channels.slack.fake.workspace import Grant, Json, Names, Room, StoredFile, User, Workspace

PATIENCE = 20
"""Real seconds after which nobody waits for a change any more."""


class App(Struct, frozen=True, kw_only=True):
    """The app as it is registered with the platform."""

    id: str = "A0000000000"
    name: str = "trunkline"
    client_id: str = "1000000000.2000000000"
    client_secret: str = "client-secret-of-the-fake"  # noqa: S105 - worth nothing, like all here
    signing_secret: str = "signing-secret-of-the-fake"  # noqa: S105
    verification_token: str = "verification-token-of-the-fake"  # noqa: S105
    token: str = "xapp-1-A0000000000-fake"  # noqa: S105


class Stream(Struct, kw_only=True):
    """A message that is being streamed. ``size`` counts characters; ``closed`` is why it takes no more."""

    ts: str
    until: float
    size: int = 0
    closed: Literal["", "expired", "stopped_by_user"] = ""


class Session(Struct, kw_only=True):
    """An agent session: one thread's status and title."""

    status: str
    title: str | None = None


class ReplyUrl(Struct, kw_only=True):
    """A ``response_url``: five uses within half an hour. ``source`` is the message that was acted on."""

    room: Room
    user: str
    until: float
    source: str | None = None
    thread: str | None = None
    uses: int = 0


class Trigger(Struct, kw_only=True):
    """What a ``trigger_id`` may open a view for."""

    user: User
    until: float
    used: bool = False


class Switches(Struct, kw_only=True):
    """What a test may turn: the app's registration, and the platform's moods.

    ``subscribed`` None means every event. ``may_ping`` are the users and groups the bot may mention.
    ``edit_window`` is in seconds, None for ever. ``scarce_history``: one call a minute and 15 rows, as for
    apps that are distributed outside the marketplace. ``limited`` turns the published rate limits on.
    """

    subscribed: frozenset[str] | None = None
    may_ping: set[str] = field(default_factory=set[str])
    edit_window: float | None = None
    scarce_history: bool = False
    limited: bool = False
    agent: bool = True
    socket_mode: bool = True
    retry_after: int = 1


class State:
    """The platform's memory. ``send`` hands a delivery to whatever carries it."""

    def __init__(self, app: App, clock: Clock) -> None:
        self.app = app
        self.clock = clock
        self.url = ""
        self.stamps = Stamps()
        self.names = Names()
        self.switches = Switches()
        self.teams: dict[str, Workspace] = {}
        self.tokens: dict[str, Grant] = {}
        self.files: dict[str, StoredFile] = {}
        self.streams: dict[tuple[str, str], Stream] = {}
        self.sessions: dict[tuple[str, str], Session] = {}
        self.statuses: dict[tuple[str, str], tuple[str, float]] = {}
        self.titles: dict[tuple[str, str], str] = {}
        self.prompts: dict[tuple[str, str], Json] = {}
        self.views: dict[str, Json] = {}
        self.triggers: dict[str, Trigger] = {}
        self.reply_urls: dict[str, ReplyUrl] = {}
        self.deliveries: list[Delivery] = []
        self.envelopes: dict[str, Delivery] = {}
        self.send: Callable[[Delivery], None] = _nowhere
        self.version = 0
        self._news = asyncio.Event()

    def team_of(self, name: str | None) -> Workspace:
        """A workspace by id or name; the first one without. Raises KeyError."""
        if name is None:
            return next(iter(self.teams.values()))
        return self.teams.get(name) or {team.name: team for team in self.teams.values()}[name]

    def changed(self) -> None:
        """Tell everybody who waits that something is different now."""
        self.version += 1
        self._news.set()
        self._news = asyncio.Event()

    async def news(self, after: int, *, seconds: float = PATIENCE) -> int:
        """The number of the last change, once it is higher than ``after``. Raises TimeoutError."""
        async with asyncio.timeout(seconds):
            while self.version <= after:
                await self._news.wait()
        return self.version

    def subscribed(self, event: str) -> bool:
        """Whether the app asked for an event, by its name in the app's registration."""
        return self.switches.subscribed is None or event in self.switches.subscribed

    def tell(self, kind: Envelope, team: str, payload: Json, *, answerable: bool = False) -> Delivery:
        """Send something to the app."""
        delivery = self.keep(Delivery(kind, team, payload, answerable=answerable))
        self.send(delivery)
        return delivery

    def keep(self, delivery: Delivery) -> Delivery:
        """Remember a delivery, so that it can be acknowledged."""
        self.deliveries.append(delivery)
        self.envelopes[delivery.envelope] = delivery
        return delivery


def _nowhere(_delivery: Delivery) -> None:
    """Where deliveries go while the fake does not run."""
