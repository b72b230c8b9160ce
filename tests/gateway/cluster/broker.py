"""A private RabbitMQ, to be stopped, killed and started again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

_SECONDS = 90.0


def free_port() -> int:
    """A port that no program listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Broker:
    """A RabbitMQ of its own, with its files in a folder.

    With ``listens`` its ``rabbitmq.conf`` need not exist; without, that names a listener at ``port`` of
    ``host``. ``prefix`` is what comes before its command.
    """

    def __init__(
        self,
        program: str,
        folder: Path,
        *,
        listens: bool = True,
        host: str = "127.0.0.1",
        prefix: Sequence[str] = (),
    ) -> None:
        self._host = host
        self.port = free_port()
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}/"
        self._command = (*prefix, program)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "RABBITMQ_NODENAME": f"t{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
        if not listens:
            # These variables are stronger than the file.
            del self._environ["RABBITMQ_NODE_IP_ADDRESS"], self._environ["RABBITMQ_NODE_PORT"]

    def start(self) -> None:
        """Start it, and wait until it accepts connections."""
        with (self._folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=self._environ,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        deadline = time.monotonic() + _SECONDS
        while not self._accepts():
            assert self._process.poll() is None and time.monotonic() < deadline, (  # noqa: PT018
                self._folder / "output"
            ).read_text()[-2_000:]
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill all its processes at once."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Stop all its processes: it answers nothing, and its connections stay open."""
        self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        """Let them run on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def _accepts(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((self._host, self.port)) == 0
