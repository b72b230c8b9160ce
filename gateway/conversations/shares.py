"""Shares: read-only pages of conversations, for people with the link.

A link holds 128 random bits, of which only a digest is stored. It shows the messages up to the moment of
sharing, as they are stored when it is opened: what is deleted later disappears there, and what is said later
is not shown. Only what users asked and models answered is shown: no commands, no withdrawn messages, and
nothing that other people wrote in the room. Links that are unknown, expired or revoked are the same case.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Sequence

from msgspec import Struct, structs
from sqlalchemy import ColumnElement, Connection, func, select

from gateway.access.tokens import Attempts
from gateway.contract.errors import InvalidStateError, NotFoundError, TooManyRequestsError
from gateway.contract.messages import Message, new_id, now_ms
from gateway.session import Session
from gateway.session.log import read_messages
from gateway.session.redaction import Redactor
from gateway.settings import ShareSettings
from gateway.store import Store
from gateway.store import schema as t
from gateway.store.writes import OwnStatement, Write, audit_op

_LINK = re.compile(r"[A-Za-z0-9_-]{22}")
_MOST_MESSAGES = 1_000
_GUESSES, _GUESS_SECONDS = 30, 60.0
_DAY_MS = 86_400_000

_PUT = Write("insert", 3, t.share, "id digest session seq title created_by created_at expires_at views")
_DROP = Write("delete", 4, t.share, "id")
_DROP_INVALID = OwnStatement(
    2,
    t.share,
    "DELETE FROM share WHERE expires_at <= ?1 OR created_at - ?1 >= expires_at - created_at",
)
_COUNT_VIEW = OwnStatement(3, t.share, "UPDATE share SET views = views + 1 WHERE id = ?1")


class Share(Struct, frozen=True):
    """A link to a conversation. Times are in milliseconds; ``created_by`` is a user, as channel and id."""

    id: str
    session: str
    title: str
    created_by: str
    created_at: int
    expires_at: int
    views: int


class NewShare(Struct, frozen=True):
    """A new link, with its address, which is shown only once."""

    share: Share
    url: str


class SharedConversation(Struct, frozen=True):
    """The content of a shared page: the newest messages, oldest first. ``cut``: earlier ones are left out."""

    share: Share
    messages: tuple[Message, ...]
    cut: bool


class SharePreview(Struct, frozen=True):
    """The content that a link to a conversation would show if it was created now."""

    messages: list[Message]
    cut: bool
    """Earlier messages are left out."""


def read_shares(connection: Connection, now: int, session: str | None = None) -> Sequence[Share]:
    """Read the shares that are valid at a time (ms), of one session or of all, newest first."""
    query = select(t.share).where(*_valid(now)).order_by(t.share.c.id.desc())
    if session is not None:
        query = query.where(t.share.c.session == session)
    return [_share(row) for row in connection.execute(query)]


class Shares:
    """Creates, lists, revokes and opens shares. ``clock`` returns milliseconds."""

    def __init__(
        self, store: Store, settings: ShareSettings, redactor: Redactor, clock: Callable[[], int] = now_ms
    ) -> None:
        self._store = store
        self._settings = settings
        self._redactor = redactor
        self._clock = clock
        self._guesses = Attempts(_GUESSES, _GUESS_SECONDS)

    @property
    def enabled(self) -> bool:
        """Return whether the operator allows sharing."""
        return self._settings.enabled

    async def create(self, session: Session, by: str, days: int | None = None) -> NewShare:
        """Share what a session holds now, for some days or for those of the settings.

        Raises InvalidStateError if sharing is off or the session holds no message.
        """
        if not self._settings.enabled:
            raise InvalidStateError("sharing is off; the operator can allow it with share.enabled = true")
        m = t.messages.c
        newest = select(func.max(m.seq)).where(m.session_id == session.id, m.undone.is_(None))
        seq = await self._store.read(lambda c: c.execute(newest).scalar())
        if seq is None:
            raise InvalidStateError("there is no message to share yet")
        link, now = secrets.token_urlsafe(16), self._clock()
        expires = now + round((days or self._settings.days) * _DAY_MS)
        share = Share(new_id(), session.id, session.row.title, by, now, expires, 0)
        row = (share.id, _digest(link), session.id, seq, share.title, by, now, expires, 0)
        audit = audit_op(by, "share", session.id, share.id)
        await self._store.write((_DROP_INVALID, (now,)), (_PUT, row), audit)
        return NewShare(share, f"{(self._settings.base_url or '').rstrip('/')}/share/{link}")

    async def preview(self, session: str) -> SharePreview:
        """Return what a link to a session would show now."""
        shown, cut = await self._store.read(lambda c: _read_shown(c, session, None))
        return SharePreview([self._masked(one) for one in shown], cut)

    async def list(self, session: str | None = None) -> Sequence[Share]:
        """Return the valid shares, of one session or of all, newest first."""
        return await self._store.read(lambda c: read_shares(c, self._clock(), session))

    async def revoke(self, share_id: str, by: str) -> None:
        """End a share at once. Raises NotFoundError."""
        if all(one.id != share_id for one in await self.list()):
            raise NotFoundError(f"no share {share_id!r}")
        await self._store.write((_DROP, (share_id,)), audit_op(by, "unshare", share_id))

    async def open(self, link: str, peer: str, *, count: bool) -> SharedConversation | None:
        """Return what a link shows, or None for any link that is not valid. ``count``: a person looks at it.

        Raises TooManyRequestsError for an address that tried many links that are not valid.
        """
        if self._guesses.used_up(peer):
            raise TooManyRequestsError("too many wrong links; wait a minute")
        # Found by its digest: the time of the search reveals nothing about the link.
        digest, now = _digest(link if _LINK.fullmatch(link) else ""), self._clock()
        found = await self._store.read(lambda c: _read(c, digest, now)) if self.enabled else None
        if found is None:
            self._guesses.count(peer)
            return None
        if count:
            await self._store.write((_COUNT_VIEW, (found.share.id,)))
        return structs.replace(found, messages=tuple(map(self._masked, found.messages)))

    def _masked(self, message: Message) -> Message:
        return structs.replace(message, parts=tuple(map(self._redactor.redact_part, message.parts)))


def _digest(link: str) -> str:
    return hashlib.sha256(link.encode()).hexdigest()


def _share(row: object) -> Share:
    return Share(**{name: getattr(row, name) for name in Share.__struct_fields__})


def _valid(now: int) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions of a share that is valid at a time (ms).

    One of the future counts no longer than one of the past: the clock was set back since.
    """
    s = t.share.c
    return s.expires_at > now, s.created_at - now < s.expires_at - s.created_at


def _read(connection: Connection, digest: str, now: int) -> SharedConversation | None:
    s = t.share.c
    row = connection.execute(select(t.share).where(s.digest == digest, *_valid(now))).first()
    if row is None:
        return None
    return SharedConversation(_share(row), *_read_shown(connection, row.session, row.seq))


def _read_shown(connection: Connection, session: str, upto: int | None) -> tuple[tuple[Message, ...], bool]:
    """Return the messages that a page shows, and whether earlier ones are left out."""
    log = read_messages(connection, session, last=_MOST_MESSAGES + 1, upto=upto)
    shown = (
        one for _, one in log[-_MOST_MESSAGES:] if one.for_model and not (one.origin and one.origin.context)
    )
    return tuple(shown), len(log) > _MOST_MESSAGES
