"""The host: what channels and the server may ask of the running gateway."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from gateway.access import Access
from gateway.approvals import Approvals, Decision
from gateway.auth import Auth
from gateway.channel import Cursor, InboundMessage, Receipt, Responder
from gateway.feed import Feed
from gateway.figures import Figures
from gateway.inbox import Inbox
from gateway.intake import Intake
from gateway.messages import Message
from gateway.plugin import MentionCompletion, SlashCommand, StatusSegment
from gateway.registry import PluginRegistry
from gateway.session import Session, Sessions
from gateway.submission import Submission


class HostLimits(Struct, frozen=True):
    """Bounds for connections: bytes of a frame, frames per second, events kept for a slow reader."""

    frame_bytes: int = 1_000_000
    frames_per_second: int = 200
    queue: int = 100


class Host:
    """The running gateway, as its edges see it."""

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
        figures: Figures,
        model: Callable[[], str],
        version: str,
    ) -> None:
        self.sessions = sessions
        self.auth = auth
        self.limits = limits
        self.figures = figures
        self.version = version
        self._intake = intake
        self._submission = submission
        self._inbox = inbox
        self._registry = registry
        self._approvals = approvals
        self._access = access
        self._model = model

    @property
    def model(self) -> str:
        """The model that answers where nothing else is chosen."""
        return self._model()

    def commands(self) -> Sequence[SlashCommand]:
        """The slash commands, by name."""
        return sorted(self._registry.get_commands().values(), key=lambda command: command.name)

    async def press(self, key: str) -> bool:
        """Run the plugin's handler of a key, such as ``ctrl+t``. Returns whether the key is used up."""
        return await self._registry.contributions.press(key)

    async def complete(self, partial: str, trigger: str = "@") -> Sequence[MentionCompletion]:
        """What plugins offer to complete a mention with."""
        return await self._registry.contributions.complete(trigger, partial)

    def status_line(self) -> Sequence[StatusSegment]:
        """What plugins show in the status line."""
        return self._registry.get_status_segments()

    async def accept(self, channel: str, message: InboundMessage, *, fresh: bool = False) -> Receipt:
        """Commit one message and hand it on. ``fresh`` says that its session's id was just minted."""
        return (await self._intake.accept(channel, (message,), fresh=fresh))[0]

    async def submit(
        self, message: InboundMessage, responder: Responder | None = None, *, exclusive: bool = False
    ) -> Message | None:
        """Accept a message, wait for its outcome and return the answer; see ``Submission.submit``."""
        return await self._submission.submit(message, responder, exclusive=exclusive)

    def feed(self, on_drop: Callable[[], None]) -> Feed:
        """A feed for one reader; ``on_drop`` is called when the reader turns out to be too slow."""
        return Feed(self.limits.queue, on_drop, self.figures)

    async def follow(self, session_id: str, feed: Feed, after: int) -> None:
        """Let a feed read a session from now on, after what it missed. Raises NotFoundError."""
        session = await self.sessions.find(session_id)
        await session.follow(feed, after)

    def unfollow(self, session_id: str, feed: Feed) -> None:
        """Let a feed go."""
        session = self.sessions.get(session_id)
        if session is not None:
            session.unfollow(feed)

    async def abort(self, session_id: str) -> bool:
        """Stop the answer that is being made in a session, or in the one that its chat continues.

        Returns whether there was one. Raises NotFoundError.
        """
        continued = self._access.moving.session_of(session_id)
        found = [await self.sessions.find(continued)]
        if continued != session_id and (own := self.sessions.get(session_id)) is not None:
            found.append(own)  # what was asked before the chat was moved
        turns = [session.turn for session in found if session.turn is not None]
        for turn in turns:
            turn.abort()
        return bool(turns)

    def withdraw(self, session_id: str, dedup_key: str) -> bool:
        """A message was deleted by its writer: an answer that is not finished ends, or never begins.

        Returns whether there was such a message.
        """
        both = {session_id, self._access.moving.session_of(session_id)}
        sessions = [session for name in both if (session := self.sessions.get(name)) is not None]
        return any(self._intake.withdraw(session, dedup_key) for session in sessions)

    def approve(self, approval_id: str, decision: Decision, *, session: str, user: str | None = None) -> None:
        """Pass a person's word on; see ``Approvals.resolve``."""
        self._approvals.resolve(approval_id, decision, session=session, user=user)

    async def cursors(self, channel: str) -> Sequence[Cursor]:
        """How far a channel's platforms were read before."""
        return await self._inbox.cursors(channel)

    def live(self, session_id: str) -> Session | None:
        """A session that is in memory."""
        return self.sessions.get(session_id)
