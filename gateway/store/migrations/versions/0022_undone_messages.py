"""The numbers at which messages were hidden by /undo, and at which a log last lost or regained some."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    """Add the columns. Nothing was undone before."""
    op.add_column("messages", sa.Column("undone", sa.BigInteger(), nullable=True))
    op.add_column("sessions", sa.Column("undone_at", sa.BigInteger(), nullable=False, server_default="0"))
