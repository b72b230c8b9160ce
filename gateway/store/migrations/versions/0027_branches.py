"""Versions of conversations: the messages after a point that an edit or another answer replaced."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    """Create the table. What was undone before stays as it is."""
    op.create_table(
        "branches",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("session_id", sa.Text(), sa.ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
        sa.Column("point", sa.BigInteger(), nullable=False),
        sa.Column("hidden", sa.BigInteger(), nullable=False),
    )
    op.create_index("branches_session", "branches", ["session_id"], unique=False)
