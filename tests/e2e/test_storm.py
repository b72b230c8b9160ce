"""The kill storm is a test; these test that it would fail if the gateway did.

A storm mostly waits, so all of them rage at once, each with a gateway and a world of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

STORM = Path(__file__).parent.parent / "storm" / "run.py"
PATIENCE = 280
pytestmark = pytest.mark.timeout(300)  # all storms share the cores with the tests of the other workers
FEW = ("--channels", "websocket,line")
KINDS = {
    "none": ("--seconds", "6"),
    "ack-before-commit": ("--seconds", "6", "--drain", "5", *FEW),
    "blind-resend": (
        "--seconds",
        "10",
        "--faults",
        "0.3",
        "--drain",
        "5",
        "--channels",
        "line,telegram.polling,slack.socket",
    ),
    "both-wordings": ("--seconds", "8", "--rate", "6", "--drain", "20", "--channels", "discord.one"),
    "left-standing": ("--seconds", "3", "--rate", "3", "--drain", "60", "--channels", "discord.one"),
    "loose-files": (
        "--seconds",
        "8",
        "--files",
        "0.9",
        "--faults",
        "0.3",
        "--drain",
        "20",
        "--channels",
        "slack.socket",
    ),
    "mixed-accounts": ("--seconds", "2", "--rate", "3", "--drain", "5", "--channels", "discord"),
    "no-recovery": ("--seconds", "5", "--drain", "5", *FEW),
    "trusted-clock": ("--seconds", "12", "--drain", "12", *FEW),
    "unkept-decisions": ("--seconds", "8", "--drain", "20", "--channels", "websocket,discord.one"),
    "unwritten-signals": ("--seconds", "10", "--drain", "20", "--rate", "14", *FEW),
}
"""What is planted in each storm, and what else is peculiar to it."""


class Storm:
    """A storm that was started."""

    def __init__(self, planted: str) -> None:
        plant = () if planted == "none" else ("--planted", planted)
        flags = ("--engine", "sqlite", "--seed", "7", "--json", *plant, *KINDS[planted])
        self.process = subprocess.Popen(
            [sys.executable, STORM, *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ended(self) -> tuple[int, dict[str, Any]]:
        """Its exit status, and what it found."""
        output, _ = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, json.loads(output)["storms"][0]


def lines_of(found: dict[str, Any]) -> list[str]:
    """Return what a storm complains of, and each violation with its kind."""
    violations: dict[str, list[str]] = found["violations"]
    return [
        *found["complaints"],
        *(f"{kind}: {line}" for kind, lines in violations.items() for line in lines),
    ]


@pytest.fixture(scope="module")
def storms() -> Iterator[dict[str, Storm]]:
    started = {planted: Storm(planted) for planted in KINDS}
    yield started
    for storm in started.values():
        storm.process.kill()
        storm.process.communicate()


def test_a_gateway_that_acknowledges_before_it_commits_is_found_out(storms: dict[str, Storm]) -> None:
    status, found = storms["ack-before-commit"].ended()
    assert status == 1
    assert found["lost"] > 0


def test_a_gateway_that_sends_again_without_looking_is_found_out(storms: dict[str, Storm]) -> None:
    status, found = storms["blind-resend"].ended()
    assert status == 1
    assert all(
        found["channels"][name]["duplicate"] > 0 for name in ("line", "telegram.polling", "slack.socket")
    )


def test_a_gateway_that_answers_a_changed_message_in_both_wordings_is_found_out(
    storms: dict[str, Storm],
) -> None:
    status, found = storms["both-wordings"].ended()
    assert status == 1
    assert found["duplicate"] > 0


def test_a_gateway_that_leaves_the_answer_to_a_deleted_message_is_found_out(
    storms: dict[str, Storm],
) -> None:
    status, found = storms["left-standing"].ended()
    assert status == 1
    assert found["lost"] == 0
    assert found["channels"]["discord.one"]["orphan"] > 0


def test_a_gateway_that_loses_and_doubles_files_is_found_out(storms: dict[str, Storm]) -> None:
    status, found = storms["loose-files"].ended()
    assert status == 1
    lost, doubled = found["violations"]["lost"], found["violations"]["duplicate"]
    assert any("the file of" in line and "is missing" in line for line in lost)
    assert any("the file of" in line and "is there 2 times" in line for line in doubled)
    assert any("has one more: file of:" in line for line in doubled)


def test_a_gateway_that_mixes_two_accounts_up_is_found_out(storms: dict[str, Storm]) -> None:
    status, found = storms["mixed-accounts"].ended()
    assert status == 1
    assert any(
        "discord.two: q" in line and "is in the session discord.one:" in line for line in lines_of(found)
    )


def test_a_gateway_that_forgets_what_people_allowed_is_found_out(storms: dict[str, Storm]) -> None:
    status, found = storms["unkept-decisions"].ended()
    assert status == 1
    assert any("was allowed, and asked about again" in line for line in found["violations"]["wrong"])


def test_a_gateway_that_forgets_what_it_accepted_is_found_out(storms: dict[str, Storm]) -> None:
    status, found = storms["no-recovery"].ended()
    assert status == 1
    assert found["lost"] > 0
    assert found["orphan"] > 0


def test_a_gateway_that_waits_for_the_hour_that_its_clock_was_ahead_is_found_out(
    storms: dict[str, Storm],
) -> None:
    status, found = storms["trusted-clock"].ended()
    assert status == 1
    assert found["lost"] > 0


def test_a_gateway_that_forgets_stops_and_deletions_is_found_out(storms: dict[str, Storm]) -> None:
    status, found = storms["unwritten-signals"].ended()
    assert status == 1
    assert found["wrong"] > 0


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("postgresql://me:secret@127.0.0.1:1/db", "PostgreSQL cannot be reached at"),
        ("127.0.0.1:5432", "TRUNKLINE_TEST_POSTGRES_URL is no address"),
    ],
)
def test_a_storm_that_cannot_be_held_says_why(address: str, told: str) -> None:
    storm = subprocess.run(
        [sys.executable, STORM, "--engine", "postgres"],
        env={**os.environ, "TRUNKLINE_TEST_POSTGRES_URL": address},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert storm.returncode == 2
    assert told in storm.stderr
    assert "postgresql://user:password@host/name" in storm.stderr
    assert "secret" not in storm.stderr
    assert "Traceback" not in storm.stderr


def test_a_short_storm_loses_and_doubles_nothing(storms: dict[str, Storm]) -> None:
    _, found = storms["none"].ended()
    assert found["kills"] > 0
    assert set(found["said"]) == {
        "line",
        "telegram.polling",
        "telegram.webhook",
        "discord.one",
        "discord.two",
        "slack.socket",
        "slack.http",
    }
    # A short storm among other tests may kill too seldom to prove much, so only violations count.
    assert not found["violations"], "\n".join(lines_of(found))
