"""The settings of the plugin, ``[plugins.files]``, and the folders that they open."""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

SECRETS = (
    ".env",
    ".env.*",
    "*.env",
    ".envrc",
    ".netrc",
    ".pgpass",
    ".git-credentials",
    "*.pem",
    "*.key",
    "id_rsa",
    "id_ecdsa",
    "id_ed25519",
    "*/.ssh/*",
    "*/.gnupg/*",
    "*/.aws/*",
    "*/.git/*",
    "*/.config/trunkline/*",
    "trunkline.toml",
    "trunkline.json*",
    "*/config/agents/*",
    "*/.trunkline/*",
    "*/.agents/*",
)
"""Files with secrets, and those that decide what the gateway does from its next start on."""
EXAMPLES = ("*.example", "*.sample", "*.template", "*.pub")

SYSTEM = ("/dev", "/proc", "/sys")
"""Folders without ordinary files; those of ``/proc`` hold the gateway's own secrets."""


class FilesSettings(BaseModel):
    """The settings of the plugin."""

    model_config = ConfigDict(frozen=True)

    roots: tuple[Path, ...] = Field(
        default=(),
        validate_default=True,
        description="Absolute folders that the tools work in; relative paths belong to the first one",
    )
    writable: bool = Field(default=True, description="false: offer only the tools that read; default true")
    outside: Literal["admins", "ask", "deny"] = Field(
        default="admins",
        description="Paths outside the roots: ask admins and refuse others, ask everyone, or refuse; "
        'default "admins"',
    )
    ask: tuple[str, ...] = Field(
        default=SECRETS, description="Ask before each use of a file with such a name, or path if it has a /"
    )
    ask_not: tuple[str, ...] = Field(default=EXAMPLES, description="Exceptions from ask")
    max_bytes: int = Field(
        default=5_000_000, gt=0, description="Largest file to read or write, in bytes; default 5000000"
    )

    @field_validator("roots")
    @classmethod
    def _folders(cls, roots: tuple[Path, ...]) -> tuple[Path, ...]:
        if not roots:
            raise ValueError('needs at least one folder, such as roots = ["/srv/notes"]')
        found: list[Path] = []
        for root in roots:
            if not root.is_absolute():
                raise ValueError(f"has {str(root)!r}, which is not absolute; write the whole path")
            real = Path(os.path.realpath(root))
            if not real.is_dir():
                raise ValueError(f"has {str(root)!r}, which is not a folder; create it or correct the path")
            if any(real.is_relative_to(folder) for folder in SYSTEM):
                raise ValueError(f"has {str(root)!r}, which is a folder of the system; choose another")
            found.append(real)
        return tuple(found)

    def is_secret(self, path: str) -> bool:
        """Return whether a user is asked about this absolute path because of its name."""
        # Without case, because some file systems ignore it, too.
        path = path.casefold()
        name = path.rpartition("/")[2]

        def matches(glob: str) -> bool:
            return fnmatchcase(path if "/" in glob else name, glob.casefold())

        return any(map(matches, self.ask)) and not any(map(matches, self.ask_not))
