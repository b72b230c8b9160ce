"""A tree of this code as a newer version, which has one more migration."""

from __future__ import annotations

import shutil
from pathlib import Path

from gateway.store import migrate
from gateway.version import VERSION
from tests.e2e.gateway_process import ROOT

REVISION = "9999"
_COLUMN = '    Column("interrupted", Text),\n'
_MORE = '    Column("newer", Integer, nullable=False, server_default="0"),\n'
_MIGRATION = """
from alembic import op
import sqlalchemy as sa

revision = "{revision}"
down_revision = "{head}"


def upgrade() -> None:
    op.add_column("inbox", sa.Column("newer", sa.Integer, nullable=False, server_default="0"))
    {more}
"""


def newer(folder: Path, more: str = "pass") -> Path:
    """Make the tree in a folder. Its code reads a column of the inbox that this version does not have.

    ``more`` is a line of Python for its migration.
    """
    # With what is compiled: the sources keep their times.
    shutil.copytree(ROOT / "gateway", folder / "gateway", ignore=shutil.ignore_patterns("*.pyc.*"))
    for package in ("channels", "plugins"):
        (folder / package).symlink_to(ROOT / package)
    store = folder / "gateway" / "store"
    migration = _MIGRATION.format(revision=REVISION, head=migrate.head(), more=more)
    (store / "migrations" / "versions" / f"{REVISION}_newer.py").write_text(migration)
    _replace(store / "schema.py", _COLUMN, _COLUMN + _MORE)
    _replace(folder / "gateway" / "version.py", VERSION, "9.9.9")
    return folder


def _replace(file: Path, old: str, new: str) -> None:
    before, found, after = file.read_text().partition(old)
    assert found, f"{file} has {old!r}"
    file.write_text(before + new + after)
