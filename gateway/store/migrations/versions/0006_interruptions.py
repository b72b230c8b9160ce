"""Stops and deletions of messages that are not answered yet, and messages that wait for the next turn."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the column and create the table."""
    op.add_column("inbox", sa.Column("interrupted", sa.Text(), nullable=True))
    op.create_table(
        "injected",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("injected_session_seq", "injected", ["session_id", "seq"], unique=False)
