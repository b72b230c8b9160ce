"""The last hours in memory: ticks of channels, and figures by minute."""

from __future__ import annotations

from gateway.contract.channel import Health
from gateway.contract.messages import Metadata
from gateway.counters import Counters
from gateway.server.now.history import MINUTE_MS, TICK_MS, HealthHistory, Trends

BEGIN = 1_000 * TICK_MS
WORKS, FAILS = Health(ok=True), Health(ok=False, detail="no route")


def test_a_tick_has_the_worst_state_of_five_minutes() -> None:
    history = HealthHistory()
    history.observe({"a": WORKS, "b": FAILS}, BEGIN)
    history.observe({"a": FAILS, "b": FAILS}, BEGIN + 1_000)
    history.observe({"a": WORKS, "b": WORKS}, BEGIN + 2_000)
    for second in range(3, 300, 10):
        history.observe({"a": WORKS, "b": FAILS}, BEGIN + second * 1_000)
    history.observe({"a": WORKS, "b": FAILS}, BEGIN + TICK_MS + 1_000)
    a, b = history.states()
    assert a.ticks == ["none"] * 46 + ["brief", "ok"]
    assert b.ticks == ["none"] * 46 + ["down", "brief"], "the tick that has begun"
    assert (a.ok, a.since, b.detail, b.since) == (True, BEGIN + 2_000, "no route", BEGIN + 3_000)


def test_time_in_which_the_process_was_suspended_is_not_observed() -> None:
    history = HealthHistory()
    history.observe({"a": FAILS}, BEGIN)
    history.observe({"a": FAILS}, BEGIN + 3 * TICK_MS)
    [a] = history.states()
    assert a.ticks[-4:] == ["brief", "none", "none", "brief"]
    history.observe({}, BEGIN + 4 * TICK_MS)
    assert history.states() == [], "a channel that was removed"
    history.observe({"a": WORKS}, BEGIN - TICK_MS)
    assert history.states()[0].ticks[-1] == "ok", "the clock was set back"


def test_figures_are_the_difference_of_the_counters_in_each_minute() -> None:
    counters = Counters()
    counters.accepted["web"] = 100
    trends = Trends(counters, 5, BEGIN)
    counters.accepted["web"] += 3
    counters.count_turn("web", "end_turn", Metadata(), 0.2)
    trends.observe(5, 2, BEGIN + 1_000)
    counters.accepted["tg"] += 4
    counters.count_turn("web", "failed", Metadata(), None, "AuthFailedError")
    counters.count_turn("web", "end_turn", Metadata(), 4.0)
    trends.observe(1_000_000_005, 1, BEGIN + MINUTE_MS)
    counters.count_turn("web", "end_turn", Metadata(), 4.0)
    found = {figure.name: figure for figure in trends.figures(1_500_000_005, 1)}
    assert [figure.points[:58] for figure in found.values()] == [[None] * 58] * 6
    assert {name: (figure.points[58:], figure.value) for name, figure in found.items()} == {
        "messages": ([7, 0], 7),
        "answers": ([2, 1], 3),
        "first_token": ([0.25, 3.75], 3.125),
        "errors": ([1, 0], 1),
        "cost": ([1.0, 0.5], 1.5),
        "running": ([2, 1], 1),
    }


def test_an_hour_is_kept_and_no_more() -> None:
    counters = Counters()
    trends = Trends(counters, 0, BEGIN)
    for minute in range(1, 200):
        counters.accepted["web"] += minute
        trends.observe(0, 0, BEGIN + minute * MINUTE_MS)
    messages = trends.figures(0, 0)[0]
    assert messages.points == [*range(141, 200), 0]
    trends.observe(0, 0, BEGIN + 10_000 * MINUTE_MS)
    assert trends.figures(0, 0)[0].points == [0] * 60
