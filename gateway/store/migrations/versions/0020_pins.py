"""Pinned sessions, and an index for the list of one channel."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    """Add the column and the indices. No session is pinned."""
    op.add_column("sessions", sa.Column("pinned_at", sa.BigInteger(), nullable=True))
    op.create_index("sessions_channel_updated", "sessions", ["channel", "updated_at"], unique=False)
    op.create_index(
        "sessions_pinned",
        "sessions",
        ["updated_at"],
        unique=False,
        sqlite_where=sa.text("pinned_at IS NOT NULL"),
        postgresql_where=sa.text("pinned_at IS NOT NULL"),
    )
