"""The metrics of plugins at ``/metrics``, and what a failing, slow or wrong plugin changes there: nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway import Plugin
from gateway.api import Figure
from gateway.testing.fake_models.script import Reply, Say, Use
from gateway.testing.served import Served, serving
from plugins.work_status import WorkStatus


class Measured(Plugin):
    """A plugin with these figures."""

    def __init__(self, name: str, *given: Figure) -> None:
        self.name = name
        self._given = given

    def figures(self) -> Sequence[Figure]:
        return self._given


class Slow(Plugin):
    """A plugin that never gives its figures."""

    name = "slow"

    async def figures(self) -> Sequence[Figure]:
        await asyncio.Event().wait()
        return ()


class Exiting(Plugin):
    """A plugin that fails."""

    name = "exiting"

    def figures(self) -> Sequence[Figure]:
        raise SystemExit(1)


async def shown(served: Served) -> dict[str, float]:
    async with served.http.get(f"{served.url}/metrics") as response:
        assert response.status == 200
        text = await response.text()
    return {
        sample.name + "".join(f"[{value}]" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_figures_of_plugins_are_metrics(tmp_path: Path) -> None:
    plugin = Measured(
        "My-Plugin",
        Figure("queue", "Waiting", 3, labels={"kind": "new", "a": "1"}),
        Figure("queue", "Waiting", 4, labels={"a": "2", "kind": "old"}),
        Figure("done_total", "Done", 5, "counter"),
    )
    async with serving(tmp_path, plugin) as served:
        found = await shown(served)
        await served.gateway.registry.unregister("My-Plugin")
        after = await shown(served)
    mine = {name: value for name, value in found.items() if "my_plugin" in name and "created" not in name}
    assert mine == {
        "trunkline_plugin_my_plugin_queue[1][new]": 3,
        "trunkline_plugin_my_plugin_queue[2][old]": 4,
        "trunkline_plugin_my_plugin_done_total": 5,
    }
    assert not [name for name in after if "my_plugin" in name]


async def test_a_slow_or_failing_plugin_leaves_the_other_metrics(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"plugins": {"slow": {"hook_timeout_ms": 100}}}
    fine = Measured("fine", Figure("level", "Level", 1))
    clash = Measured("fine_level", Figure("x", "X", 1))
    async with serving(tmp_path, Slow(), Exiting(), fine, clash, **settings) as served:
        found = await shown(served)
    missing = [name for name in found if name.startswith("trunkline_missing_figures")]
    assert missing == ["trunkline_missing_figures[slow]", "trunkline_missing_figures[exiting]"]
    assert found["trunkline_plugin_fine_level"] == found["trunkline_plugin_fine_level_x"] == 1
    assert found["trunkline_running_turns"] == 0


@pytest.mark.parametrize(
    "given",
    [
        [Figure("Queue", "", 1)],
        [Figure("queue size", "", 1)],
        [Figure("queue", "", float("nan"))],
        [Figure("queue", "", "many")],  # type: ignore[arg-type]
        [Figure("queue", "", -1, "counter")],
        [Figure("queue", "", 1, "summary")],  # type: ignore[arg-type]
        [Figure("queue", "", 1, labels={"le": "1"})],
        [Figure("queue", "", 1, labels={"kind": 1})],  # type: ignore[dict-item]
        [Figure("queue", "", 1), Figure("queue", "", 2)],
        [Figure("queue", "", 1), Figure("queue", "", 2, labels={"kind": "new"})],
        [Figure("queue", "", 1, labels={"kind": str(number)}) for number in range(1_001)],
        ["queue"],
    ],
)
async def test_wrong_figures_are_left_out_as_a_whole(tmp_path: Path, given: Sequence[Figure]) -> None:
    async with serving(tmp_path, Measured("wrong", Figure("right", "", 1), *given)) as served:
        found = await shown(served)
    assert found["trunkline_missing_figures[wrong]"] == 1
    assert not [name for name in found if name.startswith("trunkline_plugin_wrong")]


async def test_two_plugins_cannot_have_one_name(tmp_path: Path) -> None:
    first, second = (
        Measured("a", Figure("b_c", "", 1)),
        Measured("a_b", Figure("c", "", 2), Figure("d", "", 3)),
    )
    async with serving(tmp_path, first, second) as served:
        found = await shown(served)
    assert found["trunkline_plugin_a_b_c"] == 1
    assert found["trunkline_missing_figures[a_b]"] == 1
    assert "trunkline_plugin_a_b_d" not in found


async def test_work_status_counts_answers(tmp_path: Path) -> None:
    async with serving(tmp_path, WorkStatus(), permissions={"*": "allow"}) as served:
        served.models.then(Reply((Use("calculator", '{"expression": "1"}'),), "tools"), Reply((Say("1."),)))
        async with served.socket() as client:
            await client.say("1?")
            await client.until("complete")
        found = await shown(served)
    assert found["trunkline_plugin_work_status_answers_total[end_turn]"] == 1
    assert found["trunkline_plugin_work_status_seconds_total"] > 0
