"""The tables, the same on SQLite and PostgreSQL. Times are milliseconds since the epoch."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata = MetaData()

sessions = Table(
    "sessions",
    metadata,
    Column("id", Text, primary_key=True),
    Column("channel", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("address", Text, nullable=False),
    Column("title", Text, nullable=False),
    Column("model", Text),
    Column("seq", BigInteger, nullable=False),
    Column("messages", Integer, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("context_from", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("agent", Text),
    Index("sessions_updated", "updated_at"),
)
"""``seq`` is the highest durable number; ``context_from`` is the number at which /new cut the context."""

messages = Table(
    "messages",
    metadata,
    Column("id", Text, primary_key=True),
    Column("session_id", Text, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("role", Text, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("extra", Text),
    Column("cost", Float),
    Column("created_at", BigInteger, nullable=False),
    Index("messages_session_seq", "session_id", "seq"),
)
"""A session's log: a message becomes visible to readers at its ``seq``."""

parts = Table(
    "parts",
    metadata,
    Column("id", Text, primary_key=True),
    Column("message_id", Text, ForeignKey("messages.id", ondelete="CASCADE"), nullable=False),
    Column("type", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("index", Integer, nullable=False, quote=True),
    Column("created_at", BigInteger, nullable=False),
    UniqueConstraint("message_id", "index", name="parts_message_index"),
)

injected = Table(
    "injected",
    metadata,
    Column("id", Text, primary_key=True),
    Column("session_id", Text, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("message", Text, nullable=False),
    Index("injected_session_seq", "session_id", "seq"),
)
"""Messages of plugins that join the transcript after the next user message of their session, as JSON, ordered
by ``seq``."""

inbox = Table(
    "inbox",
    metadata,
    Column("id", Text, primary_key=True),
    Column("channel", Text, nullable=False),
    Column("account", Text, nullable=False),
    Column("dedup_key", Text, nullable=False),
    Column("alt_key", Text),
    Column("session", Text, nullable=False),
    Column("ord", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("answer_id", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("merged_into", Text),
    Column("attempts", Integer, nullable=False),
    Column("not_before", BigInteger, nullable=False),
    Column("received_at", BigInteger, nullable=False),
    Column("sender", Text, nullable=False, server_default=""),
    Column("original", Text, nullable=False, server_default=""),
    Column("priority", Integer, nullable=False, server_default="0"),
    Column("interrupted", Text),
    UniqueConstraint("channel", "account", "dedup_key", name="inbox_dedup"),
    UniqueConstraint("channel", "account", "alt_key", name="inbox_alt"),
)
"""Accepted messages. ``state`` is new, done, dead or merged; ``id`` is the user message's id.

``original`` is the key of the message that this one is, or is a revision of. ``priority`` is 1 for /stop, and
2 for a message that is answered with the notice that too many wait: these come before the others.
``interrupted`` is withdrawn if the sender deleted the message, stopped if a user stopped its answer, and
steered if the sender wrote again while the answer was being made: a restart continues accordingly.
"""

_inbox_open = Index("inbox_open", inbox.c.session, inbox.c.ord)
_inbox_refused = Index("inbox_refused", inbox.c.session, inbox.c.received_at)


def set_partial_indexes(dialect: str) -> None:
    """Add the partial indexes for one kind of database.

    SQLAlchemy loads a whole dialect as soon as one of its options is named.
    """
    _inbox_open.dialect_options[dialect]["where"] = text("state = 'new'")
    _inbox_refused.dialect_options[dialect]["where"] = text("priority = 2")


outbox = Table(
    "outbox",
    metadata,
    Column("id", Text, primary_key=True),
    Column("inbox_id", Text, nullable=False),
    Column("part", Integer, nullable=False),
    Column("nonce", Text, nullable=False, unique=True),
    Column("state", Text, nullable=False),
    Column("channel", Text, nullable=False),
    Column("address", Text, nullable=False),
    Column("platform_id", Text),
    Column("hiwater", Text),
    Column("body", Text),
    Column("sent_at", BigInteger, nullable=False),
    UniqueConstraint("inbox_id", "part", name="outbox_part"),
)
"""Messages placed on platforms. ``state`` is intent, placed, final or dead; ``body`` is the final message."""

cursor = Table(
    "cursor",
    metadata,
    Column("channel", Text, primary_key=True),
    Column("account", Text, primary_key=True),
    Column("shard", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

turn_step = Table(
    "turn_step",
    metadata,
    Column("inbox_id", Text, primary_key=True),
    Column("step", Integer, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("idem_key", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("result", Text),
)
"""Recorded steps of turns. ``kind`` is llm or tool; ``state`` is called, intent or done."""

dead_letter = Table(
    "dead_letter",
    metadata,
    Column("inbox_id", Text, primary_key=True),
    Column("reason", Text, nullable=False),
    Column("trace", Text),
    Column("at", BigInteger, nullable=False),
)

quarantine = Table(
    "quarantine",
    metadata,
    Column("id", Text, primary_key=True),
    Column("channel", Text, nullable=False),
    Column("account", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("raw", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
)
"""Platform events that could not be parsed, stored unchanged."""

audit = Table(
    "audit",
    metadata,
    Column("id", Text, primary_key=True),
    Column("at", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("detail", Text),
)

member = Table(
    "member",
    metadata,
    Column("id", Text, primary_key=True),
    Column("channel", Text, nullable=False),
    Column("user_id", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("approved_by", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    UniqueConstraint("channel", "user_id", name="member_user"),
)
"""Users admitted on a channel, besides those in the settings. ``role`` is admin or user."""

one_time_code = Table(
    "one_time_code",
    metadata,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("code", Text, nullable=False),
    Column("channel", Text, nullable=False),
    Column("user_id", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("session", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("used_at", BigInteger, nullable=False),
    Index("one_time_code_user", "channel", "user_id"),
)
"""One-time codes. ``kind`` is pair, link or move; ``used_at`` is 0 for an unused code."""

identity = Table(
    "identity",
    metadata,
    Column("id", Text, primary_key=True),
    Column("channel", Text, nullable=False),
    Column("user_id", Text, nullable=False),
    Column("person", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    UniqueConstraint("channel", "user_id", name="identity_user"),
    Index("identity_person", "person"),
)
"""Users of different channels that are one person."""

moved_chat = Table(
    "moved_chat",
    metadata,
    Column("chat", Text, primary_key=True),
    Column("session", Text, nullable=False),
    Column("channel", Text, nullable=False),
    Column("user_id", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
)
"""Chats that continue another chat's session: ``chat`` is the id of the session they would otherwise have."""

spend = Table(
    "spend",
    metadata,
    Column("id", Text, primary_key=True),
    Column("at", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("session", Text, nullable=False),
    Column("channel", Text, nullable=False),
    Column("person", Text, nullable=False),
    Column("agent", Text, nullable=False),
    Column("provider", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("cache_write_tokens", BigInteger, nullable=False),
    Column("nano_usd", BigInteger),
    Index("spend_at", "at"),
    Index("spend_session", "session"),
)
"""Model calls. ``state`` is reserved (running, or cut off by a crash), estimated or counted; ``nano_usd`` is
a billionth of a US dollar, and null if no price is known."""

allowance = Table(
    "allowance",
    metadata,
    Column("id", Text, primary_key=True),
    Column("granted_nano_usd", BigInteger, nullable=False),
    Column("warned_at", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
)
"""State of a budget in one of its periods: the amount up to which a user let it continue, and whether its
warning was given. ``id`` is budget, holder and period."""

approval_grant = Table(
    "approval_grant",
    metadata,
    Column("id", Text, primary_key=True),
    Column("session", Text, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("channel", Text, nullable=False),
    Column("user_id", Text, nullable=False),
    Column("tool", Text, nullable=False),
    Column("matches", Text, nullable=False),
    Column("approved_by", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    UniqueConstraint("session", "channel", "user_id", "tool", "matches", name="approval_grant_call"),
)
"""Permanent approvals: of one user, in one session, for calls that match exactly this text."""

approval_decision = Table(
    "approval_decision",
    metadata,
    Column("id", Text, primary_key=True),
    Column("inbox_id", Text, nullable=False),
    Column("tool", Text, nullable=False),
    Column("arguments", Text, nullable=False),
    Column("decision", Text, nullable=False),
    Column("decided_by", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Index("approval_decision_message", "inbox_id"),
)
"""Decisions about tool calls of unanswered messages. ``arguments`` is a SHA-256 of them; ``decision`` is
once, always or deny."""
