"""The message that a model call was made for."""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"


def upgrade() -> None:
    """Add the column. The messages of earlier calls are not known."""
    op.add_column("spend", sa.Column("message", sa.Text(), nullable=False, server_default=""))
