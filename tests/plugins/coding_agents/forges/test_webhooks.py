"""Webhooks of forges: only those with the secret count, and they only let the watch look soon."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from gateway import now_ms
from gateway.api import RawRequest, RawResponse
from gateway.testing.served import serving, until
from plugins.coding_agents import CodingAgents
from plugins.coding_agents.forges.contract import NewPullRequest
from plugins.coding_agents.forges.watch import HURRY_MS, INTERVAL_MS
from plugins.coding_agents.forges.webhooks import ChangedPlace, read_webhook
from plugins.coding_agents.settings import CodingAgentSettings
from tests.plugins.coding_agents.forges.fakes import TOKEN, fake_forge, reaching
from tests.plugins.coding_agents.forges.test_watch import MemoryTable, watching

SECRET = "a-secret-of-some-length"
PAYLOADS: dict[str, dict[str, Any]] = {
    "github": {
        "action": "submitted",
        "pull_request": {"number": 5, "state": "closed"},
        "repository": {"full_name": "acme/app"},
        "sender": {"login": "mallory"},
    },
    "gitlab": {
        "object_kind": "merge_request",
        "project": {"path_with_namespace": "group/acme/app"},
        "object_attributes": {"iid": 5, "state": "merged"},
    },
    "gitea": {
        "action": "created",
        "issue": {"number": 5},
        "repository": {"full_name": "acme/app"},
    },
}


def signed(kind: str, body: bytes, secret: str = SECRET) -> dict[str, str]:
    """Return the headers of a forge."""
    digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    proofs = {
        "github": {"X-Hub-Signature-256": f"sha256={digest}"},
        "gitlab": {"X-Gitlab-Token": secret},
        "gitea": {"X-Gitea-Signature": digest},
    }
    return {"Content-Type": "application/json", **proofs[kind]}


@pytest.mark.parametrize("kind", PAYLOADS)
def test_only_a_request_with_the_secret_names_a_place(kind: str) -> None:
    table = {"kind": kind, "webhook_secret": SECRET}
    bare = {"kind": kind, "token": "x"}
    settings = CodingAgentSettings.model_validate(
        {"forges": {"git.example.org": table, "bare.example.org": bare}}
    )

    def read(
        body: bytes, headers: dict[str, str], path: str = "/webhooks/git.example.org", method: str = "POST"
    ) -> Any:
        lower = {name.lower(): value for name, value in headers.items()}
        found = read_webhook(RawRequest(method, path, {}, lower, body, ""), settings.forges)
        return found.status if isinstance(found, RawResponse) else found

    body = json.dumps(PAYLOADS[kind]).encode()
    good = signed(kind, body)
    repository = "group/acme/app" if kind == "gitlab" else "acme/app"
    assert read(body, good) == ChangedPlace("git.example.org", repository, 5)
    assert read(body, {}) == 401
    assert read(body, signed(kind, body, "another-secret-of-it")) == 401
    assert read(body, dict.fromkeys(good, "ä")) == 401
    assert read(body, dict.fromkeys(good, "\udcff")) == 401, "a byte that is not UTF-8"
    if kind != "gitlab":
        assert read(body.replace(b"5", b"6"), good) == 401, "the signature is that of the body"
    assert read(body, good, "/webhooks/bare.example.org") == 404
    assert read(body, good, "/webhooks/other.example.org") == 404
    assert read(body, good, "/") == 404
    assert read(body, good, method="GET") == 405
    deep = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert read(deep, signed(kind, deep)) in (200, 400)  # Python 3.14 reads it
    refused = (b"payload=%7B%7D", b"{" * 10_000, b"\xff")
    for other, status in ((b"{}", 200), *((each, 400) for each in refused)):
        assert read(other, signed(kind, other)) == status
    with pytest.raises(ValueError, match="webhook_secret"):
        CodingAgentSettings.model_validate(
            {"forges": {"a.example": {"kind": kind, "webhook_secret": "short"}}}
        )


async def test_a_webhook_lets_the_watch_look_soon_but_not_more_often_than_every_five_seconds() -> None:
    async with watching("github") as found:
        watch, fake, host = found.watch, found.fake, found.fake.host
        assert await found.minute() == []
        fake.add_comment("Please add a test")
        soon = found.now + 1
        assert await watch.look(soon) == INTERVAL_MS - 1
        assert await watch.hurry(ChangedPlace(host, "Acme/App", 5)) == 1
        assert await watch.look(soon) == HURRY_MS - 1
        assert found.seen == []
        await watch.look(found.now + HURRY_MS)
        assert [event.kind for event in found.seen] == ["comments"]
        for place in (
            ChangedPlace("elsewhere.example", "acme/app"),
            ChangedPlace(host, "evil/notacme/app2"),
            ChangedPlace(host, "acme/app", 6),
        ):
            assert await watch.hurry(place) == 0


class TableDuringWebhooks(MemoryTable):
    """A table that calls ``webhook``, if there is one, before each write."""

    webhook: Callable[[], Awaitable[object]] | None = None

    async def put(self, key: str, value: Any, *, expected: Any = ...) -> bool:
        if self.webhook is not None:
            await self.webhook()
        return await super().put(key, value, expected=expected)


async def test_a_webhook_counts_although_a_look_is_being_stored() -> None:
    table = TableDuringWebhooks()
    async with watching("github", table) as found:
        table.webhook = lambda: found.watch.hurry(ChangedPlace(found.fake.host, "acme/app", 5))
        assert await found.watch.look(found.now) == HURRY_MS
        table.webhook = None
        assert await found.watch.look(found.now + HURRY_MS) == INTERVAL_MS


async def test_a_forge_needs_no_token_of_the_gateway_but_its_own_secret(tmp_path: Path) -> None:
    plugin = CodingAgents()
    async with fake_forge("github") as fake, reaching(fake) as forges:
        forge = {"kind": "github", "base_url": fake.address, "token": TOKEN, "webhook_secret": SECRET}
        table = {"sandbox": "off", "forges": {fake.host: forge}}
        gateway_token = "t" * 40
        async with serving(
            tmp_path, plugin, plugins={"coding_agents": table}, server={"token": gateway_token}
        ) as served:
            url = f"{served.url}/plugins/coding_agents/webhooks/{fake.host}"
            body = json.dumps(PAYLOADS["github"]).encode()

            async def post(headers: dict[str, str]) -> tuple[int, str]:
                async with served.http.post(url, data=body, headers=headers) as response:
                    return response.status, await response.text()

            assert await post(signed("github", body)) == (200, "no pull request is watched\n")
            pull = await forges.forge_for(fake.url).create_pr(
                NewPullRequest(head="x", base="main", title="Fix")
            )
            watch = (await plugin.desk()).services.watch
            fake.requests.clear()
            await watch.add(fake.url, pull, {"workspace": "ws-1", "owner": "owner"})
            await until(lambda: fake.count("GET", "/check-runs") == 1)
            assert (await post({}))[0] == 401
            reader, writer = await asyncio.open_connection(*urlsplit(url).netloc.split(":"))
            head = f"POST {urlsplit(url).path} HTTP/1.0\r\nContent-Length: 0\r\nX-Hub-Signature-256: "
            writer.write(head.encode() + b"\xff\r\n\r\n")
            assert b" 401 " in await reader.readline(), "a byte that is not UTF-8"
            writer.close()
            await writer.wait_closed()
            assert await post(signed("github", body)) == (200, "1 watched\n")
            await watch.look(now_ms() + HURRY_MS)
            assert fake.count("GET", "/check-runs") == 2
            async with served.http.get(f"{served.url}/api/coding-agents") as response:
                assert response.status == 401
