"""The state of the workspaces: users, conversations, messages, files, grants, deliveries."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from msgspec import Struct, field

from gateway.testing.fake_platform import Changes, Clock

Json = dict[str, Any]
Kind = Literal["channel", "group", "im", "mpim"]
"""Public channel, private channel, direct message, direct message of several."""

SCOPE_FAMILY: Mapping[Kind, str] = {"channel": "channels", "group": "groups", "im": "im", "mpim": "mpim"}


class User(Struct, frozen=True, kw_only=True):
    """A person, or the app's bot."""

    id: str
    team: str
    name: str
    real_name: str
    is_bot: bool = False
    bot_id: str | None = None


class Room(Struct, kw_only=True):
    """A conversation. ``messages`` are in the order of their ``ts``; ``hidden`` ephemeral ones, by user."""

    id: str
    team: str
    name: str
    kind: Kind
    created: int
    members: set[str] = field(default_factory=set[str])
    messages: dict[str, Json] = field(default_factory=dict[str, Json])
    hidden: dict[str, list[Json]] = field(default_factory=dict[str, list[Json]])
    archived: bool = False

    @property
    def direct(self) -> bool:
        """Return whether it is a direct message, of two or several."""
        return self.kind in ("im", "mpim")

    def thread(self, root: str) -> list[Json]:
        """A thread's first message and its replies."""
        return [message for ts, message in self.messages.items() if root in (ts, message.get("thread_ts"))]

    def top(self) -> list[Json]:
        """Return the messages of the conversation itself: no replies, except broadcast ones."""
        return [
            message
            for ts, message in self.messages.items()
            if message.get("thread_ts", ts) == ts or message.get("subtype") == "thread_broadcast"
        ]


class StoredFile(Struct, kw_only=True):
    """A file. ``content`` is None until it was uploaded; ``shares`` maps rooms to messages that show it.

    What is ``spoken`` into the platform is an audio clip.
    """

    id: str
    team: str
    user: str
    name: str
    title: str
    mimetype: str
    created: int
    size: int
    ticket: str = ""
    content: bytes | None = None
    shared: bool = False
    spoken: bool = False
    shares: dict[str, str] = field(default_factory=dict[str, str])
    deleted: bool = False


class Grant(Struct, kw_only=True):
    """A token. ``revoked`` is the error that calls with it get from then on."""

    token: str
    kind: Literal["bot", "user", "app"]
    team: str
    user: str
    scopes: set[str]
    revoked: str | None = None


class Workspace(Struct, kw_only=True):
    """A team. ``bot`` is the app's user in it, None while the app is not installed."""

    id: str
    name: str
    users: dict[str, User] = field(default_factory=dict[str, User])
    rooms: dict[str, Room] = field(default_factory=dict[str, Room])
    bot: User | None = None
    grants: list[Grant] = field(default_factory=list[Grant])

    def user(self, name: str) -> User | None:
        """A user by id or name."""
        return self.users.get(name) or next((user for user in self.users.values() if user.name == name), None)

    def named(self, name: str) -> Room | None:
        """A room by id or name, with or without ``#``."""
        plain = name.removeprefix("#")
        found = (room for room in self.rooms.values() if room.name == plain) if plain else iter(())
        return self.rooms.get(name) or next(found, None)

    def between(self, *users: str) -> Room | None:
        """The direct message of exactly these users."""
        return next((r for r in self.rooms.values() if r.direct and r.members == set(users)), None)

    def sees(self, room: Room) -> bool:
        """Return whether the app takes part in a room."""
        return self.bot is not None and self.bot.id in room.members


class Names:
    """Makes ids that look like Slack's, the same ones in every run."""

    def __init__(self) -> None:
        self._numbers: Iterator[int] = iter(range(1, 1_000_000_000))

    def next(self, prefix: str) -> str:
        """``prefix`` and ten characters of A-Z and 0-9."""
        return f"{prefix}0{next(self._numbers):09d}"


class Stamps:
    """Timestamps in Slack's form, each later than the one before. ``skew`` shifts them, in seconds."""

    def __init__(self) -> None:
        self.skew = 0.0
        self._last = 0

    def seconds(self) -> int:
        """The platform's idea of the Unix time."""
        return int(time.time() + self.skew)

    def next(self) -> str:
        """A ``ts`` that nothing has had before."""
        self._last = max(self._last + 1, int((time.time() + self.skew) * 1_000_000))
        return f"{self._last // 1_000_000}.{self._last % 1_000_000:06}"


Envelope = Literal["events_api", "interactive", "slash_commands"]


class Delivery:
    """``attempts`` counts how often it was tried, ``reasons`` says why each failed.

    ``answer`` is what the app sent along with its acknowledgement, ``refused`` names what the person sees who
    acted in vain (``operation_timeout`` or ``dispatch_failed``).
    """

    def __init__(self, kind: Envelope, team: str, payload: Json, *, answerable: bool = False) -> None:
        self.kind: Envelope = kind
        self.team = team
        self.payload = payload
        self.answerable = answerable
        self.envelope = str(uuid.uuid4())
        self.attempts = 0
        self.reasons: list[str] = []
        self.answer: Any = None
        self.acknowledged = False
        self.refused: str | None = None
        self._settled = asyncio.Event()

    @property
    def lost(self) -> bool:
        """Return whether all attempts failed."""
        return self._settled.is_set() and not self.acknowledged

    def acknowledge(self, answer: object = None) -> None:
        """The app has it. Only the first time counts."""
        if not self._settled.is_set():
            self.acknowledged, self.answer = True, answer
            self._settled.set()

    def give_up(self) -> None:
        """End the retries."""
        self._settled.set()

    async def settled(self) -> Delivery:
        """Wait until it is acknowledged or lost."""
        await self._settled.wait()
        return self


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
    """A ``trigger_id``: the user for whom it may open a view."""

    user: User
    until: float
    used: bool = False


class Switches(Struct, kw_only=True):
    """The settings that a test may change: the app's registration, and the platform's behaviour.

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
    """The platform's memory. ``send`` hands a delivery to the sockets or the webhook."""

    def __init__(self, app: App, clock: Clock, changes: Changes) -> None:
        self.app = app
        self.clock = clock
        self.changes = changes
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

    def team_of(self, name: str | None) -> Workspace:
        """A workspace by id or name; the first one without. Raises KeyError."""
        if name is None:
            return next(iter(self.teams.values()))
        return self.teams.get(name) or {team.name: team for team in self.teams.values()}[name]

    def subscribed(self, event: str) -> bool:
        """Return whether the app asked for an event, by its name in the app's registration."""
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
    """Drop deliveries while the fake does not run."""
