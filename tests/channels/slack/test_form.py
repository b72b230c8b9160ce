"""The command /ask: what is submitted in its form is answered once, in the chat where it was opened."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from channels.slack.fake import FakeSlack
from gateway import Plugin, SlashCommand
from gateway.store import schema as t
from gateway.testing.fake_models.script import Gate, Reply, Say
from gateway.testing.fake_models.server import FakeModels
from tests.channels.slack.gateways import gateway_at, settled, states, until

pytestmark = pytest.mark.slow


def typed(text: str | None) -> Any:
    return {"question": {"text": {"type": "plain_text_input", "value": text}}}


async def opened(fake: FakeSlack, chat: str, user: str = "ada") -> str:
    """Give the command without a text; return the id of the form."""
    before = set(fake.state.views)
    assert (await fake.command(chat, "/ask", user).settled()).acknowledged
    await fake.until(lambda: set(fake.state.views) - before)
    (view,) = set(fake.state.views) - before
    return view


@pytest.mark.parametrize("mode", ["socket", "http"])
async def test_a_long_question_is_answered_where_the_form_was_opened(tmp_path: Path, mode: str) -> None:
    long = "line\n" * 599 + "end"
    async with FakeSlack() as fake, gateway_at(fake, tmp_path, mode=mode) as gateway:
        view = await opened(fake, "@ada")
        assert (await fake.submit(view, typed(long)).settled()).acknowledged
        assert await states(gateway), "it was stored before Slack was answered"
        await settled(gateway, "done")
        assert [answer.split() for answer in fake.answers("@ada")] == [f"You said: {long}".split()]
        assert not fake.state.views
    fake.transcript.check()


async def test_in_a_channel_only_its_author_sees_the_answer(tmp_path: Path) -> None:
    async with FakeSlack() as fake, FakeModels() as models, gateway_at(fake, tmp_path, models) as gateway:
        for user in ("ada", "ben"):
            view = await opened(fake, "general", user)
            await fake.submit(view, typed(f"I am {user}")).settled()
            await until(lambda user=user: any(f"I am {user}" in str(one) for one in models.requests))
        await settled(gateway, "done", "done")
        assert [said.text for said in fake.hidden("general")] == ["You said: I am ada"]
        assert [said.text for said in fake.hidden("general", "ben")] == ["You said: I am ben"]
        assert fake.messages("general") == []
        assert "I am ada" not in str(models.requests[-1]), "it is a conversation of its author"
    fake.transcript.check()


async def test_an_answer_that_takes_long_reaches_its_author_after_a_restart(tmp_path: Path) -> None:
    never = asyncio.Event()
    async with FakeSlack() as fake, FakeModels() as models:
        async with gateway_at(fake, tmp_path, models) as gateway:
            view = await opened(fake, "general")
            models.then(Reply((Gate(never), Say("never"))))
            await fake.submit(view, typed("hello")).settled()
            await until(lambda: models.requests)
            gateway.parts.dispatcher.cancel()
        for url in fake.state.reply_urls.values():
            url.until = 0.0
        async with gateway_at(fake, tmp_path, models) as gateway:
            await settled(gateway, "done")
        assert [said.text for said in fake.hidden("general")] == ["You said: hello"]
        assert fake.messages("general") == []
        never.set()
    assert [one for one in fake.transcript.problems if "after 30 minutes" not in one] == []


async def test_a_question_after_the_command_needs_no_form(tmp_path: Path) -> None:
    async with FakeSlack() as fake, gateway_at(fake, tmp_path) as gateway:
        await fake.command("@ada", "/ask what is new?").settled()
        await settled(gateway, "done")
        assert fake.answers("@ada") == ["You said: what is new?"]
        assert not fake.state.views
    fake.transcript.check()


async def test_a_form_that_is_submitted_twice_is_answered_once(tmp_path: Path) -> None:
    async with FakeSlack() as fake:
        async with gateway_at(fake, tmp_path) as gateway:
            view = await opened(fake, "@ada")
            both = [fake.submit(view, typed("hello")) for _ in range(2)]
            for one in both:
                assert (await one.settled()).acknowledged
            await settled(gateway, "done")
        async with gateway_at(fake, tmp_path) as gateway:
            again = fake.deliver_raw(both[0].payload)
            await fake.until(lambda: again.acknowledged)
            fake.say("@ada", "and now")
            await settled(gateway, "done", "done")
        assert fake.answers("@ada") == ["You said: hello", "You said: and now"]
    fake.transcript.check()


@pytest.mark.parametrize("mode", ["socket", "http"])
@pytest.mark.parametrize("text", [None, "", " \n "])
async def test_an_empty_form_says_so_and_stays_open(tmp_path: Path, mode: str, text: str | None) -> None:
    async with FakeSlack() as fake, gateway_at(fake, tmp_path, mode=mode) as gateway:
        view = await opened(fake, "@ada")
        assert (await fake.submit(view, typed(text)).settled()).acknowledged
        await fake.until(lambda: fake.state.views[view].get("errors"))
        assert fake.state.views[view]["errors"] == {"question": "Write something."}
        await fake.submit(view, typed("hello")).settled()
        await settled(gateway, "done")
        assert fake.answers("@ada") == ["You said: hello"]
    fake.transcript.check()


async def test_what_cannot_be_accepted_stays_in_the_form(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with (
        FakeSlack() as fake,
        FakeModels() as models,
        gateway_at(fake, tmp_path, models, limits={"global_inbox": 1}) as gateway,
    ):
        view = await opened(fake, "@ada")
        models.then(Reply((Gate(gate), Say("done"))))
        fake.say("@ben", "hello", "ben")
        await until(lambda: models.requests)
        await fake.submit(view, typed("hello")).settled()
        await fake.until(lambda: fake.state.views[view].get("errors"))
        assert "too much to do" in fake.state.views[view]["errors"]["question"]
        assert await states(gateway) == ["new"]
        gate.set()
        await settled(gateway, "done")
        await until(lambda: gateway.parts.dispatcher.waiting == 0)
        await fake.submit(view, typed("hello")).settled()
        await settled(gateway, "done", "done")
        assert fake.answers("@ada") == ["You said: hello"]
    fake.transcript.check()


@pytest.mark.parametrize("chat", ["@eve", "general"])
async def test_who_may_not_use_the_bot_gets_no_form_and_cannot_submit_one(tmp_path: Path, chat: str) -> None:
    async with FakeSlack() as fake:
        async with gateway_at(fake, tmp_path):
            view = await opened(fake, chat, "eve")
        async with gateway_at(fake, tmp_path, allow=[fake.user("ada").id]) as gateway:
            await fake.submit(view, typed("hello")).settled()
            await fake.until(lambda: fake.state.views[view].get("errors"))
            assert fake.state.views[view]["errors"] == {"question": "You may not use this bot."}
            await fake.command(chat, "/ask", "eve").settled()
            await fake.until(lambda: fake.hidden(chat, "eve"))
            assert [said.text for said in fake.hidden(chat, "eve")] == ["You may not use this bot."]
            assert list(fake.state.views) == [view]
            assert await states(gateway) == []
    fake.transcript.check()


async def test_in_a_chat_without_the_bot_there_is_no_form(tmp_path: Path) -> None:
    async with FakeSlack() as fake:
        rooms = {fake.chat("general").id: {"enabled": False}}
        async with gateway_at(fake, tmp_path, rooms=rooms):
            await fake.command("general", "/ask").settled()
            await fake.until(lambda: fake.hidden("general"))
            assert "switched off" in fake.hidden("general")[0].text
            assert not fake.state.views
    fake.transcript.check()


async def test_a_form_that_slack_does_not_open_is_reported(tmp_path: Path) -> None:
    async with FakeSlack() as fake, gateway_at(fake, tmp_path):
        fake.then("slow_down", method="views.open")
        await fake.command("@ada", "/ask").settled()
        await fake.until(lambda: fake.hidden("@ada"))
        assert "could not be opened" in fake.hidden("@ada")[0].text
        assert not fake.state.views
    fake.transcript.check()


@pytest.mark.parametrize(
    "view", [{}, {"state": {}}, {"private_metadata": ""}, {"id": 5}, {"state": {"values": []}}]
)
async def test_a_submission_that_cannot_be_read_is_kept_and_stops_nothing(tmp_path: Path, view: Any) -> None:
    async with FakeSlack() as fake, gateway_at(fake, tmp_path) as gateway:
        user = {"id": fake.user("ada").id}
        payload = {"type": "view_submission", "team": {"id": fake.state.team_of(None).id}, "user": user}
        odd = fake.deliver_raw({**payload, "view": {"callback_id": "trunkline_form", **view}})
        await fake.until(lambda: odd.acknowledged)
        assert await states(gateway) == []
        kept = select(t.quarantine.c.raw)
        assert await gateway.parts.store.read(lambda c: len(c.execute(kept).all())) == 1
    fake.transcript.check()


async def test_a_command_of_a_plugin_comes_first(tmp_path: Path) -> None:
    class Asking(Plugin):
        """Plugin with a command of the same name."""

        name = "asking"

        def commands(self) -> Sequence[SlashCommand]:
            async def ask(rest: str, _ctx: object) -> str:
                return f"asked {rest!r}"

            return (SlashCommand("ask", "Ask", ask),)

    async with FakeSlack() as fake, gateway_at(fake, tmp_path, plugins=(Asking(),)) as gateway:
        await fake.command("@ada", "/ask").settled()
        await settled(gateway, "done")
        assert fake.answers("@ada") == ["asked ''"]
        assert not fake.state.views
    fake.transcript.check()
