"""One-time codes as hashes: codes stored in clear are dropped, and can be requested again."""

from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Drop the codes. Each is valid for an hour at most."""
    op.execute("DELETE FROM one_time_code")
