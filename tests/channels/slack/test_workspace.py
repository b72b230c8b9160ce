"""Workspaces that install the app themselves."""

from __future__ import annotations

import stat
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from yarl import URL

from channels.slack.fake import FakeSlack
from channels.slack.workspace import Installations
from gateway import SettingsError
from gateway.app import Gateway
from gateway.server import Server
from gateway.testing.fake_models.server import FakeModels
from tests.channels.slack.gateways import settings_of, settled, until


@asynccontextmanager
async def serving(fake: FakeSlack, directory: Path) -> AsyncGenerator[tuple[Gateway, str]]:
    """Run a gateway whose app any workspace may install, with no installation in its settings."""
    async with FakeModels() as models:
        settings = settings_of(
            directory,
            models,
            fake,
            bot_token="",
            client_id=fake.app.client_id,
            client_secret=fake.app.client_secret,
            installations=str(directory / "slack.json"),
            redirect_url="https://bot.example/slack/oauth_redirect",
        )
        gateway = Gateway(settings)
        async with gateway.running(), Server(gateway) as server:
            await until(lambda: gateway.health()["slack"][0])
            yield gateway, f"{server.url}/slack"


async def install(fake: FakeSlack, url: str, team: str, *, forged: bool = False) -> int:
    """Install the app in a browser. Returns the status of the last page."""
    # The cookie is for https only, where a proxy would serve the page.
    jar = aiohttp.CookieJar(unsafe=True, treat_as_secure_origin=[URL(url).origin()])
    async with aiohttp.ClientSession(cookie_jar=jar) as browser:
        async with browser.get(f"{url}/install", allow_redirects=False) as begun:
            assert begun.status == 302
            assert begun.cookies["trunkline_slack_state"]["httponly"]
            back = fake.approve(begun.headers["Location"], team)
        if forged:
            browser.cookie_jar.clear()
        query = back.partition("?")[2]
        async with browser.get(f"{url}/oauth_redirect?{query}") as ended:
            return ended.status


def a_fake() -> FakeSlack:
    fake = FakeSlack(teams=("acme", "umbrella"), installed=False)
    fake.installer.redirect_uris = ["https://bot.example/"]
    return fake


async def test_who_installs_it_is_answered_also_after_a_restart(tmp_path: Path) -> None:
    async with a_fake() as fake:
        async with serving(fake, tmp_path) as (gateway, url):
            assert await install(fake, url, "acme") == 200
            assert await install(fake, url, "umbrella") == 200
            await until(lambda: len(_workspaces(gateway)) == 2 and gateway.health()["slack"][0])
            fake.say("@ada", "hello", team="acme")
            fake.say("@eve", "hi", team="umbrella")
            await settled(gateway, "done", "done")
            assert stat.S_IMODE((tmp_path / "slack.json").stat().st_mode) == 0o600
        async with serving(fake, tmp_path) as (gateway, url):
            fake.say("@ada", "again", team="acme")
            await settled(gateway, "done", "done", "done")
            assert fake.answers("@ada", team="acme") == ["You said: hello", "You said: again"]
            assert fake.answers("@eve", team="umbrella") == ["You said: hi"]
    fake.transcript.check()


async def test_an_app_that_was_removed_is_forgotten_and_may_come_back(tmp_path: Path) -> None:
    async with a_fake() as fake, serving(fake, tmp_path) as (gateway, url):
        assert await install(fake, url, "acme") == 200
        await until(lambda: len(_workspaces(gateway)) == 1 and gateway.health()["slack"][0])
        fake.uninstall("acme")
        await until(lambda: not _workspaces(gateway))
        assert Installations(tmp_path / "slack.json").tokens == []
        assert await install(fake, url, "acme") == 200
        await until(lambda: len(_workspaces(gateway)) == 1 and gateway.health()["slack"][0])
        fake.say("@ada", "hello", team="acme")
        await settled(gateway, "done")
        assert fake.answers("@ada", team="acme") == ["You said: hello"]


async def test_an_app_that_was_removed_during_an_outage_is_forgotten(tmp_path: Path) -> None:
    async with a_fake() as fake:
        async with serving(fake, tmp_path) as (gateway, url):
            assert await install(fake, url, "acme") == 200
            assert await install(fake, url, "umbrella") == 200
            await until(lambda: len(_workspaces(gateway)) == 2 and gateway.health()["slack"][0])
        fake.uninstall("acme")
        async with serving(fake, tmp_path) as (gateway, url):
            assert len(_workspaces(gateway)) == 1
            assert Installations(tmp_path / "slack.json").tokens == [fake.token("umbrella")]


def _workspaces(gateway: Gateway) -> list[str]:
    channel = gateway.channels.get("slack")
    return [one.team for one in channel._workspaces if one.team]  # type: ignore[union-attr]


async def test_an_installation_that_another_browser_began_is_refused(tmp_path: Path) -> None:
    async with a_fake() as fake, serving(fake, tmp_path) as (_gateway, url):
        assert await install(fake, url, "acme", forged=True) == 400
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"{url}/oauth_redirect?code=x&state=y") as answer,
        ):
            assert answer.status == 400
        assert not (tmp_path / "slack.json").exists()


def test_a_file_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "slack.json"
    file.write_text("[]")
    with pytest.raises(SettingsError, match="contains no installations"):
        Installations(file)
    file.write_text("{")
    with pytest.raises(SettingsError, match="cannot be read"):
        Installations(file)
