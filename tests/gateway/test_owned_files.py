"""Files of the gateway are replaced whole or not at all, and belong to the service."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.api import replace_file

SERVICE = 65534


def test_a_file_is_replaced_and_nothing_else_remains(tmp_path: Path) -> None:
    file = tmp_path / "new" / "logins.json"
    replace_file(file, b"one")
    replace_file(file, b"two")
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"two", 0o600)
    assert ([*file.parent.iterdir()], file.parent.stat().st_mode & 0o777) == ([file], 0o700)


def test_a_failure_leaves_the_former_file_and_no_draft(tmp_path: Path) -> None:
    (tmp_path / "logins.json").mkdir()
    with pytest.raises(OSError, match="logins"):
        replace_file(tmp_path / "logins.json", b"one")
    assert [*tmp_path.iterdir()] == [tmp_path / "logins.json"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root writes for another user")
def test_what_root_writes_belongs_to_the_service_and_its_folder_keeps_its_owner(tmp_path: Path) -> None:
    home = tmp_path / "data"
    home.mkdir()
    os.chown(home, SERVICE, SERVICE)
    for file in (home / "keys.json", home / "mcp" / "deep" / "one.login"):
        replace_file(file, b"one")
        assert {path.stat().st_uid for path in (file, file.parent, home)} == {SERVICE}
    os.chown(home / "keys.json", 0, 0)
    replace_file(home / "keys.json", b"two")
    assert [path.stat().st_uid for path in (home / "keys.json", home)] == [0, SERVICE]
