"""``trunkline plugin new | test | dev | logs``, run as programs, with plugins in confined processes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.cli.processes import PATIENCE, gateway, started, trunkline

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="confinement needs Linux"),
]

MANIFEST = """\
api: 1
name: greeter
version: {version}
events: [session.idle]
commands: [greet]
capabilities: {{network: {{enabled: true, allowlist: [example.org]}}}}
"""
CODE = """\
import sys
from trunkline_plugin import CapabilityDenied, plugin


@plugin
async def greeter(ctx):
    async def greet(args, call):
        print("greeting", args, file=sys.stderr, flush=True)
        try:
            await ctx.http.get("https://example.com/")
        except CapabilityDenied as denied:
            return "{version} greets"

    async def idle(event):
        pass

    return {{
        "on": {{"session.idle": idle}},
        "commands": [{{"name": "greet", "description": "Greet", "execute": greet}}],
    }}
"""


def write(home: Path, version: str, code: str = CODE) -> None:
    place = home / "greeter"
    place.mkdir(exist_ok=True)
    (place / "plugin.yml").write_text(MANIFEST.format(version=version))
    (place / "main.py").write_text(code.format(version=version))


def test_the_test_of_a_new_plugin_passes_and_fails_for_a_defect(tmp_path: Path) -> None:
    created = trunkline("plugin", "new", "@example/audit-log", home=tmp_path)
    assert created.returncode == 0, created.stderr
    done = trunkline("plugin", "test", "./audit-log", home=tmp_path)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "1 passed" in done.stdout
    assert {each.name for each in (tmp_path / "audit-log").iterdir()} == {
        "README.md",
        "main.py",
        "plugin.yml",
        "test_plugin.py",
    }
    main = tmp_path / "audit-log/main.py"
    main.write_text(main.read_text().replace("turns have ended", "turns are over"))
    done = trunkline("plugin", "test", "./audit-log", "--json", home=tmp_path)
    report = json.loads(done.stdout)
    assert (done.returncode, report["passed"], report["name"]) == (1, False, "@example/audit-log")
    assert "turns are over" in report["output"]


def test_dev_reloads_at_each_save_and_prints_events_and_denials(tmp_path: Path) -> None:
    write(tmp_path, "1.0")
    with started("plugin", "dev", "./greeter", "--yes", "--json", home=tmp_path) as process:
        try:
            lines = told(process)
            url = re.search(r"http://\S+", until(lines, "ready", "")["text"])[0]
            say(tmp_path, url, "/greet Ada", "1.0 greets")
            assert until(lines, "stderr", "greeting Ada")
            denied = until(lines, "action", "DENIED")
            assert "example.com" in denied["about"]["value"]
            write(tmp_path, "2.0", "raise ValueError('no luck with {version}')\n")
            assert until(lines, "failed", "no luck with 2.0")
            say(tmp_path, url, "/greet Ada", "1.0 greets")
            write(tmp_path, "3.0")
            assert until(lines, "changed", "greeter 3.0 replaced")
            say(tmp_path, url, "/greet Ada", "3.0 greets")
            say(tmp_path, url, "hello", "")
            assert until(lines, "event", "session.idle")
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
    assert not (tmp_path / "config").exists()
    assert not list(tmp_path.rglob("*.db"))


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_dev_ends_silently_when_its_reader_does(tmp_path: Path, unbuffered: str) -> None:
    write(tmp_path, "1.0")
    env = {"PYTHONUNBUFFERED": unbuffered} if unbuffered else {}
    with started("plugin", "dev", "./greeter", "--yes", "--json", home=tmp_path, **env) as process:
        try:
            assert until(told(process), "ready", "")
            assert process.stdout is not None
            process.stdout.close()
            write(tmp_path, "2.0")
            assert process.wait(PATIENCE) == 1
            assert process.stderr is not None
            assert "Traceback" not in process.stderr.read()
        finally:
            process.kill()


def told(process: subprocess.Popen[str]) -> Iterator[dict[str, object]]:
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)


def until(lines: Iterator[dict[str, object]], kind: str, text: str) -> dict[str, object]:
    return next(line for line in lines if line["kind"] == kind and text in str(line["text"]))


def say(home: Path, url: str, text: str, answer: str) -> None:
    done = trunkline("send", "--url", url, text, home=home)
    assert done.returncode == 0, done.stderr
    assert answer in done.stdout


def test_logs_and_info_show_what_the_running_gateway_knows(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config/trunkline.toml").write_text(
        'model = "demo/demo"\n[plugins]\nenabled = ["./greeter"]\n'
        '[plugins.greeter]\nactivate_timeout_ms = "60s"\n'
    )
    place = tmp_path / "config"
    write(place, "1.0")
    trunkline("plugin", "approve", "config/greeter", "--yes", home=tmp_path)
    refused = trunkline("plugin", "logs", "greeter", home=tmp_path)
    assert (refused.returncode, "no gateway runs" in refused.stderr) == (1, True)
    with gateway(tmp_path) as live:
        port = {"TRUNKLINE_SERVER__PORT": live.port}
        say(tmp_path, live.url, "/greet Ada", "1.0 greets")
        shown = trunkline("plugin", "logs", "greeter", home=tmp_path, **port)
        assert (shown.returncode, shown.stdout) == (0, "greeting Ada\n")
        about = json.loads(
            trunkline("plugin", "info", "config/greeter", "--json", home=tmp_path, **port).stdout
        )
        assert about["running"] == "1.0, running"
        assert (about["deaths"], about["cost"]) == ("0", "$0.0000")
        assert re.fullmatch(
            r"command greet: p50 [\d.]+ ms, p99 [\d.]+ ms of 1 calls", next(iter(about["times"]))
        )
        with started("plugin", "logs", "greeter", "--follow", home=tmp_path, **port) as following:
            try:
                assert following.stdout is not None
                assert following.stdout.readline() == "greeting Ada\n"
                say(tmp_path, live.url, "/greet Eve", "1.0 greets")
                assert following.stdout.readline() == "greeting Eve\n"
                following.send_signal(signal.SIGINT)
                assert following.wait(PATIENCE) == 0
            finally:
                following.kill()
