"""Forked commands end as started ones do, and none of them disturbs another."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import prefork
from tests.gateway.cli.processes import COMMAND, PATIENCE, environment, started, trunkline

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("command", [("version",), ("docter",), ("config", "check", "--config", "none.toml")])
def test_a_forked_command_prints_and_ends_as_a_started_one(tmp_path: Path, command: tuple[str, ...]) -> None:
    forked = trunkline(*command, home=tmp_path)
    real = subprocess.run(
        [*COMMAND, *command],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (forked.returncode, forked.stdout) == (real.returncode, real.stdout)
    assert forked.stderr == real.stderr


@pytest.mark.parametrize("kind", [prefork.Popen, subprocess.Popen])
def test_a_forked_script_prints_and_ends_as_a_started_one(
    tmp_path: Path, kind: type[prefork.Popen] | type[subprocess.Popen[str]]
) -> None:
    folder, script = tmp_path / "scripts", tmp_path / "scripts" / "script.py"
    folder.mkdir()
    (folder / "beside.py").write_text("WORD = 'found'\n")
    script.write_text("import sys, beside\nprint(__name__, beside.WORD, *sys.argv)\nsys.exit(3)\n")
    process = kind([sys.executable, script, "a", "b"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.communicate(timeout=PATIENCE)[0] == f"__main__ found {script} a b\n"
    assert process.returncode == 3


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_as_it_ends_a_started_one(tmp_path: Path, number: signal.Signals) -> None:
    with started("run", "--port", "0", home=tmp_path) as process:
        assert process.stdout is not None
        assert "ready" in process.stdout.readline()
        process.send_signal(number)
        assert process.wait(PATIENCE) == (-number if number == signal.SIGKILL else 0)


def test_one_that_nothing_waits_for_does_not_disturb_the_next(tmp_path: Path) -> None:
    process = started("version", home=tmp_path)
    process._forked.answers.close()  # as garbage collection does, before it lets subprocess poll the process
    assert process.poll() == -signal.SIGKILL
    process.communicate(timeout=PATIENCE)
    assert trunkline("version", home=tmp_path).returncode == 0
