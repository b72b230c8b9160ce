"""The search index, and what of messages and titles it does not have yet."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TSVECTOR

revision = "0017"
down_revision = "0016"

_POSTGRES = ("CREATE INDEX search_words ON search USING gin (words)",)
_SQLITE = (
    "CREATE VIRTUAL TABLE search_words USING "
    "fts5(words, content='search', content_rowid='n', tokenize='unicode61 remove_diacritics 0')",
    "CREATE TRIGGER search_insert AFTER INSERT ON search BEGIN "
    "INSERT INTO search_words (rowid, words) VALUES (new.n, new.words); END",
    "CREATE TRIGGER search_delete AFTER DELETE ON search BEGIN INSERT INTO "
    "search_words (search_words, rowid, words) VALUES ('delete', old.n, old.words); END",
)


def upgrade() -> None:
    """Add the tables and columns. A running gateway fills the index in the background."""
    op.add_column("messages", sa.Column("indexed", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("sessions", sa.Column("indexed_title", sa.Text(), nullable=False, server_default=""))
    for table, where in (("messages", "indexed < 1"), ("sessions", "indexed_title <> title")):
        op.create_index(
            f"{table}_unindexed",
            table,
            ["id"],
            sqlite_where=sa.text(where),
            postgresql_where=sa.text(where),
        )
    postgres = op.get_bind().dialect.name == "postgresql"
    op.create_table(
        "search",
        sa.Column("n", sa.BigInteger() if postgres else sa.Integer(), autoincrement=False),
        sa.Column("session_id", sa.Text()),
        sa.Column("message_id", sa.Text()),
        sa.Column("words", TSVECTOR() if postgres else sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("n"),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["message_id"], ["messages.id"], ondelete="CASCADE"),
        sa.UniqueConstraint("session_id", name="search_session"),
        sa.UniqueConstraint("message_id", name="search_message"),
    )
    for statement in _POSTGRES if postgres else _SQLITE:
        op.execute(statement)
