"""Faults of the fake Telegram: limits, waits, broken responses, broken sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest
from telegram import Bot, InputMediaPhoto
from telegram.error import NetworkError, RetryAfter

from channels.telegram.fake import FakeTelegram, Figures, Rate
from gateway.testing.served import until
from tests.channels.telegram.bots import bot_of, refused
from tests.channels.telegram.pictures import png

pytestmark = pytest.mark.filterwarnings("ignore::telegram.warnings.PTBDeprecationWarning")


async def told_to_wait(call: Awaitable[object]) -> float:
    """Return the wait of a refused call, in seconds."""
    with pytest.raises(RetryAfter) as caught:
        await call
    wait = caught.value.retry_after
    return wait if isinstance(wait, int | float) else wait.total_seconds()


async def test_a_call_that_comes_before_its_wait_is_over_is_found_out() -> None:
    async with FakeTelegram(retry_after=7) as fake, bot_of(fake) as bot:
        chat, other = fake.private("Ada"), fake.private("Ben")
        fake.then("slow_down", method="sendMessage")
        assert await told_to_wait(bot.send_message(chat, "Hi")) == 7
        await bot.send_message(other, "Hi")  # another chat is not slowed down
        fake.clock.advance(5)
        assert fake.transcript.problems == []
        assert await told_to_wait(bot.send_message(chat, "Hi")) == 2
        (problem,) = fake.transcript.problems
        assert problem.endswith(" s before the end of the wait")
        fake.clock.advance(2)
        await bot.send_message(chat, "Hi")
        assert fake.answers(chat) == ["Hi"]


async def test_a_group_takes_twenty_messages_a_minute() -> None:
    async with FakeTelegram(limits=True) as fake, bot_of(fake) as bot:
        group = fake.group("Lab", "Ada")
        for _ in range(20):
            await bot.send_message(group, "Hi")
            fake.clock.advance(1.1)
        assert 30 < await told_to_wait(bot.send_message(group, "Hi")) <= 39
        await bot.send_chat_action(group, "typing")  # is not counted
        fake.clock.advance(40)
        await bot.send_message(group, "Hi")


async def test_edits_and_drafts_count_and_bursts_are_short() -> None:
    async with FakeTelegram(limits=True) as fake, bot_of(fake) as bot:
        chat = fake.private()
        sent = await bot.send_message(chat, "0")
        for number in range(3):
            await sent.edit_text(str(number + 1))
        await bot.send_message_draft(chat, 1, "…")
        assert await told_to_wait(bot.send_message(chat, "Hi")) == 5


async def test_an_edit_of_a_missing_or_foreign_message_is_not_counted_in_its_chat() -> None:
    async with FakeTelegram(limits=True) as fake, bot_of(fake) as bot:
        chat = fake.private()
        asked = fake.say(chat, "Hi")
        for number in range(asked, asked + 10):
            await refused(bot.edit_message_reply_markup(chat, number))
        sent = await bot.send_message(chat, "Hi")
        for _ in range(4):
            await refused(bot.edit_message_reply_markup(chat, sent.message_id))
        assert await told_to_wait(bot.send_message(chat, "Hi")) == 5


async def test_thirty_messages_a_second_go_out_altogether() -> None:
    async with FakeTelegram(limits=True) as fake, bot_of(fake) as bot:
        chats = [fake.private(f"Person {number}") for number in range(31)]
        fake.clock.advance(0)
        for chat in chats[:20]:
            await bot.send_message(chat, "Hi")
        album = [InputMediaPhoto(png())] * 10
        fake.limits.figures = Figures(chat=Rate(10, 10), all=Rate(30, 3600))
        await bot.send_media_group(chats[20], album)  # counts as one message per file
        assert await told_to_wait(bot.send_message(chats[30], "Hi")) > 3000


async def test_a_broken_answer_may_have_been_applied_or_not(fake: FakeTelegram, bot: Bot) -> None:
    chat = fake.private()
    fake.then("fail_before", "drop_before", "fail_after", "drop_after", method="sendMessage")
    said = [await refused(bot.send_message(chat, str(number)), NetworkError) for number in range(4)]
    assert (said[0], said[2]) == ("Bad Gateway", "Bad Gateway")
    assert fake.answers(chat) == ["2", "3"]
    assert [call.fault for call in fake.transcript.of("sendMessage")] == [
        "fail_before",
        "drop_before",
        "fail_after",
        "drop_after",
    ]
    fake.transcript.check()


async def test_an_answer_lost_after_confirming_loses_no_update(fake: FakeTelegram, bot: Bot) -> None:
    fake.say(fake.private(), "Hi")
    fake.then("drop_after", method="getUpdates")
    await refused(bot.get_updates(timeout=0), NetworkError)
    (update,) = await bot.get_updates(timeout=0)
    assert update.message is not None


async def test_all_sockets_can_be_broken_at_once(fake: FakeTelegram, bot: Bot) -> None:
    async with asyncio.TaskGroup() as tasks:
        poll = tasks.create_task(refused(bot.get_updates(timeout=50), NetworkError))
        await until(lambda: fake.world.updates.polled)
        fake.drop_sockets()
    assert "disconnected" in poll.result()
    assert not fake.world.updates.polled
    await bot.get_me()


async def test_a_callback_is_called_when_a_call_was_applied() -> None:
    applied: list[int] = []
    async with FakeTelegram(on_applied=lambda: applied.append(len(applied))) as fake, bot_of(fake) as bot:
        chat = fake.private()
        fake.then("fail_before", "drop_after", method="sendMessage")
        await refused(bot.send_message(chat, "Hi"), NetworkError)
        assert applied == []
        await refused(bot.send_message(chat, "Hi"), NetworkError)
        await bot.get_updates(timeout=0)
        assert applied == [0]


async def test_the_same_seed_spoils_the_same_calls() -> None:
    async def spoilt(seed: int) -> list[str]:
        async with FakeTelegram(faults=0.4, seed=seed) as fake:
            bot = bot_of(fake)
            chat = fake.private()
            for number in range(10):
                fake.clock.advance(2)
                try:
                    await bot.send_message(chat, str(number))
                except (NetworkError, RetryAfter):
                    continue
            return [call.fault for call in fake.transcript.calls]

    assert await spoilt(1) == await spoilt(1)
    assert set(await spoilt(1)) > {"none"}
    assert await spoilt(1) != await spoilt(2)


async def test_a_wrong_clock_shows_in_dates() -> None:
    async with FakeTelegram(skew=-3600) as fake, bot_of(fake) as bot:
        chat = fake.private()
        sent = await bot.send_message(chat, "Hi")
        assert -3601 <= sent.date.timestamp() - fake.clock.now() <= -3599
