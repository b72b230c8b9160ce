"""The host: the interface of the running gateway for channels and the server."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from gateway.access import Access
from gateway.access.approvals import Approvals, Decision
from gateway.access.tokens import Auth
from gateway.contract.channel import Cursor, InboundMessage, Receipt, Responder
from gateway.contract.messages import Message
from gateway.contract.plugin import MentionCompletion, SlashCommand, StatusSegment
from gateway.contract.provider import TurnOptions
from gateway.contract.services import Unregister
from gateway.counters import Counters
from gateway.extensions.registry import PluginRegistry
from gateway.pipeline.intake import Intake
from gateway.pipeline.submission import Submission
from gateway.session import Session, Sessions
from gateway.session.feed import Feed
from gateway.session.log import SessionRow
from gateway.store.inbox import Inbox


class HostLimits(Struct, frozen=True):
    """Limits of connections: bytes in a frame, frames per second, events buffered for a slow reader."""

    frame_bytes: int = 1_000_000
    frames_per_second: int = 200
    queue: int = 100


class Host:
    """The running gateway, as channels and the server see it."""

    def __init__(
        self,
        *,
        intake: Intake,
        submission: Submission,
        inbox: Inbox,
        sessions: Sessions,
        registry: PluginRegistry,
        approvals: Approvals,
        access: Access,
        auth: Auth,
        limits: HostLimits,
        counters: Counters,
        model: Callable[[], str],
        model_of: Callable[[str, SessionRow | None], str],
        version: str,
    ) -> None:
        self.sessions = sessions
        self.auth = auth
        self.limits = limits
        self.counters = counters
        self.version = version
        self._intake = intake
        self._submission = submission
        self._inbox = inbox
        self._registry = registry
        self._approvals = approvals
        self._access = access
        self._model = model
        self._model_of = model_of

    @property
    def model(self) -> str:
        """The default model."""
        return self._model()

    def model_of(self, channel: str, row: SessionRow | None = None) -> str:
        """Return the model that answers in a session; without ``row``, in a new session of the channel."""
        return self._model_of(channel, row)

    def commands(self) -> Sequence[SlashCommand]:
        """Return the slash commands, sorted by name."""
        return sorted(self._registry.get_commands().values(), key=lambda command: command.name)

    async def press(self, key: str) -> bool:
        """Run a plugin's handler for a key such as ``ctrl+t``. Returns whether it handled the key."""
        return await self._registry.contributions.press(key)

    async def complete(self, partial: str, trigger: str = "@") -> Sequence[MentionCompletion]:
        """Return the completions that plugins offer for a mention."""
        return await self._registry.contributions.complete(trigger, partial)

    def shortcuts(self) -> Sequence[str]:
        """Return the keys that plugins handle, such as ``ctrl+t``."""
        return self._registry.get_shortcuts()

    def triggers(self) -> Sequence[str]:
        """Return the characters that begin a mention which plugins complete, such as ``@``."""
        return self._registry.get_mention_triggers()

    def on_contributions(self, listener: Callable[[], None]) -> Unregister:
        """Call ``listener`` when status line, keys or triggers change, until the result is called."""
        on_change = self._registry.contributions.on_change
        removes = [on_change(kind, listener) for kind in ("status", "shortcut", "mention")]

        def remove() -> None:
            for one in removes:
                one()

        return remove

    def status_line(self) -> Sequence[StatusSegment]:
        """Return the segments that plugins show in the status line."""
        return self._registry.get_status_segments()

    async def accept(self, channel: str, message: InboundMessage, *, fresh: bool = False) -> Receipt:
        """Commit one message and dispatch it. ``fresh``: its session id was just created."""
        return (await self._intake.accept(channel, (message,), fresh=fresh))[0]

    async def submit(
        self,
        message: InboundMessage,
        responder: Responder | None = None,
        *,
        exclusive: bool = False,
        model: str | None = None,
        agent: str | None = None,
        options: TurnOptions | None = None,
    ) -> Message | None:
        """Accept a message, wait for its outcome and return the answer; see ``Submission.submit``."""
        return await self._submission.submit(
            message, responder, exclusive=exclusive, model=model, agent=agent, options=options
        )

    def feed(self, on_drop: Callable[[], None]) -> Feed:
        """Return a feed for one reader; ``on_drop`` is called when a slow reader is disconnected."""
        return Feed(self.limits.queue, on_drop, self.counters)

    async def follow(
        self,
        session_id: str,
        feed: Feed,
        after: int,
        characters: int | None = None,
        *,
        viewer: bool = True,
    ) -> None:
        """Send a session's events to a feed, after those that it missed; see ``Session.follow``.

        Raises NotFoundError.
        """
        session = await self.sessions.find(session_id)
        await session.follow(feed, after, characters, viewer=viewer)

    def unfollow(self, session_id: str, feed: Feed) -> None:
        """Stop sending a session's events to a feed."""
        session = self.sessions.get(session_id)
        if session is not None:
            session.remove_sink(feed)

    async def abort(self, session_id: str) -> bool:
        """Stop the running answer of a session, or of the session that its chat was moved to.

        Returns, once the stop is durable, whether there was one. Raises NotFoundError.
        """
        await self.sessions.find(self._access.moved_chats.session_of(session_id))
        return await self._intake.stop(session_id)

    async def withdraw(self, channel: str, account: str, dedup_key: str) -> bool:
        """Mark a message without a finished answer as deleted, for example when its HTTP client disconnects.

        Returns, once that is durable, whether there was such a message. Channels report deletions as signals
        of ``receive`` instead.
        """
        return await self._intake.withdraw(channel, account, dedup_key)

    async def approve(
        self, approval_id: str, decision: Decision, *, session: str, user: str | None = None
    ) -> None:
        """Decide a tool approval; returns once that is durable. See ``Approvals.resolve``."""
        await self._approvals.resolve(approval_id, decision, session=session, user=user)

    async def cursors(self, channel: str) -> Sequence[Cursor]:
        """Return the positions up to which a channel has read its platforms."""
        return await self._inbox.read_cursors(channel)

    def live(self, session_id: str) -> Session | None:
        """Return a session if it is in memory."""
        return self.sessions.get(session_id)
