"""The processes of a measurement: servers on one core, whatever loads them on another."""

from __future__ import annotations

import json
import os
import re
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from crowd import Answered
from load import Plan, Result

HERE = Path(__file__).parent
TREE = HERE.parent.parent
PATIENCE_SECONDS = 180.0
_READY = re.compile(r"(?:ready|stands by): (\S+)")

_SETTINGS = """
{top}
model = "bench/fake"
data_dir = "{folder}"
durability = "full"

[server]
port = {port}
connections_per_peer = 0

[providers.bench]
base_url = "{model}/v1"

{tables}

{channels}
"""


_HISTORY = "compaction = false\nhistory_window = {}"


def cores() -> tuple[set[int], set[int]]:
    """The cores for the server, and for its load. They are the same where there is only one."""
    free = sorted(os.sched_getaffinity(0))
    return {free[0]}, {free[-1]}


def python_of(tree: Path) -> str:
    """Return the Python that runs a checkout: this one, or that of another checkout's ``.venv``."""
    return sys.executable if tree == TREE else str(tree / ".venv" / "bin" / "python")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


class Process:
    """A process that says on its first line that it is ready, and where it is reached."""

    def __init__(
        self,
        command: Sequence[str],
        core: set[int],
        log: Path,
        env: Mapping[str, str] = {},
        folder: Path = TREE,
    ) -> None:
        self._started = time.monotonic()
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, **env},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                preexec_fn=lambda: os.sched_setaffinity(0, core),
            )
        self.pid = self._process.pid
        self.address = self._until_ready()
        self.start_seconds = time.monotonic() - self._started

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self.address.rpartition(":")[2])

    def ask(self, line: str = "") -> str:
        """Send it a line and wait for the one it answers."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._line()

    def until_healthy(self) -> None:
        """Wait until a gateway says that all of its channels are connected; only then is it ready."""
        while not self._is_healthy():
            if time.monotonic() - self._started > PATIENCE_SECONDS:
                raise RuntimeError(f"a channel does not connect\n{self._log.read_text()[-2000:]}")
            time.sleep(0.005)
        self.start_seconds = time.monotonic() - self._started

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/readyz", timeout=5) as answer:
                return answer.status == 200
        except urllib.error.HTTPError:
            return False

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._process.communicate()

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.communicate()

    def _until_ready(self) -> str:
        line = self._line()
        while not (said := _READY.search(line)):
            line = self._line()
        return said[1]

    def _line(self) -> str:
        assert self._process.stdout is not None
        patience = threading.Timer(PATIENCE_SECONDS, self._process.kill)
        patience.start()
        line = self._process.stdout.readline()
        patience.cancel()
        if not line or line.startswith("failed: "):
            self.stop()
            raise RuntimeError(f"{self._process.args} ended: {line}\n{self._log.read_text()[-2000:]}")
        return line


class Lab:
    """Starts processes in its own folder, and ends them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._server_core, self._load_core = cores()
        self._running: list[Process] = []
        self._count = 0
        self.model = self._start([sys.executable, str(HERE / "model.py")], self._load_core)

    def relay(self) -> Process:
        """The floor."""
        return self._start([sys.executable, str(HERE / "relay.py"), self._model_url], self._server_core)

    def gateway(
        self,
        *,
        history: int = 0,
        folder: Path | None = None,
        data: Path | None = None,
        platforms: Sequence[Platform] = (),
        python: Path | None = None,
        tree: Path = TREE,
        model: Process | None = None,
        tables: str = "",
        top: str = "",
        **settings: float | bool,
    ) -> Process:
        """Trunkline with everything on, in a new folder if none is given, run from a checkout.

        It is connected to ``platforms``; ``settings`` are those of each of their channels. ``tables`` are
        those of more providers than the model or of a database, ``top`` settings beside them. The model gets
        ``history`` tokens of a conversation; 0 is all that it takes. ``python`` is
        of another environment than this one, and ``model`` another model server. Its data is in ``data``, or
        in the folder.
        """
        if folder is None:
            folder = self.folder / f"data-{self._count}"
            folder.mkdir()
        config = folder / "bench.toml"
        channels = "\n".join(platform.settings(settings) for platform in platforms)
        config.write_text(
            _SETTINGS.format(
                folder=data or folder,
                port=_free_port(),
                model=f"http://127.0.0.1:{(model or self.model).port}",
                channels=channels,
                tables=tables,
                top=f"{top}\n{_HISTORY.format(history) if history else ''}",
            )
        )
        command = [str(python or python_of(tree)), "-m", "gateway", "run", "--config", str(config)]
        process = self._start(command, self._server_core, folder=tree)
        if platforms:
            process.until_healthy()
        return process

    def compile(self, python: Path | None, tree: Path = TREE) -> None:
        """Let another Python compile a checkout, so that no start has to."""
        command = [str(python or python_of(tree)), "-m", "compileall", "-q", "gateway", "channels", "plugins"]
        subprocess.run(command, cwd=tree, check=True)

    def start(
        self, script: str, *arguments: str, python: Path | None = None, served: bool = False
    ) -> Process:
        """A script of this folder, with another Python if one is given.

        It shares the load's core, or with ``served`` that of the servers.
        """
        command = [str(python or sys.executable), str(HERE / script), *arguments]
        environment = os.environ if python is not None else self.environment()
        return self._start(command, self._server_core if served else self._load_core, environment)

    def platform(self, kind: str, *, limits: bool = False) -> Platform:
        """A fake platform with a crowd; it keeps to the platform's limits if so wished."""
        command = [sys.executable, str(HERE / "crowd.py"), kind, *(["limits"] if limits else [])]
        return Platform(kind, self._start(command, self._load_core, self.environment()))

    def telegram_relay(self, platform: Platform) -> Process:
        """The floor of a bot on Telegram."""
        told = platform.told()
        api = f"{told['api_base_url']}/bot{told['token']}"
        return self.start("telegram_relay.py", self._model_url, api, served=True)

    def environment(self) -> dict[str, str]:
        """The environment of a process that imports the tree."""
        return {**os.environ, "PYTHONPATH": str(TREE)}

    def nonebot(self, python: Path) -> Process:
        """The rival: a NoneBot2 bot that does the same without a store."""
        command = [str(python), str(HERE / "nonebot_bot.py"), self._model_url]
        return self._start(command, self._server_core, {"LOG_LEVEL": "WARNING"})

    def load(self, server: Process, **plan: Any) -> Load:
        """Clients of a server, connected."""
        given = json.dumps({"port": server.port, "pid": server.pid, **plan})
        return Load(self._start([sys.executable, str(HERE / "load.py"), given], self._load_core), self)

    def stop(self, *processes: Process) -> None:
        """End some processes, or all."""
        for process in processes or tuple(reversed(self._running)):
            process.stop()
            self._running.remove(process)

    def kill(self, process: Process) -> None:
        """End a process as the kernel does when memory is short."""
        process.kill()
        self._running.remove(process)

    def reset(self) -> None:
        """End everything but the model."""
        for process in self._running[:0:-1]:
            self.stop(process)

    @property
    def _model_url(self) -> str:
        return f"http://127.0.0.1:{self.model.port}"

    def _start(
        self, command: Sequence[str], core: set[int], env: Mapping[str, str] = {}, folder: Path = TREE
    ) -> Process:
        self._count += 1
        process = Process(command, core, self.folder / f"{self._count}.log", env, folder)
        self._running.append(process)
        return process


class Platform:
    """A fake platform, where a crowd writes when it is asked to."""

    def __init__(self, kind: str, process: Process) -> None:
        self.kind = kind
        self.process = process

    def told(self) -> dict[str, str]:
        """What a bot has to be told of it."""
        return json.loads(self.process.ask(json.dumps({"do": "settings"})))

    def settings(self, more: Mapping[str, float | bool]) -> str:
        """The table of its channel, with more settings, as TOML."""
        rows = {**self.told(), "allow": "*", **more}
        return f"[channels.{self.kind}]\n" + "\n".join(f"{k} = {json.dumps(v)}" for k, v in rows.items())

    def ask(self, **asked: Any) -> Answered:
        """Let the crowd write, and wait until all are answered."""
        return Answered(**json.loads(self.process.ask(json.dumps(asked))))


class Load:
    """Connected clients, ready to measure."""

    def __init__(self, process: Process, lab: Lab) -> None:
        self._process = process
        self._lab = lab

    def measure(self) -> Result:
        """Measure once."""
        return Result(**json.loads(self._process.ask()))

    def stop(self) -> None:
        """Disconnect."""
        self._lab.stop(self._process)


@contextmanager
def laboratory() -> Iterator[Lab]:
    """A lab on the disk of the tree, which is gone afterwards with all its processes."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # all processes inherit it
    kept = TREE / "data"
    kept.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=kept) as folder:
        lab = Lab(Path(folder))
        try:
            yield lab
        finally:
            lab.stop()


__all__ = ["Answered", "Lab", "Load", "Plan", "Platform", "Process", "Result", "laboratory"]
