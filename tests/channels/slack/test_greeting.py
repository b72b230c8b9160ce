"""Users who open the app see prompts to choose from, if they may use the bot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from channels.slack.api import Api, Displays
from channels.slack.fake import FakeSlack
from channels.slack.options import Options
from channels.slack.surfaces.greeting import Greeting
from gateway.testing.fake_models.script import titling
from gateway.testing.fake_models.server import FakeModels
from tests.channels.slack.gateways import gateway_at, settled, until

pytestmark = pytest.mark.slow

PROMPTS = {"Sum up": "Summarize a text for me.", "Tools?": "Which tools do you have?"}


def shown(fake: FakeSlack, user: str = "ada", thread: str = "") -> Any:
    return fake.state.prompts.get((fake.chat(f"@{user}").id, thread))


@pytest.mark.parametrize("mode", ["socket", "http"])
async def test_a_user_who_opens_the_messages_of_the_app_sees_prompts(tmp_path: Path, mode: str) -> None:
    options = {"mode": mode, "greeting": "Hello!", "prompts": PROMPTS}
    async with FakeSlack() as fake, gateway_at(fake, tmp_path, **options):
        fake.open_app()
        await fake.until(lambda: shown(fake))
        assert shown(fake) == {
            "title": "Hello!",
            "prompts": [{"title": title, "message": message} for title, message in PROMPTS.items()],
        }
        fake.open_app()
        fake.open_app("ben")
        await fake.until(lambda: shown(fake, "ben"))
        assert len(fake.transcript.of("assistant.threads.setSuggestedPrompts")) == 2
    fake.transcript.check()


async def test_a_new_thread_has_prompts_and_the_title_of_its_first_message(tmp_path: Path) -> None:
    async with FakeSlack() as fake, gateway_at(fake, tmp_path) as gateway:
        root = fake.start_thread()
        await fake.until(lambda: shown(fake, thread=root))
        assert len(shown(fake, thread=root)["prompts"]) == 3
        assert not fake.state.titles
        text = "What is\nthe answer? " + "x" * 100
        fake.say("@ada", text, thread=root)
        await settled(gateway, "done")
        await fake.until(lambda: fake.state.titles)
        fake.say("@ada", "and again", thread=root)
        await settled(gateway, "done", "done")
        assert fake.state.titles == {(fake.chat("@ada").id, root): f"What is the answer? {'x' * 59}…"}
        assert len(fake.transcript.of("assistant.threads.setTitle")) == 1
    fake.transcript.check()


async def test_004_t10_a_thread_gets_the_title_of_its_conversation(tmp_path: Path) -> None:
    async with (
        FakeSlack() as fake,
        FakeModels(titling("A trip to Rome")) as models,
        gateway_at(fake, tmp_path, models, small_model="openai/fake-title") as gateway,
    ):
        root, chat = fake.start_thread(), fake.chat("@ada").id
        await fake.until(lambda: shown(fake, thread=root))
        fake.say("@ada", "Where do I go?", thread=root)
        await fake.until(lambda: fake.state.titles == {(chat, root): "A trip to Rome"})
        [session] = gateway.parts.sessions.live()
        await gateway.parts.host.rename(session.id, "Rome " + "x" * 95)
        await fake.until(lambda: fake.state.titles == {(chat, root): f"Rome {'x' * 74}…"})
        fake.say("general", "@trunkline hello")
        await settled(gateway, "done", "done")
        await until(lambda: [one.row.titled for one in gateway.parts.sessions.live()] == ["user", "model"])
        assert len(fake.transcript.of("assistant.threads.setTitle")) == 3
    fake.transcript.check()


async def test_who_may_not_use_the_bot_gets_no_prompts(tmp_path: Path) -> None:
    async with FakeSlack() as fake, gateway_at(fake, tmp_path, allow=[fake.user("ada").id]):
        fake.open_app("eve")
        fake.start_thread("eve")
        fake.open_app()
        await fake.until(lambda: shown(fake))
        await until(lambda: all(one.acknowledged for one in fake.deliveries))
        assert [place[0] for place in fake.state.prompts] == [fake.chat("@ada").id]
    fake.transcript.check()


async def test_without_prompts_nothing_is_shown(tmp_path: Path) -> None:
    async with FakeSlack() as fake, gateway_at(fake, tmp_path, prompts={}) as gateway:
        fake.open_app()
        fake.say("@ada", "hello")
        await settled(gateway, "done")
        assert not fake.state.prompts
    fake.transcript.check()


async def test_a_greeting_that_fails_is_repeated_and_one_that_is_denied_is_not() -> None:
    async with FakeSlack() as fake:
        greeting, chat = (
            Greeting(Displays(Api(fake.bot_token, fake.api_url)), "Hi", PROMPTS),
            fake.chat("@ada").id,
        )
        fake.then("slow_down", "fail_after", method="assistant.threads.setSuggestedPrompts")
        await greeting.show(chat, None)
        assert shown(fake)["title"] == "Hi"
        fake.switches.agent = False
        for user in ("@ben", "@bob"):
            await greeting.show(fake.chat(user).id, None)
        assert len(fake.transcript.of("assistant.threads.setSuggestedPrompts")) == 4


async def test_prompts_are_set_again_after_a_while() -> None:
    now = 0.0
    async with FakeSlack() as fake:
        greeting = Greeting(Displays(Api(fake.bot_token, fake.api_url)), "Hi", PROMPTS, lambda: now)
        for now in (0.0, 599.0, 600.0):  # noqa: B007 - the clock
            await greeting.show(fake.chat("@ada").id, None)
        assert len(fake.transcript.of("assistant.threads.setSuggestedPrompts")) == 2
    fake.transcript.check()


@pytest.mark.parametrize(
    "given", [{"prompts": {str(n): "x" for n in range(5)}}, {"prompts": {"": "x"}}, {"prompts": {"x": " "}}]
)
def test_prompts_that_slack_would_refuse_are_errors_in_the_settings(given: Any) -> None:
    with pytest.raises(ValidationError):
        Options.model_validate({"bot_token": "x", **given})
