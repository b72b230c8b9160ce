"""``trunkline doctor`` asks each platform whether the settings of its channel work."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from channels import discord, email, slack, telegram
from channels.discord.fake import FakeDiscord
from channels.matrix.fake import FakeMatrix
from channels.slack.fake import FakeSlack
from channels.telegram.fake import FakeTelegram
from tests.channels.email.test_contract import EmailPlatform
from tests.channels.matrix.test_contract import BOT
from tests.gateway.cli.processes import trunkline


async def probe(
    home: Path, channel: str, options: Mapping[str, Any], **environ: str
) -> list[tuple[str, str]]:
    """Return status and detail of each finding of the doctor about the channel."""
    file = home / "own.json"
    file.write_text(json.dumps({"data_dir": str(home / "data"), "channels": {channel: options}}))
    arguments = ("doctor", "--json", "--config", str(file))
    done = await asyncio.to_thread(trunkline, *arguments, home=home, TRUNKLINE_SERVER__PORT="0", **environ)
    found = [each for each in json.loads(done.stdout) if each["name"] == f"channel {channel}"]
    assert (done.returncode == 1) == any(each["status"] == "fail" for each in found)
    assert all(each["advice"] for each in found if each["status"] == "fail")
    return [(each["status"], each["detail"]) for each in found]


async def test_telegram_is_asked_for_the_bot_and_its_webhook(tmp_path: Path) -> None:
    async with FakeTelegram() as fake:
        options = {"token": fake.token, "api_base_url": fake.url, "allow": "*"}
        ((status, detail),) = await probe(tmp_path, "telegram", options)
        assert (status, detail.split(";")[0]) == ("ok", "signed in as @fake_bot")
        assert "privacy mode is on" in detail
        rooms = {"groups": "always", "rooms": {"-1001": {"groups": "always"}, "-1002": {"groups": "reply"}}}
        _, *unheard = await probe(tmp_path, "telegram", options | rooms)
        assert unheard == [
            ("warn", f'groups = "always" of [{table}] has no effect')
            for table in ("channels.telegram", 'channels.telegram.rooms."-1001"')
        ]
        wrong = await probe(tmp_path, "telegram", options | {"token": "1:wrong"})
        wished = {"token": fake.token, "api_base_url": fake.url, "inline": True, "business": ["1"]}
        off = await telegram.probe(telegram.Options.model_validate(wished))
    assert [found.detail.split("; ")[0] for found in off] == [
        "inline is set, but the inline mode of the bot is off",
        "business is set, but the business mode of the bot is off",
    ]
    assert wrong == [("fail", "Telegram rejects the token; set token to the one that @BotFather shows")]
    gone = await probe(tmp_path, "telegram", options)
    assert (gone[0][0], gone[0][1].partition(": ")[0]) == ("fail", "no answer from Telegram")


@pytest.mark.parametrize("status", [200, 403])
async def test_a_page_of_a_proxy_is_distinguished_from_an_answer(tmp_path: Path, status: int) -> None:
    async def page(_request: web.Request) -> web.Response:
        return web.Response(status=status, text="<html>Log in to the network</html>")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", page)
    async with TestServer(app) as server:
        url = str(server.make_url("/")).rstrip("/")
        shared = {"allow": "*", "api_base_url": url}
        channels = {
            "telegram": {**shared, "token": "1:a"},
            "discord": {**shared, "token": "a"},
            "slack": {**shared, "accounts": {"one": {"bot_token": "xoxb-1", "app_token": "xapp-1"}}},
            "matrix": {"allow": "*", "homeserver": url, "access_token": "a"},
        }
        file = tmp_path / "own.json"
        file.write_text(json.dumps({"data_dir": str(tmp_path / "data"), "channels": channels}))
        arguments = ("doctor", "--json", "--config", str(file))
        done = await asyncio.to_thread(trunkline, *arguments, home=tmp_path, TRUNKLINE_SERVER__PORT="0")
    found = [each for each in json.loads(done.stdout) if each["status"] == "fail"]
    assert len(found) == 5
    for each in found:
        key = "homeserver" if "matrix" in each["name"] else "api_base_url"
        assert each["detail"].endswith(f"a proxy or firewall answers, or {key} is wrong"), each
    assert "[channels.slack.accounts.one]" in found[-2]["advice"]


async def test_discord_is_asked_for_the_bot_and_its_intent(tmp_path: Path) -> None:
    async with FakeDiscord() as fake:
        options = {"token": "fake-token", "api_base_url": fake.api_url, "allow": "*"}
        assert await probe(tmp_path, "discord", options) == [("ok", "signed in as trunkline")]
        wrong = await probe(tmp_path, "discord", options | {"token": "wrong"})
        foreign = await probe(tmp_path, "discord", options | {"public_key": "0" * 64})
    assert wrong == [("fail", "check token, on the page Bot of the application: Discord rejects it (401)")]
    assert [(status, detail.split(" is ")[0]) for status, detail in foreign] == [("fail", "public_key")]
    async with FakeDiscord(privileged=()) as fake:
        found = await probe(tmp_path, "discord", options | {"api_base_url": fake.api_url})
    assert found == [("fail", "enable the Message Content Intent on the bot's page at Discord")]
    async with FakeDiscord() as fake:
        fake._world.guilds.clear()
        given = discord.Options.model_validate({"token": "fake-token", "api_base_url": fake.api_url})
        (alone,) = await discord.probe(given)
    assert (
        alone.ok,
        "it is on no server yet: to add it to one, open https://discord.com/" in alone.detail,
    ) == (
        True,
        True,
    )


async def test_discord_is_reached_through_the_proxy_of_the_environment(tmp_path: Path) -> None:
    asked: list[str] = []

    async def refuse(request: web.Request) -> web.Response:
        asked.append(str(request.url))
        return web.Response(
            status=401, text='{"message": "401: Unauthorized", "code": 0}', content_type="application/json"
        )

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", refuse)
    async with TestServer(app) as server:
        proxy = str(server.make_url("/"))
        options = {"token": "a", "api_base_url": "http://discord.invalid/api", "allow": "*"}
        (_, detail), plain = await probe(tmp_path, "discord", options, http_proxy=proxy, no_proxy="")
    assert plain == ("warn", "channels.discord.api_base_url: http://discord.invalid is without TLS")
    assert detail.endswith("Discord rejects it (401)")
    assert asked == ["http://discord.invalid/api/users/@me"]


async def test_slack_is_asked_for_both_tokens_and_the_scopes(tmp_path: Path) -> None:
    async with FakeSlack() as fake:
        options = {
            "bot_token": fake.bot_token,
            "app_token": fake.app_token,
            "api_base_url": fake.api_url,
            "allow": "*",
        }
        ((status, detail),) = await probe(tmp_path, "slack", options)
        assert (status, detail.startswith("signed in as ")) == ("ok", True)
        wrong = await probe(tmp_path, "slack", options | {"bot_token": "xoxb-1", "app_token": "xapp-1"})
        assert wrong == [
            (
                "fail",
                "auth.test: invalid_auth; check bot_token: the page OAuth & Permissions of the app shows it",
            ),
            (
                "fail",
                "apps.connections.open: invalid_auth; check app_token, and that Socket Mode is enabled for "
                "the app",
            ),
        ]
        fake.state.tokens[fake.bot_token].scopes -= {"files:read", "im:history"}
        ((status, detail),) = await probe(tmp_path, "slack", options)
        assert (status, "without the scopes files:read, im:history; add them" in detail) == ("fail", True)
        other = {"bot_token": fake.bot_token, "app_token": "xapp-1-A0ELSE-1-2", "api_base_url": fake.api_url}
        _, foreign, _ = await slack.probe(slack.Options.model_validate(other))
        assert foreign.detail.startswith("app_token is of the app A0ELSE, but bot_token of A")
        scopes = fake.state.tokens[fake.bot_token].scopes
        scopes |= {"files:read", "im:history"}
        scopes -= {"users:read"}
        ((status, detail),) = await probe(tmp_path, "slack", options)
        assert (status, "without the scopes users:read; add them" in detail) == ("ok", True)
    ((status, detail), _) = await probe(tmp_path, "slack", options)
    assert (status, detail.startswith("Slack cannot be reached: Cannot connect to host ")) == ("fail", True)


async def test_a_homeserver_is_asked_whose_token_it_is(tmp_path: Path) -> None:
    async with FakeMatrix() as fake:
        options = {"homeserver": fake.url, "access_token": fake.token, "allow": "*"}
        assert await probe(tmp_path, "matrix", options) == [("ok", f"signed in as {BOT}")]
        ((status, detail),) = await probe(tmp_path, "matrix", options | {"access_token": "wrong"})
    assert (status, "rejects access_token (M_UNKNOWN_TOKEN)" in detail) == ("fail", True)


@pytest.mark.slow
@pytest.mark.usefixtures("dovecot_path")
async def test_both_mail_servers_are_asked_for_the_login(tmp_path: Path) -> None:
    async with EmailPlatform() as platform:
        options = {**platform.settings(), "allow": "*"}
        ((status, detail),) = await probe(tmp_path, "email", options)
        assert (status, detail.split(";")[0][:25]) == ("ok", "IMAP and SMTP accept the ")
        found = await probe(tmp_path, "email", options | {"password": "wrong"})
        given = platform.settings() | {"folder": "Bot"}
        del given["allow"]
        (no_folder,) = await email.probe(email.Options.model_validate(given))
        # The servers of the test have no TLS, as one has on the port of another protocol.
        plain = await email.probe(email.Options.model_validate(given | {"tls": "required"}))
    assert [status for status, _ in found] == ["fail", "fail"]
    for server, (_, detail) in zip(("IMAP", "SMTP"), found, strict=True):
        assert detail.startswith(f"the {server} server refuses the login of bot@example.org")
        assert detail.endswith("accept only an app password, which their account settings make")
    assert no_folder.detail.endswith("check folder, which is 'Bot'")
    assert f"no TLS on port {given['imap_port']} of 127.0.0.1" in plain[0].detail
    assert "correct imap_port, 993 is usual" in plain[0].detail
