"""A storm that proves too little does not pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from plan import KEPT, PASSED_ON, UPGRADED, Outcome, Plan
from report import complaints
from verdict import Verdict

from gateway.store import migrate
from tests.gateway.cluster.newer import REVISION


def storm(faults: dict[str, int], revision: str, said: Sequence[str] = ("line",)) -> Outcome:
    plan = Plan("", 20, 0, 0, 1, nodes=3)
    return Outcome(
        plan,
        "postgresql",
        messages=0,
        said=Counter(said),
        acked=0,
        kills=9,
        lives=9,
        faults=faults,
        exits={},
        answers_in_outages=0,
        revision=revision,
        hits={},
        drained=True,
        drain_seconds=1,
        exit_status=0,
        unexpected=[],
        verdict=Verdict(),
    )


DONE = {"PostgreSQL killed": 1, UPGRADED: 1, PASSED_ON: 1, KEPT: 1}


def test_a_storm_with_all_that_it_is_to_show_passes() -> None:
    assert complaints(storm(DONE, REVISION)) == []


@pytest.mark.parametrize("missing", DONE)
def test_a_storm_in_which_something_did_not_happen_does_not_pass(missing: str) -> None:
    [found] = complaints(storm({**DONE, missing: 0}, REVISION))
    assert found == f"{missing}: only 0 times, which proves too little"


def test_a_storm_whose_database_was_not_migrated_does_not_pass() -> None:
    [found] = complaints(storm(DONE, migrate.head()))
    assert found == f"the database is at revision {migrate.head()}, and the newer version has {REVISION}"


def test_a_storm_without_a_message_in_one_of_its_channels_does_not_pass() -> None:
    assert complaints(storm(DONE, REVISION, said=())) == ["no message in line"]
