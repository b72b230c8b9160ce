"""Forks: a new session that begins with a copy of the messages of another one.

The copy is made inside the database, in the transaction that creates the session: a message is not read,
decoded or encoded, so a long conversation does not hold up other writes. The parent is only read. Approvals,
grants, shares and waiting messages are not copied, and neither is the cost: it was spent once.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, structs
from sqlalchemy import Connection, func, or_, select

from gateway.contract.channel import Address, FollowsSession
from gateway.contract.errors import InvalidStateError, NotFoundError
from gateway.contract.messages import new_id, now_ms
from gateway.conversations.titles import LONGEST_TITLE
from gateway.extensions.registry import ChannelRegistry
from gateway.models import Agents
from gateway.session import Session, Sessions
from gateway.session.log import SessionRow
from gateway.store import Op, Store
from gateway.store import schema as t
from gateway.store.writes import OwnStatement

_MARK = " (fork)"
_SERVER = "api"
"""Channel of forks in a gateway whose channels all place messages elsewhere."""

# Ids are the fork's own prefix and the place in the log, so that both statements compute the same ones.
_NUMBERED = (
    "SELECT id AS old, seq, CAST(?1 AS TEXT) || "
    "substr(CAST(1000000000000 + row_number() OVER (ORDER BY seq, id) AS TEXT), 2) AS fresh "
    "FROM messages WHERE session_id = ?2 AND seq <= ?3 AND undone IS NULL"
)
_COPY_MESSAGES = OwnStatement(
    1,
    t.messages,
    "INSERT INTO messages (id, session_id, seq, role, metadata, extra, cost, created_at, source) "  # noqa: S608
    "SELECT n.fresh, CAST(?4 AS TEXT), m.seq, m.role, m.metadata, m.extra, CAST(NULL AS DOUBLE PRECISION), "
    f"m.created_at, m.source FROM ({_NUMBERED}) n JOIN messages m ON m.id = n.old",
)
_COPY_PARTS = OwnStatement(
    2,
    t.parts,
    'INSERT INTO parts (id, message_id, type, content, "index", created_at) '  # noqa: S608
    'SELECT n.fresh || \'.\' || CAST(p."index" AS TEXT), n.fresh, p.type, p.content, p."index", p.created_at '
    f"FROM ({_NUMBERED}) n JOIN parts p ON p.message_id = n.old",
)
_COUNT = OwnStatement(
    3,
    t.sessions,
    "UPDATE sessions SET messages = (SELECT count(*) FROM messages WHERE session_id = ?1) WHERE id = ?1",
)


class Cut(Struct, frozen=True):
    """The last message that a fork copies, and its number in the log."""

    message: str
    seq: int


class Forks:
    """Makes forks of sessions."""

    def __init__(self, store: Store, sessions: Sessions, channels: ChannelRegistry, agents: Agents) -> None:
        self._store = store
        self._sessions = sessions
        self._channels = channels
        self._agents = agents

    async def prepare(
        self, parent: Session, owner: str, message: str | None = None, address: Address | None = None
    ) -> tuple[SessionRow, list[Op]]:
        """Return a new session and the writes that create it, for one transaction.

        It ends with ``message``, or before it if a user wrote it, so that it can be asked in another way.
        Without a message it ends with the last stored one; a running answer is not part of it. ``address``
        is its chat; without one, clients read it like a session of the gateway's own page.

        Raises NotFoundError for a message that is not of the session, and InvalidStateError if there is
        nothing to copy.
        """
        cut = await self._store.read(lambda c: _find_cut(c, parent.id, message))
        row = self._row(parent.row, owner, cut, address)
        prefix = new_id()[:-12]
        source = (prefix, parent.id, cut.seq)
        return row, [
            row.put(),
            row.put_lineage(),
            (_COPY_MESSAGES, (*source, row.id)),
            (_COPY_PARTS, source),
            (_COUNT, (row.id,)),
        ]

    async def fork(self, parent_id: str, owner: str, message: str | None = None) -> Session:
        """Make a fork that clients read. Durable when it returns. Raises the errors of ``prepare``."""
        parent = await self._sessions.find(parent_id)
        row, ops = await self.prepare(parent, owner, message)
        await self._store.write(*ops)
        return await self._sessions.find(row.id)

    async def find_message(self, session: str, channel: str, platform_id: str) -> str | None:
        """Return the id of an answer or of a user's message by its id on the platform; None if unknown."""
        return await self._store.read(lambda c: _find_message(c, session, channel, platform_id))

    def _row(self, parent: SessionRow, owner: str, cut: Cut, address: Address | None) -> SessionRow:
        fork_id, now, agent = new_id(), now_ms(), parent.agent
        if address is None:
            channel = self._reading_channel(parent.channel)
            address = Address(channel, chat=fork_id)
            usual = self._agents.choose(agent, parent.channel, parent.address.chat)
            # The settings may name an agent for the parent's room; the fork is in no room.
            agent = usual if usual != self._agents.choose(agent, channel, fork_id) else agent
        title = parent.title and f"{parent.title[: LONGEST_TITLE - len(_MARK)].removesuffix(_MARK)}{_MARK}"
        return structs.replace(
            parent,
            id=fork_id,
            channel=address.channel,
            owner=owner,
            address=structs.replace(address, reply_to=None),
            title=title,
            titled=parent.titled or ("model" if title else None),
            seq=cut.seq,
            messages=0,
            input_tokens=0,
            output_tokens=0,
            cost=0.0,
            # What /new hid is hidden in the fork, too, unless nothing else would be left of it.
            context_from=parent.context_from if parent.context_from < cut.seq else 0,
            created_at=now,
            updated_at=now,
            agent=agent,
            parent=parent.id,
            parent_message=cut.message,
            pinned_at=None,
            undone_at=0,
            root=None,
            call_id=None,
        )

    def _reading_channel(self, channel: str) -> str:
        """Return the channel itself if its clients read sessions, else the first one whose clients do."""
        reading = [one.id for one in self._channels.list() if isinstance(one, FollowsSession)]
        return channel if channel in (_SERVER, *reading) else next(iter(reading), _SERVER)


def _find_cut(connection: Connection, session: str, message: str | None) -> Cut:
    m = t.messages.c
    here = m.session_id == session, m.undone.is_(None)
    query = select(m.id, m.seq).where(*here).order_by(m.seq.desc()).limit(1)
    if message is not None:
        named = select(m.seq, m.role).where(*here, m.id == message)
        found = connection.execute(named).first()
        if found is None:
            raise NotFoundError(f"no message {message!r} in session {session!r}")
        query = query.where(m.seq < found.seq if found.role == "user" else m.seq <= found.seq)
    last = connection.execute(query).first()
    if last is None:
        raise InvalidStateError("there is no earlier message that a fork could begin with")
    return Cut(last.id, last.seq)


def _find_message(connection: Connection, session: str, channel: str, platform_id: str) -> str | None:
    o, i, m = t.outbox.c, t.inbox.c, t.messages.c
    # Some channels put the chat in front of the id, which is unique only there.
    tail = f":{platform_id}"
    answers = (
        select(i.answer_id)
        .join(t.outbox, o.inbox_id == i.id)
        .where(o.channel == channel, i.session == session)
        .where(or_(o.platform_id == platform_id, o.platform_id.endswith(tail, autoescape=True)))
    )
    asked = (
        select(m.id)
        .join(t.inbox, i.id == m.id)
        .where(m.session_id == session, m.undone.is_(None), i.channel == channel)
        .where(or_(i.original == platform_id, i.original.endswith(tail, autoescape=True)))
        .order_by(func.length(i.original))
    )
    found: Sequence[str] = connection.execute(answers).scalars().all()
    found = found or connection.execute(asked).scalars().all()
    return next(iter(found), None)
