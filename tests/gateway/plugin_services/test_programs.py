"""Programs of confined plugins: they have the workspace, and nothing else of the machine."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.contract.errors import ToolError
from gateway.extensions.process.launcher import Launcher
from gateway.plugin_services.programs import ProgramRunner

pytestmark = pytest.mark.slow


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[ProgramRunner]:
    launcher = Launcher()
    if missing := launcher.missing_layers():
        pytest.skip("; ".join(missing))
    (tmp_path / "workspace").mkdir()
    (tmp_path / "secret").write_text("outside")
    yield ProgramRunner(launcher, tmp_path / "workspace")
    await launcher.close()


async def test_a_program_gets_its_input_and_writes_into_the_workspace(
    run: ProgramRunner, tmp_path: Path
) -> None:
    code, out, err = await run(
        ["/bin/sh", "-c", "tee copy; echo warning >&2; exit 3"], b"text", 20, confined=True
    )
    assert (code, out, err) == (3, b"text", b"warning\n")
    assert (tmp_path / "workspace/copy").read_text() == "text"


async def test_a_program_sees_no_other_files_variables_or_network(run: ProgramRunner, tmp_path: Path) -> None:
    script = (
        f"cat {tmp_path}/secret; ls {tmp_path}; env; cat /proc/net/dev | wc -l; id > /dev/tcp/127.0.0.1/1"
    )
    _, out, _ = await run(["/bin/bash", "-c", script], b"", 20, confined=True)
    assert b"\n3\n" in out  # two lines of heads, and the loopback device
    assert b"outside" not in out
    assert b"secret" not in out
    names = {line.partition(b"=")[0] for line in out.splitlines() if b"=" in line}
    assert names <= {b"PATH", b"LANG", b"HOME", b"PWD", b"SHLVL", b"_", b"OLDPWD"}


async def test_a_program_that_takes_too_long_or_writes_too_much_is_ended(run: ProgramRunner) -> None:
    with pytest.raises(ToolError, match="stopped after"):
        await run(["/bin/sleep", "60"], b"", 0.5, confined=True)
    with pytest.raises(ToolError, match="wrote more than"):
        await run(["/bin/cat", "/dev/zero"], b"", 20, confined=True)


ENGINE = """#!/bin/sh
cd "$(dirname "$0")"
case $1 in
run) echo "$2" > running; shift 2; exec "$@" ;;
rm) [ "$2 --name=$3" = "--force $(cat running)" ] && rm running ;;
esac
"""


@pytest.mark.parametrize(
    ("command", "seconds", "problem"),
    [(["sleep", "60"], 0.5, "stopped after"), (["cat", "/dev/zero"], 60, "wrote more than")],
)
async def test_a_container_ends_with_the_program_that_started_it(
    run: ProgramRunner, tmp_path: Path, command: list[str], seconds: float, problem: str
) -> None:
    engine = tmp_path / "engine"
    engine.write_text(ENGINE)
    engine.chmod(0o755)
    with pytest.raises(ToolError, match=problem):
        await run([str(engine), "run", *command], b"", seconds, confined=False)
    assert not (tmp_path / "running").exists()
    gc.collect()  # a pipe that was left open would be a ResourceWarning
    out = await run([str(engine), "run", "sh", "-c", "cat; echo no >&2; exit 3"], b"text", 60, confined=False)
    assert out == (3, b"text", b"no\n")
