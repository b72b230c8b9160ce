"""The servers of a storm with nodes, which are killed and restarted: its own PostgreSQL and RabbitMQ."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.gateway.cluster.broker import Broker, free_port

_SECONDS = 60.0
_USER = "trunkline"
_ROOMY = Path("/dev/shm")
_ENOUGH = 4_000_000_000


class NoServersError(Exception):
    """A server is not installed, or does not start."""


class Postgres:
    """A PostgreSQL of its own, with its files in a folder.

    It listens at ``host``, for clients of ``network``. ``prefix`` is put before its commands.
    """

    def __init__(
        self,
        programs: Path,
        folder: Path,
        *,
        host: str = "127.0.0.1",
        network: str = "127.0.0.1/32",
        prefix: Sequence[str] = (),
    ) -> None:
        self._host, self._network, self._prefix = host, network, prefix
        self.port = free_port()
        self._programs = programs
        self._folder = folder
        self._password = secrets.token_hex(16)

    def url(self, port: int) -> str:
        """Return the URL of its database at a port."""
        return f"postgresql+psycopg://{_USER}:{self._password}@{self._host}:{port}/postgres"

    def create(self) -> None:
        """Create its files."""
        password = self._folder / "password"
        password.write_text(self._password)
        if os.geteuid() == 0:
            shutil.chown(self._folder, "postgres")
            shutil.chown(password, "postgres")
        login = (f"--username={_USER}", "--auth=scram-sha-256", f"--pwfile={password}", "--no-sync")
        self._run("initdb", *login)
        with (self._folder / "data" / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {self._network} scram-sha-256\n")

    def start(self) -> None:
        """Start it, and wait until it accepts connections."""
        options = f"-h {self._host} -p {self.port} -k {self._folder} -c max_wal_size=256MB"
        self._run("pg_ctl", "--wait", "-l", str(self._folder / "log"), "-o", options, "start")

    @property
    def runs(self) -> bool:
        """Whether it was started and has not ended."""
        return (self._folder / "data" / "postmaster.pid").exists()

    def kill(self) -> None:
        """End it without a shutdown, as in a crash."""
        self._run("pg_ctl", "--wait", "-m", "immediate", "stop")

    def _run(self, program: str, *arguments: str) -> None:
        """Run one of its programs, which refuse to work as root."""
        command = (str(self._programs / program), "-D", str(self._folder / "data"), *arguments)
        if os.geteuid() == 0:
            command = ("runuser", "-u", "postgres", "--", *command)
        command = (*self._prefix, *command)
        with (self._folder / "output").open("ab") as output:
            done = subprocess.run(
                command, cwd=self._folder, stdout=output, stderr=output, timeout=_SECONDS, check=False
            )
        if done.returncode:
            raise NoServersError(f"{program} failed: {(self._folder / 'output').read_text()[-1_000:]}")


@contextmanager
def servers() -> Generator[tuple[Postgres, Broker]]:
    """A running PostgreSQL and a running RabbitMQ. Raises NoServersError."""
    path = f"/usr/lib/rabbitmq/bin:{os.environ.get('PATH', '')}"
    rabbit = shutil.which("rabbitmq-server", path=path)
    postgres = max(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=_version, default=None)
    if rabbit is None or postgres is None:
        raise NoServersError("nodes need their own servers: install postgresql and rabbitmq-server")
    with scratch() as folder:
        for name in ("postgres", "rabbit"):
            (folder / name).mkdir()
        with running(
            Postgres(postgres.parent, folder / "postgres"), Broker(rabbit, folder / "rabbit")
        ) as started:
            yield started


@contextmanager
def scratch() -> Generator[Path]:
    """Create a folder that any user may enter; in memory if there is room, since every commit is synced."""
    free = shutil.disk_usage(_ROOMY).free if _ROOMY.is_dir() else 0
    folder = Path(tempfile.mkdtemp(prefix="trunkline-storm-", dir=_ROOMY if free > _ENOUGH else None))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def running(database: Postgres, broker: Broker) -> Generator[tuple[Postgres, Broker]]:
    """Run both servers within the block."""
    try:
        with ThreadPoolExecutor() as threads:
            starting = threads.submit(broker.start)
            database.create()
            database.start()
            starting.result()
        yield database, broker
    finally:
        broker.kill()
        if database.runs:
            database.kill()


def _version(program: Path) -> int:
    return int(program.parent.parent.name)
