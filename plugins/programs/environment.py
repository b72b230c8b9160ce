"""The environment of a program: shared variables, the program's own, and nothing else of the gateway's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

SHARED_VARIABLES = frozenset(
    (
        *("HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER"),
        *("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy"),
        *("NODE_EXTRA_CA_CERTS", "SSL_CERT_DIR", "SSL_CERT_FILE"),
        *("LC_ALL", "LC_COLLATE", "LC_CTYPE", "LC_MESSAGES", "LC_MONETARY", "LC_NUMERIC", "LC_TIME"),
        *("XDG_CACHE_HOME", "XDG_CONFIG_DIRS", "XDG_CONFIG_HOME", "XDG_DATA_DIRS", "XDG_DATA_HOME"),
        *("XDG_RUNTIME_DIR", "XDG_STATE_HOME"),
    )
)
"""Variables that every program gets. Keys, tokens and settings of the gateway are not among them."""

GIT_VARIABLES = ("GIT_SSL_CAINFO", "SSH_AUTH_SOCK")
"""Variables of the operator with which the gateway's own git reaches hosts, besides the shared ones."""


def environment_for(
    environ: Mapping[str, str], own: Iterable[str], given: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a program: shared variables, its ``own``, and the ``given`` ones of its
    settings.

    PATH keeps only absolute folders, so that a workspace cannot put its own programs first.
    """
    allowed = SHARED_VARIABLES | set(own)
    kept = {name: value for name, value in environ.items() if name in allowed}
    variables = {**kept, "TERM": "dumb", "NO_COLOR": "1", **given}
    folders = variables.get("PATH", os.defpath).split(os.pathsep)
    return {**variables, "PATH": os.pathsep.join(folder for folder in folders if folder.startswith("/"))}


def find_program(binary: str, environ: Mapping[str, str]) -> str | None:
    """Return the absolute path of a program, or None if it does not exist."""
    home = environ.get("HOME", "")
    if binary.startswith("~/") and home:
        binary = f"{home}/{binary[2:]}"
    if "/" in binary and not binary.startswith("/"):
        return None
    found = shutil.which(binary, path=environ.get("PATH", os.defpath))
    return str(Path(found)) if found else None
