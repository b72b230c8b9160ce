"""``trunkline run``: what it says, and how it ends."""

from __future__ import annotations

import resource
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.gateway.cli.processes import COMMAND, PATIENCE, Terminal, environment, gateway, trunkline


def test_it_says_where_the_chat_is_who_answers_and_how_to_stop(tmp_path: Path) -> None:
    with gateway(tmp_path) as running:
        said = "".join(running.lines(4))
        assert running.stop() == 0
    assert f"open {running.url} in a browser" in said
    assert "OPENAI_API_KEY" in said
    assert str(tmp_path / "data") in said
    assert "Ctrl-C" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_in_good_order(tmp_path: Path, number: signal.Signals) -> None:
    with gateway(tmp_path) as running:
        assert running.stop(number) == 0


SPARE = """
from gateway import Plugin


class Spare(Plugin):
    name = "spare"

    async def activate(self, ctx):
        loaded = lambda: print("the spare is loaded", flush=True)
        ctx.providers.add_factory("spare", None, load=loaded)


plugin = Spare()
"""


def test_who_answers_in_others_place_is_loaded_once_it_is_ready(tmp_path: Path) -> None:
    (tmp_path / "spare.py").write_text(SPARE)
    config = tmp_path / "chain.toml"
    config.write_text('fallback = ["spare/x"]\nplugins.enabled = ["spare.py"]\nserver.port = 0\n')
    with gateway(tmp_path, "--config", str(config)) as running:
        assert "the spare is loaded" in running.lines(5)[-1]
        assert running.stop() == 0


def test_a_second_ctrl_c_ends_it_at_once(tmp_path: Path) -> None:
    with gateway(tmp_path) as running:
        asked = trunkline("send", "count slowly to 20", "--no-wait", "--url", running.url, home=tmp_path)
        assert asked.returncode == 0
        running.process.send_signal(signal.SIGINT)
        assert running.process.stderr is not None
        while "Ctrl-C again" not in running.process.stderr.readline():
            pass
        assert running.stop(signal.SIGINT) == 130


def test_a_busy_port_is_one_clear_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = trunkline("run", "--port", str(port), home=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert f"127.0.0.1:{port}" in done.stderr
    assert "choose another server.port" in done.stderr


def test_a_second_gateway_on_the_same_data_is_refused(tmp_path: Path) -> None:
    with gateway(tmp_path):
        done = trunkline("run", "--port", "0", home=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "another gateway already uses" in done.stderr


def test_a_wrong_setting_ends_it_with_2(tmp_path: Path) -> None:
    done = trunkline("run", home=tmp_path, TRUNKLINE_SERVER__PROT="1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_plugin_that_stops_it_chooses_the_exit_status(tmp_path: Path) -> None:
    (tmp_path / "stopper.py").write_text(
        "from gateway import Plugin\n\n\n"
        "class Stopper(Plugin):\n"
        "    name = 'stopper'\n\n"
        "    async def activate(self, ctx):\n"
        "        ctx.shutdown(7)\n\n\n"
        "plugin = Stopper()\n"
    )
    (tmp_path / "own.toml").write_text("[plugins]\nenabled = ['stopper']\n")
    done = trunkline("run", "--port", "0", "--config", "own.toml", home=tmp_path)
    assert done.returncode == 7, done.stderr


def test_a_store_that_fails_ends_it_with_70(tmp_path: Path) -> None:
    small = 1 << 20

    def little_room() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (small, small))

    process = subprocess.Popen(
        [*COMMAND, "run", "--port", "0"],
        cwd=tmp_path,
        env=environment(tmp_path),
        preexec_fn=little_room,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split("ready: ")[1].split()[0]
        for _ in range(10):
            if process.poll() is not None:
                break
            trunkline(
                "send", "-", "--no-wait", "--timeout", "1", "--url", url, home=tmp_path, stdin="x" * 500_000
            )
        assert process.wait(PATIENCE) == 70
    finally:
        process.kill()
        process.communicate()


def test_open_shows_the_page_in_the_browser(tmp_path: Path) -> None:
    shown = tmp_path / "shown"
    (tmp_path / "browser").write_text(f"#!/bin/sh\necho $1 > {shown}\n")
    (tmp_path / "browser").chmod(0o755)
    with gateway(tmp_path, "--port", "0", "--open", BROWSER=str(tmp_path / "browser")) as running:
        running.lines(4)
        assert running.stop() == 0
    assert shown.read_text().strip() == running.url


def test_ctrl_c_at_a_terminal_stops_it(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "run", "--port", "0")
    try:
        terminal.expect("stop   Ctrl-C")
        terminal.type("\x03")
        terminal.expect("Stopping")
        assert terminal.wait() == 0
    finally:
        terminal.close()
