"""The files of `config/cluster` for containers, as their programs would see them."""

from __future__ import annotations

import subprocess
from pathlib import Path

FOLDER = Path(__file__).parents[3] / "config/cluster"
MOUNTED = "/run/secrets"
"""Where containers have the secrets."""


def read(name: str) -> str:
    """Read a file of `config/cluster`."""
    return (FOLDER / name).read_text(encoding="utf-8")


def make_secrets(folder: Path, host: str = "rabbitmq") -> Path:
    """Run the script that makes the secrets. Returns their folder."""
    subprocess.run(["sh", FOLDER / "secrets.sh", folder, host], check=True, capture_output=True)
    return folder
