"""Installation of the app in several workspaces of the fake, and its removal."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import aiohttp
import pytest
from slack_bolt.async_app import AsyncApp
from slack_bolt.oauth.async_oauth_settings import AsyncOAuthSettings
from slack_sdk.oauth.installation_store.file import FileInstallationStore
from slack_sdk.oauth.state_store.file import FileOAuthStateStore

from channels.slack.fake import FakeSlack
from tests.channels.slack.apps import PATH, by_http, client, plain

REDIRECT = "https://bot.example/slack/oauth_redirect"


def address(fake: FakeSlack, **more: str) -> str:
    """Return the URL where an installation begins."""
    query = {"client_id": fake.app.client_id, "scope": "chat:write,channels:read", "state": "s1"}
    return f"{fake.url}/oauth/v2/authorize?{urlencode({**query, 'redirect_uri': REDIRECT, **more})}"


def secrets(fake: FakeSlack) -> dict[str, str]:
    return {"client_id": fake.app.client_id, "client_secret": fake.app.client_secret}


def code(target: str) -> str:
    return parse_qs(urlsplit(target).query)["code"][0]


async def test_a_code_becomes_a_token_once() -> None:
    async with plain(teams=("acme", "globex"), installed=False) as (fake, api):
        target = fake.approve(address(fake), "globex")
        assert target.startswith(REDIRECT)
        assert parse_qs(urlsplit(target).query)["state"] == ["s1"]
        given = {**secrets(fake), "code": code(target), "redirect_uri": REDIRECT}
        told = await api.form("oauth.v2.access", "", **given)
        assert (told["team"]["name"], told["scope"], told["token_type"]) == (
            "globex",
            "chat:write,channels:read",
            "bot",
        )
        assert told["authed_user"]["id"] == fake.user("ada", "globex").id
        who = await api.call("auth.test", told["access_token"])
        assert (who["team"], who["user_id"]) == ("globex", told["bot_user_id"])
        assert (await api.form("oauth.v2.access", "", **given))["error"] == "invalid_code"


async def test_the_secret_may_come_in_a_header_and_a_user_token_along() -> None:
    async with plain(installed=False) as (fake, api):
        target = fake.approve(address(fake, user_scope="search:read"))
        data = {"code": code(target), "redirect_uri": REDIRECT}
        headers = {"Authorization": aiohttp.encode_basic_auth(*secrets(fake).values())}
        async with api.http.post(f"{fake.api_url}oauth.v2.access", data=data, headers=headers) as answer:
            told = await answer.json()
        assert told["ok"]
        who = await api.call("auth.test", told["authed_user"]["access_token"])
        assert who["user"] == "ada"


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"client_id": "9"}, "invalid_client_id"),
        ({"client_secret": "9"}, "bad_client_secret"),
        ({"code": "9"}, "invalid_code"),
        ({"redirect_uri": "https://elsewhere.example"}, "bad_redirect_uri"),
        ({"grant_type": "guess"}, "invalid_grant_type"),
    ],
)
async def test_what_is_wrong_with_an_exchange_is_named(wrong: dict[str, str], error: str) -> None:
    async with plain(installed=False) as (fake, api):
        target = fake.approve(address(fake))
        given = {**secrets(fake), "code": code(target), "redirect_uri": REDIRECT, **wrong}
        assert (await api.form("oauth.v2.access", "", **given))["error"] == error


async def test_a_code_is_good_for_ten_minutes() -> None:
    async with plain(installed=False) as (fake, api):
        given = {**secrets(fake), "code": code(fake.approve(address(fake))), "redirect_uri": REDIRECT}
        fake.clock.advance(601)
        assert (await api.form("oauth.v2.access", "", **given))["error"] == "invalid_code"


async def test_an_address_that_is_not_the_apps_is_not_shown() -> None:
    async with plain(installed=False) as (fake, api):
        fake.installer.redirect_uris.append("https://bot.example/")
        for wrong in ({"client_id": "9"}, {"redirect_uri": "https://evil.example"}, {"scope": ""}):
            async with api.http.get(address(fake, **wrong)) as answer:
                assert answer.status == 400
            with pytest.raises(ValueError):
                fake.approve(address(fake, **wrong))


async def test_a_user_can_decline() -> None:
    async with FakeSlack(installed=False) as fake:
        target = fake.approve(address(fake), deny=True)
        assert parse_qs(urlsplit(target).query) == {"error": ["access_denied"], "state": ["s1"]}


async def test_the_page_asks_where_to_install_the_app() -> None:
    async with plain(teams=("acme", "globex"), installed=False) as (fake, api):
        url = address(fake, state='"><script>')
        async with api.http.get(url) as answer:
            page = await answer.text()
        assert "Allow in globex" in page
        assert "<script>" not in page
        team = fake.state.team_of("globex").id
        form = {**dict(parse_qs(urlsplit(url).query)), "install": team}
        data = {name: value if isinstance(value, str) else value[0] for name, value in form.items()}
        async with api.http.post(
            f"{fake.url}/oauth/v2/authorize", data=data, allow_redirects=False
        ) as answer:
            assert answer.status == 302
            assert answer.headers["Location"].startswith(REDIRECT)


@pytest.mark.filterwarnings("ignore:BasicAuth is deprecated:DeprecationWarning")  # the library's
async def test_bolt_serves_two_workspaces_each_with_its_own_token(tmp_path: Path) -> None:
    async with FakeSlack(teams=("acme", "globex"), installed=False) as fake:
        app = _distributed(fake, tmp_path)

        @app.event("message")
        async def said(event: Any, say: Any) -> None:
            await say(f"echo {event['text']}")

        async with by_http(fake, app) as url, aiohttp.ClientSession() as http:
            for team in ("acme", "globex"):
                await _installed(fake, http, url, team)
            fake.say("general", "one", team="acme")
            fake.say("general", "two", team="globex")
            await fake.until(lambda: fake.answers("general", team="acme"))
            await fake.until(lambda: fake.answers("general", team="globex"))
            assert fake.answers("general", team="acme") == ["echo one"]
            assert fake.answers("general", team="globex") == ["echo two"]
        fake.transcript.check()


async def test_bolt_refuses_a_forged_state(tmp_path: Path) -> None:
    async with (
        FakeSlack(installed=False) as fake,
        by_http(fake, _distributed(fake, tmp_path)) as url,
        aiohttp.ClientSession() as http,
    ):
        target = fake.approve(address(fake, redirect_uri=url.replace(PATH, "/slack/oauth_redirect")))
        async with http.get(target) as answer:
            assert answer.status == 400


async def test_an_uninstalled_app_gets_two_events_and_its_tokens_are_revoked() -> None:
    async with plain() as (fake, api):
        token = fake.bot_token
        fake.uninstall()
        kinds = [one.payload["event"]["type"] for one in fake.deliveries]
        assert kinds == ["tokens_revoked", "app_uninstalled"]
        assert fake.deliveries[0].payload["event"]["tokens"]["bot"]
        assert (await api.call("auth.test", token))["error"] == "account_inactive"
        with pytest.raises(LookupError):
            fake.token()
        fake.say("general", "anybody there?")
        assert len(fake.deliveries) == 2
        fake.install()
        assert (await client(fake).auth_test())["ok"]
        assert token != fake.bot_token


async def test_a_token_can_be_revoked_by_its_owner() -> None:
    async with plain() as (fake, api):
        token = fake.bot_token
        assert (await api.form("auth.revoke", token, test="true"))["revoked"] is False
        assert (await api.form("auth.revoke", token))["revoked"] is True
        assert (await api.call("auth.test", token))["error"] == "token_revoked"
        assert fake.deliveries[0].payload["event"]["type"] == "tokens_revoked"


async def test_workspaces_do_not_see_one_another() -> None:
    async with plain(teams=("acme", "globex")) as (fake, api):
        there = fake.chat("general", "globex").id
        assert (await api.call("chat.postMessage", channel=there, text="hi"))["error"] == "channel_not_found"
        stranger = fake.user("eve", "globex").id
        assert (await api.form("users.info", user=stranger))["error"] == "user_not_found"


def _distributed(fake: FakeSlack, folder: Path) -> AsyncApp:
    """Return a Bolt app that any workspace can install."""
    settings = AsyncOAuthSettings(
        **secrets(fake),
        scopes=["chat:write", "channels:read"],
        installation_store=FileInstallationStore(base_dir=str(folder / "installed")),
        state_store=FileOAuthStateStore(expiration_seconds=600, base_dir=str(folder / "states")),
        authorization_url=f"{fake.url}/oauth/v2/authorize",
    )
    slack = client(fake, "none")
    slack.token = None
    return AsyncApp(client=slack, signing_secret=fake.app.signing_secret, oauth_settings=settings)


async def _installed(fake: FakeSlack, http: aiohttp.ClientSession, url: str, team: str) -> None:
    """Complete an installation as a user."""
    install = url.replace(PATH, "/slack/install")
    async with http.get(install) as answer:
        text = await answer.text()
        cookies = {name: cookie.value for name, cookie in answer.cookies.items()}
    begin = next(link for link in re.findall('href="([^"]+)"', text) if "authorize" in link)
    fake.installer.redirect_uris[:] = [url.replace(PATH, "/slack/oauth_redirect")]
    target = fake.approve(html.unescape(begin), team)
    async with http.get(target, cookies=cookies) as answer:
        assert answer.status == 200
