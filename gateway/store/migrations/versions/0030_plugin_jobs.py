"""Scheduled jobs of confined plugins: when each is due next, and which process runs it."""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "plugin_job",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("plugin", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("times", sa.Text(), nullable=False),
        sa.Column("next_at", sa.BigInteger(), nullable=False),
        sa.Column("claimed", sa.Text(), nullable=False),
        sa.Column("claimed_until", sa.BigInteger(), nullable=False),
    )
