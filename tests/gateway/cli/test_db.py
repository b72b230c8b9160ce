"""``trunkline db``, run as a program."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gateway.store import migrate
from gateway.store.engine import open_engine
from tests.gateway.cli.processes import gateway, trunkline


def at_revision(home: Path, revision: str) -> None:
    connection = sqlite3.connect(home / "data/trunkline.db")
    connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))
    connection.commit()
    connection.close()


def test_a_database_that_is_not_there_is_not_made_by_looking_for_it(tmp_path: Path):
    done = trunkline("db", "status", home=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{tmp_path}/data/trunkline.db: does not exist yet; `trunkline run` creates it\n"
    assert not (tmp_path / "data").exists()


def test_upgrade_makes_the_database_once(tmp_path: Path):
    first, second = (trunkline("db", "upgrade", home=tmp_path) for _ in range(2))
    assert (first.returncode, first.stdout) == (0, f"upgraded from nothing to {migrate.head()}\n")
    assert (second.returncode, second.stdout) == (
        0,
        f"the database is up to date: {migrate.head()}\n",
    )


def test_an_upgrade_that_may_take_minutes_is_announced(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    older = migrate.revisions()[-2]
    engine = open_engine(f"sqlite:///{tmp_path}/data/trunkline.db")
    with engine.begin() as connection:
        migrate.run_migrations(connection, older)
    engine.dispose()
    done = trunkline("db", "upgrade", "--json", home=tmp_path, TRUNKLINE_LOG__LEVEL="info")
    assert json.loads(done.stdout) == {"from": older, "to": migrate.head(), "changed": True}
    announced = f"upgrading from {older} to {migrate.head()}; an interrupted upgrade changes nothing\n"
    assert (done.returncode, done.stderr) == (0, announced)


def test_status_counts_what_is_in_it(tmp_path: Path):
    trunkline("db", "upgrade", home=tmp_path)
    done = trunkline("db", "status", "--json", home=tmp_path)
    found = json.loads(done.stdout)
    assert found.pop("bytes") > 0
    assert found == {
        "path": f"{tmp_path}/data/trunkline.db",
        "state": "current",
        "newest": migrate.head(),
        "revision": migrate.head(),
        "sessions": 0,
        "messages": 0,
        "waiting": 0,
        "dead": 0,
    }


@pytest.mark.parametrize("command", ["upgrade", "status"])
def test_a_database_of_a_newer_version_is_not_touched(tmp_path: Path, command: str):
    trunkline("db", "upgrade", home=tmp_path)
    at_revision(tmp_path, "9001")
    done = trunkline("db", command, home=tmp_path)
    assert done.returncode == (2 if command == "upgrade" else 1)
    assert "made by a newer Trunkline" in done.stdout or "a newer Trunkline made it" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_database_in_use_is_not_upgraded_but_can_be_looked_at(tmp_path: Path):
    with gateway(tmp_path):
        refused = trunkline("db", "upgrade", home=tmp_path)
        assert (refused.returncode, refused.stdout) == (75, "")
        assert refused.stderr.startswith("another gateway already uses")
        assert json.loads(trunkline("db", "status", "--json", home=tmp_path).stdout)["state"] == "current"


def test_path_prints_where_it_is_and_no_password(tmp_path: Path):
    assert trunkline("db", "path", home=tmp_path).stdout == f"{tmp_path}/data/trunkline.db\n"
    server = "postgresql://me:hunter2@127.0.0.1:1/chat"
    done = trunkline("db", "path", "--json", home=tmp_path, TRUNKLINE_STORE__URL=server)
    assert json.loads(done.stdout) == {"path": "postgresql://me:***@127.0.0.1:1/chat"}


@pytest.mark.parametrize("command", ["upgrade", "status"])
def test_a_server_that_is_not_there_is_one_clear_line(tmp_path: Path, command: str):
    server = "postgresql://me:hunter2@127.0.0.1:1/chat"
    done = trunkline("db", command, home=tmp_path, TRUNKLINE_STORE__URL=server)
    assert (done.returncode, done.stdout) == (75, "")
    assert "127.0.0.1:1" in done.stderr
    assert "hunter2" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_of_0_bytes_is_said_to_be_damaged(tmp_path: Path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/trunkline.db").touch()
    status = trunkline("db", "status", "--json", home=tmp_path)
    assert (status.returncode, json.loads(status.stdout)["state"]) == (1, "damaged")
    check = trunkline("db", "check", home=tmp_path)
    assert check.returncode == 1
    assert "has 0 bytes" in check.stdout
    assert (tmp_path / "data/trunkline.db").stat().st_size == 0


def test_a_file_that_is_not_a_database_is_one_clear_line(tmp_path: Path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/trunkline.db").write_text("notes " * 1000)
    for command in ("upgrade", "status"):
        done = trunkline("db", command, home=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert "file is not a database" in done.stderr
        assert "restore a backup" in done.stderr
        assert "Traceback" not in done.stderr
    done = trunkline("sessions", "list", home=tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "cannot read the store: file is not a database; `trunkline db check` shows details\n"
    )


READING = [
    ("usage",),
    ("audit",),
    ("pair", "list"),
    ("approvals", "list"),
    ("channels", "rooms"),
    ("dead", "list"),
    ("dead", "causes"),
    ("sessions", "list"),
    ("plugin", "trace", "weather"),
    ("why", "1"),
]


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_no_command_that_reads_creates_a_database(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = trunkline(*words, home=tmp_path, TRUNKLINE_SERVER__PORT="1")
    where = tmp_path / "data/trunkline.db"
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"{where} does not exist yet; `trunkline run` creates it\n"
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_no_command_that_reads_migrates_a_database(tmp_path: Path, words: tuple[str, ...]) -> None:
    trunkline("db", "upgrade", home=tmp_path)
    older = migrate.revisions()[-2]
    at_revision(tmp_path, older)
    done = trunkline(*words, home=tmp_path, TRUNKLINE_SERVER__PORT="1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"the store has schema {older}, this version needs {migrate.head()}; run: trunkline db upgrade\n"
    )
    found = json.loads(trunkline("db", "status", "--json", home=tmp_path).stdout)
    assert found["revision"] == older


@pytest.mark.parametrize("revision", [migrate.revisions()[-2], "9001"])
def test_another_revision_is_not_reported_as_damage(tmp_path: Path, revision: str) -> None:
    trunkline("db", "upgrade", home=tmp_path)
    at_revision(tmp_path, revision)
    done = trunkline("db", "check", home=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/data/trunkline.db: no damage found\n")


@pytest.mark.parametrize("command", ["check", "status"])
def test_a_server_or_a_file_that_cannot_be_read_now_is_not_reported_as_damage(
    tmp_path: Path, command: str
) -> None:
    trunkline("db", "upgrade", home=tmp_path)
    with closing(sqlite3.connect(tmp_path / "data/trunkline.db", isolation_level=None)) as holder:
        holder.execute("PRAGMA locking_mode = EXCLUSIVE")
        holder.execute("BEGIN EXCLUSIVE")
        done = trunkline("db", command, home=tmp_path)
    assert (done.returncode, done.stdout) == (75, "")
    assert "database is locked" in done.stderr
    server = "postgresql://me:hunter2@127.0.0.1:1/chat"
    done = trunkline("db", command, home=tmp_path, TRUNKLINE_STORE__URL=server)
    assert (done.returncode, done.stdout) == (75, "")


def test_a_gateway_of_another_data_directory_is_not_asked(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    with gateway(one) as running:
        for words in (("usage",), ("pair", "list"), ("why", "1")):
            done = trunkline(*words, home=two, TRUNKLINE_SERVER__PORT=running.port)
            assert (done.returncode, done.stdout) == (2, "")
            said = (
                f"the gateway at {running.url} does not use {two}/data/trunkline.db, as these settings do; "
            )
            assert done.stderr.startswith(said)
        assert trunkline("usage", home=one, TRUNKLINE_SERVER__PORT=running.port).returncode == 0
