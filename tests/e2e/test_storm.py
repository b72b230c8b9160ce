"""The kill storm is a test; these test that it would fail if the gateway did."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

STORM = Path(__file__).parent.parent / "storm" / "run.py"


async def storm(*flags: str) -> tuple[int, dict[str, Any]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(STORM),
        *("--engine", "sqlite", "--seed", "7", "--json", *flags),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode is not None
    return process.returncode, json.loads(output)["storms"][0]


@pytest.mark.timeout(90)
async def test_a_gateway_that_acknowledges_before_it_commits_is_found_out() -> None:
    status, found = await storm("--seconds", "8", "--drain", "5", "--planted", "ack-before-commit")
    assert status == 1
    assert found["lost"] > 0


@pytest.mark.timeout(90)
async def test_a_gateway_that_sends_again_without_looking_is_found_out() -> None:
    status, found = await storm("--seconds", "10", "--planted", "blind-resend", "--faults", "0.3")
    assert status == 1
    assert found["duplicate"] > 0


@pytest.mark.timeout(90)
async def test_a_gateway_that_forgets_what_it_accepted_is_found_out() -> None:
    status, found = await storm("--seconds", "6", "--drain", "5", "--planted", "no-recovery")
    assert status == 1
    assert found["lost"] > 0
    assert found["orphan"] > 0


@pytest.mark.timeout(90)
async def test_a_short_storm_loses_and_doubles_nothing() -> None:
    _, found = await storm("--seconds", "8")
    assert found["kills"] > 0
    assert {k: found[k] for k in ("lost", "duplicate", "orphan", "out_of_order", "wrong", "seq", "dead")} == {
        "lost": 0,
        "duplicate": 0,
        "orphan": 0,
        "out_of_order": 0,
        "wrong": 0,
        "seq": 0,
        "dead": 0,
    }
