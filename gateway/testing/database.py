"""The empty database of a test's gateway. A copy of one takes a third of the CPU time of creating it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from gateway.store import open_locked


def place_database(path: Path) -> None:
    """Copy an empty database with the newest schema to a path, unless a database or its log exists there."""
    if path.parent.is_dir() and not any(path.parent.glob(f"{path.name}*")):
        path.write_bytes(_empty_database())
        path.chmod(0o600)


@cache
def _empty_database() -> bytes:
    with TemporaryDirectory() as folder:
        with open_locked(f"sqlite:///{folder}/t.db"):
            pass
        return Path(folder, "t.db").read_bytes()
