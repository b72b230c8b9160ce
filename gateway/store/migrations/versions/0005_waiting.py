"""Sender and original of an accepted message, so that messages can wait on disk only."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the columns, and fill them for the messages that wait."""
    op.add_column("inbox", sa.Column("sender", sa.Text(), nullable=False, server_default=""))
    op.add_column("inbox", sa.Column("original", sa.Text(), nullable=False, server_default=""))
    op.add_column("inbox", sa.Column("priority", sa.Integer(), nullable=False, server_default="0"))
    op.create_index(
        "inbox_refused",
        "inbox",
        ["session", "received_at"],
        unique=False,
        sqlite_where=sa.text("priority = 2"),
        postgresql_where=sa.text("priority = 2"),
    )
    connection = op.get_bind()
    waiting = sa.text("SELECT id, payload, dedup_key FROM inbox WHERE state = 'new'")
    fill = sa.text("UPDATE inbox SET sender = :sender, original = :original WHERE id = :id")
    for row in connection.execute(waiting).all():
        said = json.loads(row.payload)
        original = said.get("revises") or row.dedup_key
        connection.execute(fill, {"id": row.id, "sender": said["sender"]["id"], "original": original})
