"""``trunkline dev fake``, run as a program: a platform to try a channel against."""

from __future__ import annotations

import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest

from tests.gateway.cli.processes import COMMAND, PATIENCE, environment, trunkline


@pytest.mark.parametrize("platform", ["telegram", "discord", "slack"])
def test_a_fake_runs_with_a_page_to_write_on(tmp_path: Path, platform: str) -> None:
    process = subprocess.Popen(
        [*COMMAND, "dev", "fake", platform, "--port", "0"],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with urllib.request.urlopen(f"{url}/", timeout=PATIENCE) as page:
            assert "<html" in page.read().decode()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)
        process.stdout.close()


def test_its_options_are_told(tmp_path: Path) -> None:
    done = trunkline("dev", "fake", "telegram", "--help", home=tmp_path)
    assert done.returncode == 0
    assert "--faults" in done.stdout


def test_a_platform_that_has_none_is_told_with_those_that_have(tmp_path: Path) -> None:
    done = trunkline("dev", "fake", "pigeon", home=tmp_path)
    assert done.returncode == 2
    assert "no fake 'pigeon'; there is discord, slack, telegram" in done.stderr
