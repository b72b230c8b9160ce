"""Confined processes: their layers, the attacks that the kernel refuses, and that none of them remains."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import platform
import re
import signal
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.extensions.process import kernel
from gateway.extensions.process.attacks import ATTACKS, CONTROLS, Outcome, run_attacks
from gateway.extensions.process.launcher import Child, ConfinementError, Launcher
from gateway.extensions.process.profile import (
    MIB,
    Mount,
    ProcessLimits,
    Profile,
    ProgramTarget,
    ScriptTarget,
    plugin,
    program,
    program_mounts,
)
from gateway.extensions.process.scripts import run_script
from gateway.extensions.process.service import protected
from gateway.settings.layers.own_files import OwnFiles

TREE = Path(__file__).parents[4]
CHILD = TREE / "gateway/extensions/child"
SPACES = tuple(f"{name} namespace" for name in ("user", "pid", "net", "ipc", "uts", "mount"))
HOME = Path.home()
MOST = 1_000_000

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(kernel.missing(kernel.layers(), strict=True)), reason="the kernel cannot confine"
    ),
]


def exists_or_text(path: str) -> str | None:
    """Return the text of a file, None if it does not exist."""
    try:
        return Path(path).read_text()
    except OSError:
        return None


def refused(outcomes: list[Outcome]) -> set[str]:
    return {outcome.name for outcome in outcomes if outcome.refused}


def succeeded(outcomes: list[Outcome]) -> set[str]:
    return {outcome.name for outcome in outcomes if not outcome.refused and outcome.name in ATTACKS}


async def attack(*without: str, mode: str = "strict") -> list[Outcome]:
    launcher = Launcher("strict" if mode == "strict" else "standard")
    try:
        return await run_attacks(launcher, without=without)
    finally:
        await launcher.close()
        (CHILD / "new").unlink(missing_ok=True)  # written by an attack that succeeded


async def test_001_26_strict_mode_refuses_38_of_38_attacks_and_allows_the_controls() -> None:
    outcomes = await attack()
    assert [outcome.name for outcome in outcomes] == [*ATTACKS, *CONTROLS]
    assert len(ATTACKS) == 38
    assert refused(outcomes) == set(ATTACKS), [o for o in outcomes if o.refused != (o.name in ATTACKS)]


async def test_without_any_namespace_only_stat_remains() -> None:
    assert succeeded(await attack(*SPACES, mode="standard")) == {"stat"}


@pytest.mark.parametrize(
    ("also", "layer", "succeeds"),
    [
        ((), "mount namespace", {"stat"}),
        ((), "root", {"stat"}),
        (("seccomp", "landlock"), "capabilities", {"mount"}),
        ((), "landlock", {"listing"}),
        ((), "seccomp", {"fork", "memfd", "io_uring", "user namespace", "thread and fork bomb"}),
        (SPACES, "landlock", {"read passwd", "read settings", "read database", "listing"}),
        (SPACES, "seccomp", {"fork", "UDP", "kill", "chmod", "netlink", "pidfd"}),
        (("seccomp",), "net namespace", {"UDP"}),
        (("seccomp", "landlock", *(s for s in SPACES if s != "pid namespace")), "pid namespace", {"kill"}),
    ],
)
async def test_each_attack_can_succeed_once_its_layer_is_off(
    also: tuple[str, ...], layer: str, succeeds: set[str]
) -> None:
    before = succeeded(await attack(*also, mode="standard"))
    after = succeeded(await attack(*also, layer, mode="standard"))
    assert succeeds <= after
    assert not succeeds & before


GREEDY = """
import os

def main(arguments):
    tried = {"memory": lambda: bytearray(1 << 30), "files": lambda: [os.dup(1) for _ in range(500)]}
    for name, attempt in tried.items():
        try:
            attempt()
            print(name, flush=True)
        except (MemoryError, OSError):
            pass
    return 0
"""


@pytest.mark.parametrize(("without", "succeeds"), [((), []), (("limits",), [b"memory", b"files"])])
async def test_memory_and_files_are_limited_unless_that_layer_is_off(
    tmp_path: Path, without: tuple[str, ...], succeeds: list[bytes]
) -> None:
    (tmp_path / "greedy.py").write_text(GREEDY)
    profile = msgspec.structs.replace(plugin([tmp_path], ProcessLimits(256 * MIB, 64)), without=without)
    launcher = Launcher()
    try:
        target = ScriptTarget(str(tmp_path / "greedy.py"))
        ended = await run_script(launcher, profile, target, b"", MOST, 60)
    finally:
        await launcher.close()
    assert (ended.status, ended.output.split()) == (0, succeeds)


def blocked(*calls: str, namespaces: bool = False) -> Callable[[], None]:
    """Return a function that makes this process and its children get EPERM for calls, as in a container.

    Unless ``namespaces`` are allowed, no process can be cloned into a new one either.
    """
    sys.path.insert(0, str(CHILD))
    try:
        import syscalls
    finally:
        sys.path.remove(str(CHILD))
    number = syscalls.numbers()
    code = [(0x20, 0, 0, 0)]
    for name in calls:
        code += [(0x15, 0, 1, number[name]), (0x06, 0, 0, 0x50001)]
    if not namespaces:  # clone with the flag of any
        clone = number["clone"]
        code += [(0x15, 0, 4, clone), (0x20, 0, 0, 16), (0x45, 0, 1, 0x7E020000), (0x06, 0, 0, 0x50001)]
    code += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x7FFF0000)]
    data = b"".join(struct.pack("HBBI", *one) for one in code)

    def apply() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        array = ctypes.create_string_buffer(data, len(data))
        filters = struct.pack("HxxxxxxP", len(code), ctypes.addressof(array))
        libc.prctl(38, 1, 0, 0, 0)
        if libc.prctl(22, 2, filters) != 0:
            raise OSError(ctypes.get_errno(), "seccomp")

    return apply


ATTACKER = """
import asyncio, json, sys
from gateway.extensions.process.attacks import ATTACKS, run_attacks
from gateway.extensions.process.launcher import ConfinementError, Launcher

async def main(mode):
    launcher = Launcher(mode)
    try:
        outcomes = await run_attacks(launcher)
        wrong = [outcome.name for outcome in outcomes if outcome.refused != (outcome.name in ATTACKS)]
        print(json.dumps(wrong))
    except ConfinementError as error:
        print(json.dumps({"layer": error.layer, "text": str(error)}))
    finally:
        await launcher.close()

asyncio.run(main(sys.argv[1]))
"""


def attack_elsewhere(
    mode: str, *, before: Sequence[str] = (), python: str = sys.executable, **more: Any
) -> object:
    """Run the attacks from another process, and return those that were not refused, or the error.

    ``before`` are words of a command line before it.
    """
    paths = [str(TREE), *(path for path in sys.path if "site-packages" in path)]
    environ = {"PYTHONPATH": os.pathsep.join(paths)}
    words = [*before, python, "-c", ATTACKER, mode]
    found = subprocess.run(words, env=environ, capture_output=True, timeout=100, check=False, **more)
    assert found.stdout, found.stderr
    return json.loads(found.stdout.splitlines()[-1])


def test_where_namespaces_are_blocked_as_in_a_container_landlock_and_seccomp_hold() -> None:
    outer = blocked("unshare", "mount", "setns", "pivot_root")
    assert attack_elsewhere("standard", preexec_fn=outer) == ["stat"]
    error = attack_elsewhere("strict", preexec_fn=outer)
    assert isinstance(error, dict)
    assert error["layer"] == "namespaces"
    assert "user.max_user_namespaces" in error["text"]


def test_a_container_whose_name_cannot_be_changed_has_all_namespaces() -> None:
    assert attack_elsewhere("strict", preexec_fn=blocked("sethostname", namespaces=True)) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to make a namespace of process ids")
def test_the_first_process_of_a_container_is_not_taken_for_the_plugin() -> None:
    assert attack_elsewhere("strict", before=("unshare", "--pid", "--fork", "--mount-proc")) == []


def test_where_seccomp_cannot_be_used_nothing_is_started() -> None:
    error = attack_elsewhere("standard", preexec_fn=blocked("seccomp"))
    assert isinstance(error, dict)
    assert error["layer"] == "seccomp"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
@pytest.mark.parametrize("mode", ["strict", "standard"])
def test_the_attacks_are_refused_without_root(mode: str, tmp_path: Path) -> None:
    python = "/usr/bin/python3"  # root's own interpreter may be closed to others
    version = subprocess.run([python, "-V"], capture_output=True, text=True, check=False).stdout
    if not version.startswith(f"Python {sys.version_info[0]}.{sys.version_info[1]}."):
        pytest.skip(f"{python} is not the version of this one")
    assert attack_elsewhere(mode, python=python, user=65534, group=65534, extra_groups=[], cwd="/") == []


async def test_as_root_without_user_namespaces_the_user_stays_and_capabilities_go() -> None:
    launcher = Launcher()
    profile = msgspec.structs.replace(plugin([CHILD]), without=SPACES)
    try:
        outcomes = await run_attacks(
            launcher, ("imports", "setuid", "set the clock", "own folder"), without=SPACES
        )
        assert refused(outcomes) == {"setuid", "set the clock"}
        assert profile.without == SPACES
    finally:
        await launcher.close()


async def test_without_landlock_nothing_is_started_and_the_error_says_how_to_get_it() -> None:
    found = kernel.Layers("Linux", "x86_64", 0, seccomp=True, user_namespaces=True)
    launcher = Launcher(probe=lambda: found)
    assert "lsm=" in launcher.missing_layers()[0]
    with pytest.raises(ConfinementError, match="Landlock"):
        await launcher.spawn(plugin([CHILD]), ScriptTarget(str(CHILD / "attacks.py")))
    assert launcher.zygote is None
    for other in (
        kernel.Layers("Darwin", "arm64", 0, seccomp=False, user_namespaces=False),
        kernel.Layers("Linux", "riscv64", 7, seccomp=True, user_namespaces=True),
        kernel.Layers("Linux", "x86_64", 7, seccomp=False, user_namespaces=True),
    ):
        assert len(kernel.missing(other, strict=False)) == 1
    no_users = kernel.Layers("Linux", "aarch64", 1, seccomp=True, user_namespaces=False)
    assert kernel.missing(no_users, strict=False) == []
    assert "user namespaces" in kernel.missing(no_users, strict=True)[0]


async def test_the_zygote_starts_with_the_first_process_and_has_no_environment() -> None:
    launcher = Launcher()
    assert launcher.zygote is None
    try:
        await run_attacks(launcher, ("imports",))
        assert launcher.zygote is not None
        assert exists_or_text(f"/proc/{launcher.zygote}/environ") == ""
        zygote = launcher.zygote
    finally:
        await launcher.close()
    assert exists_or_text(f"/proc/{zygote}/stat") is None


SLEEPER = "import time\ndef main(arguments):\n    print('up', flush=True)\n    time.sleep(600)\n"


async def sleeper(launcher: Launcher, folder: Path) -> Child:
    (folder / "sleep.py").write_text(SLEEPER)
    child = await launcher.spawn(plugin([folder]), ScriptTarget(str(folder / "sleep.py")))
    assert child.sock is not None
    assert await asyncio.get_running_loop().sock_recv(child.sock, 3) == b"up\n"
    return child


async def test_the_end_of_the_zygote_ends_its_children_and_the_next_process_has_another_one(
    tmp_path: Path,
) -> None:
    launcher = Launcher()
    try:
        child = await sleeper(launcher, tmp_path)
        first = launcher.zygote
        assert first is not None
        os.kill(first, signal.SIGKILL)
        assert await child.wait() is None
        child.close()
        child = await sleeper(launcher, tmp_path)
        assert launcher.zygote not in (None, first)
        child.close()
    finally:
        await launcher.close()


GATEWAY = """
import asyncio, sys
from pathlib import Path
from gateway.extensions.process.launcher import Launcher
from gateway.extensions.process.profile import ProcessLimits, ProgramTarget, ScriptTarget, plugin, program

async def main(folder):
    launcher = Launcher()
    child = await launcher.spawn(plugin([folder]), ScriptTarget(folder + "/sleep.py"))
    busy = await launcher.spawn(plugin([folder]), ScriptTarget(folder + "/busy.py"))
    other = program([], ProcessLimits(memory=0), environ={})
    shell = ("/bin/sh", "-c", "setsid sleep 600 & sleep 600")
    foreign = await launcher.spawn(other, ProgramTarget(shell, "/tmp"))
    await asyncio.sleep(0.3)
    print(launcher.zygote, child.pid, busy.pid, foreign.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main(sys.argv[1]))
"""


async def test_a_killed_gateway_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "sleep.py").write_text(SLEEPER)
    (tmp_path / "busy.py").write_text("def main(arguments):\n    while True:\n        pass\n")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", GATEWAY, str(tmp_path)), cwd=TREE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    pids = [int(word) for word in (await process.stdout.readline()).split()]
    family = {pid for one in pids for pid in kernel.family(one)}
    assert len(family) >= 7, "the zygote, two scripts, and a program with its first process and children"
    process.kill()
    await process.wait()
    while any(exists_or_text(f"/proc/{pid}/stat") is not None for pid in family):
        await asyncio.sleep(0.01)


# Programs.


async def run(profile: Profile, *argv: str, cwd: str = "/tmp") -> tuple[int | None, str, Child]:
    launcher = Launcher()
    reading, writing = os.pipe()
    try:
        target = ProgramTarget(argv, cwd, stdout=writing, stderr=writing)
        child = await launcher.spawn(profile, target)
        os.close(writing)
        status = await child.wait()
        with os.fdopen(reading, "rb") as output:
            return status, output.read(MOST).decode(), child
    finally:
        await launcher.close()


def foreign(*mounts: Mount, network: bool = False, **limits: int) -> Profile:
    environ = {"PATH": "/usr/bin:/bin", "HOME": "/tmp"}
    return program(mounts, ProcessLimits(**{"memory": 0, **limits}), network=network, environ=environ)


async def test_a_program_runs_in_its_mounts_with_a_small_machine(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "secret").write_text("secret")
    work = Mount(str(tmp_path / "work"), write=True)
    script = (
        f"pwd; echo hello > made; cat ../secret; cat {HOME}/.profile; echo x > /usr/x;"
        " ls /proc | grep -c '^[0-9]'; exit 3"
    )
    status, output, child = await run(foreign(work), "/bin/sh", "-c", script, cwd=str(tmp_path / "work"))
    lines = output.splitlines()
    assert status == 3
    assert lines[0] == str(tmp_path / "work")
    assert "No such file" in lines[1]
    assert "Read-only" in lines[3] or "denied" in lines[3]
    assert int(lines[-1]) <= 4
    assert (tmp_path / "work/made").read_text() == "hello\n"
    assert {"root", "capabilities", "landlock", "seccomp", "net namespace"} <= set(child.layers)


@pytest.mark.parametrize("without", [(), SPACES], ids=["namespaces", "landlock"])
async def test_a_closed_folder_and_file_are_not_in_a_mount(tmp_path: Path, without: tuple[str, ...]) -> None:
    work = tmp_path / "work"
    for folder in ("state/data", "config", "src"):
        (work / folder).mkdir(parents=True)
    (work / "state/data/rows").write_text("private")
    (work / "config/settings").write_text("private")
    (work / "config/other").write_text("other")
    closed = (str(work / "state/data"), str(work / "config/settings"), str(work / "none"))
    profile = msgspec.structs.replace(foreign(Mount(str(work), write=True)), closed=closed, without=without)
    script = (
        "cat state/data/rows config/settings; echo x > state/data/rows; echo x > config/settings;"
        " rm -rf state/data config/settings; mv state/data moved; mv state moved; mv config moved;"
        " mkdir -p state/data; echo x > state/data/rows; echo x > config/settings;"
        " cat config/other; echo made > src/made; exit 3"
    )
    status, output, _ = await run(profile, "/bin/sh", "-c", script, cwd=str(work))
    assert (status, output.splitlines()[-1]) == (3, "other")
    assert "private" not in output
    assert (work / "state/data/rows").read_text() == "private"
    assert (work / "config/settings").read_text() == "private"
    assert (work / "src/made").read_text() == "made\n"


@pytest.mark.parametrize("without", [(), SPACES], ids=["namespaces", "landlock"])
async def test_a_program_changes_nothing_that_the_next_start_reads(
    tmp_path: Path, without: tuple[str, ...]
) -> None:
    work = tmp_path / "work"
    for folder in ("data", "config", "src"):
        (work / folder).mkdir(parents=True)
    (work / "data/rows").write_text("private")
    (work / "config/trunkline.toml").write_text("private")
    (work / "config/other").write_text("other")
    own = OwnFiles(
        (work / "data", work / "config/trunkline.toml", work / ".env"),
        (work / "config", work / ".trunkline", work / "config/agents", tmp_path / "elsewhere"),
    )
    profile = protected(foreign(Mount(str(work), write=True)), own)
    script = (
        "cat data/rows config/trunkline.toml; rm -rf data config; mv config moved;"
        " mkdir -p config/agents .trunkline; echo x > config/trunkline.json; echo x > config/other;"
        " echo x > config/agents/a.md; echo x > .trunkline/trunkline.toml; ln -s src config/plugins;"
        " cat config/other; echo made > src/made; exit 3"
    )
    profile = msgspec.structs.replace(profile, without=without)
    status, output, _ = await run(profile, "/bin/sh", "-c", script, cwd=str(work))
    assert (status, output.splitlines()[-1]) == (3, "other")
    assert "private" not in output
    assert (work / "data/rows").read_text() == (work / "config/trunkline.toml").read_text() == "private"
    assert (work / "config/other").read_text() == "other"
    assert sorted(path.name for path in (work / "config").iterdir()) == ["agents", "other", "trunkline.toml"]
    assert [*(work / "config/agents").iterdir(), *(work / ".trunkline").iterdir()] == []
    assert (work / "src/made").read_text() == "made\n"
    assert not (tmp_path / "elsewhere").exists()


def test_a_program_gets_no_folder_that_is_the_gateways_and_no_link_to_one(tmp_path: Path) -> None:
    work, kept = tmp_path / "work", tmp_path / "kept"
    for folder in (work, kept):
        folder.mkdir()
    (work / "data").symlink_to(kept)
    own = OwnFiles((work / "data",), (work / "config",))
    with pytest.raises(ConfinementError, match=f"could replace {work}/data, a link to files of the gateway"):
        protected(foreign(Mount(str(work), write=True)), own)
    with pytest.raises(ConfinementError, match=f"{kept} belongs to the gateway; choose another folder"):
        protected(foreign(Mount(str(kept))), own)
    assert protected(foreign(Mount(str(work))), own).guarded == ()


async def test_a_program_has_no_network_unless_it_is_granted() -> None:
    listener = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2); print('connected')"
    python = tuple(program_mounts([sys.executable]))
    async with listener:
        _, output, _ = await run(foreign(*python), sys.executable, "-c", code)
        assert "Error" in output
        _, output, _ = await run(foreign(*python, network=True), sys.executable, "-c", code)
        assert output == "connected\n"


async def test_a_program_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ConfinementError, match="No such file"):
        await run(foreign(), "/usr/bin/no-such-program")


async def test_the_processes_and_the_memory_of_a_program_are_limited() -> None:
    bomb = "i=0; while [ $i -lt 1000 ]; do sleep 60 & i=$((i+1)); done; wait"
    _, _, child = await run(foreign(processes=40), "/bin/sh", "-c", bomb)
    assert child.problem == "it had more than 40 processes"
    python = tuple(program_mounts([sys.executable]))
    hog = "import time, os\nfor _ in range(3): os.fork()\nx = bytearray(60_000_000)\ntime.sleep(60)"
    _, _, child = await run(foreign(*python, memory=200 * MIB), sys.executable, "-c", hog)
    assert child.problem == "it used more than 200 MB of memory"


async def test_a_program_cannot_reach_other_processes_or_the_machine() -> None:
    before = exists_or_text("/proc/sys/kernel/panic")
    script = "unshare -U true; mount -t tmpfs none /tmp; echo 1 > /proc/sys/kernel/panic; cat /etc/shadow"
    _, output, _ = await run(foreign(), "/bin/sh", "-c", script)
    for refusal in (
        "unshare failed",
        "mount: /tmp: permission denied",
        "cannot create",
        "/etc/shadow: No such",
    ):
        assert refusal in output
    assert exists_or_text("/proc/sys/kernel/panic") == before


# Scripts.


async def test_a_script_converts_its_input_within_its_limits(tmp_path: Path) -> None:
    (tmp_path / "upper.py").write_text(
        textwrap.dedent(
            """
            import sys, time
            def main(arguments):
                data = sys.stdin.buffer.read()
                sys.stdout.buffer.write(data.upper())
                sys.stdout.flush()
                if arguments == ["sleep"]:
                    time.sleep(600)
                return 5
            """
        )
    )
    launcher = Launcher()
    profile = plugin([tmp_path])
    script = str(tmp_path / "upper.py")
    try:
        ended = await run_script(launcher, profile, ScriptTarget(script), b"text" * 100_000, MOST, 20)
        assert (ended.status, ended.output) == (5, b"TEXT" * 100_000)
        ended = await run_script(launcher, profile, ScriptTarget(script), b"text" * 100_000, 1000, 20)
        assert ended.status is None
        ended = await run_script(launcher, profile, ScriptTarget(script, ("sleep",)), b"text", MOST, 0.5)
        assert (ended.status, ended.output) == (None, b"TEXT")
    finally:
        await launcher.close()


def test_the_tables_of_system_calls_are_those_of_the_kernel_headers() -> None:
    sys.path.insert(0, str(CHILD))
    try:
        import syscalls
    finally:
        sys.path.remove(str(CHILD))
    for machine, header, pattern in (
        ("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", r"#define __NR_(\w+) (\d+)"),
        ("aarch64", "/usr/include/asm-generic/unistd.h", r"#define __NR(?:3264)?_(\w+) (\d+)"),
    ):
        if not Path(header).exists():
            pytest.skip("the headers of the kernel are not installed")
        known = {name: int(number) for name, number in re.findall(pattern, Path(header).read_text())}
        known["newfstatat"] = known.get("newfstatat", known.get("fstatat", -1))
        ours = syscalls.numbers(machine)
        assert {name: number for name, number in ours.items() if known.get(name) not in (None, number)} == {}
        assert len(syscalls.plugin_filter(1, machine)) % 8 == 0
    with pytest.raises(OSError, match="riscv64"):
        syscalls.numbers("riscv64")
    assert platform.machine() in syscalls.AUDIT_ARCHITECTURES
