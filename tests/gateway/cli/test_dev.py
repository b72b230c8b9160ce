"""``trunkline dev fake``, run as a program: a platform to try a channel against."""

from __future__ import annotations

import itertools
import signal
import socket
import tomllib
import urllib.request
from pathlib import Path

import pytest

from tests.gateway.cli.processes import PATIENCE, started, trunkline


@pytest.mark.parametrize("platform", ["telegram", "discord", "slack"])
def test_a_fake_runs_with_a_page_to_write_on(tmp_path: Path, platform: str) -> None:
    process = started("dev", "fake", platform, "--port", "0", home=tmp_path)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with urllib.request.urlopen(f"{url}/", timeout=PATIENCE) as page:
            assert "<html" in page.read().decode()
        told = iter(process.stdout.readline, "")
        table = "".join(
            itertools.takewhile(str.strip, itertools.dropwhile(lambda line: line[0] != "[", told))
        )
        config = tmp_path / "config.toml"
        config.write_text(table, encoding="utf-8")
        checked = trunkline("config", "check", "--config", str(config), home=tmp_path)
        assert (checked.returncode, checked.stderr) == (0, "")
        settings = tomllib.loads(table)["channels"][platform]
        assert settings["api_base_url"].startswith(url)
        assert settings["allow"] == "*"
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)


def test_its_options_are_reported(tmp_path: Path) -> None:
    done = trunkline("dev", "fake", "telegram", "--help", home=tmp_path)
    assert done.returncode == 0
    assert "--faults" in done.stdout
    assert done.stdout.startswith("usage: trunkline dev fake telegram ")


def test_a_port_that_is_in_use_is_reported_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = trunkline("dev", "fake", "telegram", "--port", port, home=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "address already in use" in done.stderr
    assert "--port" in done.stderr


def test_help_without_a_platform_names_the_platforms(tmp_path: Path) -> None:
    done = trunkline("dev", "fake", "--help", home=tmp_path)
    assert done.returncode == 0
    assert "Platforms: discord, slack, telegram" in done.stdout


def test_a_platform_that_has_none_is_reported_with_those_that_have(tmp_path: Path) -> None:
    done = trunkline("dev", "fake", "pigeon", home=tmp_path)
    assert done.returncode == 2
    assert "unknown fake platform 'pigeon'; choose from discord, slack, telegram" in done.stderr
