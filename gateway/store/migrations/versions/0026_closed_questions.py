"""Which questions show their outcome: one that ended at a crash may still show its buttons."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    """Add the column and its index. What ended and was taken before counts as shown."""
    op.add_column("question", sa.Column("closed", sa.BigInteger(), nullable=False, server_default="0"))
    op.execute("UPDATE question SET closed = 1 WHERE acknowledged <> 0")
    op.create_index("question_unclosed", "question", ["closed"], unique=False)
