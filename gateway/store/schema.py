"""The tables, the same on SQLite and PostgreSQL. Times are milliseconds since the epoch."""

from __future__ import annotations

from sqlalchemy import (
    DDL,
    BigInteger,
    Column,
    ColumnElement,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    event,
    func,
    literal_column,
    text,
)
from sqlalchemy.types import UserDefinedType

metadata = MetaData()


class _Words(UserDefinedType[str]):
    """Words with their positions. SQLAlchemy's own type would load a whole dialect."""

    cache_ok = True

    def get_col_spec(self, **_options: object) -> str:
        """Return the name of the type on PostgreSQL."""
        return "TSVECTOR"


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
    Column("titled", Text),
    Column("mode", Text),
    Column("parent", Text),
    Column("parent_message", Text),
    Column("indexed_title", Text, nullable=False, server_default=""),
    Column("pinned_at", BigInteger),
    Column("undone_at", BigInteger, nullable=False, server_default="0"),
    Column("root", Text),
    Column("call_id", Text),
    Index("sessions_updated", "updated_at"),
    Index("sessions_channel_updated", "channel", "updated_at"),
)
"""``seq`` is the highest durable number. ``context_from`` is the number up to which the model gets no
message, because of /new or of a summary.
``titled`` is the author of the title: model or user, or null for the first line of the conversation;
``mode`` is plan, or null. ``parent`` and ``parent_message`` are the session that a fork was made from, and
the last message it has from there. ``indexed_title`` is the title that the search finds.
``pinned_at`` is when a user put it at the top of the lists, or null. ``undone_at`` is the number of the last
/undo or /redo: readers that stopped before it read the whole log again. The session of a nested run has the
``root`` of its conversation and the ``call_id`` of the tool call that started it, in the message
``parent_message`` of ``parent``."""

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
    Column("source", Text),
    Column("indexed", Integer, nullable=False, server_default="0"),
    Column("changed", BigInteger),
    Column("undone", BigInteger),
    Index("messages_session_seq", "session_id", "seq"),
)
"""A session's log: a message becomes visible to readers at its ``seq``. ``source`` names the message of a
platform that a context message quotes, so that it can be deleted. ``indexed`` is 1 if the search index
has its text, and negative, another number each time, after the text was replaced. ``changed`` is the number
at which readers saw its newest content, if it was replaced. ``undone`` is the number of the /undo that hid
the message from everyone, or null; negative if /redo cannot show it: it belongs to a version in ``branches``
that is not shown, or the conversation went on."""

branches = Table(
    "branches",
    metadata,
    Column("id", Text, primary_key=True),
    Column("session_id", Text, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("point", BigInteger, nullable=False),
    Column("hidden", BigInteger, nullable=False),
    Index("branches_session", "session_id"),
)
"""The versions of conversations that are not shown. ``id`` is that of the first message; ``point`` the
``seq`` of the last message before it, or 0; ``hidden`` the number at which its messages were hidden."""

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

search = Table(
    "search",
    metadata,
    Column("n", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False),
    Column("session_id", Text, ForeignKey("sessions.id", ondelete="CASCADE")),
    Column("message_id", Text, ForeignKey("messages.id", ondelete="CASCADE")),
    Column("words", Text().with_variant(_Words(), "postgresql"), nullable=False),
    UniqueConstraint("session_id", name="search_session"),
    UniqueConstraint("message_id", name="search_message"),
)
"""The words of messages, and of titles, which have a ``session_id``. ``n`` orders them by time. A deletion of
the message or session removes them in its transaction, on SQLite from the table ``search_words``, too."""

for _dialect, _statement in (
    ("postgresql", "CREATE INDEX search_words ON search USING gin (words)"),
    (
        "sqlite",
        "CREATE VIRTUAL TABLE search_words USING "
        "fts5(words, content='search', content_rowid='n', tokenize='unicode61 remove_diacritics 0', "
        "prefix='1 2 3')",
    ),
    (
        "sqlite",
        "CREATE TRIGGER search_insert AFTER INSERT ON search BEGIN "
        "INSERT INTO search_words (rowid, words) VALUES (new.n, new.words); END",
    ),
    (
        "sqlite",
        "CREATE TRIGGER search_delete AFTER DELETE ON search BEGIN INSERT INTO "
        "search_words (search_words, rowid, words) VALUES ('delete', old.n, old.words); END",
    ),
):
    event.listen(search, "after_create", DDL(_statement).execute_if(dialect=_dialect))

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


def tail_of(column: ColumnElement[str]) -> ColumnElement[str]:
    """Return the part of a key after its last colon, which is mostly the platform's id, as it is indexed."""
    prefix = func.rtrim(column, func.replace(column, literal_column("':'"), literal_column("''")))
    return func.substr(column, func.length(prefix) + literal_column("1"))


Index("inbox_tail", tail_of(inbox.c.dedup_key))

_PARTIAL_INDEXES = (
    (Index("inbox_alt_key", inbox.c.alt_key), "alt_key IS NOT NULL"),
    (Index("inbox_open", inbox.c.session, inbox.c.ord), "state = 'new'"),
    (Index("inbox_refused", inbox.c.session, inbox.c.received_at), "priority = 2"),
    (Index("messages_source", messages.c.source), "source IS NOT NULL"),
    (Index("messages_unindexed", messages.c.id), "indexed < 1"),
    (Index("messages_cost", messages.c.session_id, messages.c.cost), "cost <> 0"),
    (Index("messages_changed", messages.c.session_id, messages.c.changed), "changed IS NOT NULL"),
    (Index("parts_error", parts.c.message_id), "type = 'error'"),
    (Index("sessions_unindexed", sessions.c.id), "indexed_title <> title"),
    (Index("sessions_pinned", sessions.c.updated_at), "pinned_at IS NOT NULL"),
    (Index("sessions_root", sessions.c.root), "root IS NOT NULL"),
)


def set_dialect_options(dialect: str) -> None:
    """Add the conditions of the partial indexes, and other options of one kind of database.

    SQLAlchemy loads a whole dialect as soon as one of its options is named.
    """
    for index, where in _PARTIAL_INDEXES:
        index.dialect_options[dialect]["where"] = text(where)
    if dialect == "sqlite":
        # The key is the row: a second tree for it would double the cost of a write.
        trail.dialect_options[dialect]["with_rowid"] = False


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
Index("outbox_tail", tail_of(outbox.c.platform_id))
"""Messages placed on platforms. ``state`` is intent, placed, final or dead, or unfit: the message cannot
show its page and has to be deleted. ``body`` is the final message. After /undo it is undone, and removed when
the message is deleted; its ``id`` then ends with the number of the /undo, and /redo finds the chat there."""

cursor = Table(
    "cursor",
    metadata,
    Column("channel", Text, primary_key=True),
    Column("account", Text, primary_key=True),
    Column("shard", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

announcement = Table(
    "announcement",
    metadata,
    Column("id", Text, primary_key=True),
    Column("session_id", Text, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("inbox_id", Text, nullable=False, unique=True),
    Column("chat", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Index("announcement_session", "session_id"),
)
"""Messages that plugins announced: ``id`` is plugin and key, ``chat`` the place, ``message`` the newest
content as JSON. The row in the inbox is open while that content is not delivered."""

plugin_entry = Table(
    "plugin_entry",
    metadata,
    Column("id", Text, primary_key=True),
    Column("plugin", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("value", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Index("plugin_entry_table", "plugin", "name"),
)
"""Entries of the plugins' tables: ``id`` is plugin, table and key, ``value`` is JSON."""

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

trail = Table(
    "trail",
    metadata,
    Column("inbox_id", Text, primary_key=True),
    Column("n", BigInteger, primary_key=True),
    Column("at", BigInteger, nullable=False),
    Column("steps", Text, nullable=False),
)
"""What happened to messages: ``steps`` are those of one transaction, as ``gateway.trail`` packs them. ``n``
grows from row to row of a message; ``at`` is when the row was written. The ids of messages begin with their
time, by which old rows are found."""

refused = Table(
    "refused",
    metadata,
    Column("id", Text, primary_key=True),
    Column("channel", Text, nullable=False),
    Column("account", Text, nullable=False),
    Column("chat", Text, nullable=False),
    Column("platform_id", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Index("refused_platform_id", "platform_id"),
    Index("refused_account", "channel", "account", "id"),
)
"""Messages that were not accepted, by their ids only. ``reason`` is no_mention, sender, room, unreadable or
limit; gap, without ids, stands for those that came too fast to be recorded."""

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
"""One-time codes. ``kind`` is pair, link, move or console; ``used_at`` is 0 for an unused code."""

console_session = Table(
    "console_session",
    metadata,
    Column("id", Text, primary_key=True),
    Column("account", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("proof", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("seen_at", BigInteger, nullable=False),
    Column("confirmed_at", BigInteger, nullable=False),
    Index("console_session_account", "account"),
)
"""Logins at the console. ``id`` is a digest of the cookie, ``proof`` one of the token."""

ended_login = Table("ended_login", metadata, Column("id", Text, primary_key=True))
"""Logins at the chat page that a user ended: the time of the cookie (seconds), a dot and a digest of it."""

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

room = Table(
    "room",
    metadata,
    Column("id", Text, primary_key=True),
    Column("channel", Text, nullable=False),
    Column("account", Text, nullable=False),
    Column("chat", Text, nullable=False),
    Column("title", Text, nullable=False),
    Column("group", Integer, nullable=False),
    Column("seen_at", BigInteger, nullable=False),
    Index("room_seen", "seen_at"),
)
"""Chats in which a channel has seen messages, also those that it ignores. ``id`` is channel, account and
chat; ``title`` is the name of the room, or of the user in a private chat; ``group`` is 1 for a room."""

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
    Column("plugin", Text, nullable=False, server_default=""),
    Column("message", Text, nullable=False, server_default=""),
    Index("spend_at", "at"),
    Index("spend_session", "session"),
)
"""Model calls. ``state`` is reserved (running, or cut off by a crash), estimated or counted; ``nano_usd`` is
a billionth of a US dollar, and null if no price is known. ``plugin`` is empty unless one made the call.
``message`` is the inbox id of the message that it was for, empty in rows of earlier versions; a query by it
names the session, too, which has the index."""

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

plugin_grant = Table(
    "plugin_grant",
    metadata,
    Column("id", Text, primary_key=True),
    Column("plugin", Text, nullable=False),
    Column("capability", Text, nullable=False),
    Column("allowed", BigInteger, nullable=False),
    Column("decided_by", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    UniqueConstraint("plugin", "capability", name="plugin_grant_of"),
)
"""Decisions about capabilities of confined plugins that were made after the installation: 1 allows, 0 refuses
permanently."""

plugin_action = Table(
    "plugin_action",
    metadata,
    Column("id", Text, primary_key=True),
    Column("at", BigInteger, nullable=False),
    Column("plugin", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("value", Text, nullable=False),
    Column("arguments", Text, nullable=False),
    Column("allowed", BigInteger, nullable=False),
    Column("risk", BigInteger, nullable=False),
    Column("microseconds", BigInteger, nullable=False),
    Index("plugin_action_of", "plugin", "at"),
    Index("plugin_action_at", "at"),
)
"""Audit log of confined plugins. ``content`` is the hash of the plugin's files, ``arguments`` a digest,
``risk`` 50 to 100."""

plugin_job = Table(
    "plugin_job",
    metadata,
    Column("id", Text, primary_key=True),
    Column("plugin", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("times", Text, nullable=False),
    Column("next_at", BigInteger, nullable=False),
    Column("claimed", Text, nullable=False),
    Column("claimed_until", BigInteger, nullable=False),
)
"""Scheduled jobs of confined plugins. ``times`` are the cron fields and the time zone, ``next_at`` is the due
time (ms) that has not run yet. ``claimed`` is random text of the process that runs it, "" if none does, and
``claimed_until`` the time (ms) at which another process may take it over."""

question = Table(
    "question",
    metadata,
    Column("id", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("inbox_id", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("answer", Text, nullable=False, server_default="[]"),
    Column("answered_by", Text, nullable=False, server_default=""),
    Column("shown", Text, nullable=False, server_default=""),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("settled_at", BigInteger, nullable=False, server_default="0"),
    Column("acknowledged", BigInteger, nullable=False, server_default="0"),
    Column("closed", BigInteger, nullable=False, server_default="0"),
    UniqueConstraint("owner", "key", name="question_key"),
    Index("question_message", "inbox_id"),
    Index("question_pending", "acknowledged"),
    Index("question_unclosed", "closed"),
)
"""Questions to users. ``state`` is open, answered, expired or withdrawn; ``acknowledged`` is 0 until the
owner took the answer, ``closed`` until the chat shows the outcome. ``inbox_id`` is the message whose turn
asked and still needs the question; ``subject`` is what a repeated turn finds the question by, empty outside
turns. ``answer`` is a JSON list, ``shown`` the place on the platform."""

share = Table(
    "share",
    metadata,
    Column("id", Text, primary_key=True),
    Column("digest", Text, nullable=False),
    Column("session", Text, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("title", Text, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("views", Integer, nullable=False),
    UniqueConstraint("digest", name="share_digest"),
    Index("share_session", "session"),
)
"""Links to conversations: ``digest`` is the SHA-256 of the secret in the link, and ``seq`` the number of the
last message that is shown."""

upload = Table(
    "upload",
    metadata,
    Column("id", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Index("upload_expires", "expires_at"),
)
"""Files that a client sent ahead of their message, until a message uses them or they expire: ``body`` is the
content as a message has it, and ``size`` the bytes that were received."""

feedback = Table(
    "feedback",
    metadata,
    Column("id", Text, primary_key=True),
    Column("channel", Text, nullable=False),
    Column("account", Text, nullable=False),
    Column("chat", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("user_id", Text, nullable=False),
    Column("session", Text, nullable=False),
    Column("answer_id", Text, nullable=False),
    Column("value", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Index("feedback_at", "at"),
)
"""The newest feedback of a user on a platform's message of an answer: ``value`` is up, down, or none if the
user took it back."""

file_change = Table(
    "file_change",
    metadata,
    Column("id", Text, primary_key=True),
    Column("session", Text, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("answer", Text, nullable=False),
    Column("path", Text, nullable=False),
    Column("added", Integer, nullable=False),
    Column("removed", Integer, nullable=False),
    Column("before", Text),
    Column("after", Text),
    Column("diff", Text, nullable=False),
    Column("note", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("root", Text, nullable=False, server_default=""),
    Column("mode", Integer),
    Column("new_mode", Integer),
    Column("blob", Text, nullable=False, server_default=""),
    Column("new_blob", Text, nullable=False, server_default=""),
    Column("unkept", Text, nullable=False, server_default="the gateway did not keep contents then"),
    Column("state", Text, nullable=False, server_default=""),
    Column("seq", Integer, nullable=False, server_default="0"),
    Index("file_change_session", "session", "seq"),
)
"""Changes of files by tools: ``answer`` is the id of the turn's answer, ``before`` and ``after`` are the
texts, null for no file. ``note`` says what of them is not kept. ``seq`` is their order in the session: the
clock, with which ids begin, may be set back.
``blob`` and ``new_blob`` are ids of the whole contents in git, empty for no file, and ``unkept`` is why they
are not there. ``state`` is empty, reverting, reverted or restoring."""
