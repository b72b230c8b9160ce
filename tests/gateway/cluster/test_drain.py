"""Draining by command, over REST and in the console: a node hands over in order, and stays as a standby."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import typer
from playwright.async_api import Browser, expect

from gateway.cli.commands.nodes import _wait as wait_for_drain
from gateway.cli.options import UNAVAILABLE
from gateway.settings import load_settings
from gateway.testing.fake_models.script import Gate, Reply, Say
from tests.e2e.gateway_process import GatewayProcess
from tests.e2e.page_browser import chat
from tests.gateway.cli.processes import trunkline
from tests.gateway.cluster.nodes import Cluster, standing_by, until

pytestmark = [pytest.mark.slow, pytest.mark.postgres]


class Operator:
    """Someone at the command line of a node's machine."""

    def __init__(self, home: Path) -> None:
        self._home = home

    async def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        config = str(self._home / "one" / "trunkline.toml")
        return await asyncio.to_thread(trunkline, "nodes", *args, "--config", config, home=self._home)

    async def states(self) -> dict[str, str]:
        listed: list[dict[str, Any]] = json.loads((await self.run("--json")).stdout)
        return {node["name"]: node["state"] for node in listed}


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    return Operator(tmp_path)


async def status_of(node: GatewayProcess) -> int:
    async with aiohttp.ClientSession() as http, http.get(f"{node.url}/api/status") as response:
        return response.status


async def test_a_drained_node_finishes_its_answer_and_works_again_when_it_is_needed(
    cluster: Cluster, operator: Operator
) -> None:
    gate = asyncio.Event()
    cluster.models.then(Reply((Say("The first begins"), Gate(gate), Say(" and ends"))))
    first, second = cluster.node("one", drain_seconds="60"), cluster.node("two")
    async with first:
        assert await first.start()
        async with standing_by(cluster, second) as taking_over:
            await until(lambda: "standing by" in second.errors)
            cluster.telegram.say(cluster.chat, "Hi")
            await until(lambda: cluster.models.requests)
            draining = asyncio.create_task(operator.run("drain", "--json"))
            await until(lambda: cluster.draining() == [False])
            assert await operator.states() == {"one": "draining", "two": "standby"}
            await until(lambda: "asked to leave the work" in first.errors)
            cluster.telegram.say(cluster.chat, "Still there?")
            gate.set()
            assert await taking_over
            drained = await draining
            assert drained.returncode == 0, drained.stderr
            said = json.loads(drained.stdout)
            assert (said["node"], said["state"], said["active"]) == ("one", "drained", "two")
            assert "one finishes running answers, within" in drained.stderr
            await until(lambda: len(cluster.telegram.answers(cluster.chat)) == 2)
            assert await operator.states() == {"one": "drained", "two": "active"}
            assert first.status is None
            assert await status_of(first) == 200

            # The only other node ends.
            assert await second.stop() == 0
            await until(lambda: cluster.owners() == [("one", 3)])
            cluster.telegram.say(cluster.chat, "And you?")
            await until(lambda: len(cluster.telegram.answers(cluster.chat)) == 3)
            assert await operator.states() == {"one": "active"}
            assert await status_of(first) == 200
            assert await first.stop() == 0
    assert cluster.telegram.answers(cluster.chat) == [
        "The first begins and ends",
        "You said: Still there?",
        "You said: And you?",
    ]
    cluster.telegram.transcript.check()


async def test_a_resumed_node_takes_over_from_the_next_one(cluster: Cluster, operator: Operator) -> None:
    first, second = cluster.node("one"), cluster.node("two")
    async with first:
        assert await first.start()
        async with standing_by(cluster, second):
            await until(lambda: "standing by" in second.errors)
            drained = await operator.run("drain", "two")
            assert drained.returncode == 0, drained.stderr
            assert await operator.states() == {"one": "active", "two": "drained"}
            refused = await operator.run("drain", "one")
            assert refused.returncode == 2
            assert "no other node could take over from one: two (drained)" in refused.stderr
            resumed = await operator.run("resume", "two")
            assert resumed.stdout == "two may take over again\n"
            drained = await operator.run("drain", "one")
            assert drained.returncode == 0, drained.stderr
            assert drained.stdout.startswith("two is active, after ")
            assert cluster.owners() == [("two", 2)]
            assert await second.stop() == 0
            await until(lambda: cluster.owners() == [("one", 3)])
            assert await first.stop() == 0


async def test_the_only_node_and_unknown_ones_are_not_drained(cluster: Cluster, operator: Operator) -> None:
    async with cluster.node("one") as first:
        assert await first.start()
        refused = await operator.run("drain")
        assert refused.returncode == 2
        assert "no other node could take over from one: it is the only one" in refused.stderr
        for command in ("drain", "resume"):
            unknown = await operator.run(command, "three")
            assert unknown.returncode == 2
            assert unknown.stderr == "no node is named 'three'; the nodes are one\n"
        assert cluster.owners() == [("one", 1)]
        assert cluster.draining() == []
        assert await first.stop() == 0


async def test_a_node_works_on_when_no_other_one_can_get_the_token(
    cluster: Cluster, operator: Operator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with cluster.node("one") as first:
        assert await first.start()
        second = cluster.node("two")
        async with standing_by(cluster, second):
            await until(lambda: "standing by" in second.errors)
            cluster.broker.kill()
            draining = asyncio.create_task(operator.run("drain"))
            await until(lambda: cluster.draining() == [False])
            cluster.telegram.say(cluster.chat, "Hi")
            await until(lambda: len(cluster.telegram.answers(cluster.chat)) == 1)
            assert cluster.owners() == [("one", 1)]

            # A command whose time is up withdraws the request: the node does not hand over later.
            settings = load_settings(tmp_path / "one" / "trunkline.toml", environ={}, cwd=tmp_path)
            with pytest.raises(typer.Exit) as given_up:
                await asyncio.to_thread(wait_for_drain, settings, "one", 0.0)
            assert given_up.value.exit_code == UNAVAILABLE
            assert "one did not hand over in time, and stays active." in capsys.readouterr().err
            assert cluster.draining() == []
            assert "one is active again: it was resumed" in (await draining).stderr
            draining = asyncio.create_task(operator.run("drain"))
            await until(lambda: cluster.draining() == [False])
            await asyncio.to_thread(cluster.broker.start)
            assert (await draining).returncode == 0
            assert cluster.owners() == [("two", 2)]


async def test_a_request_over_rest_drains_the_node_that_works(cluster: Cluster, operator: Operator) -> None:
    gate = asyncio.Event()
    cluster.models.then(Reply((Say("The first begins"), Gate(gate), Say(" and ends"))))
    first, second = cluster.node("one", drain_seconds="60"), cluster.node("two")
    async with first, aiohttp.ClientSession() as http:
        assert await first.start()

        async def ask(node: str, action: str) -> Any:
            async with http.post(f"{first.url}/api/nodes/{node}/{action}") as response:
                return response.status, await response.json()

        status, error = await ask("one", "drain")
        assert status == 409
        assert error["message"] == (
            "no other node could take over from one: it is the only one; start another first"
        )
        async with standing_by(cluster, second) as taking_over:
            await until(lambda: "standing by" in second.errors)
            cluster.telegram.say(cluster.chat, "Hi")
            await until(lambda: cluster.models.requests)
            assert await ask("one", "drain") == (200, {"node": "one", "changed": True})
            await until(lambda: "asked to leave the work" in first.errors)
            gate.set()
            assert await taking_over
            assert cluster.owners() == [("two", 2)]
            await until(lambda: len(cluster.telegram.answers(cluster.chat)) == 1)
            # The drained node passes the request on to the active one.
            assert await ask("one", "resume") == (200, {"node": "one", "changed": True})
            assert await operator.states() == {"one": "standby", "two": "active"}
            async with http.get(f"{first.url}/api/audit?action=node") as response:
                audited = [(row["actor"], row["action"]) for row in (await response.json())["rows"]]
            assert audited == [("owner", "node.resume"), ("owner", "node.drain")]
            assert await second.stop() == 0
            await until(lambda: cluster.owners() == [("one", 3)])
            assert await first.stop() == 0
    assert cluster.telegram.answers(cluster.chat) == ["The first begins and ends"]
    cluster.telegram.transcript.check()


async def test_the_console_continues_when_its_node_is_drained(own_browser: Browser, cluster: Cluster) -> None:
    first, second = cluster.node("one"), cluster.node("two")
    async with first:
        assert await first.start()
        async with standing_by(cluster, second) as taking_over:
            await until(lambda: "standing by" in second.errors)
            async with chat(
                own_browser, f"{first.url}/console/now", connected=False, expected="Failed to load resource"
            ) as page:
                one = page.get_by_role("region", name="Nodes").get_by_role("listitem").first
                two = page.get_by_role("region", name="Nodes").get_by_role("listitem").last
                for row, other in ((one, two), (two, one)):
                    name = "one" if row is one else "two"
                    await row.get_by_role("button", name=f"Drain {name}").click()
                    drain = page.get_by_role("dialog").get_by_role("button", name="Drain", exact=True)
                    await drain.click()
                    await expect(row).to_contain_text("stands by, drained")
                    await expect(other).to_contain_text("active since")
                    # Live events come from the active node now. A list under the pointer does not move.
                    await expect(page.get_by_role("status", name="State of the data")).to_have_text("Live")
                    await page.mouse.move(0, 0)
                    ended = page.get_by_role("region", name="Activity").get_by_title("telegram")
                    await expect(ended).to_have_count(0)
                    cluster.telegram.say(cluster.chat, "Hi")
                    await expect(ended).to_have_count(1)
                    await row.get_by_role("button", name=f"Resume {name}").click()
                    await page.get_by_role("dialog").get_by_role("button", name="Resume", exact=True).click()
                    await expect(row).to_contain_text("stands by since")
                assert await taking_over
                assert cluster.owners() == [("one", 3)]
            assert await second.stop() == 0
            assert await first.stop() == 0
