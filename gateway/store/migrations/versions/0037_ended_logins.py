"""Logins at the chat page that a user ended."""

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"


def upgrade() -> None:
    """Create the table."""
    op.create_table("ended_login", sa.Column("id", sa.Text(), primary_key=True))
