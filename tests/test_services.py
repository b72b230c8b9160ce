"""Tests that need more than Python: skipped with a word, or failed where all has to be there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
NEEDY = "tests/gateway/store/test_lock.py"


def tried(**environ: str) -> subprocess.CompletedProcess[str]:
    """A run of a file of tests, some of which need PostgreSQL, where there is none."""
    known = {name: value for name, value in os.environ.items() if name != "TRUNKLINE_TEST_POSTGRES_URL"}
    environ = {**known, "TRUNKLINE_REQUIRE_SERVICES": "", **environ}
    command = [sys.executable, "-m", "pytest", "-m", "postgres", "-p", "no:cacheprovider", NEEDY]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)


def test_what_is_lacking_skips_its_tests_and_says_which_and_why() -> None:
    run = tried()
    assert run.returncode == 0, run.stdout
    [line] = [line for line in run.stdout.splitlines() if f"of {NEEDY}: no PostgreSQL" in line]
    assert int(line.split()[0]) > 0


def test_where_all_has_to_be_there_nothing_is_skipped() -> None:
    run = tried(TRUNKLINE_REQUIRE_SERVICES="1")
    assert run.returncode == 1
    assert "skipped" not in run.stdout
    assert "TRUNKLINE_REQUIRE_SERVICES=1 allows no skip" in run.stdout
