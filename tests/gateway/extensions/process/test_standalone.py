"""Programs that outlive the gateway: their terminal, their signals, and what they cannot reach."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.confinement.programs import ProgramAccess
from gateway.extensions.process import kernel
from gateway.extensions.process.launcher import ConfinementError, Launcher
from gateway.extensions.process.service import Processes
from tests.gateway.extensions.process.test_launcher import CHILD, TREE, blocked

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(kernel.missing(kernel.layers(), strict=True)), reason="the kernel cannot confine"
    ),
]

PATH = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
SECONDS = 60


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def prefix(
    work: Path, *, program: str = "/bin/bash", service: Processes | None = None, **more: Any
) -> list[str]:
    """Return the prefix for a program that may write to one folder."""
    access = ProgramAccess(writable=(work,), **more)
    asked = (service or Processes()).program_prefix((program,), PATH, access)
    return list(asyncio.run(asked).argv)


def run(words: Sequence[str], cwd: Path, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*words], cwd=cwd, env={**PATH, "HOME": str(cwd)}, text=True, timeout=SECONDS, check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more,
    )  # fmt: skip


class Terminal:
    """A program in a terminal, as a keeper starts it: the leader of a session that owns the terminal."""

    def __init__(self, words: Sequence[str], cwd: Path) -> None:
        self.output = b""
        self._master, slave = pty.openpty()

        def own() -> None:
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            words, cwd=cwd, env={**PATH, "HOME": str(cwd), "PS1": "ready> ", "TERM": "xterm"},
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True, preexec_fn=own,
        )  # fmt: skip
        os.close(slave)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def until(self, text: str) -> str:
        """Read until a text appears, and return what came before it."""
        while text.encode() not in self.output:
            assert select.select([self._master], [], [], SECONDS)[0], self.output.decode()
            try:
                data = os.read(self._master, 65_536)
            except OSError:  # the end of a terminal
                data = b""
            assert data, self.output.decode()
            self.output += data
        before, _, self.output = self.output.partition(text.encode())
        return before.decode()

    def close(self) -> None:
        self.process.kill()
        self.process.wait(SECONDS)
        os.close(self._master)


@pytest.fixture
def shell(work: Path) -> Generator[Terminal]:
    terminal = Terminal([*prefix(work), "/bin/bash", "--norc", "--noprofile", "-i"], work)
    yield terminal
    terminal.close()


def test_a_shell_has_a_terminal_with_job_control(shell: Terminal) -> None:
    shell.type("tty -s && echo is-a-tt''y; cat\n")
    shell.until("is-a-tty")
    shell.type("echoed by cat\n")
    shell.until("echoed by cat\r\nechoed by cat")
    shell.type("\x1a")
    shell.until("Stopped")
    shell.type("jobs; fg\n")
    shell.until("Stopped")
    shell.until("cat\r\ncat\r\n")
    shell.type("again\n")
    shell.until("again\r\nagain")
    shell.type("\x03")
    shell.until("ready> ")
    shell.type("stty size; trap 'echo changed size' WINCH; echo se''t\n")
    shell.until("set")
    fcntl.ioctl(shell._master, termios.TIOCSWINSZ, b"\x10\x00\x40\x00\x00\x00\x00\x00")  # pyright: ignore[reportPrivateUsage]
    shell.type("\n")
    shell.until("changed size")
    shell.type("stty size; exit 5\n")
    shell.until("16 64")
    assert shell.process.wait(SECONDS) == 5


def test_a_program_can_start_another_one_in_its_own_terminal(work: Path) -> None:
    code = "import pty; pty.spawn(['/usr/bin/tty'])"
    found = run([*prefix(work), "/usr/bin/python3", "-c", code], work)
    assert "/dev/pts/0" in found.stdout


def test_signals_and_statuses_pass_through(work: Path) -> None:
    words = prefix(work)
    assert run([*words, "/bin/sh", "-c", "exit 7"], work).returncode == 7
    assert run([*words, "/bin/sh", "-c", "kill -9 $$"], work).returncode == -signal.SIGKILL
    assert run([*words, "/bin/sh", "-c", "kill -15 $$"], work).returncode == -signal.SIGTERM
    assert "cannot be started" in run([*words, "/bin/none"], work).stdout
    code = "trap 'echo told; exit 3' TERM; echo ready; while :; do sleep 0.1; done"
    with subprocess.Popen([*words, "/bin/sh", "-c", code], cwd=work, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.terminate()
        assert process.stdout.read() == b"told\n"
        assert process.wait(SECONDS) == 3


def test_a_stop_reaches_all_processes_and_a_continue_too(work: Path) -> None:
    # The shell in its own session is out of reach for a signal to a group.
    code = "setsid sh -c 'while :; do echo x; sleep 0.01; done'"
    with subprocess.Popen(
        [*prefix(work), "/bin/sh", "-c", code], cwd=work, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        os.set_blocking(process.stdout.fileno(), False)
        process.send_signal(signal.SIGTSTP)
        while process.stdout.read() is not None or select.select([process.stdout], [], [], 0.5)[0]:
            pass
        process.send_signal(signal.SIGCONT)
        assert select.select([process.stdout], [], [], SECONDS)[0]
        process.kill()


@pytest.mark.parametrize("killed", ["launcher", "starter"])
def test_nothing_remains_when_the_launcher_or_what_started_it_is_killed(work: Path, killed: str) -> None:
    reading, writing = os.pipe()
    # It and its children hold the pipe as their output, in their own sessions, and refuse to end.
    code = "trap '' TERM HUP INT; setsid sleep 1000 & echo $$; wait; sleep 1000"
    words = [*prefix(work), "/bin/bash", "-c", code]
    starter = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    if killed == "starter":
        words = [sys.executable, "-c", starter, *words]
    with subprocess.Popen(words, cwd=work, stdout=writing, stdin=subprocess.DEVNULL) as process:
        os.close(writing)
        assert os.read(reading, 100)
        process.kill()
    assert select.select([reading], [], [], SECONDS)[0]
    assert os.read(reading, 100) == b""
    os.close(reading)


ATTACKS = """
import ctypes, json, os, signal, socket, sys
facts = json.loads(sys.argv[1])

def attempt(action):
    try:
        action()
    except (OSError, ValueError) as error:
        return type(error).__name__
    return "worked"

def connect(family, kind, address, data=b"x"):
    with socket.socket(family, kind) as sock:
        sock.settimeout(5)
        sock.connect(address)
        sock.send(data)

def append(path):
    with open(path, "ab") as file:
        file.write(b"x")

def call(number, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, *map(ctypes.c_long, arguments)) < 0:
        raise OSError(ctypes.get_errno(), "refused")

outside, work = facts["outside"], os.getcwd()
harmless = {
    "read a secret": lambda: open(f"{outside}/secret").read(),
    "stat a secret": lambda: os.stat(f"{outside}/secret"),
    "list a folder outside": lambda: os.listdir(outside),
    "read through a link": lambda: (os.symlink(f"{outside}/secret", "link"), open("link").read()),
    "read through .. ": lambda: open("../outside/secret").read(),
    "link a secret": lambda: os.link(f"{outside}/secret", "hard"),
    "read ssh": lambda: os.listdir(f"{facts['home']}/.ssh"),
    "read home": lambda: os.listdir(facts["home"]),
    "read a closed folder": lambda: os.listdir("/usr/share/dict-closed"),
    "shadow": lambda: open("/etc/shadow").read(),
    "environment of the starter": lambda: open(f"/proc/{facts['pid']}/environ").read(),
    "memory of the starter": lambda: open(f"/proc/{facts['pid']}/mem", "rb").read(1),
    "root of the first process": lambda: open(f"/proc/1/root{outside}/secret").read(),
    "signal the starter": lambda: os.kill(facts["pid"], 0),
    "TCP on the machine": lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", facts["tcp"])),
    "UDP to a name server": lambda: connect(socket.AF_INET, socket.SOCK_DGRAM, ("192.0.2.1", 53)),
    "metadata": lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ("169.254.169.254", 80)),
    "name": lambda: socket.getaddrinfo("example.com", 443),
    "unix socket outside": lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, facts["unix"]),
    "abstract socket": lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, chr(0) + facts["abstract"]),
}
harmful = {
    "rename out": lambda: (open("mine", "w").close(), os.rename("mine", f"{outside}/mine")),
    "write outside": lambda: append(f"{outside}/secret"),
    "write to /usr": lambda: append("/usr/bin/trunkline-attack"),
    "write to /etc": lambda: append("/etc/passwd"),
    "change mode outside": lambda: os.chmod(f"{outside}/secret", 0o777),
    "ptrace": lambda: call(101, 16, facts["pid"], 0, 0),
    "ptrace the first process": lambda: call(101, 16, 1, 0, 0),
    "join its namespaces": lambda: call(308, os.open("/proc/1/ns/net", os.O_RDONLY), 0),
    "mount": lambda: call(165, 0, 0, 0, 0, 0),
    "new user namespace": lambda: call(272, 0x10000000),
    "push into the terminal": lambda: __import__("fcntl").ioctl(0, 0x5412, b"x"),
    "become another user": lambda: os.setuid(12345),
    "clock": lambda: __import__("time").clock_settime(0, 0),
}
attacks = harmless if facts["free"] else {**harmless, **harmful}
print(json.dumps({name: attempt(action) for name, action in attacks.items()}))
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the attacks use numbers of system calls")
def test_a_program_reaches_nothing_but_what_it_was_given(work: Path) -> None:
    outside = work.parent / "outside"
    outside.mkdir()
    (work.parent / "free").mkdir()
    (outside / "secret").write_text("secret")
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix, \
         socket.socket(socket.AF_UNIX) as abstract:  # fmt: skip
        unix.bind(f"{outside}/socket")
        name = f"trunkline-{os.getpid()}"
        abstract.bind(f"\0{name}")
        for sock in (unix, abstract):
            sock.listen()
        facts = {"outside": str(outside), "home": str(Path.home()), "pid": os.getpid(), "abstract": name,
                 "tcp": tcp.getsockname()[1], "unix": f"{outside}/socket", "free": False}  # fmt: skip
        attacker = ["/usr/bin/python3", "-c", ATTACKS]
        outcomes = json.loads(run([*prefix(work), *attacker, json.dumps(facts)], work).stdout)
        assert (outside / "secret").read_text() == "secret"
        assert sorted(path.name for path in outside.iterdir()) == ["secret", "socket"]
        free = json.loads(run([*attacker, json.dumps({**facts, "free": True})], work.parent / "free").stdout)
    assert {name for name, outcome in outcomes.items() if outcome == "worked"} == set()
    possible = {name for name, outcome in free.items() if outcome == "worked"}
    assert possible >= {"read a secret", "list a folder outside", "signal the starter", "TCP on the machine",
                        "unix socket outside", "abstract socket", "environment of the starter"}  # fmt: skip


def test_a_program_does_its_work(work: Path) -> None:
    name = f"trunkline-{os.getpid()}"
    script = """
    set -e
    git init -q . && git config user.name A && git config user.email a@example.com
    echo text > file && git add file && git commit -qm first && git log --oneline | wc -l
    python3 -c 'import ssl, sqlite3; open("made.py", "w").write("1")'
    mkdir -p .npm/_cacache/tmp && echo 1 > .npm/_cacache/tmp/a && mv .npm/_cacache/tmp/a .npm/_cacache/b
    ln -s _cacache/b .npm/c
    echo x > /tmp/$NAME && cat /tmp/$NAME > /dev/null && cat <(echo substituted)
    test -z "$(command -v node)" || node -e 'require("fs").writeFileSync("node.txt", "1")'
    python3 -c '
import socket
with socket.create_server(("127.0.0.1", 0)) as a, socket.create_connection(a.getsockname()) as b:
    print("loopback works")'
    """
    found = run([*prefix(work), "/bin/bash", "-c", f"NAME={name}\n{script}"], work)
    assert found.returncode == 0, found.stdout
    assert {"1", "substituted", "loopback works"} <= set(found.stdout.splitlines())
    assert (work / ".npm/c").read_text() == "1\n"
    assert not Path("/tmp", name).exists()


def test_a_folder_is_found_through_links_to_it(work: Path) -> None:
    real = work.parent / "real"
    (real / "bin").mkdir(parents=True)
    (real / "bin/tool").write_text("#!/bin/sh\necho found by its link\n")
    (real / "bin/tool").chmod(0o755)
    (real / "secret").write_text("secret")
    (work.parent / "link").symlink_to(real)
    tool = f"{work.parent}/link/bin/tool"
    found = run([*prefix(work, program=tool), tool], work)
    assert found.stdout == "found by its link\n"
    found = run([*prefix(work, program=tool), "/bin/cat", f"{work.parent}/link/secret"], work)
    assert "No such file" in found.stdout


def test_memory_processes_and_processor_time_are_limited(work: Path) -> None:
    words = prefix(work, memory_mb=200)
    hog = "a = []\nwhile True: a.append(b'x' * 1_000_000)"
    found = run([*words, "/usr/bin/python3", "-c", hog], work)
    assert (found.returncode, "more than 200 MB" in found.stdout) == (-signal.SIGKILL, True)
    # Only the largest process ends, and each alone is below the limit.
    one = "import time; a = b'x' * {} * 1_000_000; time.sleep(600)"
    code = f'python3 -c "{one.format(90)}" & python3 -c "{one.format(130)}"; echo killed $?; kill %1'
    found = run([*words, "/bin/bash", "-c", code], work)
    assert "killed 137" in found.stdout
    code = "for i in 1 2 3 4 5 6 7 8 9; do sleep 600 & done; wait"
    found = run([*prefix(work, processes=8), "/bin/bash", "-c", code], work)
    assert "more than 8 processes" in found.stdout or "Resource temporarily unavailable" in found.stdout
    found = run([*prefix(work, cpu_seconds=1), "/bin/sh", "-c", "while :; do :; done"], work)
    assert found.returncode in (-signal.SIGXCPU, -signal.SIGKILL)


def test_a_cgroup_gets_the_limits_and_is_removed(tmp_path: Path) -> None:
    sys.path.insert(0, str(CHILD))
    try:
        import standalone
    finally:
        sys.path.remove(str(CHILD))
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next((line[3:] for line in lines if line.startswith("0::")), None)
    if own is None:
        pytest.skip("there are no cgroups of version 2")
    beside = tmp_path / os.path.dirname(own).lstrip("/")  # noqa: PTH120
    beside.mkdir(parents=True, exist_ok=True)
    (beside / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    limits = {"memory": 1000, "processes": 7, "cpus": 0.5}
    group = standalone.ControlGroup(limits, str(tmp_path))
    folder = beside / f"trunkline-{os.getpid()}"
    assert group.is_used
    assert (beside / "cgroup.subtree_control").read_text() == "+memory +pids +cpu", "or no file has a limit"
    assert (folder / "memory.max").read_text() == "1000"
    assert (folder / "pids.max").read_text() == "7"
    assert (folder / "cpu.max").read_text() == "50000 100000"
    group.add(123)
    assert (folder / "cgroup.procs").read_text() == "123"
    for path in folder.iterdir():
        path.unlink()  # the kernel's own files go with their folder
    group.remove()
    assert not folder.exists()
    (beside / "cgroup.controllers").unlink()
    assert not standalone.ControlGroup(limits, str(tmp_path)).is_used
    assert not folder.exists()


def test_a_closed_folder_is_not_seen_below_what_all_programs_read(work: Path) -> None:
    closed = (Path("/usr/share/doc"), work.parent)
    words = prefix(work, closed=closed)
    found = run(
        [*words, "/bin/sh", "-c", f"ls -d /usr/share/doc /usr/share/perl5 {work} {work.parent}/*"], work
    )
    assert "'/usr/share/doc'" in found.stdout
    assert {"/usr/share/perl5", str(work)} <= set(found.stdout.splitlines())
    with pytest.raises(ConfinementError, match="closed to programs"):
        prefix(work, closed=(work / "inside",))
    assert "access denied" not in found.stdout


ASKS = """
import asyncio, json, sys
from pathlib import Path
from gateway.confinement.programs import ProgramAccess
from gateway.extensions.process.launcher import ConfinementError
from gateway.extensions.process.service import Processes

async def main(mode, network, folder):
    access = ProgramAccess(writable=(Path(folder),), network=network == "open")
    try:
        found = await Processes(mode).program_prefix(("/bin/sh",), {}, access)
        print(json.dumps({"argv": found.argv, "layers": found.layers}))
    except ConfinementError as error:
        print(json.dumps({"layer": error.layer, "text": str(error)}))

asyncio.run(main(*sys.argv[1:]))
"""


def ask(outer: Callable[[], None], network: str, folder: Path, mode: str = "standard") -> dict[str, Any]:
    """Ask for a prefix in a process that some system calls are refused to, as in a container."""
    paths = [str(TREE), *(path for path in sys.path if "site-packages" in path)]
    found = subprocess.run(
        [sys.executable, "-c", ASKS, mode, network, str(folder)], env={"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True, timeout=SECONDS, check=False, preexec_fn=outer,
    )  # fmt: skip
    assert found.stdout, found.stderr
    return msgspec.json.decode(found.stdout)


def test_without_namespaces_only_an_open_network_is_possible_and_files_stay_closed(work: Path) -> None:
    outer = blocked("unshare", "mount", "setns", "pivot_root")
    refused = ask(outer, "none", work)
    assert refused["layer"] == "namespaces"
    assert "max_user_namespaces" in refused["text"]
    assert ask(outer, "open", work, "strict")["layer"] == "namespaces"
    if kernel.landlock_abi() < 6:
        assert ask(outer, "open", work)["layer"] == "namespaces"
        return
    found = ask(outer, "open", work)
    assert not any("namespace" in layer for layer in found["layers"])
    (work.parent / "secret").write_text("secret")
    code = f"cat {work.parent}/secret; echo x > {work.parent}/new; kill -0 {os.getpid()}"
    code += "; echo made > file; cat file"
    lines = run([*found["argv"], "/bin/sh", "-c", code], work, preexec_fn=outer).stdout.splitlines()
    assert lines[-1] == "made"
    assert len([line for line in lines if "denied" in line or "not permitted" in line]) == 3


def test_without_seccomp_landlock_or_a_known_architecture_nothing_is_started(work: Path) -> None:
    assert ask(blocked("seccomp"), "open", work)["layer"] == "seccomp"
    assert ask(blocked("landlock_create_ruleset"), "open", work)["text"].count("lsm=") == 1
    for layers, text in (
        (kernel.Layers("Linux", "x86_64", 0, seccomp=True, user_namespaces=True), "Landlock"),
        (kernel.Layers("Linux", "riscv64", 5, seccomp=True, user_namespaces=True), "riscv64"),
        (kernel.Layers("Darwin", "arm64", 0, seccomp=False, user_namespaces=False), "Linux container"),
    ):
        service = Processes(launcher=Launcher(probe=lambda layers=layers: layers))
        with pytest.raises(ConfinementError, match=text):
            prefix(work, service=service)
