"""The home tab of the app shows users their settings, and others how to get access."""

from __future__ import annotations

from pathlib import Path

import pytest

from channels.slack.fake import FakeSlack
from tests.channels.slack.gateways import gateway_at, settled, until

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("mode", ["socket", "http"])
async def test_a_user_sees_the_model_and_the_commands(tmp_path: Path, mode: str) -> None:
    async with FakeSlack() as fake, gateway_at(fake, tmp_path, mode=mode, command_prefix="t-"):
        fake.open_app(tab="home")
        await fake.until(fake.home)
        lines = (fake.home() or "").split("\n")
        assert lines[:3] == ["This chat", "model openai/fake-small", "Commands"]
        assert "/t-help Show the commands" in lines
        assert not any("pair" in line for line in lines)
    fake.transcript.check()


async def test_a_user_sees_the_conversation_and_the_usage(tmp_path: Path) -> None:
    async with FakeSlack() as fake, gateway_at(fake, tmp_path, admins=[fake.user("ada").id]) as gateway:
        fake.say("@ada", "hello")
        await settled(gateway, "done")
        fake.open_app(tab="home")
        await fake.until(fake.home)
        text = fake.home() or ""
        assert f"session slack:{fake.state.team_of(None).id}:{fake.chat('@ada').id}" in text
        assert "model openai/fake-small\nmessages 2\nwaiting 0" in text
        assert "this conversation: 3 tokens in, 3 out" in text
        assert "/pair Approve a user" in text, "she is an admin"
    fake.transcript.check()


async def test_who_may_not_use_the_bot_sees_how_to_get_access_and_nothing_else(tmp_path: Path) -> None:
    async with FakeSlack() as fake, gateway_at(fake, tmp_path, allow=[fake.user("ada").id]):
        fake.open_app("eve", "home")
        await fake.until(lambda: fake.home("eve"))
        text = fake.home("eve") or ""
        assert text.startswith("No access\nYou may not use this bot yet. Write it a message")
        assert len(text.split("\n")) == 2
        assert "model" not in text
    fake.transcript.check()


async def test_a_tab_that_is_opened_again_and_again_is_made_once(tmp_path: Path) -> None:
    async with FakeSlack() as fake, gateway_at(fake, tmp_path):
        for _ in range(5):
            fake.open_app(tab="home")
        fake.open_app("ben", "home")
        fake.open_app("ben", "about")
        await fake.until(lambda: fake.home() and fake.home("ben"))
        await until(lambda: all(one.acknowledged for one in fake.deliveries))
        assert len(fake.transcript.of("views.publish")) == 2
    fake.transcript.check()


async def test_a_tab_that_cannot_be_shown_at_once_is_shown_later(tmp_path: Path) -> None:
    async with FakeSlack() as fake, gateway_at(fake, tmp_path):
        fake.then("slow_down", "drop_after", method="views.publish")
        fake.open_app(tab="home")
        await fake.until(lambda: len(fake.transcript.of("views.publish")) == 3)
        assert "Commands" in (fake.home() or "")
    fake.transcript.check()


async def test_an_app_without_a_home_tab_is_not_asked_again(tmp_path: Path) -> None:
    async with FakeSlack() as fake, gateway_at(fake, tmp_path) as gateway:
        fake.switches.home = False
        fake.open_app(tab="home")
        await fake.until(lambda: fake.transcript.of("views.publish"))
        fake.open_app("ben", "home")
        fake.say("@ada", "hello")
        await settled(gateway, "done")
        assert len(fake.transcript.of("views.publish")) == 1
    fake.transcript.check()
