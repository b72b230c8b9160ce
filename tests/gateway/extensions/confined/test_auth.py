"""Auth providers of confined plugins: tokens for model providers."""

from __future__ import annotations

import asyncio
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.contract.errors import PluginError
from gateway.plugin_services.confined import plugin_token
from gateway.testing.fake_models.script import Refusal
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import Served, serving
from tests.gateway.cli.processes import trunkline

from .conftest import Start, Write

AUTH = """
import time
from trunkline_plugin import plugin

@plugin
def f(ctx):
    calls = []
    async def login(config):
        calls.append(config.provider)
        if config.login:
            await ctx.notify("Open https://login.example.org and enter ABCD")
        if len(calls) > 3:
            raise ValueError("the login ended")
        return {"token": f"token-of-plugin-{len(calls)}", "expires_at": EXPIRES}
    return {"auth": {"providers": {"company": login}}}
"""
NEVER = 2_000_000_000


def settings(fake: FakeModels) -> dict[str, Any]:
    acme = {"like": "openai", "base_url": fake.openai_url, "auth": "plugin:guarded", "max_retries": 0}
    return {"providers": {"acme": acme}, "model": "acme/fake-small"}


async def told(served: Served, text: str = "Hi") -> str:
    """What the gateway answers."""
    async with served.socket() as client:
        await client.say(text, session="s")
        await client.until("complete")
    [*_, answer] = (await served.gateway.parts.sessions.find("s")).messages()
    return str(answer.parts)


def bearers(fake: FakeModels) -> list[str]:
    return [request.headers["authorization"] for request in fake.requests]


async def test_001_17_a_plugin_gives_the_tokens_of_a_model_provider(
    tmp_path: Path, write: Write, confined: Start
) -> None:
    plugin = write(AUTH.replace("EXPIRES", str(NEVER)), start=confined)
    async with FakeModels() as fake, serving(tmp_path, plugin, fake=fake, **settings(fake)) as served:
        assert "You said: Hi" in await told(served)
        await told(served)
        assert bearers(fake) == ["Bearer token-of-plugin-1"] * 2, "it is asked once"
        fake.then(Refusal(401, "revoked"))
        await told(served)
        assert bearers(fake)[2:] == ["Bearer token-of-plugin-1", "Bearer token-of-plugin-2"], "and again then"
        with pytest.raises(PluginError, match=r"providers.acme.auth names the plugin 'other', which is not"):
            await plugin_token(served.gateway.registry, "plugin:other", "acme")


async def test_001_17_a_token_is_renewed_before_it_expires(
    tmp_path: Path, write: Write, confined: Start
) -> None:
    soon = write(AUTH.replace("EXPIRES", "time.time() + 30"), start=confined)
    async with FakeModels() as fake, serving(tmp_path / "data", soon, fake=fake, **settings(fake)) as served:
        await told(served)
        await told(served)
        assert bearers(fake) == ["Bearer token-of-plugin-1", "Bearer token-of-plugin-2"]


async def test_001_17_a_plugin_that_fails_gives_its_reason_and_no_token_is_shown_or_logged(
    tmp_path: Path, write: Write, confined: Start
) -> None:
    plugin = write(AUTH.replace("EXPIRES", "1"), start=confined)
    async with (
        FakeModels(key="another") as fake,
        serving(tmp_path, plugin, fake=fake, **settings(fake)) as served,
    ):
        with capture_logs() as logs:
            rejected = await told(served)  # twice, and the fake server repeats the key that it rejects
            await told(served)
            failed = await told(served)
    assert "AuthFailedError" in rejected
    assert "'guarded' got no token: the login ended" in failed
    shown = f"{rejected} {failed} {logs}"
    assert "a turn failed" in shown
    assert "token-of-plugin" not in shown


@pytest.mark.parametrize("name", ["acme", "guarded"])
async def test_001_17_a_user_logs_in_at_the_command_line(
    tmp_path: Path, write: Write, confined: Start, name: str
) -> None:
    home = tmp_path / "home"
    (home / "config").mkdir(parents=True)
    expires = time.time() + 3600
    plugin = write(AUTH.replace("EXPIRES", str(expires)), start=confined)
    async with FakeModels() as fake, serving(tmp_path, plugin, fake=fake, **settings(fake)) as served:
        port = served.url.rsplit(":", 1)[1]
        acme = '[providers.acme]\nlike = "openai"\nauth = "plugin:guarded"\n'
        (home / "config/trunkline.toml").write_text(f"[server]\nport = {port}\n{acme}")
        ended = await run("auth", "login", name, home=home)
        assert (ended.returncode, ended.stderr) == (0, "")
        shown = ended.stdout.splitlines()
        assert shown[0] == "Open https://login.example.org and enter ABCD"
        assert shown[1].startswith("Signed in to acme until ")
        assert "token-of-plugin" not in ended.stdout
        for _ in range(2):
            await run("auth", "login", name, home=home)
        failed = await run("auth", "login", name, home=home)
        assert failed.returncode == 1
        assert "'guarded' got no token: ValueError: the login ended" in failed.stderr
    stopped = await run("auth", "login", name, home=home)
    assert stopped.returncode == 1
    assert "`trunkline run` must be running" in stopped.stderr


async def run(*words: str, home: Path) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(trunkline, *words, home=home)
