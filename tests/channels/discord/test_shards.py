"""A bot in many servers has several gateway connections, and loses nothing when one breaks or their number
changes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from channels.discord.fake import FakeDiscord, relaxed
from channels.discord.inflow import Layout, LoginBudget, Position, StoredState
from gateway.app import Gateway
from gateway.channel import Cursor
from gateway.testing.fake_models.server import FakeModels
from tests.channels.discord.raw_bot import misfits
from tests.channels.discord.talking import (
    NO_DRAIN,
    bot_at,
    gateway_at,
    healthy,
    later,
    settings_for,
    settled,
    until,
)

SHARDS = 3


@pytest.fixture
async def large() -> AsyncIterator[FakeDiscord]:
    """Return a platform that requires three shards, and lets them log in at once."""
    async with FakeDiscord(figures=replace(relaxed(), max_concurrency=SHARDS)) as fake:
        fake.require_shards(SHARDS)
        yield fake
    assert misfits(fake) == []


def rooms(fake: FakeDiscord) -> list[int]:
    """Return a channel of a server of each shard, in their order."""
    found: dict[int, int] = {}
    while len(found) < SHARDS:
        guild = fake.add_guild("Server")
        found.setdefault((guild >> 22) % SHARDS, fake.add_channel(f"room-{guild}", guild))
        fake.advance(0.001)  # servers of one millisecond are on one shard
    return [found[shard] for shard in range(SHARDS)]


def logins(fake: FakeDiscord) -> list[list[int]]:
    return sorted(call.arguments["shard"] for call in fake.transcript.of("IDENTIFY"))


async def test_each_shard_has_a_connection_for_its_servers(large: FakeDiscord, tmp_path: Path) -> None:
    chats = rooms(large)
    async with gateway_at(large, tmp_path) as gateway:
        assert gateway.health()["discord"] == (True, "3 shards")
        for chat in (*chats, large.dm("ada")):
            large.say(chat, f"{large.mention} hello")
        await settled(gateway, SHARDS + 1)
    for chat in (*chats, large.dm("ada")):
        assert large.answers(chat) == ["You said: hello"]
    assert logins(large) == [[0, 3], [1, 3], [2, 3]]
    large.transcript.check()


async def test_no_event_is_lost_when_the_gateway_ends_between_those_of_two_shards(
    large: FakeDiscord, tmp_path: Path
) -> None:
    chats = rooms(large)
    async with gateway_at(large, tmp_path, more=NO_DRAIN) as gateway:
        large.freeze(shard=1)
        for chat in chats:
            large.say(chat, f"{large.mention} one")
        await settled(gateway, SHARDS - 1)
        assert large.answers(chats[1]) == []
    for chat in chats:
        large.say(chat, f"{large.mention} two")
    async with gateway_at(large, tmp_path) as gateway:
        await settled(gateway, 2 * SHARDS)
    for chat in chats:
        assert large.answers(chat) == ["You said: one", "You said: two"]
    assert logins(large) == [[0, 3], [1, 3], [2, 3]]  # all sessions were resumed
    large.transcript.check()


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [(1, 3), (3, 2), (3, 1, 3)])
async def test_another_number_of_shards_reads_what_was_said_in_between(
    large: FakeDiscord, tmp_path: Path, numbers: tuple[int, ...]
) -> None:
    chats = [*rooms(large), large.dm("ada")]
    large.require_shards(1)
    for run, number in enumerate(numbers):
        for chat in chats if run else ():
            large.say(chat, f"{large.mention} before {run}")
        async with gateway_at(large, tmp_path, shards=number) as gateway:
            await settled(gateway, len(chats) * 2 * run)
            for chat in chats:
                large.say(chat, f"{large.mention} during {run}")
            await settled(gateway, len(chats) * (2 * run + 1))
        later(tmp_path)
    words = [
        "during 0",
        *(f"{when} {run}" for run in range(1, len(numbers)) for when in ("before", "during")),
    ]
    for chat in chats:
        assert large.answers(chat) == [f"You said: {word}" for word in words]


@pytest.mark.slow
async def test_a_bot_that_has_grown_gets_more_shards_while_it_runs(
    large: FakeDiscord, tmp_path: Path
) -> None:
    chats = rooms(large)
    large.require_shards(1)
    async with gateway_at(large, tmp_path) as gateway:
        large.require_shards(SHARDS)
        large.expire_sessions()
        for chat in chats:
            large.say(chat, f"{large.mention} hello")
        large.sever()
        await settled(gateway, SHARDS)
        await until(lambda: gateway.health()["discord"] == (True, "3 shards"))
    for chat in chats:
        assert large.answers(chat) == ["You said: hello"]
    assert logins(large) == [[0, 1], [0, 1], [0, 3], [1, 3], [2, 3]]
    assert [call.status for call in large.transcript.of("CLOSE")] == [4011]


async def test_too_few_shards_in_the_settings_are_reported(large: FakeDiscord, tmp_path: Path) -> None:
    async with FakeModels() as models:
        gateway = Gateway(settings_for(tmp_path, models, bot_at(large, shards=2)))
        async with gateway.running():
            await until(lambda: "too many servers for shards = 2" in gateway.health()["discord"][1])


@pytest.mark.parametrize("number", [0, -1, "many", 1001])
async def test_a_number_of_shards_that_cannot_be_is_refused(
    large: FakeDiscord, tmp_path: Path, number: int | str
) -> None:
    async with FakeModels() as models:
        gateway = Gateway(settings_for(tmp_path, models, bot_at(large, shards=number)))
        async with gateway.running():
            assert "shards" in gateway.health()["discord"][1]


@pytest.mark.slow
async def test_a_shard_that_is_down_is_named_and_spends_no_login_that_is_not_there(
    large: FakeDiscord, tmp_path: Path
) -> None:
    chats = rooms(large)
    async with gateway_at(large, tmp_path) as gateway:
        large.account.spend(large.account.remaining)
        large.advance(6)
        large.expire_sessions(shard=1)
        large.close(4000, shard=1)
        await until(lambda: "logins of the day" in gateway.health()["discord"][1])
        ok, detail = gateway.health()["discord"]
        assert not ok
        assert detail.startswith("shard 1 of 3: all 1000 logins of the day are used up; the next login is")
        assert "shard 2" not in detail
        large.say(chats[2], f"{large.mention} hello")
        await settled(gateway, 1)
    assert len(logins(large)) == SHARDS
    assert not large.account.exhausted


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [1, 2])
async def test_shards_log_in_no_faster_than_they_may(tmp_path: Path, at_once: int) -> None:
    figures = replace(relaxed(), identify_interval=5, max_concurrency=at_once)
    async with FakeDiscord(figures=figures) as fake:
        fake.require_shards(SHARDS)
        async with gateway_at(fake, tmp_path):
            # The platform answers a login that comes too soon, but opens no session.
            assert len(fake.gateway.sessions) == SHARDS
    assert logins(fake) == [[0, 3], [1, 3], [2, 3]]


async def test_a_failed_request_for_the_number_of_shards_is_repeated(
    large: FakeDiscord, tmp_path: Path
) -> None:
    large.then("fail_before", "slow_down", method="GET /gateway/bot")
    async with gateway_at(large, tmp_path) as gateway:
        assert healthy(gateway)
    assert len(logins(large)) == SHARDS


def test_a_store_of_one_connection_is_continued_and_a_change_forgets_only_the_sessions() -> None:
    old = Position("session", 7, "wss://example.org", 1 << 60)
    single = StoredState([Cursor("1", '["session",7,"wss://example.org",1152921504606846976]')], "1")
    assert single.position == old
    layout = single.divided(2)
    assert layout == Layout(2, 1, (old.seen,))
    cursors = [single.cursor(old), single.cursor(layout)]
    divided = StoredState(cursors, "1").of(1)
    assert divided.position == Position(seen=old.seen)
    newer = Position("other", 1, "wss://example.org", 2 << 60)
    grown = StoredState([*cursors, divided.cursor(newer)], "1")
    assert grown.of(1).position == newer
    assert not grown.of(0).position.resumable
    # Server 1 was on shard 0 of one, server 1 << 22 is on shard 1 of two.
    assert grown.divided(3).seen == (old.seen, newer.seen)
    assert grown.divided(3).floor(str(1 << 22)) == newer.floor
    assert grown.divided(3).floor(None) == old.floor


def test_the_login_budget_grows_with_what_discord_allows() -> None:
    now = 1_800_000_000_000
    empty = LoginBudget(0.0, now)
    assert empty.wait(now + 60_000, 10_000) < empty.wait(now + 60_000)
    assert empty.after(now + 86_400_000, 10_000).left == 1000
