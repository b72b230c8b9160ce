"""What a program learns of the gateway's environment: the usual, what is its own, and nothing else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

USUAL = frozenset(
    (
        *("HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER"),
        *("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy"),
        *("NODE_EXTRA_CA_CERTS", "SSL_CERT_DIR", "SSL_CERT_FILE"),
        *("LC_ALL", "LC_COLLATE", "LC_CTYPE", "LC_MESSAGES", "LC_MONETARY", "LC_NUMERIC", "LC_TIME"),
        *("XDG_CACHE_HOME", "XDG_CONFIG_DIRS", "XDG_CONFIG_HOME", "XDG_DATA_DIRS", "XDG_DATA_HOME"),
        *("XDG_RUNTIME_DIR", "XDG_STATE_HOME"),
    )
)
"""What every program may know. Keys, tokens and settings of the gateway are not among it."""


def environment_for(
    environ: Mapping[str, str], own: Iterable[str], given: Mapping[str, str]
) -> dict[str, str]:
    """The environment of a program: what is usual or its ``own``, and what its settings have ``given``.

    The path keeps only absolute folders, so that a workspace cannot put a program of its own before others.
    """
    allowed = USUAL | set(own)
    kept = {name: value for name, value in environ.items() if name in allowed}
    whole = {**kept, "TERM": "dumb", "NO_COLOR": "1", **given}
    folders = whole.get("PATH", os.defpath).split(os.pathsep)
    return {**whole, "PATH": os.pathsep.join(folder for folder in folders if folder.startswith("/"))}


def program_at(binary: str, environ: Mapping[str, str]) -> str | None:
    """The absolute path of a program, or None if there is none."""
    home = environ.get("HOME", "")
    if binary.startswith("~/") and home:
        binary = f"{home}/{binary[2:]}"
    if "/" in binary and not binary.startswith("/"):
        return None
    found = shutil.which(binary, path=environ.get("PATH", os.defpath))
    return str(Path(found)) if found else None
