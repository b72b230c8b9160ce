"""Posts in Telegram channels: off by default, and only of channels that are listed by their ids."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from channels.telegram.fake import FakeTelegram
from channels.telegram.updates.chats import id_sequence, is_channel, is_group, target_of
from channels.telegram.updates.objects import CHANNEL_KINDS, KINDS
from gateway.testing.fake_models.script import Gate, Reply, Say
from tests.channels.telegram.lab import lab, until

pytestmark = pytest.mark.slow


def posts(allow: Any, **options: Any) -> dict[str, Any]:
    """Return the settings of a bot that answers posts."""
    return {"channel_posts": True, "allow": allow, **options}


async def connected(fake: FakeTelegram) -> None:
    """Wait until the bot polls, so that it gets the updates of its kinds."""
    await until(lambda: fake.world.updates.polled)


def test_names_of_channels() -> None:
    name = "channel:-1003000000001"
    assert is_channel(name)
    assert is_group(name)
    assert target_of(name) == {"chat_id": -1003000000001}
    assert id_sequence(name) not in ("", id_sequence("-1003000000001"))
    assert not is_channel("-1003000000001")


async def test_posts_are_not_even_requested_by_default(tmp_path: Path, fake: FakeTelegram) -> None:
    news, chat = fake.group("News", "Ada", kind="channel", admin=True), fake.private("Ada")
    async with lab(tmp_path, fake, allow=[news, fake.person("Ada").id], groups="always") as running:
        await connected(fake)
        assert fake.world.updates.allowed == KINDS
        post = fake.say(news, "hello")
        fake.deliver_raw({"channel_post": fake.world.json(fake.chat(news).messages[post])})
        fake.say(chat, "hello")
        await running.answers(chat, "You said: hello")
    assert fake.answers(news) == []
    fake.transcript.check()


async def test_a_star_allows_users_and_no_channel(tmp_path: Path, fake: FakeTelegram) -> None:
    news, chat = fake.group("News", "Ada", kind="channel", admin=True), fake.private("Ada")
    other = fake.group("Others", "Ada", kind="channel", admin=True)
    async with lab(tmp_path, fake, **posts("*", groups="always", admins=[other])) as running:
        await connected(fake)
        assert fake.world.updates.allowed == (*KINDS, *CHANNEL_KINDS)
        fake.say(news, "hello")
        fake.say(other, "hello")
        fake.say(chat, "hello")
        await running.answers(other, "You said: hello")
        await running.answers(chat, "You said: hello")
        assert fake.answers(news) == []
        assert await running.states() == ["done", "done"], "the post is not even stored"
    fake.transcript.check()


async def test_the_rule_for_groups_applies_to_posts(tmp_path: Path, fake: FakeTelegram) -> None:
    news, chat = fake.group("News", "Ada", kind="channel", admin=True), fake.private("Ada")
    async with lab(tmp_path, fake, **posts([news])) as running:
        await connected(fake)
        fake.say(news, "We meet at nine.")
        first = fake.say(news, "@fake_bot when?")
        await running.answers(news, "You said: when?")
        told = str(running.models.requests[-1].body)
        assert "We meet at nine." in told, "a post that is not for the bot is context"
        fake.edit(news, first, "@fake_bot where?")
        await running.answers(news, "You said: when?", "You said: where?")
        assert [one.reply_to for one in fake.messages(news) if one.sender.is_bot] == [first, first]
        fake.say(chat, "hello")
        await until(lambda: fake.answers(chat))
        assert "You said" not in fake.answers(chat)[0], "the entry is for the channel, not for its people"
    fake.transcript.check()


async def test_an_answer_grows_by_edits_and_without_an_indicator(tmp_path: Path, fake: FakeTelegram) -> None:
    news = fake.group("News", "Ada", kind="channel", admin=True)
    async with lab(tmp_path, fake, thinking="👀", **posts([news], groups="always")) as running:
        await connected(fake)
        gate = asyncio.Event()
        running.models.then(Reply((Say("Once upon"), Gate(gate), Say(" a time"))))
        asked = fake.say(news, "a story")
        bot = fake.world.bot.id
        await until(lambda: fake.answers(news) == ["Once upon"])
        await until(lambda: fake.chat(news).messages[asked].reactions.get(bot))
        gate.set()
        await running.answers(news, "Once upon a time")
    assert fake.actions(news) == []
    fake.transcript.check()


async def test_a_channel_can_have_its_own_table(tmp_path: Path, fake: FakeTelegram) -> None:
    news = fake.group("News", "Ada", kind="channel", admin=True)
    rooms = {"default": "deny", f"channel:{news}": {"groups": "always", "allow": [str(news)]}}
    async with lab(tmp_path, fake, **posts([], rooms=rooms)) as running:
        await connected(fake)
        fake.say(news, "hello")
        await running.answers(news, "You said: hello")
        [room] = await running.gateway.parts.access.seen_rooms.list()
        assert (room.chat, room.title) == (f"channel:{news}", "News")
    fake.transcript.check()
