"""The kill storm is a test; these test that it would fail if the gateway did.

A storm mostly waits, so all of them rage at once, each with a gateway and a world of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

STORM = Path(__file__).parent.parent / "storm" / "run.py"
PATIENCE = 280
pytestmark = pytest.mark.timeout(900)  # all storms share the cores with the tests of the other workers
FEW = ("--channels", "websocket,line")
KINDS = {
    "none": ("--seconds", "6"),
    "ack-before-commit": ("--seconds", "6", "--drain", "5", *FEW),
    "asked-anew": ("--seconds", "8", "--rate", "6", "--drain", "30", "--channels", "websocket"),
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
    "ended-turns": ("--seconds", "8", "--drain", "40", *FEW),
    "forgotten-answers": ("--seconds", "6", "--rate", "6", "--drain", "20", "--channels", "discord.one"),
    "forgotten-keys": ("--seconds", "8", "--drain", "10", "--channels", "line,discord.one"),
    "left-standing": ("--seconds", "3", "--rate", "3", "--drain", "60", "--channels", "discord.one"),
    "loose-files": (
        "--seconds",
        "16",
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
    "second-runs": ("--seconds", "8", "--rate", "6", "--drain", "40", "--channels", "websocket"),
    "torn-edits": ("--seconds", "8", "--rate", "4", "--drain", "30", "--channels", "websocket"),
    "trusted-clock": ("--seconds", "12", "--drain", "12", *FEW),
    "unblocked": ("--seconds", "8", "--drain", "40", *FEW),
    "unkept-decisions": ("--seconds", "8", "--drain", "20", "--channels", "websocket,discord.one"),
    "unwritten-signals": ("--seconds", "10", "--drain", "20", "--rate", "14", *FEW),
}
"""What is planted in each storm, and what else is peculiar to it."""


class Storm:
    """A storm that was started."""

    def __init__(self, planted: str) -> None:
        self._planted = planted
        self._start(1)

    def _start(self, times: int) -> None:
        plant = () if self._planted == "none" else ("--planted", self._planted)
        seconds, *others = KINDS[self._planted][1:]
        flags = ("--engine", "sqlite", "--seed", "7", "--json", "--seconds", str(int(seconds) * times))
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the storm
        self.process = subprocess.Popen(
            [sys.executable, STORM, *flags, *plant, *others],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def ended(self) -> tuple[int, dict[str, Any]]:
        """Its exit status, and what it found."""
        output, _ = self.process.communicate(timeout=PATIENCE)
        self._errors.seek(0)
        assert output, self._errors.read()[-2_000:]
        return self.process.returncode, json.loads(output)["storms"][0]

    def finds(self, planted: Callable[[Found], bool]) -> bool:
        """Return whether it fails because of what was planted.

        On a busy machine too little may happen in its time. It is then repeated, three times as long.
        """
        status, found = self.ended()
        if status == 1 and planted(Found(found)):
            return True
        self._errors.close()
        self._start(3)
        status, found = self.ended()
        return status == 1 and planted(Found(found))

    def end(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.process.communicate()
        self._errors.close()


class Found:
    """What a storm found."""

    def __init__(self, outcome: dict[str, Any]) -> None:
        self._outcome = outcome
        self._violations: dict[str, list[str]] = outcome["violations"]

    def count(self, kind: str, channel: str = "") -> int:
        """Return the number of violations of a kind, in one channel or in all."""
        return self._outcome["channels"][channel][kind] if channel else self._outcome[kind]

    def says(self, *words: str, kind: str = "") -> bool:
        """Return whether one line, of a kind of violation or of any, has all these words."""
        lines = self._violations.get(kind, []) if kind else self.lines
        return any(all(word in line for word in words) for line in lines)

    @property
    def lines(self) -> list[str]:
        """What a storm complains of, and each violation with its kind."""
        told = [f"{kind}: {line}" for kind, lines in self._violations.items() for line in lines]
        return [*self._outcome["complaints"], *told]


@pytest.fixture(scope="module")
def storms() -> Iterator[dict[str, Storm]]:
    started = {planted: Storm(planted) for planted in KINDS}
    yield started
    for storm in started.values():
        storm.end()


def test_a_gateway_that_acknowledges_before_it_commits_is_found_out(storms: dict[str, Storm]) -> None:
    assert storms["ack-before-commit"].finds(lambda found: found.count("lost") > 0)


def test_a_gateway_that_sends_again_without_looking_is_found_out(storms: dict[str, Storm]) -> None:
    channels = ("line", "telegram.polling", "slack.socket")
    assert storms["blind-resend"].finds(
        lambda found: all(found.count("duplicate", channel) > 0 for channel in channels)
    )


def test_a_gateway_that_answers_a_changed_message_in_both_wordings_is_found_out(
    storms: dict[str, Storm],
) -> None:
    assert storms["both-wordings"].finds(lambda found: found.count("duplicate") > 0)


def test_a_gateway_that_leaves_the_answer_to_a_deleted_message_is_found_out(
    storms: dict[str, Storm],
) -> None:
    assert storms["left-standing"].finds(
        lambda found: found.count("lost") == 0 and found.count("orphan", "discord.one") > 0
    )


def test_a_gateway_that_forgets_what_people_answered_is_found_out(storms: dict[str, Storm]) -> None:
    assert storms["forgotten-answers"].finds(
        lambda found: found.says("and the herald was told set()", kind="orphan")
    )


def test_a_gateway_that_forgets_the_keys_of_announcements_is_found_out(storms: dict[str, Storm]) -> None:
    assert storms["forgotten-keys"].finds(lambda found: found.says("the notice", kind="duplicate"))


def test_a_gateway_that_loses_and_doubles_files_is_found_out(storms: dict[str, Storm]) -> None:
    assert storms["loose-files"].finds(
        lambda found: (
            found.says("the file of", "is missing", kind="lost")
            and found.says("the file of", "is there 2 times", kind="duplicate")
            and found.says("has one more: file of:", kind="duplicate")
        )
    )


def test_a_gateway_that_mixes_two_accounts_up_is_found_out(storms: dict[str, Storm]) -> None:
    assert storms["mixed-accounts"].finds(
        lambda found: found.says("discord.two: q", "is in the session discord.one:")
    )


def test_a_gateway_that_forgets_what_people_allowed_is_found_out(storms: dict[str, Storm]) -> None:
    assert storms["unkept-decisions"].finds(
        lambda found: found.says("was allowed, and its tool says", kind="wrong")
    )


def test_a_gateway_that_forgets_what_it_accepted_is_found_out(storms: dict[str, Storm]) -> None:
    assert storms["no-recovery"].finds(lambda found: found.count("lost") > 0 and found.count("orphan") > 0)


def test_a_gateway_whose_repeated_turn_asks_once_more_is_found_out(storms: dict[str, Storm]) -> None:
    assert storms["asked-anew"].finds(lambda found: found.says("was asked about", kind="duplicate"))


def test_a_gateway_that_begins_a_task_anew_after_a_crash_is_found_out(storms: dict[str, Storm]) -> None:
    assert storms["second-runs"].finds(lambda found: found.says("the call", "runs", kind="duplicate"))


def test_a_gateway_that_hides_what_an_edit_replaces_too_late_is_found_out(storms: dict[str, Storm]) -> None:
    assert storms["torn-edits"].finds(lambda found: found.says("shows also", kind="duplicate"))


def test_a_gateway_that_waits_for_the_hour_that_its_clock_was_ahead_is_found_out(
    storms: dict[str, Storm],
) -> None:
    assert storms["trusted-clock"].finds(lambda found: found.count("lost") > 0)


def test_a_gateway_that_forgets_stops_and_deletions_is_found_out(storms: dict[str, Storm]) -> None:
    assert storms["unwritten-signals"].finds(lambda found: found.count("wrong") > 0)


def test_a_gateway_that_ends_a_replaced_plugin_at_once_is_found_out(storms: dict[str, Storm]) -> None:
    assert storms["ended-turns"].finds(lambda found: found.says("plugin 'observer'", kind="wrong"))


def test_a_gateway_that_ignores_what_a_plugin_blocks_is_found_out(storms: dict[str, Storm]) -> None:
    assert storms["unblocked"].finds(lambda found: found.says("was not blocked", kind="wrong"))


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
    assert not found["violations"], "\n".join(Found(found).lines)
