"""The nodes of a cluster in the API and in the metrics of the one that works."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import ClientSession

from gateway.testing.served import serving
from tests.gateway.cluster.nodes import working_beside

pytestmark = pytest.mark.postgres


async def test_the_nodes_are_listed(tmp_path: Path, postgres_url: str) -> None:
    async with (
        working_beside(tmp_path, postgres_url) as url,
        ClientSession(url) as client,
        client.get("/api/nodes") as response,
    ):
        answer = await response.json()
    assert answer["node"] == "one"
    one, two = answer["nodes"]
    assert (one["name"], one["state"], one["epoch"], one["takeover_seconds"]) == ("one", "active", 1, 0.75)
    assert (two["name"], two["state"], two["epoch"], two["owner_since"]) == ("two", "standby", None, None)
    assert all(0 <= node["heartbeat_age"] < 5 for node in (one, two))


async def test_the_metrics_show_the_nodes_and_the_last_takeover(tmp_path: Path, postgres_url: str) -> None:
    async with (
        working_beside(tmp_path, postgres_url) as url,
        ClientSession(url) as client,
        client.get("/metrics") as response,
    ):
        lines = (await response.text()).splitlines()
    assert "trunkline_takeovers_total 1.0" in lines
    assert "trunkline_takeover_seconds 0.75" in lines
    assert 'trunkline_nodes{state="active"} 1.0' in lines
    assert 'trunkline_nodes{state="standby"} 1.0' in lines
    assert 'trunkline_nodes{state="gone"} 0.0' in lines
    assert [line.split("}")[0] for line in lines if line.startswith("trunkline_node_heartbeat_seconds")] == [
        'trunkline_node_heartbeat_seconds{node="one"',
        'trunkline_node_heartbeat_seconds{node="two"',
    ]


async def test_a_gateway_without_a_cluster_has_no_nodes(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        assert await served.ask("GET", "/api/nodes") == (200, {"node": "", "nodes": []})
        async with served.http.get(f"{served.url}/metrics") as response:
            assert "trunkline_node" not in await response.text()
