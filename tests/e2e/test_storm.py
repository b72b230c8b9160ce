"""The kill storm is a test; these test that it would fail if the gateway did.

A storm mostly waits, so a few of them run at once, each with its own gateway and fake servers. `make
test` leaves out those marked ``planted``: they plant further bugs, and take minutes of processor time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import prefork

STORM = Path(__file__).parent.parent / "storm" / "run.py"
PATIENCE = 280
SEEDS = (7, 8, 9, 10, 11)
AT_ONCE = 5
"""How many storms a worker of pytest has under way; each worker starts its own."""

pytestmark = pytest.mark.timeout(1_200)  # a storm that found nothing is held again, and longer
FEW = ("--channels", "websocket,line")
FEWEST = ("--rate", "4", "--channels", "websocket", "--nodes", "2")
KINDS = {
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
    "left-standing": ("--seconds", "3", "--rate", "3", "--drain", "60", "--channels", "discord.one"),
    # It starts a PostgreSQL and a RabbitMQ, and needs no long drain: what is wrong stays so.
    "no-epoch-check": ("--seconds", "6", "--drain", "4", *FEW, "--nodes", "2"),
}
"""What is planted in each storm that `make test` holds, in the order of the tests, and its other flags.

One for each kind of finding: lost, doubled, left over, and of a node that was replaced.
"""
FURTHER = {
    "mixed-accounts": ("--seconds", "2", "--rate", "3", "--drain", "5", "--channels", "discord"),
    "no-recovery": ("--seconds", "5", "--drain", "5", *FEW),
    "failed-turns": ("--seconds", "3", "--drain", "10", "--channels", "websocket"),
    "unblocked": ("--seconds", "8", "--drain", "40", *FEW),
    "no-reload": ("--seconds", "6", "--drain", "4", "--channels", "websocket", "--nodes", "2"),
    "both-revisions": ("--seconds", "8", "--rate", "6", "--drain", "20", "--channels", "discord.one"),
    "forgotten-answers": ("--seconds", "6", "--rate", "6", "--drain", "20", "--channels", "discord.one"),
    "forgotten-keys": ("--seconds", "8", "--drain", "10", "--channels", "line,discord.one"),
    # Slack takes about one message a second, so at a higher rate most files would never be sent.
    "loose-files": (
        "--seconds",
        "20",
        "--rate",
        "3",
        "--files",
        "0.9",
        "--faults",
        "0.4",
        "--drain",
        "30",
        "--channels",
        "slack.socket",
    ),
    "hasty-reconcile": ("--seconds", "6", "--drain", "10", "--channels", "line", "--nodes", "2"),
    "unkept-decisions": ("--seconds", "8", "--drain", "20", "--channels", "websocket,discord.one"),
    "asked-anew": ("--seconds", "8", "--rate", "6", "--drain", "30", "--channels", "websocket"),
    "second-runs": ("--seconds", "8", "--rate", "6", "--drain", "40", "--channels", "websocket"),
    # These start a PostgreSQL and a RabbitMQ, and need no long drain: what is wrong stays so.
    "no-row-lock": ("--seconds", "8", "--drain", "15", "--channels", "websocket", "--nodes", "3"),
    "early-ack": ("--seconds", "10", "--drain", "4", *FEWEST),
    "torn-edits": ("--seconds", "8", "--rate", "4", "--drain", "30", "--channels", "websocket"),
    "trusted-clock": ("--seconds", "12", "--drain", "12", *FEW),
    "unwritten-signals": ("--seconds", "10", "--drain", "20", "--rate", "14", *FEW),
    "ended-turns": ("--seconds", "8", "--drain", "40", *FEW),
    "renewed-takeover": ("--seconds", "4", "--drain", "4", *FEWEST),
}
"""The same of those marked ``planted``."""


class Storm:
    """A storm that was started."""

    def __init__(self, planted: str) -> None:
        self._planted = planted
        self._start(SEEDS[0], 1)

    def _start(self, seed: int, times: int) -> None:
        seconds, *others = (KINDS | FURTHER)[self._planted][1:]
        engine = "postgres" if "--nodes" in others else "sqlite"
        flags = ("--engine", engine, "--seed", str(seed), "--json", "--seconds", str(int(seconds) * times))
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the storm
        self.process = prefork.Popen(
            [sys.executable, STORM, *flags, "--planted", self._planted, *others],
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

    def must_find(self, planted: Callable[[Found], bool]) -> None:
        """Fail unless the storm fails because of what was planted.

        On a busy machine too little may happen in its time. It is then repeated with other seeds, three times
        as long.
        """
        told: list[str] = []
        for seed in SEEDS:
            if seed != SEEDS[0]:
                self._errors.close()
                self._start(seed, 3)
            status, outcome = self.ended()
            found = Found(outcome)
            if status == 1 and planted(found):
                return
            told += [f"seed {seed}: status {status}, kills {outcome['kills']}", *found.lines[:20]]
        pytest.fail("\n".join([f"{self._planted} was not found out", *told]))

    def end(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.process.communicate()
        self._errors.close()


class Storms:
    """The storms of this file: one that is asked for is started, and those that come next with it.

    ``names`` is what is planted in them, in their order; ``at_once`` is how many are started together. A test
    that runs alone gets one, so that nothing disturbs it.
    """

    def __init__(self, names: Sequence[str], at_once: int) -> None:
        self._names = names
        self._at_once = at_once
        self._started: dict[str, Storm] = {}

    def __getitem__(self, planted: str) -> Storm:
        first = self._names.index(planted)
        for name in self._names[first : first + self._at_once]:
            if name not in self._started:
                self._started[name] = Storm(name)
        return self._started[planted]

    def end(self) -> None:
        """End those that were started."""
        for storm in self._started.values():
            storm.end()


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
    def kills(self) -> int:
        """How many processes were killed."""
        return self._outcome["kills"]

    @property
    def lines(self) -> list[str]:
        """What a storm complains of, and each violation with its kind."""
        told = [f"{kind}: {line}" for kind, lines in self._violations.items() for line in lines]
        return [*self._outcome["complaints"], *told]


@pytest.fixture(scope="module")
def storms(request: pytest.FixtureRequest) -> Iterator[Storms]:
    tests = [item for item in request.session.items if item.path == request.path]
    further = any(item.get_closest_marker("planted") for item in tests)
    started = Storms([*KINDS, *FURTHER] if further else [*KINDS], min(AT_ONCE, len(tests)))
    yield started
    started.end()


def test_a_gateway_that_acknowledges_before_it_commits_is_found_out(storms: Storms) -> None:
    storms["ack-before-commit"].must_find(lambda found: found.count("lost") > 0)


def test_a_gateway_that_sends_again_without_looking_is_found_out(storms: Storms) -> None:
    channels = ("line", "telegram.polling", "slack.socket")
    storms["blind-resend"].must_find(
        lambda found: all(found.count("duplicate", channel) > 0 for channel in channels)
    )


def test_a_gateway_that_leaves_the_answer_to_a_deleted_message_is_found_out(
    storms: Storms,
) -> None:
    storms["left-standing"].must_find(
        lambda found: found.count("lost") == 0 and found.count("orphan", "discord.one") > 0
    )


@pytest.mark.usefixtures("rabbitmq_path", "postgres_programs")
def test_a_node_that_works_on_after_another_one_took_over_is_found_out(storms: Storms) -> None:
    storms["no-epoch-check"].must_find(
        lambda found: found.count("seq") + found.count("out_of_order") + found.count("duplicate") > 0
    )


@pytest.mark.planted
def test_a_gateway_that_mixes_two_accounts_up_is_found_out(storms: Storms) -> None:
    storms["mixed-accounts"].must_find(
        lambda found: found.says("discord.two: q", "is in the session discord.one:")
    )


@pytest.mark.planted
def test_a_gateway_that_forgets_what_it_accepted_is_found_out(storms: Storms) -> None:
    storms["no-recovery"].must_find(lambda found: found.count("lost") > 0 and found.count("orphan") > 0)


@pytest.mark.planted
def test_a_gateway_whose_turns_fail_without_a_reason_is_found_out(storms: Storms) -> None:
    storms["failed-turns"].must_find(lambda found: found.says("failed without a reason: the planted bug"))


@pytest.mark.planted
def test_a_gateway_that_ignores_what_a_plugin_blocks_is_found_out(storms: Storms) -> None:
    storms["unblocked"].must_find(lambda found: found.says("was not blocked", kind="wrong"))


@pytest.mark.planted
@pytest.mark.usefixtures("rabbitmq_path", "postgres_programs")
def test_a_node_that_continues_nothing_of_its_predecessor_is_found_out(storms: Storms) -> None:
    storms["no-reload"].must_find(lambda found: found.count("lost") > 0)


@pytest.mark.planted
def test_a_gateway_that_answers_a_changed_message_in_both_revisions_is_found_out(
    storms: Storms,
) -> None:
    storms["both-revisions"].must_find(lambda found: found.count("duplicate") > 0)


@pytest.mark.planted
def test_a_gateway_that_forgets_what_people_answered_is_found_out(storms: Storms) -> None:
    storms["forgotten-answers"].must_find(
        lambda found: found.says("and the announcer was told set()", kind="orphan")
    )


@pytest.mark.planted
def test_a_gateway_that_forgets_the_keys_of_announcements_is_found_out(storms: Storms) -> None:
    storms["forgotten-keys"].must_find(lambda found: found.says("the notice", kind="duplicate"))


@pytest.mark.planted
def test_a_gateway_that_loses_and_doubles_files_is_found_out(storms: Storms) -> None:
    storms["loose-files"].must_find(
        lambda found: (
            found.says("the file of", "is missing", kind="lost")
            and found.says("the file of", "is there 2 times", kind="duplicate")
            and found.says("has one more: file of:", kind="duplicate")
        )
    )


@pytest.mark.planted
@pytest.mark.usefixtures("rabbitmq_path", "postgres_programs")
def test_a_node_that_does_not_wait_for_calls_of_a_killed_one_is_found_out(storms: Storms) -> None:
    storms["hasty-reconcile"].must_find(lambda found: found.says("has one more: ", kind="duplicate"))


@pytest.mark.planted
def test_a_gateway_that_forgets_what_people_allowed_is_found_out(storms: Storms) -> None:
    storms["unkept-decisions"].must_find(
        lambda found: found.says("was allowed, and its tool says", kind="wrong")
    )


@pytest.mark.planted
def test_a_gateway_whose_repeated_turn_asks_once_more_is_found_out(storms: Storms) -> None:
    storms["asked-anew"].must_find(lambda found: found.says("was asked about", kind="duplicate"))


@pytest.mark.planted
def test_a_gateway_that_restarts_a_task_after_a_crash_is_detected(storms: Storms) -> None:
    storms["second-runs"].must_find(lambda found: found.says("the call", "runs", kind="duplicate"))


@pytest.mark.planted
@pytest.mark.usefixtures("rabbitmq_path", "postgres_programs")
def test_a_node_that_commits_after_its_successor_has_read_the_inbox_is_found_out(storms: Storms) -> None:
    kinds = ("lost", "out_of_order")
    storms["no-row-lock"].must_find(lambda found: sum(map(found.count, kinds)) > 0)


@pytest.mark.planted
@pytest.mark.usefixtures("rabbitmq_path", "postgres_programs")
def test_a_node_that_acknowledges_the_token_before_it_ends_is_found_out(storms: Storms) -> None:
    storms["early-ack"].must_find(
        lambda found: found.kills > 1 and found.says("token of a killed node passed on: only 0 times")
    )


@pytest.mark.planted
def test_a_gateway_that_hides_what_an_edit_replaces_too_late_is_found_out(storms: Storms) -> None:
    storms["torn-edits"].must_find(lambda found: found.says("shows also", kind="duplicate"))


@pytest.mark.planted
def test_a_gateway_that_waits_for_the_hour_that_its_clock_was_ahead_is_found_out(
    storms: Storms,
) -> None:
    storms["trusted-clock"].must_find(lambda found: found.count("lost") > 0)


@pytest.mark.planted
def test_a_gateway_that_forgets_stops_and_deletions_is_found_out(storms: Storms) -> None:
    storms["unwritten-signals"].must_find(lambda found: found.count("wrong") > 0)


@pytest.mark.planted
def test_a_gateway_that_ends_a_replaced_plugin_at_once_is_found_out(storms: Storms) -> None:
    storms["ended-turns"].must_find(lambda found: found.says("plugin 'observer'", kind="wrong"))


@pytest.mark.planted
@pytest.mark.usefixtures("rabbitmq_path", "postgres_programs")
def test_a_node_that_takes_a_renewed_token_for_a_takeover_is_found_out(storms: Storms) -> None:
    storms["renewed-takeover"].must_find(lambda found: found.says("ended by itself", "exit 70"))


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--nodes", "0"), "--nodes is 1 or more"),
        (("--nodes", "3", "--engine", "sqlite"), "--nodes needs PostgreSQL"),
        (("--planted", "no-epoch-check"), "--planted no-epoch-check needs --nodes 2 or more"),
    ],
)
def test_a_storm_with_nodes_that_are_not_possible_is_refused(flags: Sequence[str], told: str) -> None:
    storm = subprocess.run(
        [sys.executable, STORM, *flags], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert storm.returncode == 2
    assert told in storm.stderr


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
