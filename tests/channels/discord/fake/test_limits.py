"""The fake's limits: buckets, the total limit, invalid calls, scripted faults."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest

from channels.discord.fake import FakeDiscord, Figures
from tests.channels.discord.raw_bot import RawBot, misfits

CREATE = "POST /channels/{channel_id}/messages"


@pytest.fixture
async def fake() -> AsyncIterator[FakeDiscord]:
    """Return a platform with its real limits, whose time passes only when a test says so."""
    async with FakeDiscord() as fake:
        fake.clock.stop()
        yield fake
    assert misfits(fake) == []


async def test_a_channel_takes_five_messages_in_five_seconds(
    bot: RawBot, fake: FakeDiscord, general: int
) -> None:
    other = fake.add_channel("other")
    answers = [await bot.send(general, str(number)) for number in range(5)]
    left = [answer.headers["X-RateLimit-Remaining"] for answer in answers]
    assert left == ["4", "3", "2", "1", "0"]
    assert {answer.headers["X-RateLimit-Limit"] for answer in answers} == {"5"}
    bucket = answers[0].headers["X-RateLimit-Bucket"]
    said = await bot.send(general, "too much")
    assert said.status == 429
    assert said.body["message"] == "You are being rate limited."
    assert (said.body["global"], said.body["retry_after"]) == (False, 5)
    assert said.headers["Retry-After"] == "5"
    assert said.headers["X-RateLimit-Scope"] == "user"
    elsewhere = await bot.send(other, "free")
    assert (elsewhere.status, elsewhere.headers["X-RateLimit-Bucket"]) == (200, bucket)
    fake.advance(5)
    assert (await bot.send(general, "again")).status == 200


async def test_calls_of_different_kinds_have_their_own_buckets(
    bot: RawBot, fake: FakeDiscord, general: int
) -> None:
    keys = [(await bot.send(general, str(number))).body["id"] for number in range(5)]
    changed = await bot.call("PATCH", f"/channels/{general}/messages/{keys[0]}", {"content": "x"})
    assert changed.status == 200
    path = f"/channels/{general}/messages/{keys[0]}/reactions"
    assert (await bot.call("PUT", f"{path}/👍/@me")).status == 204
    said = await bot.call("PUT", f"{path}/👎/@me")
    assert (said.status, said.body["retry_after"]) == (429, 0.25)


async def test_calling_before_the_wait_is_over_is_a_problem(
    bot: RawBot, fake: FakeDiscord, general: int
) -> None:
    fake.slow_down(CREATE, seconds=30)
    assert (await bot.send(general, "x")).body["retry_after"] == 30
    fake.transcript.check()
    fake.advance(10)
    assert (await bot.send(general, "x")).status == 429
    assert "before the end of the wait" in fake.transcript.problems[0]
    assert fake.limits.impatient == 1
    fake.advance(20)
    assert (await bot.send(general, "x")).status == 200
    assert len(fake.transcript.problems) == 1


async def test_a_call_that_was_under_way_already_is_not_impatient(
    bot: RawBot, fake: FakeDiscord, general: int
) -> None:
    fake.slow_down(CREATE, seconds=30)
    answers = [await bot.send(general, "x") for _ in range(2)]
    assert [answer.status for answer in answers] == [429, 429]
    fake.transcript.check()


async def test_a_shared_limit_is_not_the_bots_fault(bot: RawBot, fake: FakeDiscord, general: int) -> None:
    fake.slow_down(CREATE, seconds=2, scope="shared")
    said = await bot.send(general, "x")
    assert said.body["message"] == "The resource is being rate limited."
    assert said.headers["X-RateLimit-Scope"] == "shared"
    assert int(said.headers["X-RateLimit-Remaining"]) > 0
    assert fake.limits.invalid == 0


async def test_all_calls_together_are_limited_except_answers_to_interactions(
    bot: RawBot, fake: FakeDiscord, general: int
) -> None:
    rooms = [fake.add_channel(f"room-{number}") for number in range(11)]
    answers = [await bot.send(room, str(n)) for room in rooms for n in range(5)]
    refused = [answer for answer in answers if answer.status == 429]
    assert len(answers) - len(refused) == 50
    assert refused[0].body["global"] is True
    assert refused[0].headers["X-RateLimit-Global"] == "true"
    assert "X-RateLimit-Bucket" not in refused[0].headers
    hook = await bot.call("GET", f"/webhooks/{fake.bot_id}/token/messages/@original")
    assert hook.code == 10015, "answered, not limited"


async def test_too_many_invalid_calls_and_the_address_is_banned() -> None:
    figures = Figures(invalid_calls=3)
    async with FakeDiscord(figures=figures) as fake, aiohttp.ClientSession() as http:
        bot = RawBot(fake, http)
        wrong = {"Authorization": "Bot wrong"}
        for _ in range(3):
            assert (await bot.call("GET", "/users/@me", headers=wrong)).status == 401
        said = await bot.call("GET", "/users/@me")
        assert (said.status, said.headers["Content-Type"]) == (429, "text/html; charset=utf-8")
        assert "Via" not in said.headers
        fake.advance(figures.invalid_window + 1)
        assert (await bot.call("GET", "/users/@me")).status == 200


async def test_the_real_ban_comes_at_ten_thousand() -> None:
    assert Figures().invalid_calls == 10_000
    assert Figures().invalid_window == 600


async def test_old_messages_can_only_be_changed_now_and_then(
    bot: RawBot, fake: FakeDiscord, general: int
) -> None:
    key = (await bot.send(general, "x")).body["id"]
    path = f"/channels/{general}/messages/{key}"
    fake.advance(3601)
    answers = [await bot.call("PATCH", path, {"content": str(number)}) for number in range(4)]
    assert [answer.status for answer in answers] == [200, 200, 200, 429]
    assert answers[-1].code == 30046
    assert answers[-1].body["retry_after"] == 20
    fake.advance(20)
    assert (await bot.call("PATCH", path, {"content": "again"})).status == 200


@pytest.mark.parametrize(
    ("fault", "applied"),
    [
        ("slow_down", False),
        ("fail_before", False),
        ("fail_after", True),
        ("drop_before", False),
        ("drop_after", True),
    ],
)
async def test_calls_go_wrong_before_or_after_they_were_applied(
    bot: RawBot, fake: FakeDiscord, general: int, fault: str, applied: bool
) -> None:
    fake.then(fault, method=CREATE)
    assert (await bot.call("GET", f"/channels/{general}")).status == 200
    if fault.startswith("drop"):
        with pytest.raises(aiohttp.ClientError):
            await bot.send(general, "x")
    else:
        assert (await bot.send(general, "x")).status == (429 if fault == "slow_down" else 502)
    assert bool(fake.messages("general")) is applied
    assert fake.transcript.of(CREATE)[0].fault == fault
    fake.transcript.check()


async def test_an_applied_call_is_reported_before_its_response_is_sent() -> None:
    seen: list[int] = []
    async with FakeDiscord(on_applied=lambda: seen.append(1)) as fake, aiohttp.ClientSession() as http:
        bot = RawBot(fake, http)
        chat = fake.channel("general").id
        await bot.call("GET", f"/channels/{chat}/messages")
        await bot.call("POST", f"/channels/{chat}/typing")
        await bot.send(chat, "")
        assert seen == []
        fake.then("drop_after")
        with pytest.raises(aiohttp.ClientError):
            await bot.send(chat, "x")
        assert seen == [1]
        key = fake.messages(chat)[0].id
        await bot.call("PATCH", f"/channels/{chat}/messages/{key}", {"content": "y"})
        assert seen == [1, 1]
        await bot.call("PUT", f"/channels/{chat}/messages/{key}/reactions/👍/@me")
        assert seen == [1, 1]


async def test_a_share_of_calls_goes_wrong_by_chance_and_the_same_ones_each_time() -> None:
    async def statuses() -> list[int]:
        async with FakeDiscord(faults=0.3, seed=7) as fake, aiohttp.ClientSession() as http:
            for _ in range(30):
                try:
                    await RawBot(fake, http).call("GET", "/users/@me")
                except aiohttp.ClientError:
                    continue
                finally:
                    fake.advance(1)
            return [call.status for call in fake.transcript.of("GET /users/@me")]

    first = await statuses()
    assert first == await statuses()
    assert 1 <= sum(status != 200 for status in first) <= 20
