"""The conversation and the tool call that a session of a nested run belongs to."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    """Add the columns and an index. Earlier nested runs were not stored."""
    op.add_column("sessions", sa.Column("root", sa.Text()))
    op.add_column("sessions", sa.Column("call_id", sa.Text()))
    op.create_index(
        "sessions_root",
        "sessions",
        ["root"],
        unique=False,
        sqlite_where=sa.text("root IS NOT NULL"),
        postgresql_where=sa.text("root IS NOT NULL"),
    )
