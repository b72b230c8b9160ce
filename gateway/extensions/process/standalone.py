"""Prefixes of programs that outlive the gateway: the launcher ``child/standalone.py`` with its request.

Another process puts the prefix before the arguments of a program and starts that; it needs the gateway no
more. Each prefix is tried before it is returned, with the same profile and namespaces, so a program that
cannot be confined is refused here, with the reason, and not on its terminal.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from gateway.confinement.programs import ProgramPrefix
from gateway.extensions.process import kernel
from gateway.extensions.process.launcher import LATER, ConfinementError, Launcher
from gateway.extensions.process.profile import Profile

_SCRIPT = Path(__file__).parent.parent / "child" / "standalone.py"
_TRY_SECONDS = 20.0
_ABI_OF_SIGNALS = 6


async def program_prefix(launcher: Launcher, profile: Profile) -> ProgramPrefix:
    """Return the prefix for a profile, with the most namespaces that work. Raises ConfinementError."""
    missing = launcher.missing_layers()
    if missing:
        raise ConfinementError("confinement is impossible here", "; ".join(missing))
    # The arguments of a process are open to all users; the program's variables are its starter's to give.
    profile = structs.replace(profile, environ={})
    failed: ConfinementError | None = None
    for names in launcher.levels():
        if profile.network:
            names = tuple(name for name in names if name != "net")
        lacking = _lacking(profile, names)
        if lacking:
            raise failed or ConfinementError("namespaces", lacking)
        try:
            return ProgramPrefix(_words(profile, names), await _try(profile, names))
        except ConfinementError as error:
            if error.layer not in LATER:
                raise
            failed = error
    raise failed or ConfinementError("namespaces", "there is no way to confine a program")


def _lacking(profile: Profile, namespaces: Sequence[str]) -> str:
    """Return why a program must not run with these namespaces alone; "" if it may."""
    if not profile.network and "net" not in namespaces:
        return "a program whose network is limited needs its own: Landlock limits neither hosts nor UDP"
    if "pid" not in namespaces and kernel.landlock_abi() < _ABI_OF_SIGNALS:
        return "a program could end other processes: that needs a pid namespace, or a kernel from 6.12 on"
    return ""


def _words(profile: Profile, namespaces: Sequence[str], *, probe: bool = False) -> tuple[str, ...]:
    request = msgspec.json.encode({"profile": profile, "namespaces": namespaces, "probe": probe})
    return (sys.executable, "-I", "-S", "-B", str(_SCRIPT), request.decode())


async def _try(profile: Profile, namespaces: Sequence[str]) -> tuple[str, ...]:
    """Confine a process that does nothing, and return its layers. Raises ConfinementError."""
    process = await asyncio.create_subprocess_exec(
        *_words(profile, namespaces, probe=True),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={},
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(_TRY_SECONDS):
            output, errors = await process.communicate()
    except TimeoutError:
        raise ConfinementError("start", f"it took more than {_TRY_SECONDS:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if not output:
        raise ConfinementError("start", f"it ended: {errors[-1000:].decode(errors='replace').strip()}")
    reply: dict[str, Any] = msgspec.json.decode(output)
    if "error" in reply:
        raise ConfinementError(reply["layer"], reply["error"])
    return tuple(reply["layers"])
