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
    Column("cost", Float, nullable=False),
    Column("context_from", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("agent", Text),
    Index("sessions_updated", "updated_at"),
)
"""``seq`` is the highest durable number; ``context_from`` is where /new cut the context."""

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
    UniqueConstraint("channel", "account", "dedup_key", name="inbox_dedup"),
    UniqueConstraint("channel", "account", "alt_key", name="inbox_alt"),
)
"""Accepted messages. ``state`` is new, done, dead or merged; ``id`` is the user message's id."""

_inbox_open = Index("inbox_open", inbox.c.session, inbox.c.ord)


def speak(dialect: str) -> None:
    """Complete the tables for one kind of database.

    SQLAlchemy loads the whole of a dialect as soon as one of its options is named.
    """
    _inbox_open.dialect_options[dialect]["where"] = text("state = 'new'")


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
"""What a turn already did. ``kind`` is llm or tool; ``state`` is called, intent or done."""

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
"""Platform events that could not be read, kept as they came."""

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
"""Who was let in on a channel, beside those that the settings name. ``role`` is admin or user."""

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
"""Codes that work once. ``kind`` is pair, link or move; ``used_at`` is 0 for one that may still be used."""

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
"""Users of different channels who are one person."""

moved_chat = Table(
    "moved_chat",
    metadata,
    Column("chat", Text, primary_key=True),
    Column("session", Text, nullable=False),
    Column("channel", Text, nullable=False),
    Column("user_id", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
)
"""Chats that continue another chat's session: ``chat`` is the session that they would have of their own."""

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
"""Calls of models. ``state`` is reserved (running, or cut off by a crash), estimated or counted;
``nano_usd`` is a thousand-millionth of a US dollar, and empty where no price is known."""

allowance = Table(
    "allowance",
    metadata,
    Column("id", Text, primary_key=True),
    Column("granted_nano_usd", BigInteger, nullable=False),
    Column("warned_at", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
)
"""What was said about a budget in one of its periods: up to where a person let it go on, and whether
its warning was given. ``id`` is budget, holder and period."""
