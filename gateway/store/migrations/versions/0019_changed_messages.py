"""The numbers at which messages of logs were replaced, so that readers who were away get the new content."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    """Add the column and its index. Earlier changes have no number."""
    op.add_column("messages", sa.Column("changed", sa.BigInteger(), nullable=True))
    op.create_index(
        "messages_changed",
        "messages",
        ["session_id", "changed"],
        unique=False,
        sqlite_where=sa.text("changed IS NOT NULL"),
        postgresql_where=sa.text("changed IS NOT NULL"),
    )
