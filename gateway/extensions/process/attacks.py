"""Attacks from inside a confined process, run on this machine: which of them does the kernel refuse?

Tests and ``trunkline doctor`` run them. The attacks themselves are in ``child/attacks.py``; here are their
targets, which are files and sockets made for them.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from gateway.extensions.process.launcher import Launcher
from gateway.extensions.process.profile import MIB, ProcessLimits, ScriptTarget, plugin
from gateway.extensions.process.scripts import run_script

ATTACKS = (
    *("read passwd", "read home", "read database", "read settings", "parent's environ and memory", "stat"),
    *("listing", "write", "chmod", "link", "standard library", "TCP", "UDP", "unix", "abstract", "netlink"),
    *("exec and posix_spawn", "fork", "thread and fork bomb", "ptrace and process_vm", "kill", "pidfd"),
    *("keyring", "shm and mqueue", "perf", "userfaultfd", "io_uring", "bpf", "mount", "clone3", "memfd"),
    *("open_by_handle", "setuid", "TIOCSTI", "set the clock", "x32", "user namespace", "null pointer"),
)
CONTROLS = ("imports", "asyncio", "own folder", "own descriptors")
"""The actions that a confined process must be able to do."""

_CHILD = Path(__file__).parent.parent / "child"
_SECONDS = 30.0
_MEMORY = 256 * MIB
_MOST_OUTPUT = 1_000_000


class Outcome(Struct, frozen=True):
    """The outcome of an attack, or of a control, for which ``refused`` is the failure."""

    name: str
    refused: bool
    detail: str


async def run_attacks(
    launcher: Launcher, names: Sequence[str] = (*ATTACKS, *CONTROLS), *, without: tuple[str, ...] = ()
) -> list[Outcome]:
    """Run attacks under the profile ``plugin`` and return their outcomes. Raises ConfinementError.

    ``without`` are layers to leave out; only tests do that.
    """
    profile = msgspec.structs.replace(plugin([_CHILD], ProcessLimits(memory=_MEMORY)), without=without)
    outcomes: list[Outcome] = []
    left = list(names)
    with _targets() as facts:
        while left:
            facts["zygote"] = launcher.zygote or os.getppid()
            target = ScriptTarget(str(_CHILD / "attacks.py"), tuple(left), (str(_CHILD),))
            ended = await run_script(
                launcher, profile, target, msgspec.json.encode(facts), _MOST_OUTPUT, _SECONDS
            )
            found = [_outcome(line) for line in ended.output.splitlines()]
            outcomes += found
            left = left[len(found) :]
            if left:
                # The attack ended its process, and nothing else.
                outcomes.append(Outcome(left.pop(0), True, f"the process ended: {_ending(ended.status)}"))
    return outcomes


def _outcome(line: bytes) -> Outcome:
    report: dict[str, Any] = msgspec.json.decode(line)
    name, succeeded, reasons = report["name"], report["succeeded"], report["reasons"]
    refused = bool(reasons) if name in CONTROLS else not succeeded
    return Outcome(name, refused, "; ".join(reasons) or "it worked")


def _ending(status: int | None) -> str:
    if status is None:
        return "it took too long"
    return signal.Signals(-status).name if status < 0 else f"status {status}"


@contextlib.contextmanager
def _targets() -> Generator[dict[str, Any]]:
    """Create the targets of the attacks: files, and sockets that any process of this machine could use."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="trunkline-attacks-"))
        for name in ("settings.toml", "gateway.db"):
            Path(folder, name).write_text("secret", encoding="utf-8")
        abstract = f"\0trunkline-{secrets.token_hex(8)}"
        addresses = (
            (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            (socket.AF_UNIX, socket.SOCK_STREAM, f"{folder}/socket"),
            (socket.AF_UNIX, socket.SOCK_STREAM, abstract),
        )
        sockets = [stack.enter_context(socket.socket(family, kind)) for family, kind, _ in addresses]
        for sock, (_, kind, address) in zip(sockets, addresses, strict=True):
            sock.bind(address)
            if kind == socket.SOCK_STREAM:
                sock.listen()
        yield {
            "folder": folder,
            "settings": f"{folder}/settings.toml",
            "database": f"{folder}/gateway.db",
            "home": str(Path.home()),
            "pid": os.getpid(),
            "tcp": sockets[0].getsockname()[1],
            "udp": sockets[1].getsockname()[1],
            "unix": f"{folder}/socket",
            "abstract": abstract,
        }
