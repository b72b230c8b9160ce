"""Sessions in plan mode."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Add the column."""
    op.add_column("sessions", sa.Column("mode", sa.Text()))
