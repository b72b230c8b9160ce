"""The cost of a session is the sum of its messages' costs; it has no column of its own."""

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Remove the column."""
    op.drop_column("sessions", "cost")
