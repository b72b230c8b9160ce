"""The trail of messages, and those that were not accepted."""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "trail",
        sa.Column("inbox_id", sa.Text(), primary_key=True),
        sa.Column("n", sa.BigInteger(), primary_key=True),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("steps", sa.Text(), nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "refused",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("chat", sa.Text(), nullable=False),
        sa.Column("platform_id", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
    )
    op.create_index("refused_platform_id", "refused", ["platform_id"])
    op.create_index("refused_account", "refused", ["channel", "account", "id"])
