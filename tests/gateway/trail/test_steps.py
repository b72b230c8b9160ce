"""Steps are stored in bounds and without secrets, and read back as they were."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gateway.session.redaction import MASK, Redactor
from gateway.store import Op
from gateway.trail import NO_TRAIL, Step, Trail, TrailMode, pack, unpack
from gateway.trail.path import complete
from gateway.trail.recorder import MOST_STEPS, PUT_TRAIL, PUT_TRAIL_AGAIN
from gateway.trail.steps import MOST_BYTES, MOST_TEXT

SECRET = "sk-test-0123456789abcdef"


def rows(*written: Sequence[Op]) -> list[list[Step]]:
    found: list[list[Step]] = []
    for ops in written:
        for write, row in ops:
            assert write in (PUT_TRAIL, PUT_TRAIL_AGAIN)
            found.append(unpack(str(row[3])))
    return found


def test_steps_are_read_back_as_they_were():
    steps = [
        Step(
            1_732_743_165_000,
            1_500,
            "model",
            "groq/llama",
            "ok",
            {"attempt": 1, "nano_usd": 12, "yours": False},
        ),
        Step(1_732_743_165_002, 0, "final", detail={"outcome": "answered", "share": 0.5}),
        Step(1_732_743_165_002, 0, "hook", "größe \ud800 \0", "changed"),
    ]
    assert unpack(pack(steps[:2])) == steps[:2]
    assert unpack(pack([])) == []


def test_a_long_step_is_cut_and_stays_readable():
    detail = {f"k{n}": "ü" * 4_000 for n in range(8)} | {"attempt": 2}
    text = pack([Step(0, 0, "model", "n" * 3_000, "failed", detail), Step(0, 0, "final")])
    cut, last = unpack(text)
    assert len(text.encode()) < MOST_BYTES + 100
    assert (cut.detail["attempt"], last.kind) == (2, "final")
    [one] = unpack(pack([Step(0, 0, "model", "m", "failed", {"error": "x" * 3_000})]))
    assert len(str(one.detail["error"])) == MOST_TEXT


def test_secrets_are_masked_wherever_they_are():
    mask = Redactor([SECRET, "1732743165000123", 'two "words" of it']).redact_text
    steps = [
        Step(
            1,
            2,
            "model",
            f"p/{SECRET}",
            "failed",
            {"error": f"key {SECRET} refused", "nano_usd": 1_732_743_165_000_123},
        ),
        Step(1, 2, "tool", "x", "failed", {"error": 'said two "words" of it'}),
    ]
    text = pack(steps, mask)
    assert SECRET not in text
    first, second = unpack(text)
    assert first.name == f"p/{MASK}"
    assert first.detail == {"error": f"key {MASK} refused", "nano_usd": 1_732_743_165_000_123}
    assert second.detail == {"error": f"said {MASK}"}


@pytest.mark.parametrize("text", ["", "[", '[["x"]]', '[[1,2,"rumour","","ok",{}]]'])
def test_other_texts_are_refused(text: str):
    with pytest.raises(ValueError):
        unpack(text)


def test_each_transaction_takes_the_steps_since_the_last_one():
    trail = Trail("m1")
    assert trail.ops() == []
    trail.add("hook", "allowlist", hook="transform_user_input", verdict="pass")
    first = trail.ops()
    trail.add("model", "p/m", "ok", 0.25, attempt=1)
    second = trail.finish("answered")
    assert [[s.kind for s in row] for row in rows(first, second)] == [["hook"], ["model", "final"]]
    assert second[0][1][1] > first[0][1][1]  # type: ignore[operator]
    assert trail.ops() == []
    [model, final] = rows(second)[0]
    assert (model.took, final.detail) == (250_000, {"outcome": "answered"})


def test_the_steps_of_a_failed_transaction_are_in_the_next_one():
    trail = Trail("m1")
    trail.add("model", "p/m", attempt=1)
    failed = trail.finish("answered")
    trail.reopen()
    again = trail.finish("dead", "StoreError")
    assert [s.kind for s in rows(again)[0]] == ["model", "final", "final"]
    assert again[0][1][:2] == failed[0][1][:2]
    trail.add("waited")
    assert trail.ops()[0][1][1] > again[0][1][1]  # type: ignore[operator]


def test_a_message_that_is_settled_after_a_kill_without_an_attempt_shows_the_gap():
    def path(*before: Sequence[Op]) -> list[tuple[str, str]]:
        newest = before[-1][0][1][1] if before else 0
        assert isinstance(newest, int)
        settled = Trail("m1", newest=newest, recovered=True).finish("nothing", "withdrawn")
        return [(s.kind, s.state) for s in complete(s for row in rows(*before, settled) for s in row)]

    killed, stopped = Trail("m1"), Trail("m1")
    killed.add("hook", "h")
    stopped.add("hook", "h")
    gap = ("restart", "unrecorded")
    assert path(killed.ops()) == [("hook", "ok"), gap, ("final", "ok")]
    assert path(stopped.suspend()) == [("hook", "ok"), ("restart", "waiting"), ("final", "ok")]
    assert path() == [("final", "ok")]


@pytest.mark.parametrize("mode", ["full", "failures"])
def test_a_message_that_is_being_settled_when_the_gateway_ends_has_an_end(mode: TrailMode):
    trail = Trail("m1", mode)
    trail.add("model", "p/m", "failed")
    trail.decide("answered")
    settled = trail.finish()
    assert [s.kind for s in rows(settled, trail.suspend())[-1]] == ["model", "final"]


def test_a_message_whose_answer_is_not_placed_when_the_gateway_ends_waits():
    trail = Trail("m1")
    trail.decide("answered")
    trail.decided()
    assert [s.kind for s in rows(trail.suspend())[0]] == ["final", "restart"]


def test_only_messages_that_failed_leave_a_trail_if_the_settings_say_so():
    well, badly, repeated = (Trail(name, "failures") for name in ("a", "b", "c"))
    for trail in (well, badly, repeated):
        trail.add("hook", "h")
    assert (well.ops(), well.finish("answered")) == ([], [])
    badly.add("model", "p/m", "failed", code="AuthFailedError")
    assert [s.kind for s in rows(badly.ops())[0]] == ["hook", "model"]
    assert [s.kind for s in rows(badly.finish("answered"))[0]] == ["final"]
    repeated.add("restart", attempt=2)
    assert [s.kind for s in rows(repeated.ops())[0]] == ["hook", "restart"]
    NO_TRAIL.add("hook", "h")
    NO_TRAIL.decide("answered")
    assert (NO_TRAIL.finish("failed"), NO_TRAIL.outcome) == ([], "")


def test_a_message_with_very_many_steps_says_how_many_are_missing():
    trail = Trail("m1")
    for _ in range(MOST_STEPS + 3):
        trail.add("tool", "t")
    [found] = rows(trail.ops())
    assert (len(found), found[-1].detail) == (MOST_STEPS, {"omitted": 3})


def test_a_wait_ends_with_the_next_step():
    trail = Trail("m1")
    trail.lease("p", None, 0.0)
    assert trail.unsaved[-1].state == "waiting"
    trail.lease("p", "api_keys[1]", 0.0)
    assert (trail.unsaved[-1].state, trail.unsaved[-1].detail) == ("ok", {"for": "key", "provider": "p"})
    assert (trail.take_key(), trail.take_key()) == ("api_keys[1]", "")
    trail.await_next("rate", 600)
    trail.add("model", "p/m")
    [waited, _] = trail.unsaved[1:]
    assert (waited.state, waited.detail["for"]) == ("ok", "rate")
    # One that was stored as open ended with its time, or before the next step.
    short = Step(1_000, 0, "waited", "retry", "waiting", {"for": "retry", "until": 1_500})
    [ended, _] = complete([short, Step(9_000, 0, "model")])
    assert (ended.state, ended.took) == ("ok", 500_000)
    [ended, _, _] = complete([short, Step(1_200, 0, "restart", detail={"attempt": 1})])
    assert (ended.state, ended.took) == ("ok", 200_000)
    assert complete([short]) == [short]


def test_an_intent_and_its_placement_are_one_step():
    decided = Step(1_000, 0, "final", "", "running", {"outcome": "notice", "code": "X"})
    intent = Step(1_000, 0, "placement", "telegram", "running", {"nonce": "n"})
    placed = Step(1_200, 50_000, "placement", "telegram", "ok", {"nonce": "n", "platform_id": "7"})
    one, last = complete([decided, intent, placed, Step(1_260, 0, "final")])
    assert (one.at, one.took, one.state) == (1_000, 250_000, "ok")
    assert one.detail["platform_id"] == "7"
    assert last.detail == {"outcome": "notice", "code": "X"}
    assert complete([decided, intent]) == [intent]
    tried = Step(1_100, 0, "placement", "telegram", "waiting", {"code": "PlacementUncertain"})
    assert complete([intent, tried, placed]) == [tried, placed]


def test_what_a_kill_cut_off_is_one_station():
    model, restart = Step(1, 0, "model"), Step(9, 0, "restart", detail={"attempt": 2})
    states = [step.state for step in complete([model, restart, Step(9, 0, "final")])]
    assert states == ["ok", "unrecorded", "ok", "ok"]
    assert [s.state for s in complete([restart])] == ["unrecorded", "ok"]
    # It had not begun, the gateway ended in order, or an operator replays it.
    assert complete([Step(9, 0, "restart", detail={"attempt": 1})])[0].state == "ok"
    ended = Step(5, 0, "restart", "shutdown", "waiting")
    assert [s.state for s in complete([model, ended, restart])] == ["ok", "waiting", "ok"]
    assert [s.kind for s in complete([Step(5, 0, "final", detail={"outcome": "dead"}), restart])] == [
        "final",
        "restart",
    ]
