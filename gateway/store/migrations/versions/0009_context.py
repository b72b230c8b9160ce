"""The source of context messages, so that they can be deleted with the messages that they quote."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Add the column and its index. Earlier messages have no source."""
    op.add_column("messages", sa.Column("source", sa.Text(), nullable=True))
    op.create_index(
        "messages_source",
        "messages",
        ["source"],
        unique=False,
        sqlite_where=sa.text("source IS NOT NULL"),
        postgresql_where=sa.text("source IS NOT NULL"),
    )
