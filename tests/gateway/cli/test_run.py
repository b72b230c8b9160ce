"""``trunkline run``: what it says, and how it ends."""

from __future__ import annotations

import contextlib
import json
import resource
import select
import signal
import socket
import socketserver
import sqlite3
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text

from tests.gateway.cli.processes import COMMAND, PATIENCE, Terminal, environment, gateway, trunkline


def test_it_says_where_the_chat_is_who_answers_and_how_to_stop(tmp_path: Path) -> None:
    with gateway(tmp_path) as running:
        said = "".join(running.lines(5))
        assert running.stop() == 0
    assert f"open {running.url} in a browser" in said
    assert "OPENAI_API_KEY" in said
    assert str(tmp_path / "data") in said
    assert "config no config/trunkline.toml; also variables TRUNKLINE_… (environment)" in said
    assert "Ctrl-C" in said


NOHUP = pytest.mark.skipif(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN, reason="nohup ignores it")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, pytest.param(signal.SIGHUP, marks=NOHUP)])
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
        assert "the spare is loaded" in running.lines(6)[-1]
        assert running.stop() == 0


UNUSED = {
    "gateway.extensions.process.launcher",
    "gateway.probes",
    "gateway.server.console.access",
    "gateway.server.console.agents",
    "gateway.server.console.rooms",
    "gateway.server.console.setting_values",
    "gateway.server.metrics",
    "gateway.server.openai.chat",
    "gateway.server.operator.routes",
    "gateway.server.plugins.states",
    "gateway.server.providers",
    "gateway.settings.layers.changing",
    "gateway.why",
    "sqlalchemy.dialects.postgresql",
    "webbrowser",
}
"""Modules that are loaded with the first request, command or failure that needs them."""

WITNESS = """
import sys

from gateway import Plugin


class Witness(Plugin):
    name = "witness"

    async def transform_user_input(self, text, ctx):
        self.before = set(sys.modules)

    async def deactivate(self):
        print(*sorted(set(sys.modules) - self.before), flush=True)
        print(*sys.modules, flush=True)


plugin = Witness()
"""


def test_a_gateway_holds_only_what_it_uses_and_the_first_turn_loads_nothing(tmp_path: Path) -> None:
    (tmp_path / "witness.py").write_text(WITNESS)
    config = tmp_path / "own.toml"
    config.write_text('plugins.enabled = ["witness.py"]\nserver.port = 0\n')
    # With a variable for Python it is not a fork of a process that holds more.
    with gateway(tmp_path, "--config", str(config), PYTHONUNBUFFERED="1") as running:
        running.lines(4)
        assert trunkline("send", "--url", running.url, "hello", home=tmp_path).returncode == 0
        assert running.stop() == 0
        assert running.process.stdout is not None
        loaded_later, held = running.process.stdout.read().splitlines()[-2:]
    packages = {name.partition(".")[0] for name in held.split()}
    unused = {"alembic", "discord", "genai_prices", "httpx", "pygments", "rich", "slack_sdk", "telegram"}
    unused |= {"cronsim", "jsonschema_rs", "mcp", "tomlkit", "watchfiles", "yaml"}
    # Its code is loaded beside the start, which may be as late as the first turn.
    assert set(loaded_later.split()) <= {"plugins.providers.demo"}
    assert packages & (unused | {"markdown_it"}) == set()
    assert UNUSED.isdisjoint(held.split())


def test_a_second_ctrl_c_ends_it_at_once(tmp_path: Path) -> None:
    with gateway(tmp_path) as running:
        asked = trunkline("send", "count slowly to 20", "--no-wait", "--url", running.url, home=tmp_path)
        assert asked.returncode == 0
        running.process.send_signal(signal.SIGINT)
        assert running.process.stderr is not None
        while "Ctrl-C again" not in running.process.stderr.readline():
            pass
        assert running.stop(signal.SIGINT) == 130


@pytest.mark.parametrize("signals", [1, 2])
def test_ctrl_c_stops_it_although_nothing_can_be_printed(tmp_path: Path, signals: int) -> None:
    with gateway(tmp_path, TRUNKLINE_LIMITS__DRAIN_SECONDS="600") as running:
        assert running.process.stdout is not None
        assert running.process.stderr is not None
        running.process.stdout.close()
        running.process.stderr.close()
        if signals == 2:
            asked = trunkline("send", "count slowly to 20", "--no-wait", "--url", running.url, home=tmp_path)
            assert asked.returncode == 0
            running.process.send_signal(signal.SIGINT)
            wait_until_closed(int(running.port))
        assert running.stop(signal.SIGINT) == (0 if signals == 1 else 130)


def wait_until_closed(port: int) -> None:
    """Wait until nothing listens on a port of this machine."""
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except (ConnectionRefusedError, ConnectionResetError):  # reset: closed with this one in its queue
            return


def test_a_busy_port_is_one_clear_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = trunkline("run", "--port", str(port), home=tmp_path)
    assert done.returncode == 75
    assert len(done.stderr.splitlines()) == 1
    assert f"127.0.0.1:{port}" in done.stderr
    assert "choose another server.port" in done.stderr


def test_a_second_gateway_on_the_same_data_is_refused(tmp_path: Path) -> None:
    with gateway(tmp_path):
        done = trunkline("run", "--port", "0", home=tmp_path, TRUNKLINE_STORE__WAIT_MS="0")
    assert done.returncode == 75
    assert len(done.stderr.splitlines()) == 1
    assert "another gateway already uses" in done.stderr


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://me:hunter2@127.0.0.1:1/chat", "Connection refused"),
        ("postgresql://me:hunter2@nowhere.invalid/chat", "failed to resolve host"),
        ("sqlite:///linked/t.db", "cannot create the directory of linked/t.db"),
        ("sqlite:///data/trunkline.db", "database is locked"),
    ],
)
def test_a_store_that_may_come_back_is_waited_for_and_then_ends_it_with_75(
    tmp_path: Path, url: str, reason: str
) -> None:
    trunkline("db", "upgrade", home=tmp_path)
    link_to_a_mount(tmp_path)
    with contextlib.closing(
        sqlite3.connect(tmp_path / "data/trunkline.db", isolation_level=None)
    ) as intruder:
        intruder.execute("BEGIN IMMEDIATE")
        done = trunkline("run", "--port", "0", home=tmp_path, **patient(3_000), TRUNKLINE_STORE__URL=url)
    first, *_, last = done.stderr.splitlines()
    assert done.returncode == 75
    assert json.loads(first)["event"] == "waiting for the database"
    assert reason in json.loads(first)["reason"]
    assert reason in last
    assert "hunter2" not in done.stderr


@pytest.mark.parametrize("url", ["mysql://localhost/x", "nonsense", "sqlite:///data"])
def test_a_store_that_a_restart_cannot_help_is_refused_at_once_with_2(tmp_path: Path, url: str) -> None:
    (tmp_path / "data").mkdir()
    done = trunkline("run", "--port", "0", home=tmp_path, TRUNKLINE_STORE__URL=url)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("folder", "reason"),
    [
        ("/proc/nowhere", "No such file or directory"),
        ("/proc", "No such file or directory"),
        ("notes.txt", "File exists"),
        ("notes.txt/data", "Not a directory"),
        ("missing", "File exists"),
    ],
)
@pytest.mark.parametrize("key", ["data_dir", "store.url"])
def test_a_directory_that_can_never_be_created_is_refused_at_once_with_2(
    tmp_path: Path, folder: str, reason: str, key: str
) -> None:
    (tmp_path / "notes.txt").write_text("not a directory")
    (tmp_path / "missing").symlink_to(tmp_path / "gone/data")
    chosen = tmp_path / folder
    value = str(chosen) if key == "data_dir" else f"sqlite:///{chosen}/t.db"
    done = trunkline(
        "run", "--port", "0", home=tmp_path, **{f"TRUNKLINE_{key.upper().replace('.', '__')}": value}
    )
    assert done.returncode == 2
    assert done.stderr.strip() == f"{key}: cannot write in {chosen}: {reason}; choose another directory"


def test_a_directory_that_is_mounted_later_is_waited_for(tmp_path: Path) -> None:
    target = link_to_a_mount(tmp_path)
    with waiting(tmp_path, "sqlite:///linked/t.db") as process:
        target.mkdir()
        assert process.stdout is not None
        assert "ready" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


def link_to_a_mount(home: Path) -> Path:
    """Make a link to a directory on a file system that is not mounted yet; return the directory."""
    target = home / "mnt/chat"
    target.parent.mkdir()
    (home / "linked").symlink_to(target)
    return target


def test_a_file_of_0_bytes_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/trunkline.db").touch()
    done = trunkline("run", "--port", "0", home=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "restore a backup with `trunkline restore FILE`" in done.stderr


def test_a_gateway_that_waits_for_its_store_can_be_stopped(tmp_path: Path) -> None:
    url = "postgresql://me@127.0.0.1:1/chat"
    with waiting(tmp_path, url) as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


def test_a_gateway_starts_when_its_store_comes_back(tmp_path: Path, postgres_url: str) -> None:
    target = make_url(postgres_url)
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    away = target.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
    with waiting(tmp_path, away) as process, forwarding(port, (target.host, target.port or 5432)):
        assert process.stdout is not None
        assert "ready" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


def patient(milliseconds: int) -> dict[str, str]:
    """Variables that make a gateway wait so long for its store, and log in JSON."""
    return {"TRUNKLINE_STORE__WAIT_MS": str(milliseconds), "TRUNKLINE_LOG__FORMAT": "json"}


@contextlib.contextmanager
def waiting(home: Path, url: str) -> Iterator[subprocess.Popen[str]]:
    """A gateway that waits for the store at the address."""
    process = subprocess.Popen(
        [*COMMAND, "run", "--port", "0"],
        cwd=home,
        env=environment(home, **patient(60_000), TRUNKLINE_STORE__URL=url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        assert "waiting for the database" in process.stderr.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def forwarding(port: int, target: tuple[str | None, int]) -> Iterator[None]:
    """Forward connections on a port of this machine to a server."""

    class Forwarded(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(target) as server:
                ends = {self.request: server, server: self.request}
                while True:
                    for end in select.select(list(ends), [], [])[0]:
                        if not (data := end.recv(65536)):
                            return
                        ends[end].sendall(data)

    with socketserver.ThreadingTCPServer(("127.0.0.1", port), Forwarded) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield
        server.shutdown()
        thread.join()


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
                "send", "-", "--no-wait", "--timeout", "5", "--url", url, home=tmp_path, stdin="x" * 500_000
            )
        assert process.wait(PATIENCE) == 70
    finally:
        process.kill()
        process.communicate()


def test_a_store_that_does_not_commit_for_30_seconds_ends_it_with_70(tmp_path: Path) -> None:
    """A lock that another program holds; the address makes SQLite itself wait for it without an end."""
    url = f"sqlite:///{tmp_path}/t.db?timeout=600"
    with (
        gateway(tmp_path, TRUNKLINE_STORE__URL=url) as running,
        contextlib.closing(sqlite3.connect(tmp_path / "t.db", isolation_level=None)) as intruder,
    ):
        intruder.execute("BEGIN IMMEDIATE")
        trunkline("send", "Hi", "--no-wait", "--timeout", "20", "--url", running.url, home=tmp_path)
        assert running.process.wait(2 * PATIENCE) == 70


def test_a_server_that_goes_away_ends_it_with_70_and_is_waited_for_by_the_next_start(
    tmp_path: Path, postgres_url: str
) -> None:
    """The sequence of a short outage under a service that restarts whatever ends with 70 and 75."""
    target = make_url(postgres_url)
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    url = target.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
    server = (target.host, target.port or 5432)
    with contextlib.ExitStack() as outage:
        outage.enter_context(forwarding(port, server))
        running = outage.enter_context(gateway(tmp_path, TRUNKLINE_STORE__URL=url))
        end_connections(postgres_url)
        assert running.process.wait(PATIENCE) == 70
    with waiting(tmp_path, url) as process, forwarding(port, server):
        assert process.stdout is not None
        assert "ready" in process.stdout.readline()


def end_connections(url: str) -> None:
    """End all connections to a PostgreSQL database, as its restart does."""
    engine = create_engine(make_url(url).set(database="postgres"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        query = text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name")
        connection.execute(query, {"name": make_url(url).database})
    engine.dispose()


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


FAILING = """
from gateway import Plugin


class Failing(Plugin):
    name = "failing"

    async def activate(self, ctx):
        raise OSError("the service is not there")


plugin = Failing()
"""


@pytest.mark.parametrize(
    ("text", "status", "told"),
    [
        ("import no_such_module", 2, "cannot be loaded: ModuleNotFoundError"),
        ("this is no Python", 2, "cannot be loaded: SyntaxError"),
        (FAILING, 75, "failed to activate: OSError: the service is not there"),
    ],
)
def test_a_plugin_that_fails_stops_the_start_unless_it_is_optional(
    tmp_path: Path, text: str, status: int, told: str
) -> None:
    (tmp_path / "failing.py").write_text(text)
    config = tmp_path / "own.toml"
    config.write_text('plugins.enabled = ["failing.py"]\nserver.port = 0\n')
    ended = trunkline("run", "--config", str(config), home=tmp_path)
    assert (ended.returncode, told in ended.stderr) == (status, True), ended.stderr
    assert "Traceback" not in ended.stderr
    config.write_text('plugins.enabled = [{ name = "failing.py", optional = true }]\nserver.port = 0\n')
    with gateway(tmp_path, "--config", str(config)) as running:
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"{running.url}/readyz")
        assert (caught.value.code, json.load(caught.value)["parts"]["plugin failing"]) == (503, False)


def test_the_banner_repeats_what_is_skipped_and_what_is_wrong_with_the_model(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        config = tmp_path / "own.toml"
        config.write_text(
            f'model = "desk/one"\nserver.port = 0\nfetch.timeout = 30\n[channels.telegram]\nalow = []\n'
            f'[providers.desk]\nmax_retries = 0\nbase_url = "http://127.0.0.1:{nobody.getsockname()[1]}/v1"\n'
        )
        with gateway(tmp_path, "--config", str(config)) as running:
            assert running.process.stderr is not None
            found: dict[str, str] = {}
            while len(found) < 3:
                line = running.process.stderr.readline()
                assert line, found
                if line.startswith(("  fail", "  warn")):
                    status, name = line.split(":")[0].split(maxsplit=1)
                    found[name] = status
            assert running.stop() == 0
    assert found == {"channel telegram": "fail", "durations": "warn", "model": "fail"}
