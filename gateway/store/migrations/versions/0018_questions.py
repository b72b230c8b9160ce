"""Questions: stored until they are answered and their owners have taken the answers."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    """Create the table of questions; decisions that no call has used yet become answered questions."""
    op.create_table(
        "question",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("inbox_id", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("answer", sa.Text(), server_default="[]", nullable=False),
        sa.Column("answered_by", sa.Text(), server_default="", nullable=False),
        sa.Column("shown", sa.Text(), server_default="", nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("settled_at", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("acknowledged", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("owner", "key", name="question_key"),
    )
    op.create_index("question_message", "question", ["inbox_id"], unique=False)
    op.create_index("question_pending", "question", ["acknowledged"], unique=False)
    op.execute(
        """
        INSERT INTO question
            (id, owner, key, inbox_id, subject, body, state, answer, answered_by,
             created_at, expires_at, settled_at)
        SELECT id, 'approvals', id, inbox_id, tool || ' ' || arguments, '', 'answered',
               '["' || decision || '"]', decided_by, at, at, at
        FROM approval_decision
        """
    )
    op.drop_index("approval_decision_message", "approval_decision")
    op.drop_table("approval_decision")
