"""Checks of the machine: Python, kernel, limit of open files, clock."""

from __future__ import annotations

import asyncio
import importlib.util
import platform
import resource
import sys
import time
from pathlib import Path

from gateway.cli.doctor.finding import Finding, ok, warn
from gateway.confinement.programs import ProgramAccess
from gateway.extensions.process import kernel as confining
from gateway.extensions.process.attacks import ATTACKS, Outcome, run_attacks
from gateway.extensions.process.launcher import ConfinementError, Launcher, Mode
from gateway.extensions.process.service import Processes

_ENOUGH_FILES = 4_096
_DAY = 86_400.0


def python() -> Finding:
    """Report the version of the interpreter."""
    threads = "" if sys.implementation.name == "cpython" else f" ({sys.implementation.name})"
    return ok("python", f"{platform.python_version()}{threads}, {platform.system()} {platform.machine()}")


def kernel() -> Finding:
    """Report the features of the kernel that confine plugins. A missing one is not a failure."""
    if not sys.platform.startswith("linux"):
        return ok(
            "kernel", f"{platform.system()}: no Landlock, seccomp or user namespaces to confine plugins"
        )
    abi = confining.landlock_abi()
    features = {
        f"Landlock ABI {abi}" if abi else "Landlock": abi > 0,
        "seccomp": "Seccomp:" in _read("/proc/self/status"),
        "user namespaces": confining.has_user_namespaces(),
    }
    there = [name for name, has in features.items() if has]
    missing = [f"no {name}" for name, has in features.items() if not has]
    return ok("kernel", f"{platform.release()}: {', '.join([*there, *missing])}")


class Confinement(Finding, frozen=True):
    """The finding about confined processes, with the outcome of each attack and control."""

    attacks: list[Outcome] = []


def confinement(mode: Mode = "standard") -> Finding:
    """Run the attacks of ``gateway.extensions.process`` in a confined process, and report those that work."""
    missing = confining.missing(confining.layers(), strict=mode == "strict")
    if missing:
        return warn(
            "confinement",
            "the kernel cannot confine plugins, commands and the readers of documents: "
            "plugins with plugin.yml are refused, the others have fewer limits",
            "; ".join(missing),
        )
    try:
        outcomes, namespaces = asyncio.run(_attack(mode))
    except (ConfinementError, OSError) as error:
        return warn(
            "confinement", f"no process could be confined: {error}", "see gateway/extensions/README.md"
        )
    judged = _judge(outcomes, namespaces)
    return Confinement(judged.name, judged.status, judged.detail, judged.advice, outcomes)


def _judge(outcomes: list[Outcome], namespaces: int) -> Finding:
    succeeded = [outcome.name for outcome in outcomes if outcome.name in ATTACKS and not outcome.refused]
    failed = [outcome for outcome in outcomes if outcome.name not in ATTACKS and outcome.refused]
    detail = f"{len(ATTACKS) - len(succeeded)} of {len(ATTACKS)} attacks refused, {namespaces} namespaces"
    if failed:
        return warn(
            "confinement",
            f"{detail}; plugins cannot work: {failed[0].name}: {failed[0].detail}",
            "check the interpreter: it must be readable by the gateway's user",
        )
    if succeeded == ["stat"]:
        detail += "; plugins can learn that files exist, since the kernel offers them no mount namespace"
    elif succeeded:
        return warn("confinement", f"{detail}; possible: {', '.join(succeeded)}", "use only trusted plugins")
    return ok("confinement", f"{detail}; documents, pages and commands of the tool shell are confined, too")


async def _attack(mode: Mode) -> tuple[list[Outcome], int]:
    launcher = Launcher(mode)
    try:
        return await run_attacks(launcher), len(launcher.namespaces)
    finally:
        await launcher.close()


def agents(mode: Mode = "standard") -> Finding:
    """Confine a program as coding agents are, and report what is missing. A network is not required."""
    try:
        layers = asyncio.run(_try_program(mode, network=False))
    except (ConfinementError, OSError) as error:
        return _agents_without_network(mode, str(error))
    spaces = sum(layer.endswith("namespace") for layer in layers)
    return ok("agents", f"coding agents are confined: {spaces} namespaces, limits by {layers[-1]}")


def _agents_without_network(mode: Mode, reason: str) -> Finding:
    try:
        asyncio.run(_try_program(mode, network=True))
    except (ConfinementError, OSError) as error:
        return warn(
            "agents",
            f"coding agents cannot be confined, and so are not started: {error}",
            'sandbox = "off" in [plugins.coding_agents] starts them with all rights of the gateway',
        )
    return ok(
        "agents", f'coding agents are confined, but only with network = "open" and key = "direct": {reason}'
    )


async def _try_program(mode: Mode, *, network: bool) -> tuple[str, ...]:
    access = ProgramAccess(network=network)
    return (await Processes(mode).program_prefix(("/bin/sh",), {}, access)).layers


def documents() -> Finding:
    """Report whether PDF and Word documents can be read. That they cannot is not a failure."""
    missing = [library for library in ("pypdf", "docx") if importlib.util.find_spec(library) is None]
    if missing:
        return ok("documents", "PDF and Word documents cannot be read: install trunkline[documents]")
    return ok("documents", "PDF and Word documents that users send are read")


def open_files() -> Finding:
    """Check the limit of open files, which limits the number of clients."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _ENOUGH_FILES:
        return ok("open files", f"{soft:,} at once" if soft != resource.RLIM_INFINITY else "no limit")
    return warn(
        "open files",
        f"{soft:,} at once; each client needs one",
        f"raise the limit before the start: ulimit -n {min(hard, 65_536) if hard > 0 else 65_536}",
    )


def clock(now: float | None = None) -> Finding:
    """Check that the clock is not before the installation of this file."""
    now = time.time() if now is None else now
    shown = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now))
    if now < Path(__file__).stat().st_mtime - _DAY:
        return warn(
            "clock",
            f"{shown} is before the installation of Trunkline",
            "set the clock: times of messages, certificates and prices depend on it",
        )
    return ok("clock", shown)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
