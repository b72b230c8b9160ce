"""The order of changes of files, which no longer depends on the clock."""

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"


def upgrade() -> None:
    """Number the changes of each session, until now in the order of their ids, and index the numbers."""
    op.add_column("file_change", sa.Column("seq", sa.Integer(), nullable=False, server_default="0"))
    op.execute(
        "UPDATE file_change SET seq = numbered.seq FROM (SELECT id, row_number() OVER "
        "(PARTITION BY session ORDER BY id) AS seq FROM file_change) AS numbered "
        "WHERE numbered.id = file_change.id"
    )
    op.drop_index("file_change_session", "file_change")
    op.create_index("file_change_session", "file_change", ["session", "seq"])
