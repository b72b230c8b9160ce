"""The parent of a session that is a fork, and the last message that it copied."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Add the columns. Not foreign keys: a fork outlives its parent."""
    op.add_column("sessions", sa.Column("parent", sa.Text()))
    op.add_column("sessions", sa.Column("parent_message", sa.Text()))
