"""The nodes of a cluster in the API and in the metrics of the active one."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, CookieJar
from sqlalchemy import create_engine, text

from gateway.testing.served import serving
from tests.gateway.cluster.nodes import working_beside
from tests.gateway.server.console.test_login import EYES, OPS, OWNER

pytestmark = pytest.mark.postgres
TOKENS = f"""
token = "{OWNER}"
tokens.ops-laptop.token = "{OPS}"
tokens.eyes = {{ token = "{EYES}", role = "viewer" }}
"""


class Caller:
    """A program that has a token, or a browser that is signed in at the console of node "one"."""

    def __init__(self, http: ClientSession, url: str) -> None:
        self._http = http
        self.url = url

    async def ask(self, method: str, path: str, **request: Any) -> tuple[int, Any]:
        """Return the status and the JSON of an answer."""
        async with self._http.request(method, path, **request) as answer:
            return answer.status, await answer.json()


@asynccontextmanager
async def calling(tmp_path: Path, postgres_url: str, token: str = "") -> AsyncGenerator[Caller]:
    """Yield who calls a node "one" that works beside "two"."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        working_beside(tmp_path, postgres_url, TOKENS) as url,
        ClientSession(url, headers=headers, cookie_jar=CookieJar(unsafe=True)) as http,
    ):
        yield Caller(http, url)


def rows(postgres_url: str, query: str) -> list[tuple[Any, ...]]:
    """Return what others see in the database."""
    engine = create_engine(postgres_url)
    with engine.connect() as connection:
        found = [tuple(row) for row in connection.execute(text(query))]
    engine.dispose()
    return found


async def test_the_nodes_are_listed(tmp_path: Path, postgres_url: str) -> None:
    async with (
        working_beside(tmp_path, postgres_url) as url,
        ClientSession(url) as client,
        client.get("/api/nodes") as response,
    ):
        answer = await response.json()
    assert (answer["node"], answer["drain_seconds"]) == ("one", 20)
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
        empty = {"node": "", "nodes": [], "drain_seconds": 20, "rotating": False}
        assert await served.ask("GET", "/api/nodes") == (200, empty)
        async with served.http.get(f"{served.url}/metrics") as response:
            assert "trunkline_node" not in await response.text()


async def test_an_admin_drains_a_node_and_resumes_it(tmp_path: Path, postgres_url: str) -> None:
    drained = "SELECT n.name FROM drain d JOIN node n ON n.start_id = d.start_id"
    async with calling(tmp_path, postgres_url, OPS) as admin:
        for changed in (True, False):
            found = await admin.ask("POST", "/api/nodes/two/drain")
            # A reader of the database after the answer sees the request, and so does the node.
            assert rows(postgres_url, drained) == [("two",)]
            assert found == (200, {"node": "two", "changed": changed})
        _, listed = await admin.ask("GET", "/api/nodes")
        assert [(node["name"], node["state"]) for node in listed["nodes"]] == [
            ("one", "active"),
            ("two", "draining"),
        ]
        for changed in (True, False):
            found = await admin.ask("POST", "/api/nodes/two/resume")
            assert rows(postgres_url, drained) == []
            assert found == (200, {"node": "two", "changed": changed})
        assert rows(postgres_url, "SELECT actor, action, subject FROM audit ORDER BY id") == [
            ("ops-laptop", "node.drain", "two"),
            ("ops-laptop", "node.resume", "two"),
        ]


async def test_requests_are_refused_with_the_reasons_of_the_command(
    tmp_path: Path, postgres_url: str
) -> None:
    async with calling(tmp_path, postgres_url, OPS) as admin:
        for action in ("drain", "resume"):
            status, error = await admin.ask("POST", f"/api/nodes/three/{action}")
            assert (status, error["error_name"]) == (404, "NotFoundError")
            assert error["message"] == "no node is named 'three'; the nodes are one, two"
        assert (await admin.ask("POST", "/api/nodes/two/drain"))[0] == 200
        status, error = await admin.ask("POST", "/api/nodes/one/drain")
        assert (status, error["error_name"]) == (409, "InvalidStateError")
        assert "no other node could take over from one: two (draining)" in error["message"]
        engine = create_engine(postgres_url)
        with engine.begin() as connection:
            connection.execute(text("UPDATE node SET revision = '0' WHERE name = 'two'"))
        engine.dispose()
        status, error = await admin.ask("POST", "/api/nodes/two/drain")
        assert (status, error["error_name"]) == (409, "InvalidStateError")
        assert "two stands by in any case: its version is too old" in error["message"]
    assert rows(postgres_url, "SELECT action, subject FROM audit") == [("node.drain", "two")]


async def test_only_admins_drain_nodes(tmp_path: Path, postgres_url: str) -> None:
    async with calling(tmp_path, postgres_url) as caller:
        viewer, page = {"Authorization": f"Bearer {EYES}"}, {"Origin": caller.url}
        for action in ("two/drain", "two/resume", "certificate"):
            path = f"/api/nodes/{action}"
            assert (await caller.ask("POST", path))[0] == 401
            assert (await caller.ask("POST", path, headers=viewer))[0] == 403
        assert (await caller.ask("GET", "/api/nodes", headers=viewer))[0] == 200
        assert (await caller.ask("POST", "/api/console/login", json={"token": OPS}, headers=page))[0] == 200
        # A page of another origin, or a form of one.
        path = "/api/nodes/two/drain"
        assert (await caller.ask("POST", path))[0] == 401
        assert (await caller.ask("POST", path, headers={"Origin": "https://evil.example.org"}))[0] == 403
        assert (await caller.ask("POST", path, data={"a": "b"}, headers=page))[0] == 400
        assert rows(postgres_url, "SELECT * FROM drain") == []
        assert rows(postgres_url, "SELECT step FROM cluster") == [(0,)]
        assert (await caller.ask("POST", path, headers=page))[0] == 200
        audited = "SELECT actor FROM audit WHERE action = 'node.drain'"
        assert rows(postgres_url, audited) == [("ops-laptop",)]


async def test_an_admin_lets_the_nodes_replace_their_certificate(tmp_path: Path, postgres_url: str) -> None:
    async with calling(tmp_path, postgres_url, OPS) as admin:
        assert (await admin.ask("GET", "/api/nodes"))[1]["rotating"] is False
        for changed in (True, False):
            found = await admin.ask("POST", "/api/nodes/certificate")
            # The nodes are still at it: these do not follow.
            assert rows(postgres_url, "SELECT step FROM cluster") == [(1,)]
            assert found == (200, {"changed": changed})
        assert (await admin.ask("GET", "/api/nodes"))[1]["rotating"] is True
    audited = rows(postgres_url, "SELECT actor, action, subject FROM audit")
    assert audited == [("ops-laptop", "node.rotate", "certificate")]


async def test_without_a_cluster_no_node_is_drained(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        for action in ("one/drain", "one/resume", "certificate"):
            status, error = await served.ask("POST", f"/api/nodes/{action}")
            assert (status, error["error_name"]) == (409, "InvalidStateError")
            assert error["message"] == "no cluster uses this database; set cluster.url to start one"
        assert (await served.ask("GET", "/api/audit"))[1]["rows"] == []
