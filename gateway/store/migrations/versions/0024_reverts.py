"""Store whole contents, permission bits and the state of changes of files, so that they can be reverted."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    """Add the columns. Earlier changes cannot be reverted."""
    for column in (
        sa.Column("root", sa.Text(), server_default="", nullable=False),
        sa.Column("mode", sa.Integer(), nullable=True),
        sa.Column("new_mode", sa.Integer(), nullable=True),
        sa.Column("blob", sa.Text(), server_default="", nullable=False),
        sa.Column("new_blob", sa.Text(), server_default="", nullable=False),
        sa.Column(
            "unkept", sa.Text(), server_default="the gateway did not keep contents then", nullable=False
        ),
        sa.Column("state", sa.Text(), server_default="", nullable=False),
    ):
        op.add_column("file_change", column)
