"""The author of a session's title."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Add the column."""
    op.add_column("sessions", sa.Column("titled", sa.Text()))
