"""An index that finds the errors of conversations."""

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"


def upgrade() -> None:
    """Create the index."""
    where = sa.text("type = 'error'")
    op.create_index("parts_error", "parts", ["message_id"], sqlite_where=where, postgresql_where=where)
