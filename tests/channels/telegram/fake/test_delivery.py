"""Delivery of updates by the fake Telegram: long polling, conflicts, webhooks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from telegram import Bot
from telegram.error import Conflict

from channels.telegram.fake import FakeTelegram
from gateway.testing.served import until
from tests.channels.telegram.bots import bot_of, refused


async def texts(bot: Bot, **asked: Any) -> list[str | None]:
    """Return the texts of the messages in the updates."""
    return [update.message.text for update in await bot.get_updates(**asked) if update.message]


class Address:
    """HTTP server of a bot. ``answers`` are its next responses; 200 if empty."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, dict[str, Any]]] = []
        self.answers: list[web.Response | asyncio.Event] = []
        self.url = ""

    @property
    def texts(self) -> list[str]:
        return [update["message"]["text"] for _, update in self.taken]

    async def take(self, request: web.Request) -> web.Response:
        secret = request.headers.get("X-Telegram-Bot-Api-Secret-Token", "")
        self.taken.append((secret, await request.json()))
        answer = self.answers.pop(0) if self.answers else web.Response()
        if isinstance(answer, asyncio.Event):
            await answer.wait()
            return web.Response()
        return answer


@pytest.fixture
async def address() -> AsyncIterator[Address]:
    async with listening() as address:
        yield address


@asynccontextmanager
async def listening() -> AsyncIterator[Address]:
    address = Address()
    app = web.Application()
    app.router.add_post("/hook", address.take)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    address.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    try:
        yield address
    finally:
        await runner.cleanup()


async def test_updates_are_kept_until_a_higher_offset_confirms_them(fake: FakeTelegram, bot: Bot) -> None:
    chat = fake.private()
    fake.say(chat, "one")
    fake.say(chat, "two")
    first, second = await bot.get_updates(timeout=0)
    assert (second.update_id, await texts(bot, offset=first.update_id)) == (
        first.update_id + 1,
        ["one", "two"],
    )
    assert await texts(bot, offset=second.update_id) == ["two"]
    fake.clock.advance(1)
    assert await texts(bot, offset=first.update_id) == ["two"]  # confirmed updates are gone
    fake.say(chat, "three")
    assert await texts(bot, offset=-1) == ["three"]


async def test_a_poll_waits_for_the_next_update(fake: FakeTelegram, bot: Bot) -> None:
    chat = fake.private()
    async with asyncio.TaskGroup() as tasks:
        poll = tasks.create_task(texts(bot, timeout=50))
        await until(lambda: fake.world.updates.polled)
        fake.say(chat, "Hi")
    assert poll.result() == ["Hi"]


async def test_a_poll_ends_empty_when_its_time_is_over(fake: FakeTelegram, bot: Bot) -> None:
    async with asyncio.TaskGroup() as tasks:
        poll = tasks.create_task(texts(bot, timeout=50))
        await until(lambda: fake.world.updates.polled)
        fake.clock.advance(51)
    assert poll.result() == []


async def test_a_second_poller_ends_the_first(fake: FakeTelegram, bot: Bot) -> None:
    async with bot_of(fake) as other, asyncio.TaskGroup() as tasks:
        first = tasks.create_task(refused(bot.get_updates(timeout=50), Conflict))
        await until(lambda: fake.world.updates.polled)
        second = tasks.create_task(texts(other, timeout=50))
        assert await first == (
            "Conflict: terminated by other getUpdates request; "
            "make sure that only one bot instance is running"
        )
        fake.say(fake.private(), "Hi")
    assert second.result() == ["Hi"]


async def test_only_one_conflict_in_three_seconds_is_answered_at_once(fake: FakeTelegram, bot: Bot) -> None:
    await bot.set_webhook("https://example.org/hook")
    await refused(bot.get_updates(timeout=0), Conflict)
    async with asyncio.TaskGroup() as tasks:
        again = tasks.create_task(refused(bot.get_updates(timeout=0), Conflict))
        await until(lambda: fake.clock.waiting == 1)
        fake.clock.advance(3)
    assert again.result().startswith("Conflict: can't use getUpdates method while webhook is active; ")


async def test_updates_older_than_a_day_are_gone(fake: FakeTelegram, bot: Bot) -> None:
    fake.say(fake.private(), "Hi")
    fake.clock.advance(86_401)
    assert await texts(bot, timeout=0) == []
    fake.say(fake.private(), "Ho")
    assert fake.forget_updates() == 1
    fake.clock.advance(3)
    assert await texts(bot, timeout=0) == []


async def test_only_wanted_kinds_are_queued(fake: FakeTelegram, bot: Bot) -> None:
    chat = fake.private()
    await bot.get_updates(timeout=0, allowed_updates=["edited_message"])
    fake.edit(chat, fake.say(chat, "Hi"), "Ho")
    fake.clock.advance(1)
    (update,) = await bot.get_updates(timeout=0)
    assert update.edited_message is not None
    assert update.edited_message.text == "Ho"


async def test_a_repeated_poll_is_slowed_down(fake: FakeTelegram, bot: Bot) -> None:
    chat = fake.private()
    for word in ("one", "two"):
        fake.say(chat, word)
    assert await texts(bot, timeout=0) == ["one", "two"]
    assert await texts(bot, timeout=0) == ["one"]


async def test_numbers_jump_after_a_week_of_silence(fake: FakeTelegram, bot: Bot) -> None:
    chat = fake.private()
    fake.say(chat, "one")
    (first,) = await bot.get_updates(timeout=0)
    await bot.get_updates(timeout=0, offset=first.update_id + 1)
    fake.jump(5)
    fake.say(chat, "two")
    (second,) = await bot.get_updates(timeout=0, offset=first.update_id + 1)
    assert second.update_id == 5
    fake.clock.advance(3)
    assert await texts(bot, timeout=0, offset=6) == []


async def test_raw_updates_are_handed_out_as_they_are(fake: FakeTelegram, bot: Bot) -> None:
    fake.deliver_raw({"news_of_tomorrow": {"anything": [1]}})
    fake.say(fake.private(), "Hi")
    strange, known = await bot.get_updates(timeout=0)
    assert strange.effective_message is None
    assert known.message is not None
    fake.transcript.check()


async def test_updates_can_come_twice_and_backwards(fake: FakeTelegram, bot: Bot) -> None:
    chat = fake.private()
    fake.say(chat, "one")
    fake.say(chat, "two")
    fake.reorder()
    assert await texts(bot, timeout=0) == ["two", "one"]
    async with FakeTelegram(repeats=1) as doubling, bot_of(doubling) as other:
        doubling.say(doubling.private(), "Hi")
        assert await texts(other, timeout=0) == ["Hi", "Hi"]


async def test_a_webhook_is_called_with_the_secret_and_polling_is_refused(
    fake: FakeTelegram, bot: Bot, address: Address
) -> None:
    await bot.set_webhook(address.url, secret_token="s3cret_-", allowed_updates=["message"])
    fake.say(fake.private(), "Hi")
    await until(lambda: len(address.taken) == 1)
    secret, update = address.taken[0]
    assert (secret, update["message"]["text"]) == ("s3cret_-", "Hi")
    await refused(bot.get_updates(timeout=0), Conflict)
    info = await bot.get_webhook_info()
    assert (info.url, info.pending_update_count, info.allowed_updates) == (address.url, 0, ("message",))
    await bot.delete_webhook()
    fake.clock.advance(3)
    assert await texts(bot, timeout=0) == []
    fake.transcript.check()


async def test_a_failing_webhook_is_tried_again_later_and_later(
    fake: FakeTelegram, bot: Bot, address: Address
) -> None:
    """Retries come at once, then after 2, 4 and 8 seconds; only messages of the same chat wait."""
    ada, ben = fake.private("Ada"), fake.private("Ben")
    address.answers = [web.Response(status=500) for _ in range(4)]
    await bot.set_webhook(address.url)
    fake.say(ada, "one")
    fake.say(ada, "two")
    for tries, pause in ((2, 2), (3, 4), (4, 8)):
        await until(lambda tries=tries: len(address.taken) == tries and fake.clock.waiting == 1)
        fake.clock.advance(pause - 0.5)
        await bot.get_webhook_info()
        assert len(address.taken) == tries
        fake.clock.advance(0.5)
    await until(lambda: address.texts == ["one"] * 5 + ["two"])
    info = await bot.get_webhook_info()
    assert info.last_error_message == "Wrong response from the webhook: 500 Internal Server Error"
    address.answers = [web.Response(status=503, headers={"Retry-After": "100"})]
    fake.say(ada, "three")
    await until(lambda: address.texts[6:] == ["three"])
    fake.say(ben, "four")
    await until(lambda: address.texts[6:] == ["three", "four"])
    fake.clock.advance(101)
    await until(lambda: address.texts[6:] == ["three", "four", "three"])


async def test_a_webhook_may_answer_with_a_call(fake: FakeTelegram, bot: Bot, address: Address) -> None:
    chat = fake.private()
    address.answers = [web.json_response({"method": "sendMessage", "chat_id": chat, "text": "Hello"})]
    await bot.set_webhook(address.url)
    fake.say(chat, "Hi")
    await until(lambda: fake.answers(chat) == ["Hello"])
    fake.transcript.check()


async def test_setting_a_webhook_ends_a_poll(fake: FakeTelegram, bot: Bot, address: Address) -> None:
    async with bot_of(fake) as other, asyncio.TaskGroup() as tasks:
        poll = tasks.create_task(refused(bot.get_updates(timeout=50), Conflict))
        await until(lambda: fake.world.updates.polled)
        await other.set_webhook(address.url)
    assert poll.result() == "Conflict: terminated by setWebhook request"


async def test_an_address_that_is_always_gone_is_given_up(
    fake: FakeTelegram, bot: Bot, address: Address
) -> None:
    address.answers = [web.Response(status=410) for _ in range(50)]
    await bot.set_webhook(address.url)
    fake.say(fake.private(), "Hi")
    await until(lambda: len(address.taken) >= 2)
    fake.clock.advance(23 * 3600 + 1)
    await until(lambda: fake.webhook.address is None)


@pytest.mark.parametrize(
    ("url", "secret", "says"),
    [
        ("http://example.org/hook", "", "Bad webhook: an https url must be provided for webhook"),
        (
            "https://example.org:444/",
            "",
            "Bad webhook: webhook can be set up only on ports 80, 88, 443 or 8443",
        ),
        ("https://example.org/", "a b", "Secret token contains unallowed characters"),
    ],
)
async def test_bad_addresses_are_refused(
    fake: FakeTelegram, bot: Bot, url: str, secret: str, says: str
) -> None:
    assert await refused(bot.set_webhook(url, secret_token=secret)) == says
