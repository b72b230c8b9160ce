"""State of the workspaces: users, chats, messages, files, grants and deliveries."""

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
"""Public channel, private channel, direct chat, direct chat of several users."""

SCOPE_FAMILY: Mapping[Kind, str] = {"channel": "channels", "group": "groups", "im": "im", "mpim": "mpim"}


class User(Struct, frozen=True, kw_only=True):
    """Human user or bot. ``display_name`` is empty for users who did not choose one."""

    id: str
    team: str
    name: str
    real_name: str
    display_name: str = ""
    is_bot: bool = False
    bot_id: str | None = None


class Chat(Struct, kw_only=True):
    """Chat with its messages by ``ts``, in order. ``hidden`` holds ephemeral messages by user id."""

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
        """Return whether this is a direct chat, of two or more users."""
        return self.kind in ("im", "mpim")

    def thread(self, root: str) -> list[Json]:
        """Return the root and the replies of a thread."""
        return [message for ts, message in self.messages.items() if root in (ts, message.get("thread_ts"))]

    def top(self) -> list[Json]:
        """Return the messages of the chat itself, without replies except broadcast ones."""
        return [
            message
            for ts, message in self.messages.items()
            if message.get("thread_ts", ts) == ts or message.get("subtype") == "thread_broadcast"
        ]


class UserGroup(Struct, kw_only=True):
    """User group. A ``disabled`` one is not listed, and has no members."""

    id: str
    team: str
    handle: str
    users: tuple[str, ...] = ()
    disabled: bool = False


class StoredFile(Struct, kw_only=True):
    """File. ``content`` is None until uploaded; ``shares`` maps chat ids to the messages that show it.

    A ``spoken`` file is an audio clip recorded in Slack.
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
    """Token with its scopes. ``revoked`` is the error code for calls with it from then on."""

    token: str
    kind: Literal["bot", "user", "app"]
    team: str
    user: str
    scopes: set[str]
    revoked: str | None = None


class Workspace(Struct, kw_only=True):
    """Workspace. ``bot`` is the app's user; None if the app is not installed."""

    id: str
    name: str
    users: dict[str, User] = field(default_factory=dict[str, User])
    chats: dict[str, Chat] = field(default_factory=dict[str, Chat])
    user_groups: dict[str, UserGroup] = field(default_factory=dict[str, UserGroup])
    bot: User | None = None
    grants: list[Grant] = field(default_factory=list[Grant])

    def user(self, name: str) -> User | None:
        """Return a user by id or name."""
        return self.users.get(name) or next((user for user in self.users.values() if user.name == name), None)

    def chat_named(self, name: str) -> Chat | None:
        """Return a chat by id or name, with or without ``#``."""
        plain = name.removeprefix("#")
        found = (chat for chat in self.chats.values() if chat.name == plain) if plain else iter(())
        return self.chats.get(name) or next(found, None)

    def direct_chat_of(self, *users: str) -> Chat | None:
        """Return the direct chat of exactly these users."""
        return next((r for r in self.chats.values() if r.direct and r.members == set(users)), None)

    def has_app_in(self, chat: Chat) -> bool:
        """Return whether the app is a member of a chat."""
        return self.bot is not None and self.bot.id in chat.members


class IdGenerator:
    """Generator of ids that look like Slack's and are the same in every run."""

    def __init__(self) -> None:
        self._numbers: Iterator[int] = iter(range(1, 1_000_000_000))

    def next(self, prefix: str) -> str:
        """Return ``prefix`` followed by ten digits."""
        return f"{prefix}0{next(self._numbers):09d}"


class TimestampGenerator:
    """Generator of increasing timestamps in Slack's form. ``skew`` shifts them, in seconds."""

    def __init__(self) -> None:
        self.skew = 0.0
        self._last = 0

    def seconds(self) -> int:
        """Return the platform's Unix time."""
        return int(time.time() + self.skew)

    def next(self) -> str:
        """Return a new, unique ``ts``."""
        self._last = max(self._last + 1, int((time.time() + self.skew) * 1_000_000))
        return f"{self._last // 1_000_000}.{self._last % 1_000_000:06}"


Envelope = Literal["events_api", "interactive", "slash_commands"]


class Delivery:
    """Delivery to the app. ``reasons`` lists why attempts failed.

    ``answer`` is the payload of the acknowledgement. ``refused`` is the error that the user sees:
    ``operation_timeout`` or ``dispatch_failed``.
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
        """Acknowledge the delivery. Only the first call counts."""
        if not self._settled.is_set():
            self.acknowledged, self.answer = True, answer
            self._settled.set()

    def give_up(self) -> None:
        """End the retries."""
        self._settled.set()

    async def settled(self) -> Delivery:
        """Wait until the delivery is acknowledged or lost."""
        await self._settled.wait()
        return self


class App(Struct, frozen=True, kw_only=True):
    """Registration of the app at the platform."""

    id: str = "A0000000000"
    name: str = "trunkline"
    client_id: str = "1000000000.2000000000"
    client_secret: str = "client-secret-of-the-fake"  # noqa: S105 - a secret of the fake only
    signing_secret: str = "signing-secret-of-the-fake"  # noqa: S105
    verification_token: str = "verification-token-of-the-fake"  # noqa: S105
    token: str = "xapp-1-A0000000000-fake"  # noqa: S105


class Stream(Struct, kw_only=True):
    """Message that is being streamed. ``size`` is in characters; ``closed`` is why it takes no more."""

    ts: str
    until: float
    size: int = 0
    closed: Literal["", "expired", "stopped_by_user"] = ""


class Session(Struct, kw_only=True):
    """Agent session: status and title of one thread."""

    status: str
    title: str | None = None


class ReplyUrl(Struct, kw_only=True):
    """``response_url``: five uses within 30 minutes. ``source`` is the message that the user acted on."""

    chat: Chat
    user: str
    until: float
    source: str | None = None
    thread: str | None = None
    uses: int = 0


class Trigger(Struct, kw_only=True):
    """``trigger_id``, with the user for whom it may open a view."""

    user: User
    until: float
    used: bool = False


class Switches(Struct, kw_only=True):
    """Settings that a test may change: the app's registration, and the platform's behaviour.

    ``subscribed`` None means every event. ``may_ping`` are the users and groups that the bot may mention.
    ``edit_window`` is in seconds, None without limit. ``scarce_history`` allows one call a minute and 15
    rows, as for apps distributed outside the marketplace. ``limited`` enforces the published rate limits.
    ``unknown_blocks`` are kinds of blocks that the workspace refuses. ``home`` is whether the app has a tab.
    ``shared``: the channels belong to several organizations, so that messages have only the ids of files.
    """

    subscribed: frozenset[str] | None = None
    may_ping: set[str] = field(default_factory=set[str])
    edit_window: float | None = None
    scarce_history: bool = False
    limited: bool = False
    unknown_blocks: frozenset[str] = frozenset()
    agent: bool = True
    home: bool = True
    shared: bool = False
    socket_mode: bool = True
    retry_after: int = 1


class State:
    """State of the platform. ``send`` passes a delivery to the queue."""

    def __init__(self, app: App, clock: Clock, changes: Changes) -> None:
        self.app = app
        self.clock = clock
        self.changes = changes
        self.url = ""
        self.stamps = TimestampGenerator()
        self.names = IdGenerator()
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
        self.send: Callable[[Delivery], None] = _discard

    def team_of(self, name: str | None) -> Workspace:
        """Return a workspace by id or name, by default the first. Raises KeyError."""
        if name is None:
            return next(iter(self.teams.values()))
        return self.teams.get(name) or {team.name: team for team in self.teams.values()}[name]

    def subscribed(self, event: str) -> bool:
        """Return whether the app subscribed to an event, by its name in the registration."""
        return self.switches.subscribed is None or event in self.switches.subscribed

    def deliver(self, kind: Envelope, team: str, payload: Json, *, answerable: bool = False) -> Delivery:
        """Send a payload to the app."""
        delivery = self.register(Delivery(kind, team, payload, answerable=answerable))
        self.send(delivery)
        return delivery

    def register(self, delivery: Delivery) -> Delivery:
        """Store a delivery, so that it can be acknowledged."""
        self.deliveries.append(delivery)
        self.envelopes[delivery.envelope] = delivery
        return delivery


def _discard(_delivery: Delivery) -> None:
    """Drop deliveries while the fake does not run."""
