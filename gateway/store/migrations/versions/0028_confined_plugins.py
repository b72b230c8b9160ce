"""Confined plugins: decisions about their capabilities, their audit log, and what their model calls cost."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"


def upgrade() -> None:
    """Create the tables and the column. No call before was made by a plugin itself."""
    op.create_table(
        "plugin_grant",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("plugin", sa.Text(), nullable=False),
        sa.Column("capability", sa.Text(), nullable=False),
        sa.Column("allowed", sa.BigInteger(), nullable=False),
        sa.Column("decided_by", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.UniqueConstraint("plugin", "capability", name="plugin_grant_of"),
    )
    op.create_table(
        "plugin_action",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("plugin", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("arguments", sa.Text(), nullable=False),
        sa.Column("allowed", sa.BigInteger(), nullable=False),
        sa.Column("risk", sa.BigInteger(), nullable=False),
        sa.Column("microseconds", sa.BigInteger(), nullable=False),
    )
    op.create_index("plugin_action_of", "plugin_action", ["plugin", "at"], unique=False)
    op.create_index("plugin_action_at", "plugin_action", ["at"], unique=False)
    op.add_column("spend", sa.Column("plugin", sa.Text(), nullable=False, server_default=""))
