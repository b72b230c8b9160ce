"""The server as a whole: status, metrics, API description, start and stop, and models that misbehave."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from gateway.app import Gateway
from gateway.contract.errors import SettingsError
from gateway.server import Server
from gateway.settings import ServerSettings, Settings
from gateway.testing.fake_models.script import Bytes, Cut, Forever, Gate, Refusal, Reply, Say, Stall
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import Served, serving

pytestmark = pytest.mark.slow


async def figures(served: Served) -> dict[str, float]:
    async with served.http.get(f"{served.url}/metrics") as response:
        assert response.headers["Content-Type"].startswith("text/plain")
        text = await response.text()
    return {
        sample.name + "".join(f"[{value}]" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_the_process_lives_and_all_its_parts_work(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        assert await served.ask("GET", "/healthz") == (200, {"ok": True})
        assert await served.ask("GET", "/readyz") == (
            200,
            {"ok": True, "parts": {"gateway": True, "store": True, "websocket": True}},
        )
        served.gateway.ready = False
        assert await served.ask("GET", "/readyz") == (
            503,
            {"ok": False, "parts": {"gateway": False, "websocket": True}},
        )
        assert (await served.ask("GET", "/healthz"))[0] == 200


@pytest.mark.parametrize("optional", [True, False])
async def test_an_optional_channel_that_does_not_work_leaves_the_gateway_ready(
    tmp_path: Path, optional: bool
) -> None:
    slack = {"enabled": True, "optional": optional, "accounts": {"sales": {}}}
    async with serving(tmp_path, channels={"slack": slack}) as served:
        status, answer = await served.ask("GET", "/readyz")
        assert (status, answer["ok"]) == ((200, True) if optional else (503, False))
        assert answer["parts"]["slack.sales"] is False
        assert (await served.ask("GET", "/healthz"))[0] == 200


async def test_a_store_that_does_not_commit_is_not_ready_but_alive(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        intruder = sqlite3.connect(tmp_path / "trunkline.db", isolation_level=None)
        intruder.execute("BEGIN IMMEDIATE")
        accepted = asyncio.ensure_future(served.ask("POST", "/api/sessions/s/messages", json={"text": "Hi"}))
        while (answer := await served.ask("GET", "/readyz"))[0] == 200:
            await asyncio.sleep(0.1)
        assert answer == (503, {"ok": False, "parts": {"gateway": True, "store": False, "websocket": True}})
        assert await served.ask("GET", "/healthz") == (200, {"ok": True})
        intruder.close()
        assert (await accepted)[0] == 202
        assert (await served.ask("GET", "/readyz"))[0] == 200


async def test_the_status_tells_what_the_gateway_is_doing(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.socket() as client:
        served.models.then(Reply((Gate(asyncio.Event()),)))
        await client.say("Hi", session="s")
        await client.until("turn_start")
        _, status = await served.ask("GET", "/api/status")
        await client.send(type="abort", session="s")
        await client.until("complete")
        assert status.pop("uptime") >= 0
        assert status == {
            "version": served.gateway.parts.host.version,
            "model": "openai/fake-small",
            "waiting": 1,
            "sessions": 1,
            "running": 1,
            "clients": {"websocket": 1},
            "channels": {"websocket": {"ok": True, "detail": ""}},
        }


async def test_figures_tell_what_was_done(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.socket() as client:
        before = await figures(served)
        await client.say("Hi", session="s", client_msg_id="1")
        await client.until("complete")
        await client.say("Hi", session="s", client_msg_id="1")
        served.models.then(Refusal(401, "no"))
        await client.say("Fail", session="s")
        await client.until("complete")
        served.models.then(Reply((Gate(asyncio.Event()),)))
        await client.say("Stop", session="s")
        await client.until("turn_start")
        await client.send(type="abort", session="s")
        await client.until("complete")
        await served.idle("s")
        after = await figures(served)
    assert "trunkline_accepted_total[websocket]" not in before
    assert after["trunkline_accepted_total[websocket]"] == 3
    assert after["trunkline_duplicates_total[websocket]"] == 1
    assert after["trunkline_turns_total[websocket][][end_turn]"] == 1
    assert after["trunkline_turns_total[websocket][AuthFailedError][failed]"] == 1
    assert after["trunkline_turns_total[websocket][][aborted]"] == 1
    assert after["trunkline_model_failures_total[AuthFailedError][fake-small][openai]"] == 1
    assert after["trunkline_model_first_piece_seconds_count[fake-small][openai]"] == 1
    assert after["trunkline_model_call_seconds_count[fake-small][openai]"] == 1
    assert after["trunkline_oldest_message_seconds"] == after["trunkline_outbox_age_seconds"] == 0
    assert after["trunkline_tokens_total[output]"] > 0
    assert after["trunkline_first_text_seconds_count"] == 1
    assert after["trunkline_first_text_seconds_bucket[+Inf]"] == 1
    assert after["trunkline_first_text_seconds_sum"] > 0
    assert after["trunkline_commits_total"] > 0
    assert after["trunkline_commit_units_total"] >= after["trunkline_commits_total"]
    assert after["trunkline_waiting"] == 0
    assert after["trunkline_sessions"] == 1
    assert after["trunkline_clients[websocket]"] == 1
    assert after["trunkline_health[websocket]"] == 1
    assert after["trunkline_coalesced_events_total"] == after["trunkline_dropped_readers_total"] == 0
    assert after["process_resident_memory_bytes"] > 0


async def test_two_gateways_count_apart(tmp_path: Path) -> None:
    async with serving(tmp_path / "a") as one, serving(tmp_path / "b") as two:
        await one.ask("POST", "/api/sessions/s/messages", json={"text": "Hi"})
        assert (await figures(one))["trunkline_accepted_total[api]"] == 1
        assert "trunkline_accepted_total[api]" not in await figures(two)


async def test_004_29_a_retry_is_logged_and_counted_with_what_an_operator_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    providers = {"openai": {"max_retries": 1}}
    async with FakeModels() as models:
        providers["openai"] |= {"base_url": models.openai_url, "api_key": "k"}
        async with serving(tmp_path, fake=models, providers=providers) as served:
            models.then(Refusal(429, "slow down", {"retry-after-ms": "10"}))
            await served.ask("POST", "/api/sessions/s/messages", json={"text": "Hi"})
            await served.idle("s")
            counted = await figures(served)
    assert counted["trunkline_model_retries_total[RateLimitError][fake-small][openai]"] == 1
    assert counted["trunkline_model_rate_limited_total[fake-small][openai]"] == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "retrying a model call" in line]
    for key in ("provider=openai", "model=fake-small", "session=s", "attempt=1", "error=RateLimitError"):
        assert key in line
    assert "wait_ms=" in line
    assert "stamina" not in line


async def test_004_29_a_turn_is_one_line_with_count_latency_and_coalescing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving(tmp_path) as served, served.socket() as client:
        await client.say("Hi", session="s")
        await client.until("complete")
        await served.idle("s")
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "[info     ] turn " in line]
    for key in ("session=s", "channel=websocket", "outcome=end_turn", "provider=openai", "model=fake-small"):
        assert key in line
    for key in (
        "input_tokens",
        "output_tokens",
        "cost",
        "duration_ms",
        "first_text_ms",
        "deltas",
        "coalesced",
    ):
        assert f"{key}=" in line


async def test_every_route_is_described(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        _, document = await served.ask("GET", "/openapi.json")
        described = {
            (method.upper(), path) for path, methods in document["paths"].items() for method in methods
        }
        assert document["openapi"] == "3.1.0"
        assert described == {
            ("GET", "/api/why/{id}"),
            ("GET", "/api/console/agents"),
            ("GET", "/api/console/room"),
            ("GET", "/api/console/rooms"),
            ("GET", "/api/console/session"),
            ("POST", "/api/console/confirm"),
            ("POST", "/api/console/login"),
            ("POST", "/api/console/logout"),
            ("POST", "/api/console/logout-all"),
            ("GET", "/api/settings"),
            ("POST", "/api/settings"),
            ("POST", "/api/settings/plan"),
            ("POST", "/api/files"),
            ("DELETE", "/api/files/{file_id}"),
            ("GET", "/api/search"),
            ("POST", "/api/sessions/{id}/share"),
            ("GET", "/api/sessions/{id}/share/preview"),
            ("GET", "/api/sessions/{id}/shares"),
            ("DELETE", "/api/shares/{share}"),
            ("GET", "/api/agents"),
            ("GET", "/api/models"),
            ("GET", "/api/models/providers"),
            ("POST", "/api/models/providers/{provider}/keys/{key}"),
            ("POST", "/api/models/providers/{provider}/try"),
            ("POST", "/api/models/test"),
            ("GET", "/api/plugins/states"),
            ("GET", "/api/sessions"),
            ("GET", "/api/sessions/{id}"),
            ("PATCH", "/api/sessions/{id}"),
            ("DELETE", "/api/sessions/{id}"),
            ("POST", "/api/sessions/{id}/fork"),
            ("POST", "/api/sessions/{id}/undo"),
            ("POST", "/api/sessions/{id}/redo"),
            ("POST", "/api/sessions/{id}/messages/{message_id}/edit"),
            ("POST", "/api/sessions/{id}/messages/{message_id}/regenerate"),
            ("GET", "/api/sessions/{id}/branches"),
            ("PUT", "/api/sessions/{id}/branch"),
            ("GET", "/api/sessions/{id}/messages"),
            ("GET", "/api/sessions/{id}/errors"),
            ("GET", "/api/sessions/{id}/export"),
            ("GET", "/api/sessions/{id}/tool-calls"),
            ("GET", "/api/sessions/{id}/changes"),
            ("GET", "/api/sessions/{id}/children"),
            ("POST", "/api/sessions/{id}/messages"),
            ("POST", "/api/sessions/{id}/abort"),
            ("POST", "/api/sessions/{id}/approvals/{approval_id}"),
            ("GET", "/api/sessions/{id}/events"),
            ("GET", "/api/sessions/{id}/errors"),
            ("GET", "/api/sessions/{id}/tool-calls"),
            ("GET", "/api/sessions/{id}/changes"),
            ("GET", "/api/sessions/{id}/children"),
            ("GET", "/sessions/{id}/events"),
            ("POST", "/v1/chat/completions"),
            ("POST", "/v1/responses"),
            ("GET", "/v1/models"),
            ("GET", "/v1/models/{model}"),
            ("GET", "/api/dead"),
            ("GET", "/api/dead/causes"),
            ("POST", "/api/dead/plan"),
            ("GET", "/api/dead/{id}"),
            ("POST", "/api/dead/{id}/replay"),
            ("DELETE", "/api/dead/{id}"),
            ("GET", "/api/events"),
            ("GET", "/api/audit"),
            ("GET", "/api/now"),
            ("GET", "/api/questions"),
            ("GET", "/api/questions/{id}/context"),
            ("POST", "/api/questions/{id}"),
            ("GET", "/api/now/events"),
            ("GET", "/api/why/{id}"),
            ("POST", "/api/commands"),
            ("POST", "/api/plugins/login"),
            ("GET", "/api/plugins"),
            ("GET", "/api/plugins/{name}/config"),
            ("PATCH", "/api/plugins/{name}/config"),
            ("GET", "/orgs/{orgId}/plugins"),
            ("POST", "/orgs/{orgId}/plugins/install"),
            ("GET", "/orgs/{orgId}/plugins/{id}/analytics"),
            ("GET", "/api/usage"),
            ("GET", "/api/why/{id}"),
            ("POST", "/api/why/{id}/now"),
            ("POST", "/api/why/{id}/plan"),
            ("POST", "/api/why/same-cause/{key}/plan"),
            ("POST", "/api/why/plans/{plan}"),
            ("GET", "/api/nodes"),
            ("POST", "/api/nodes/{name}/drain"),
            ("POST", "/api/nodes/{name}/resume"),
            ("POST", "/api/nodes/certificate"),
            ("GET", "/api/approvals"),
            ("DELETE", "/api/approvals/{id}"),
            ("GET", "/api/rooms"),
            ("GET", "/api/pairs"),
            ("POST", "/api/pairs"),
            ("DELETE", "/api/pairs/{channel}/{user}"),
            ("GET", "/api/plugins/running"),
            ("POST", "/api/plugins/apply"),
            ("POST", "/api/plugins/decisions"),
            ("GET", "/api/plugins/log"),
            ("DELETE", "/api/browser"),
            ("POST", "/api/browser"),
            ("GET", "/api/status"),
            ("GET", "/healthz"),
            ("GET", "/readyz"),
            ("GET", "/metrics"),
            ("GET", "/openapi.json"),
        }
        assert document["security"] == [{}, {"token": []}], "a token is not needed, and may be sent"


async def test_the_description_says_what_needs_a_token(tmp_path: Path) -> None:
    async with serving(tmp_path, server={"token": "t" * 32}) as served:
        _, document = await served.ask("GET", "/openapi.json")
        needs_none = {
            path
            for path, methods in document["paths"].items()
            if methods.get("get", {}).get("security") == []
        }
        assert document["security"] == [{"token": []}]
        assert document["components"]["securitySchemes"] == {"token": {"type": "http", "scheme": "bearer"}}
        assert needs_none == {"/healthz", "/readyz", "/openapi.json"}


async def test_the_description_is_readable_to_generators_of_clients(tmp_path: Path) -> None:
    # openapi-python-client cannot parse a schema of false, an array without items, an enum of booleans;
    # a schema named Response hides its own type.
    async with serving(tmp_path) as served:
        _, document = await served.ask("GET", "/openapi.json")
    schemas = list(_schemas_in(document["components"]["schemas"]))
    arrays = [schema for schema in schemas if schema.get("type") == "array"]
    assert arrays
    assert [schema for schema in arrays if schema.get("items") is False] == []
    assert [schema for schema in arrays if not schema.keys() & {"items", "prefixItems"}] == []
    assert "Response" not in document["components"]["schemas"]
    enums = [schema["enum"] for schema in schemas if "enum" in schema]
    assert [values for values in enums if any(isinstance(value, bool) for value in values)] == []


def _schemas_in(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        yield fields
        for inner in fields.values():
            yield from _schemas_in(inner)
    elif isinstance(value, list):
        for inner in cast("list[Any]", value):
            yield from _schemas_in(inner)


async def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        gateway = Gateway(Settings(data_dir=tmp_path, server=ServerSettings(port=port)))
        async with gateway.running():
            with pytest.raises(SettingsError, match=rf"cannot listen on 127\.0\.0\.1:{port}: .*server\.port"):
                await Server(gateway).__aenter__()


async def test_a_host_that_this_machine_does_not_have_is_named(tmp_path: Path) -> None:
    server = ServerSettings(token=SecretStr("0123456789abcdef" * 2), host="203.0.113.9", port=0)
    gateway = Gateway(Settings(data_dir=tmp_path, server=server))
    async with gateway.running():
        with pytest.raises(SettingsError, match=r"cannot listen on 203\.0\.113\.9:0: .*server\.host$"):
            await Server(gateway).__aenter__()


async def test_the_server_listens_on_ipv6_too(tmp_path: Path) -> None:
    async with serving(tmp_path, server={"host": "::1"}) as served:
        assert served.url.startswith("http://[::1]:")
        assert (await served.ask("GET", "/healthz"))[0] == 200


async def test_002_44_nothing_new_is_taken_while_running_answers_end(tmp_path: Path) -> None:
    gate, refused = asyncio.Event(), asyncio.Event()
    async with FakeModels() as models, asyncio.TaskGroup() as tasks:
        async with serving(tmp_path, fake=models) as served:
            models.then(Reply((Say("almost "), Gate(gate), Say("done"))))
            await served.ask("POST", "/api/sessions/s/messages", json={"text": "Hi"})
            client = await served.connect()

            async def watch() -> None:
                await client.close_code()
                async with aiohttp.ClientSession() as http:
                    with pytest.raises(aiohttp.ClientConnectorError):
                        await http.get(f"{served.url}/healthz")
                refused.set()
                gate.set()

            tasks.create_task(watch())
        assert refused.is_set()
        async with serving(tmp_path, fake=models) as again:
            _, said = await again.ask("GET", "/api/sessions/s/messages")
    assert said["messages"][-1]["message"]["parts"] == [{"type": "text", "content": "almost done"}]


MISBEHAVIOUR: dict[str, tuple[Any, ...]] = {
    "StreamTimeoutError": (Say("so far"), Stall()),
    "StreamAbortedError": (Say("so far"), Cut()),
    "DeltaParseError": (Say("so far"), Bytes(b"data: {no json\n\n")),
}


@pytest.mark.parametrize("name", MISBEHAVIOUR)
async def test_004_25_a_model_that_misbehaves_gives_an_error_part_and_a_cancelled_end(
    tmp_path: Path, name: str
) -> None:
    async with serving(tmp_path, stream_timeout_ms=2_000) as served, served.socket() as client:
        served.models.then(Reply(MISBEHAVIOUR[name]))
        await client.say("Hi", session="s")
        part = await client.until("part")
        done = await client.until("complete")
        await client.say("Are you there?", session="s")
        fine = await client.until("complete")
        _, said = await served.ask("GET", "/api/sessions/s/messages")
    kept = said["messages"][1]["message"]["parts"]
    assert (part["part"]["type"], part["part"]["error_name"]) == ("error", name)
    assert (done["stop_reason"], fine["stop_reason"]) == ("cancelled", "end_turn")
    assert kept == [{"type": "text", "content": "so far"}, part["part"]]


async def test_004_25_a_model_that_never_stops_is_cut_off(tmp_path: Path) -> None:
    endless = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * 500_000 + b'"}}]}\n\n'
    async with serving(tmp_path) as served, served.socket() as client:
        served.models.then(Reply((Forever(endless),)))
        await client.say("Hi", session="s")
        part = await client.until("part")
        assert part["part"]["type"] == "error"
        assert (await client.until("complete"))["stop_reason"] == "cancelled"


async def test_004_25_a_model_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/v1"
        providers = {"openai": {"base_url": url, "api_key": "k", "max_retries": 0}}
        async with serving(tmp_path, providers=providers) as served, served.socket() as client:
            await client.say("Hi", session="s")
            part = await client.until("part")
            assert part["part"]["error_name"] == "ProviderUnavailableError"
            assert (await client.until("complete"))["stop_reason"] == "cancelled"
            assert (await served.ask("GET", "/readyz"))[0] == 200
