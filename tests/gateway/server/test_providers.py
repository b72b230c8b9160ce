"""Model providers over REST: keys by alias with their state, replacing them, and test calls."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.contract.errors import AuthFailedError
from gateway.contract.messages import now_ms
from gateway.models.fallback import FAILURES_TO_OPEN
from gateway.provider_http import HttpProvider
from gateway.settings import load_settings
from gateway.testing.fake_models.script import Refusal, Reply, Say
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import Served, serving, until
from tests.gateway.server.console.test_login import EYES, OWNER, Browser, audited, browsing
from tests.gateway.server.console.test_settings import forget_proof

pytestmark = pytest.mark.slow
OLD = "sk-old-0123456789-not-for-eyes"
NEW = "sk-new-0123456789-not-for-eyes"
SERVER = {"token": OWNER, "tokens": {"eyes": {"token": EYES, "role": "viewer"}}}
KEYS = "/api/models/providers/openai/keys"


def written(folder: Path, fake: FakeModels, keys: str) -> Path:
    """Return a settings file with the provider openai."""
    file = folder / "trunkline.toml"
    file.write_text(f'[providers.openai]\nbase_url = "{fake.openai_url}"\nmax_retries = 0\n{keys}\n')
    return file


async def provider(browser: Browser, name: str = "openai") -> dict[str, Any]:
    """Return what the page gets of a provider."""
    status, found = await browser.ask("GET", "/api/models/providers")
    assert status == 200, found
    assert "not-for-eyes" not in json.dumps(found)
    return next(each for each in found["providers"] if each["id"] == name)


async def details(served: Served) -> str:
    """Return the whole database and audit log as text, to look for secrets in it."""
    return await served.gateway.parts.store.read(
        lambda c: "\n".join(c.connection.driver_connection.iterdump())  # type: ignore[union-attr]
    )


async def answers(browser: Browser) -> bool:
    """Return whether a test call of the provider gets an answer."""
    status, found = await browser.ask("POST", "/api/models/test", {"name": "openai/fake-small"})
    assert status == 200, found
    return found["ok"]


async def test_a_key_of_the_settings_is_replaced_in_the_file_and_used_at_once(tmp_path: Path) -> None:
    async with FakeModels(key=NEW) as fake:
        file = written(tmp_path, fake, f'api_key = "{OLD}"  # of the team')
        async with (
            serving(tmp_path, fake=fake, file=file, providers={}, server=SERVER) as served,
            browsing(served) as browser,
        ):
            await browser.sign_in(token=OWNER)
            assert await answers(browser) is False
            (key,) = (await provider(browser))["keys"]
            assert (key["alias"], key["way"], key["place"]) == ("key 1", "settings", "trunkline.toml:4")
            assert key["command"] == "trunkline config set providers.openai.api_key"
            await forget_proof(served)
            status, refusal = await browser.ask("POST", f"{KEYS}/1", {"key": NEW})
            assert (status, refusal["error_name"]) == (403, "ConfirmIdentityError")
            await browser.ask("POST", "/api/console/confirm", {"token": OWNER})
            status, refusal = await browser.ask("POST", f"{KEYS}/1", {"key": "sk-wrong-not-for-eyes"})
            assert (status, refusal["error_name"]) == (409, "InvalidStateError")
            assert "rejected this key, so nothing was changed" in refusal["message"]
            assert "not-for-eyes" not in refusal["message"]
            assert OLD in file.read_text()
            status, done = await browser.ask("POST", f"{KEYS}/1", {"key": NEW})
            assert (status, done["in_effect"], done["alias"]) == (200, "now", "key 1")
            assert done["tested"] == "openai accepted it and lists 2 models"
            assert f'api_key = "{NEW}"  # of the team' in file.read_text()
            assert await answers(browser) is True
            assert NEW in served.gateway.redactor.secrets
            kept = await details(served)
            assert "not-for-eyes" not in kept
            assert "'owner','models.key','openai key 1'" in kept
        assert load_settings(file, environ={}, cwd=tmp_path).providers["openai"].api_key is not None


async def test_a_reference_gives_way_to_a_login(tmp_path: Path) -> None:
    async with FakeModels(key=NEW) as fake:
        (tmp_path / "key.txt").write_text(OLD)
        file = written(tmp_path, fake, 'api_key = "{file:key.txt}"')
        async with (
            serving(tmp_path, fake=fake, file=file, providers={}, server=SERVER) as served,
            browsing(served) as browser,
        ):
            await browser.sign_in(token=OWNER)
            (key,) = (await provider(browser))["keys"]
            assert (key["way"], key["place"]) == ("move", "trunkline.toml:4 ({file:key.txt})")
            assert (await browser.ask("POST", f"{KEYS}/1", {"key": NEW}))[0] == 200
            assert "api_key" not in file.read_text()
            assert NEW in (tmp_path / "keys.json").read_text()
            assert await answers(browser) is True
            (key,) = (await provider(browser))["keys"]
            assert (key["way"], key["place"]) == ("login", str(tmp_path / "keys.json"))
            # And again, now that it is a login.
            fake._key = "sk-newer-not-for-eyes"
            assert (await browser.ask("POST", f"{KEYS}/1", {"key": fake._key}))[0] == 200
            assert await answers(browser) is True


async def test_one_of_several_keys_is_replaced_and_its_refusal_forgotten(tmp_path: Path) -> None:
    async with FakeModels() as fake:
        file = written(tmp_path, fake, f'api_keys = ["{OLD}-1", "{OLD}-2"]')
        async with (
            serving(tmp_path, fake=fake, file=file, providers={}, server=SERVER) as served,
            browsing(served) as browser,
        ):
            await browser.sign_in(token=OWNER)
            made = await served.gateway.providers.ready("openai")
            assert isinstance(made, HttpProvider)
            scheduler = made._require_scheduler()
            scheduler.record_failure(2, "m", AuthFailedError("no", status=401))
            first, second = (await provider(browser))["keys"]
            assert (first["state"], second["state"], second["alias"]) == ("usable", "refused", "key 2")
            assert second["since"] is not None
            scheduler.hold(1, "", 30)
            assert (await provider(browser))["keys"][0]["state"] == "limited"
            assert (await browser.ask("POST", f"{KEYS}/3", {"key": NEW}))[0] == 400
            assert (await browser.ask("POST", f"{KEYS}/2", {"key": NEW}))[0] == 200
            assert f'api_keys = ["{OLD}-1", "{NEW}"]' in file.read_text()
            assert [key["state"] for key in (await provider(browser))["keys"]] == ["usable", "usable"]
            # The file is not what the gateway started with, so a position is not certain.
            file.write_text(file.read_text().replace(f'"{OLD}-1", ', ""))
            assert (await browser.ask("POST", f"{KEYS}/2", {"key": OLD}))[0] == 409
            assert OLD not in file.read_text()


async def test_what_no_page_replaces_names_the_command(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, server=SERVER, providers={"openai": {"auth": "plugin:chatgpt"}}) as served,
        browsing(served) as browser,
    ):
        await browser.sign_in(token=OWNER)
        status, refusal = await browser.ask("POST", f"{KEYS}/1", {"key": NEW})
        assert (status, "trunkline auth login openai" in refusal["message"]) == (409, True)
        assert (await browser.ask("POST", f"{KEYS}/1", {"key": "${HOME}"}))[0] == 400
        nothing = "/api/models/providers/nothing/keys/1"
        assert (await browser.ask("POST", nothing, {"key": NEW}))[0] == 404


async def test_providers_of_one_name_are_told_apart_by_their_ids(tmp_path: Path) -> None:
    async with FakeModels() as fake:
        own = {"base_url": fake.openai_url, "api_key": "k"}
        providers = {"openai": own, "eu": {**own, "like": "openai"}, "groq": own}
        async with serving(tmp_path, fake=fake, server=SERVER, providers=providers) as served:
            owner = {"headers": {"Authorization": f"Bearer {OWNER}"}}
            for name in providers:
                asked = {"name": f"{name}/fake-small"}
                assert (await served.ask("POST", "/api/models/test", json=asked, **owner))[0] == 200
            _, found = await served.ask("GET", "/api/models/providers", **owner)
            assert {one["name"] for one in found["providers"]} == {"OpenAI (openai)", "OpenAI (eu)", "Groq"}


async def test_a_test_call_says_what_failed_and_what_helps(tmp_path: Path) -> None:
    async with serving(tmp_path, server=SERVER) as served, browsing(served) as browser:
        await browser.sign_in(token=OWNER)
        served.models.then(Refusal(401, "invalid_api_key: Incorrect API key provided"))
        _, found = await browser.ask("POST", "/api/models/test", {"name": "openai/fake-small"})
        assert (found["ok"], found["error"]) == (False, "AuthFailedError")
        assert found["summary"] == "OpenAI rejected the API key"
        assert found["way_out"].startswith("check the key: OPENAI_API_KEY")
        assert "Incorrect API key provided" in found["detail"]
        assert await answers(browser) is True
        assert (await browser.ask("POST", "/api/models/test", {"name": "nothing"}))[0] == 404
        assert "'owner','models.test','openai/fake-small','AuthFailedError'" in await details(served)


async def test_a_test_call_is_spend_with_its_own_source(tmp_path: Path) -> None:
    prices = {"openai/fake-small": {"input_price": 10, "output_price": 10}}
    async with serving(tmp_path, server=SERVER, models=prices) as served, browsing(served) as browser:
        await browser.sign_in(token=OWNER)
        assert await answers(browser) is True
        served.models.then(Refusal(401, "no"))
        assert await answers(browser) is False
        await served.gateway.parts.store.write()
        ledger = served.gateway.parts.spending.ledger
        (row,) = await ledger.usage_by("plugin", 0, now_ms() + 1)
        assert (row.key, row.calls, row.unpriced) == ("models.test", 1, 0)
        assert (row.nano_usd or 0) == 10_000 * (row.input_tokens + row.output_tokens) > 0
        (row,) = await ledger.usage_by("person", 0, now_ms() + 1)
        assert row.key == "owner"


async def test_a_viewer_sees_states_and_changes_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path, server=SERVER) as served, browsing(served) as browser:
        await browser.sign_in(token=EYES)
        found = await provider(browser)
        (key,) = found["keys"]
        assert (key["state"], key["place"], key["command"], found["endpoint"]) == ("usable", "", "", "")
        assert (await browser.ask("POST", f"{KEYS}/1", {"key": NEW}))[0] == 403
        assert (await browser.ask("POST", "/api/models/test", {"name": "openai"}))[0] == 403


async def test_the_cookie_of_the_chat_page_reads_no_keys(tmp_path: Path) -> None:
    async with serving(tmp_path, server=SERVER) as served, browsing(served) as browser:
        owner = {"Authorization": f"Bearer {OWNER}"}
        assert (await browser.ask("POST", "/api/browser", **owner))[0] == 204
        assert (await browser.ask("GET", "/api/models"))[0] == 200
        assert (await browser.ask("GET", "/api/models/providers"))[0] == 401
        assert (await browser.ask("POST", f"{KEYS}/1", {"key": NEW}))[0] == 401


async def paused(served: Served) -> dict[str, Any]:
    """Return the provider openai once calls skip it or wait for its rate limit."""
    while True:
        _, now = await served.ask("GET", "/api/now")
        for one in now["providers"]:
            if one["id"] == "openai" and (one["circuit"] == "open" or one["held_keys"]):
                return one
        await asyncio.sleep(0.05)


def waiting(served: Served) -> int:
    """Return how many calls of the provider openai wait for a key."""
    made = served.gateway.providers.get("openai")
    return made.limits.waiting if isinstance(made, HttpProvider) and made.limits is not None else 0


async def test_a_call_that_waits_for_a_rate_limit_is_sent_when_an_admin_says_so(tmp_path: Path) -> None:
    async with FakeModels() as fake:
        openai = {"base_url": fake.openai_url, "api_key": "k", "max_retries": 2}
        async with serving(tmp_path, fake=fake, providers={"openai": openai}) as served:
            assert (await served.ask("POST", "/api/models/providers/openai/try"))[0] == 409
            assert (await served.ask("POST", "/api/models/providers/nobody/try"))[0] == 404
            fake.then(Refusal(429, "slow down", {"retry-after": "50"}), Reply((Say("Here I am."),)))
            async with served.socket() as client:
                # The refused call waits, and a call of another conversation waits for its key.
                await client.say("Hi", session="s")
                await until(lambda: waiting(served) == 1)
                # At once: the page reads it only when it opens.
                _, listed = await served.ask("GET", "/api/models/providers")
                (state,) = [one["state"] for one in listed["providers"] if one["id"] == "openai"]
                assert (state["held_keys"], state["waiting"]) == (1, 1)
                await client.say("Hello", session="t")
                while (await paused(served))["waiting"] < 2:
                    await asyncio.sleep(0.05)
                assert (state["circuit"], len(fake.requests)) == ("closed", 1)
                status, done = await served.ask("POST", "/api/models/providers/openai/try")
                assert (status, done) == (
                    200,
                    {"provider": "openai", "circuit": False, "keys": 1, "calls": 2},
                )
                await client.until("complete")
                await client.until("complete")
            assert len(fake.requests) == 3
            assert ("owner", "models.try.done") in await audited(served)


async def test_a_provider_that_is_skipped_is_asked_by_the_next_call(tmp_path: Path) -> None:
    async with FakeModels() as first, FakeModels() as second:
        urls = {"openai": first.openai_url, "groq": second.openai_url}
        each = {name: {"base_url": url, "api_key": "k", "max_retries": 0} for name, url in urls.items()}
        more: dict[str, Any] = {"providers": each, "fallback": ("groq/fake-small",)}
        async with serving(tmp_path, fake=first, **more) as served, served.socket() as client:
            first.then(*[Refusal(529, "overloaded")] * FAILURES_TO_OPEN)
            for number in range(FAILURES_TO_OPEN + 1):
                await client.say(f"Hi {number}", session="s")
                await client.until("complete")
            assert len(first.requests) == FAILURES_TO_OPEN
            assert (await paused(served))["circuit"] == "open"
            status, done = await served.ask("POST", "/api/models/providers/openai/try")
            assert (status, done) == (200, {"provider": "openai", "circuit": True, "keys": 0, "calls": 0})
            await client.say("Hi again", session="s")
            await client.until("complete")
            assert len(first.requests) == FAILURES_TO_OPEN + 1
