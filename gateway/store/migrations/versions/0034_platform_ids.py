"""Indexes that find messages by the platform's id, which is the end of their key."""

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"

_TAIL = "substr({0}, length(rtrim({0}, replace({0}, ':', ''))) + 1)"


def upgrade() -> None:
    """Create the indexes."""
    op.create_index("inbox_tail", "inbox", [sa.text(_TAIL.format("dedup_key"))])
    op.create_index("outbox_tail", "outbox", [sa.text(_TAIL.format("platform_id"))])
    op.create_index(
        "inbox_alt_key",
        "inbox",
        ["alt_key"],
        sqlite_where=sa.text("alt_key IS NOT NULL"),
        postgresql_where=sa.text("alt_key IS NOT NULL"),
    )
