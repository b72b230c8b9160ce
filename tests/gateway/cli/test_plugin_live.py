"""``trunkline plugin`` beside a running gateway: both are programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.cli.processes import RunningGateway, gateway, trunkline

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="confinement needs Linux"),
]

MANIFEST = "api: 1\nname: greeter\nversion: {version}\ncommands: [greet]\n"
CODE = """\
import sys
from trunkline_plugin import plugin


@plugin
async def greeter(ctx):
    print("begun", {version!r}, file=sys.stderr, flush=True)

    async def greet(args, call):
        return "{version} greets"

    return {{"commands": [{{"name": "greet", "description": "Greet", "execute": greet}}]}}
"""
SETTINGS = """\
# Mine
model = "demo/demo"
[plugins.greeter]
activate_timeout_ms = "60s"
"""


def write(home: Path, version: str, code: str = CODE) -> None:
    place = home / "greeter"
    place.mkdir(exist_ok=True)
    (place / "plugin.yml").write_text(MANIFEST.format(version=version))
    (place / "main.py").write_text(code.format(version=version))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "config").mkdir()
    (tmp_path / "config/trunkline.toml").write_text(SETTINGS)
    write(tmp_path, "1.0")
    return tmp_path


@pytest.fixture
def live(home: Path) -> Iterator[RunningGateway]:
    with gateway(home) as process:
        yield process


def run(home: Path, live: RunningGateway, *args: str, status: int = 0) -> str:
    """Run ``trunkline plugin``; returns what it prints."""
    done = trunkline("plugin", *args, home=home, TRUNKLINE_SERVER__PORT=live.port)
    assert done.returncode == status, (done.stdout, done.stderr)
    return done.stdout + done.stderr


def greeting(home: Path, live: RunningGateway) -> str:
    done = trunkline("send", "/greet", home=home, TRUNKLINE_SERVER__PORT=live.port)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_001_35_plugins_of_a_running_gateway_change_at_once(home: Path, live: RunningGateway) -> None:
    run(home, live, "install", "./greeter", "--yes")
    assert "greeter is enabled; the running gateway has started it" in run(home, live, "enable", "greeter")
    assert greeting(home, live) == "1.0 greets"
    assert "it runs" in run(home, live, "enable", "greeter")
    write(home, "2.0")
    assert "2.0 updated; the running gateway has replaced it" in run(home, live, "update", "greeter", "--yes")
    assert greeting(home, live) == "2.0 greets"
    write(home, "3.0", "raise ValueError('no luck with {version}')\n")
    said = run(home, live, "update", "greeter", "--yes", status=1)
    assert "no luck with 3.0" in said
    assert "greeter 2.0 stays" in said
    assert greeting(home, live) == "2.0 greets"
    about = json.loads(run(home, live, "info", "greeter", "--json"))
    assert (about["version"], about["state"]) == ("2.0", "ok")
    assert "the running gateway has stopped it" in run(home, live, "disable", "greeter")
    assert "greets" not in greeting(home, live)
    assert "greeter is removed" in run(home, live, "uninstall", "greeter")
    actions = [row["action"] for row in json.loads(run(home, live, "trace", "greeter", "--json"))]
    decided = [each for each in actions if each.startswith("plugin.") and each != "plugin.reload"]
    assert decided == ["plugin.install", *["plugin.update"] * 3, "plugin.uninstall"]


def test_a_plugin_that_does_not_start_is_not_enabled(home: Path, live: RunningGateway) -> None:
    write(home, "1.0", "raise ValueError('no luck')\n")
    run(home, live, "approve", "./greeter", "--yes")
    said = run(home, live, "enable", "./greeter", status=1)
    assert "no luck" in said
    assert len(said.strip().splitlines()) == 1
    assert (home / "config/trunkline.toml").read_text() == SETTINGS


def test_a_gateway_with_other_settings_is_left_alone(home: Path, live: RunningGateway) -> None:
    other = home / "other.toml"
    other.write_text(SETTINGS)
    run(home, live, "approve", "./greeter", "--yes", "--config", str(other))
    said = run(home, live, "enable", "./greeter", "--config", str(other))
    assert "it takes effect at the next start; the gateway at http://127.0.0.1:" in said
    assert "has other settings" in said
    assert "greets" not in greeting(home, live)


def test_a_wrong_token_changes_nothing(home: Path, live: RunningGateway) -> None:
    assert live.stop() == 0
    with gateway(home, TRUNKLINE_SERVER__TOKEN="t" * 32) as guarded:
        run(home, guarded, "approve", "./greeter", "--yes", status=1)
        said = run(home, guarded, "enable", "./greeter", status=1)
        assert "token" in said
        assert (home / "config/trunkline.toml").read_text() == SETTINGS
