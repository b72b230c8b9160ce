"""The side channel: reports of programs through their hooks, in addition to their screens.

In: runs of ``report.py``, which programs start as a hook; it asks the gateway over the keeper's inner socket,
with the secret of its session. Out: facts for the machine. ``sessions`` imports it. Nothing of it answers a
permission: a hook reports, and the program continues as without it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import shlex
import sys
from pathlib import Path

from plugins.coding_agents.adapters.contract import HookCommand
from plugins.coding_agents.keeper_client import SIBLING_SOCKET
from plugins.coding_agents.side_channel import report
from plugins.coding_agents.side_channel.intake import Intake

__all__ = ["Intake", "hook_command", "secret_of", "variables", "write_secret"]

_SOCKET = "TRUNKLINE_SOCKET"
"""The variable with the path of the socket."""


def hook_command() -> HookCommand:
    """Return the program that a hook runs. It has no secret in it: that is in the folder of the session."""
    line = shlex.join((os.path.realpath(sys.executable), "-I", "-S", "-B", report.__file__))
    line = f'{line} "${_SOCKET}"'
    return HookCommand(("/bin/sh", "-c", f'{line} "$@"', "sh"), line)


def secret_of(key: str) -> str:
    """Return the secret of a session, derived from its keeper's key, in hex; it does not reveal the key."""
    return hmac.new(bytes.fromhex(key), b"hooks", hashlib.sha256).hexdigest()


def variables(folder: Path) -> dict[str, str]:
    """Return the variables of a program that its hooks need: they find the gateway and their secret."""
    return {_SOCKET: str(folder / SIBLING_SOCKET)}


def write_secret(folder: Path, key: str) -> None:
    """Write the secret into the only folder of a session that its sandbox shows, and no other one."""
    inside = (folder / SIBLING_SOCKET).parent
    inside.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = inside / report.KEY_FILE
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(secret_of(key))
