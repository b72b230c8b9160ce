"""Commands of a user who may not read the files of the gateway."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli import app
from gateway.cli.store_reader import reader
from gateway.extensions.admission.secrets import PluginSecrets
from gateway.mcp.plugin import login_file
from gateway.mcp.remote import Login, LoginFile
from gateway.settings import Settings
from gateway.store.engine import open_engine
from gateway.store.migrate import upgrade
from tests.gateway.cli.processes import environment, trunkline

REMEDY = "run the command as the user of the gateway, for example with sudo"
OTHER = 65534

Run = Callable[..., Result]


@pytest.fixture
def closed() -> Iterator[Path]:
    """A data directory that only its owner may enter, in a home that everyone may."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    home = Path(tempfile.mkdtemp(dir="/tmp"))
    home.chmod(0o755)
    (home / "data").mkdir(0o700)
    (home / "own.toml").write_text("[server]\nport = 0\n")
    yield home / "data"
    shutil.rmtree(home)


@pytest.fixture
def as_another_user(closed: Path) -> Run:
    """Run a command twice: the first time, maybe as ``first``, imports it; then it is another user's."""

    def run(*words: str, first: Sequence[str] = ()) -> Result:
        runner = CliRunner(env={"TRUNKLINE_DATA_DIR": str(closed), "HOME": str(closed.parent)})
        line = [*words, "--config", str(closed.parent / "own.toml")]
        runner.invoke(app, [*(first or words), *line[len(words) :]])
        os.seteuid(OTHER)
        try:
            return runner.invoke(app, line)
        finally:
            os.seteuid(0)

    return run


@pytest.mark.parametrize("words", [("sessions", "list"), ("logs",), ("db", "check"), ("agents", "list")])
def test_files_that_may_not_be_read_are_one_line_with_the_remedy(
    as_another_user: Run, closed: Path, words: tuple[str, ...]
) -> None:
    done = as_another_user(*words)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith(f"cannot access {closed}/")
    assert done.stderr.endswith(f": Permission denied; {REMEDY}\n")


def test_a_backup_of_files_that_may_not_be_read_does_not_blame_the_archive(as_another_user: Run) -> None:
    done = as_another_user("backup")
    assert done.exit_code == 1
    assert done.stderr.startswith("cannot access ")
    assert done.stderr.endswith(f": Permission denied; {REMEDY}\n")


def test_a_backup_does_not_leave_out_files_that_it_may_not_list(as_another_user: Run, closed: Path) -> None:
    beside = closed.parent / "db"
    (closed.parent / "own.toml").write_text(f'[store]\nurl = "sqlite:///{beside}/t.db"\n')
    engine = open_engine(f"sqlite:///{beside}/t.db")
    upgrade(engine)
    engine.dispose()
    (beside / "t.db").chmod(0o666)
    beside.chmod(0o777)
    closed.chmod(0o711)
    done = as_another_user("backup", str(beside / "t.tar.gz"), first=("backup", str(beside / "root.tar.gz")))
    assert (done.exit_code, done.stderr) == (1, f"cannot access {closed}: Permission denied; {REMEDY}\n")


def test_a_database_beside_which_nothing_may_be_written_is_not_called_damaged(closed: Path) -> None:
    engine = open_engine(f"sqlite:///{closed}/trunkline.db")
    upgrade(engine)
    engine.dispose()
    for path in (closed, *closed.iterdir()):
        path.chmod(0o755)
    read = reader(Settings(data_dir=closed))
    os.seteuid(OTHER)
    try:
        with pytest.raises(PermissionError) as refused:
            read.connect()
    finally:
        os.seteuid(0)
        read.dispose()
    assert refused.value.filename == str(closed)


def test_the_doctor_says_so_and_looks_at_the_machine(as_another_user: Run, closed: Path) -> None:
    done = as_another_user("doctor", "--json")
    found = {finding["name"]: finding for finding in json.loads(done.stdout)}
    assert done.exit_code == 1
    assert found["access"] == {
        "name": "access",
        "status": "fail",
        "detail": f"cannot access {closed}/trunkline.db: Permission denied",
        "advice": REMEDY,
    }
    assert found["clock"]["status"] == "ok"


def test_what_root_writes_for_a_service_belongs_to_its_user(closed: Path, tmp_path: Path) -> None:
    file, archive = closed.parent / "own.toml", str(tmp_path / "b.tar.gz")
    file.write_text("[channels.telegram]\nenabled = false\n")
    (closed / "saved_agents").mkdir()
    (closed / "saved_agents/poet.md").write_text("---\ndescription: Writes verse\n---\nYou write verse.\n")

    def run(*words: str) -> None:
        options = {"home": closed.parent, "stdin": "sk-123456789", "TRUNKLINE_DATA_DIR": str(closed)}
        done = trunkline(*words, "--config", str(file), **options)
        assert done.returncode == 0, done.stderr

    run("db", "upgrade")
    for path in (file, closed, *closed.rglob("*")):
        path.chmod(0o700)
        os.chown(path, OTHER, OTHER)
    run("backup", archive)
    shutil.rmtree(closed / "saved_agents")
    (closed / "trunkline.db.lock").unlink()
    run("restore", archive, "--force")
    run("auth", "login", "openai", "--key-stdin", "--no-check")
    run("config", "set", "timezone", "UTC")
    tokens = ("--set", "bot_token=xoxb-1", "--set", "app_token=xapp-1")
    run("setup", "--channel", "slack", *tokens, "--no-check")
    PluginSecrets(closed).put("weather", "API_TOKEN", "hunter22")
    folder = tmp_path / "quiet"
    folder.mkdir()
    (folder / "plugin.yml").write_text("api: 1\nname: quiet\nversion: 1.0.0\n")
    (folder / "main.py").write_text("")
    run("plugin", "install", str(folder), "--yes")
    LoginFile(login_file(closed, "far")).save(Login("token"))
    found = {path.name: path.stat().st_uid for path in (file, *closed.rglob("*"))}
    assert {
        "trunkline.db",
        "keys.json",
        "own.toml",
        "poet.md",
        "secret-slack-bot_token",
        "main.py",
    } <= found.keys()
    assert set(found.values()) == {OTHER}, found


LOGGING = """
import structlog
from gateway.cli import app
app(["db", "path"], standalone_mode=False)
structlog.get_logger().warning("a line of the log")
"""


def test_lines_of_the_log_are_not_in_the_output(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOGGING],
        env=environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{tmp_path}/data/trunkline.db\n"
    assert "a line of the log" in done.stderr
