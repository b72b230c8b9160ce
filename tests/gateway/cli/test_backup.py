"""``trunkline backup``, ``restore`` and ``db check``, run as programs, on each kind of database."""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
import tarfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli import app
from gateway.cli.database_copy import staging
from tests.gateway.cli.processes import gateway, trunkline


def environ(database_url: str) -> dict[str, str]:
    return {"TRUNKLINE_STORE__URL": database_url, "TRUNKLINE_STORE__WAIT_MS": "0"}


def said(home: Path, url: str, **more: str) -> list[str]:
    """The texts of the session "s"."""
    done = trunkline("sessions", "export", "s", "--format", "json", home=home, **environ(url), **more)
    assert done.returncode == 0, done.stderr
    return [part["content"] for m in json.loads(done.stdout)["messages"] for part in m["parts"]]


def test_a_backup_of_a_running_gateway_is_restored_where_nothing_is(
    tmp_path: Path, database_url: str
) -> None:
    with gateway(tmp_path, **environ(database_url)) as running:
        ask(running.url, tmp_path, "first")
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data/slack.json").write_text('{"secret": "k"}')
        done = trunkline("backup", "b.tar.gz", "--json", home=tmp_path, **environ(database_url))
        assert done.returncode == 0, done.stderr
        ask(running.url, tmp_path, "second")
        refused = trunkline("restore", "b.tar.gz", "--force", home=tmp_path, **environ(database_url))
        assert refused.returncode == 75
        assert "another gateway already uses" in refused.stderr
        assert running.stop() == 0
    assert (tmp_path / "b.tar.gz").stat().st_mode & 0o777 == 0o600
    assert json.loads(done.stdout)["contents"][1:] == ["data/slack.json"]
    assert said(tmp_path, database_url)[0::2] == ["first", "second"]

    refused = trunkline("restore", "b.tar.gz", home=tmp_path, **environ(database_url))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "use --force" in refused.stderr
    (tmp_path / "data/slack.json").write_text("spoilt")
    forced = trunkline("restore", "b.tar.gz", "--force", home=tmp_path, **environ(database_url))
    assert forced.returncode == 0, forced.stderr
    assert said(tmp_path, database_url)[0::2] == ["first"]
    keys = tmp_path / "data/slack.json"
    assert (keys.read_text(), keys.stat().st_mode & 0o777) == ('{"secret": "k"}', 0o600)
    checked = trunkline("db", "check", home=tmp_path, **environ(database_url))
    assert (checked.returncode, checked.stdout.split(": ")[-1]) == (0, "no damage found\n")
    with gateway(tmp_path, **environ(database_url)) as running:
        ask(running.url, tmp_path, "third")
    assert said(tmp_path, database_url)[0::2] == ["first", "third"]


def ask(url: str, home: Path, text: str) -> None:
    done = trunkline("send", text, "--session", "s", "--url", url, home=home)
    assert done.returncode == 0, done.stderr


def backed_up(home: Path) -> Path:
    """A backup of a new SQLite database."""
    left = home / ".trunkline-backup-killed"
    left.mkdir()
    (left / "trunkline.db").write_text("what a killed backup left")
    assert trunkline("db", "upgrade", home=home).returncode == 0
    assert trunkline("backup", "b.tar.gz", home=home).returncode == 0
    assert list(home.glob(".trunkline-*")) == []
    return home / "b.tar.gz"


def test_the_former_file_is_kept_beside_the_restored_one(tmp_path: Path) -> None:
    backed_up(tmp_path)
    file = tmp_path / "data/trunkline.db"
    file.write_bytes(b"spoilt" * 1_000)
    (tmp_path / "data/restore.unfinished").touch()
    own = {"TRUNKLINE_DATA_DIR": str(tmp_path / "data"), "HOME": str(tmp_path)}
    refused = CliRunner(env=own).invoke(app, ["run", "--port", "0"])
    assert (refused.exit_code, "a restore was interrupted" in refused.stderr) == (2, True)
    packed = (tmp_path / "b.tar.gz").read_bytes()
    damaged = tmp_path / "damaged.tar.gz"
    damaged.write_bytes(packed[:-8] + bytes(each ^ 1 for each in packed[-8:]))
    refused = CliRunner(env=own).invoke(app, ["restore", str(damaged), "--force"])
    assert (refused.exit_code, "it is damaged, or not an archive" in refused.stderr) == (1, True)
    assert file.read_bytes() == b"spoilt" * 1_000
    assert trunkline("restore", "b.tar.gz", home=tmp_path).returncode == 2
    done = trunkline("restore", "b.tar.gz", "--force", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"the previous database is {file}.before-restore" in done.stdout
    assert Path(f"{file}.before-restore").read_bytes() == b"spoilt" * 1_000
    assert trunkline("db", "check", home=tmp_path).returncode == 0
    assert not (tmp_path / "data/restore.unfinished").exists()


def test_the_folder_of_a_running_backup_is_not_removed(tmp_path: Path) -> None:
    with staging(".b-", tmp_path) as first, staging(".b-", tmp_path):
        assert first.is_dir()
    assert not list(tmp_path.iterdir())


def test_saved_agents_are_restored(tmp_path: Path) -> None:
    folder = tmp_path / "data/saved_agents"
    folder.mkdir(parents=True)
    (folder / "poet.md").write_text("---\ndescription: Writes verse\ntools: []\n---\nYou write verse.\n")
    (folder / ".poet.1.tmp").write_text("unfinished")
    backed_up(tmp_path)
    refused = trunkline("restore", "b.tar.gz", home=tmp_path)
    assert (refused.returncode, "saved_agents/poet.md" in refused.stderr) == (2, True)
    shutil.rmtree(tmp_path / "data")
    done = trunkline("restore", "b.tar.gz", "--json", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["contents"] == ["trunkline.db", "data/saved_agents/poet.md"]
    listed = trunkline("agents", "list", "--json", home=tmp_path)
    assert "Writes verse" in listed.stdout, listed.stderr


def test_secrets_of_plugins_and_approvals_of_mcp_servers_are_restored(tmp_path: Path) -> None:
    kept = ("mcp/search.login", "mcp/time.json", "plugin_secrets/weather.json")
    for name in (*kept, "mcp/time.part", "workspaces/x.json"):
        file = tmp_path / "data" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    backed_up(tmp_path)
    shutil.rmtree(tmp_path / "data")
    done = trunkline("restore", "b.tar.gz", "--json", home=tmp_path)
    assert done.returncode == 0, done.stderr
    contents = json.loads(done.stdout)["contents"]
    assert sorted(contents[1:]) == [f"data/{name}" for name in kept]
    for name in kept:
        file = tmp_path / "data" / name
        assert (file.read_text(), file.stat().st_mode & 0o777) == (name, 0o600)
        assert file.parent.stat().st_mode & 0o777 == 0o700


def test_a_directory_that_does_not_exist_is_one_clear_line(tmp_path: Path) -> None:
    backed_up(tmp_path)
    done = trunkline("backup", "nowhere/b.tar.gz", home=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "cannot write nowhere/b.tar.gz: No such file or directory\n"


def test_an_empty_file_is_replaced_without_force(tmp_path: Path) -> None:
    backed_up(tmp_path)
    (tmp_path / "data/trunkline.db").write_bytes(b"")
    assert trunkline("restore", "b.tar.gz", home=tmp_path).returncode == 0
    assert trunkline("db", "check", home=tmp_path).returncode == 0


def test_a_backup_overwrites_nothing(tmp_path: Path) -> None:
    file = backed_up(tmp_path)
    before = file.read_bytes()
    done = trunkline("backup", "b.tar.gz", home=tmp_path)
    assert (done.returncode, file.read_bytes()) == (1, before)
    assert "b.tar.gz exists" in done.stderr


@pytest.mark.parametrize("command", [("backup",), ("db", "check")])
def test_there_has_to_be_a_database(tmp_path: Path, command: tuple[str, ...]) -> None:
    done = trunkline(*command, home=tmp_path)
    assert done.returncode == 2
    assert "does not exist yet" in done.stderr
    assert list(tmp_path.glob("*.gz*")) == []


def packed(path: Path, **members: bytes) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


MANIFEST = {"format": 1, "version": "9", "store": "sqlite", "revision": "0001", "created": "2026-01-01"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"revision": "9001"}, "use Trunkline 9, which wrote it"),
        ({"store": "postgresql"}, "the backup contains postgresql, but store.url names sqlite"),
        ({"format": 2}, "not an archive of `trunkline backup`"),
        ({}, "trunkline.db is not a sound database"),
    ],
)
def test_an_archive_that_does_not_fit_changes_nothing(
    tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    packed(
        tmp_path / "b.tar.gz",
        **{"trunkline.json": json.dumps(MANIFEST | change).encode(), "trunkline.db": b"x" * 10_000},
    )
    done = trunkline("restore", "b.tar.gz", home=tmp_path)
    assert done.returncode == 2
    assert reason in done.stderr
    assert [path.name for path in (tmp_path / "data").glob("*") if not path.name.endswith(".lock")] == []


def test_an_archive_writes_nowhere_but_in_the_data_directory(tmp_path: Path) -> None:
    backed_up(tmp_path)
    with tarfile.open(tmp_path / "b.tar.gz") as archive:
        database = archive.extractfile("trunkline.db").read()
        manifest = archive.extractfile("trunkline.json").read()
    packed(
        tmp_path / "c.tar.gz",
        **{
            "trunkline.json": manifest,
            "trunkline.db": database,
            "data/../../evil": b"1",
            "/evil": b"2",
            "data/a/b": b"3",
            "data/good": b"4",
            "data/saved_agents/a/b": b"5",
            "data/saved_agents/../../evil": b"6",
            "data/saved_agents/b": b"7",
        },
    )
    done = trunkline("restore", "c.tar.gz", "--force", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in tmp_path.rglob("*") if p.name in ("evil", "b", "good")) == ["good"]
    assert not (tmp_path.parent / "evil").exists()


def test_a_database_that_is_damaged_is_named_as_in_the_settings(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    file = tmp_path / "data/trunkline.db"
    file.write_text("notes" * 1000)
    done = trunkline("backup", "b.tar.gz", home=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    advice = "restore a backup: docs/backup.md"
    assert done.stderr == f"cannot open sqlite:///{file}: file is not a database; {advice}\n"


@pytest.mark.parametrize("words", [("backup",), ("sessions", "export", "s1")], ids=" ".join)
def test_a_directory_is_not_taken_for_a_file_to_remove(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = trunkline(*words, str(tmp_path), home=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"{tmp_path} is a directory; name a file in it\n"


def test_what_is_not_a_backup_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "b.tar.gz").write_text("notes")
    done = trunkline("restore", "b.tar.gz", home=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("cannot restore b.tar.gz: ")
    assert len(done.stderr.splitlines()) == 1


def test_without_the_programs_of_postgresql_the_command_is_named(tmp_path: Path, postgres_url: str) -> None:
    variables = environ(postgres_url)
    trunkline("db", "upgrade", home=tmp_path, **variables)
    done = trunkline("backup", home=tmp_path, **variables, PATH=str(tmp_path))
    assert done.returncode == 2
    assert "pg_dump is not installed" in done.stderr
    assert "pg_dump --dbname=postgresql://" in done.stderr


def test_a_spoilt_page_is_found(tmp_path: Path) -> None:
    trunkline("db", "upgrade", home=tmp_path)
    file = tmp_path / "data/trunkline.db"
    content = bytearray(file.read_bytes())
    content[4096:8192] = b"\xff" * 4096
    file.write_bytes(content)
    done = trunkline("db", "check", home=tmp_path)
    assert done.returncode == 1
    assert "damage" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_row_without_its_parent_is_found(tmp_path: Path) -> None:
    trunkline("db", "upgrade", home=tmp_path)
    connection = sqlite3.connect(tmp_path / "data/trunkline.db")
    connection.execute("INSERT INTO parts VALUES ('p', 'nowhere', 'text', '{}', 0, 1)")
    connection.commit()
    connection.close()
    done = trunkline("db", "check", "--json", home=tmp_path)
    assert done.returncode == 1
    (problem,) = json.loads(done.stdout)["problems"]
    assert "parts refers to a row of messages" in problem
