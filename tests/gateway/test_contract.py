"""What ``from gateway import …`` offers: every name once, loaded only when it is asked for."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import gateway

SOURCE = ast.parse(Path(gateway.__file__).read_text(encoding="utf-8"))


def imported() -> dict[str, str]:
    """What type checkers are told: each name, and the module it is from."""
    return {
        alias.name: node.module or ""
        for node in ast.walk(SOURCE)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gateway.")
        for alias in node.names
    }


def test_type_checkers_and_the_running_program_are_told_the_same() -> None:
    at_run_time = {name: module for module, names in gateway._EXPORTS.items() for name in names.split()}
    assert at_run_time == imported()
    assert sorted(at_run_time) == sorted(gateway.__all__)


def test_every_name_is_there() -> None:
    assert [name for name in gateway.__all__ if not hasattr(gateway, name)] == []


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = {"aiohttp", "pydantic", "sqlalchemy", "structlog"}
    code = f"import gateway, sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
