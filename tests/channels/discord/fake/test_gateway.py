"""The fake's gateway: logins, resuming, heartbeats, intents and close codes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from channels.discord.fake import FakeDiscord, relaxed
from tests.channels.discord.raw_bot import EVERYTHING, RawBot

CONTENT, MESSAGES = 1 << 15, 1 << 9


@pytest.mark.parametrize("compress", ["", "zlib-stream", "zstd-stream"])
async def test_a_bot_gets_hello_and_then_all_of_its_guilds(bot: RawBot, compress: str) -> None:
    bot.fake.say("general", "long ago")
    async with bot.socket(**({"compress": compress} if compress else {})) as socket:
        hello = await socket.read()
        await socket.identify()
        ready = await socket.until("READY")
        guild = await socket.until("GUILD_CREATE")
    assert (hello["op"], hello["d"]["heartbeat_interval"]) == (10, 41_250)
    assert ready["resume_gateway_url"] == bot.fake.gateway_url
    assert ready["guilds"] == [{"id": str(bot.fake.guild), "unavailable": True}]
    assert [channel["name"] for channel in guild["channels"]] == ["general"]
    assert {member["user"]["username"] for member in guild["members"]} == {"trunkline", "owner", "ada"}


async def test_large_payloads_are_packed_when_the_bot_asks_for_it_as_it_logs_in(bot: RawBot) -> None:
    async with bot.socket() as socket:
        await socket.identify(compress=True)
        await socket.until("GUILD_CREATE")  # the socket unpacks what comes as bytes


async def test_a_heartbeat_is_acknowledged(bot: RawBot) -> None:
    async with bot.session() as socket:
        await socket.send(1, socket.seq)
        assert (await socket.read())["op"] == 11


async def test_a_resumed_session_gets_the_missed_events_in_order(bot: RawBot, fake: FakeDiscord) -> None:
    async with bot.session() as socket:
        session = socket.session_id
        fake.say("general", "one")
        await socket.until("MESSAGE_CREATE")
        seq = socket.seq
        fake.sever()
        assert await socket.close_code() == 1006
    await fake.until(lambda: not fake.gateway.connections)
    fake.say("general", "two")
    fake.say("general", "three")
    async with bot.socket() as socket:
        await socket.resume(session, seq)
        await socket.until("RESUMED")
        fake.say("general", "four")
        await socket.until("MESSAGE_CREATE")
    events = [p for p in socket.payloads if p["op"] == 0]
    assert [p["s"] for p in events] == list(range(seq + 1, seq + 5))
    told = [p["d"]["content"] if p["t"] == "MESSAGE_CREATE" else p["t"] for p in events]
    assert told == ["two", "three", "RESUMED", "four"]


@pytest.mark.parametrize("why", ["unknown", "expired", "too late", "said goodbye"])
async def test_a_session_that_cannot_be_resumed_is_invalid(bot: RawBot, fake: FakeDiscord, why: str) -> None:
    async with bot.session() as socket:
        session, seq = socket.session_id, socket.seq
        await socket.socket.close(code=1000 if why == "said goodbye" else 4000)
    await fake.until(lambda: not fake.gateway.connections)
    if why == "expired":
        fake.expire_sessions()
    if why == "too late":
        fake.advance(fake.figures.resumable + 1)
    async with bot.socket() as socket:
        await socket.resume("unknown" if why == "unknown" else session, seq)
        assert await socket.until_op(9) is False
        await socket.identify()  # on the same connection, as the platform allows
        await socket.until("READY")


async def test_a_session_is_resumed_after_any_other_close_code(bot: RawBot, fake: FakeDiscord) -> None:
    async with bot.session() as socket:
        session, seq = socket.session_id, socket.seq
        await socket.socket.close(code=4321)
    async with bot.socket() as socket:
        await socket.resume(session, seq)
        await socket.until("RESUMED")


async def test_resuming_from_ahead_of_the_session_is_refused_with_4007(bot: RawBot) -> None:
    async with bot.session() as socket:
        session, seq = socket.session_id, socket.seq
        await socket.socket.close(code=4000)
    async with bot.socket() as socket:
        await socket.resume(session, (seq or 0) + 5)
        assert await socket.close_code() == 4007


async def test_a_resumed_session_leaves_its_old_connection(bot: RawBot, fake: FakeDiscord) -> None:
    async with bot.session() as old, bot.socket() as new:
        await new.resume(old.session_id, old.seq)
        await new.until("RESUMED")
        assert await old.close_code() == 1006
        fake.say("general", "here")
        assert (await new.until("MESSAGE_CREATE"))["content"] == "here"


async def test_the_gateway_asks_to_reconnect_and_calls_sessions_invalid(
    bot: RawBot, fake: FakeDiscord
) -> None:
    async with bot.session() as socket:
        fake.ask_reconnect()
        await socket.until_op(7)
        fake.invalidate(resumable=True)
        assert await socket.until_op(9) is True
        fake.invalidate()
        assert await socket.until_op(9) is False
        fake.say("general", "not for this session")
        assert all(p["t"] != "MESSAGE_CREATE" for p in await socket.settled())


async def test_a_zombie_says_nothing_and_its_events_wait_for_the_next_connection(
    bot: RawBot, fake: FakeDiscord
) -> None:
    async with bot.session() as zombie:
        fake.freeze()
        fake.say("general", "unheard")
        await zombie.send(1, zombie.seq)
        await fake.until(lambda: bool(fake.transcript.of("HEARTBEAT")))
        async with bot.socket() as socket:
            await socket.resume(zombie.session_id, zombie.seq)
            assert (await socket.until("MESSAGE_CREATE"))["content"] == "unheard"
    assert all(p["op"] != 11 for p in zombie.payloads)


async def test_a_bot_whose_heart_stops_is_cut_off() -> None:
    figures = replace(relaxed(), heartbeat=0.05)
    async with FakeDiscord(figures=figures) as fake, aiohttp.ClientSession() as http:
        async with RawBot(fake, http).socket() as socket:
            assert await socket.close_code() == 4009
            assert socket.payloads[0]["d"]["heartbeat_interval"] == 50
        assert fake.transcript.problems == ["CLOSE: no heartbeat came in time"]


def identifying(**more: Any) -> str:
    about = {"os": "linux", "browser": "test", "device": "test"}
    given = {"token": "fake-token", "intents": MESSAGES, "properties": about, **more}
    return json.dumps({"op": 2, "d": given})


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (["{"], 4002),
        (["[]"], 4002),
        (['{"d": 1}'], 4002),
        ([json.dumps({"op": 1, "d": "x" * 4096})], 4002),
        (['{"op": 99, "d": null}'], 4001),
        (['{"op": 3, "d": {"since": null, "activities": [], "status": "online", "afk": false}}'], 4003),
        ([identifying(token="wrong")], 4004),
        ([identifying(), identifying()], 4005),
        ([identifying(shard=[2, 2])], 4010),
        ([identifying(intents=1 << 22)], 4013),
        ([identifying(intents=1 << 1)], 4014),
        ([identifying(intents=None)], 4002),
        ([identifying(), '{"op": 3, "d": {"status": "online"}}'], 4001),
        (['{"op": 1, "d": null}'] * 121, 4008),
    ],
)
async def test_what_is_wrong_is_closed_with_its_code(bot: RawBot, sent: list[str], code: int) -> None:
    async with bot.socket() as socket:
        for payload in sent:
            await socket.socket.send_str(payload)
        assert await socket.close_code() == code
    assert bot.fake.transcript.problems or code == 4004


async def test_a_payload_of_4096_bytes_is_taken_and_one_byte_more_is_not(bot: RawBot) -> None:
    def padded(size: int) -> str:
        frame = json.dumps({"op": 1, "d": None, "x": ""})
        return frame.replace('""', f'"{"x" * (size - len(frame))}"')

    async with bot.socket() as socket:
        await socket.socket.send_str(padded(4096))
        await socket.until_op(11)
        await socket.socket.send_str(padded(4097))
        assert await socket.close_code() == 4002


@pytest.mark.parametrize("query", [{"v": "5"}, {"encoding": "etf"}])
async def test_another_version_of_the_gateway_is_refused(bot: RawBot, query: dict[str, str]) -> None:
    async with bot.socket(**query) as socket:
        assert await socket.close_code() == 4012


async def test_a_second_identify_too_soon_gets_an_invalid_session() -> None:
    figures = replace(relaxed(), identify_interval=5)
    async with FakeDiscord(figures=figures) as fake, aiohttp.ClientSession() as http:
        raw = RawBot(fake, http)
        async with raw.session(), raw.socket() as socket:
            await socket.identify()
            assert await socket.until_op(9) is False
            fake.advance(5)
            await socket.identify()
            await socket.until("READY")


async def test_who_logs_in_too_often_in_a_day_loses_the_token(bot: RawBot, fake: FakeDiscord) -> None:
    old = fake.token
    async with bot.session() as first:
        said = await bot.call("GET", "/gateway/bot")
        assert said.body["session_start_limit"]["remaining"] == 999
        fake.account.spend(999)
        async with bot.socket() as socket:
            await socket.identify()
            assert await socket.close_code() == 4004
        assert await first.close_code() == 4004
    assert fake.token != old
    said = await bot.call("GET", "/users/@me", headers={"Authorization": f"Bot {old}"})
    assert said.status == 401


async def test_what_people_write_is_hidden_without_the_intent_for_it(bot: RawBot, fake: FakeDiscord) -> None:
    async with bot.session(EVERYTHING & ~CONTENT) as blind, bot.session() as sighted:
        fake.say("general", "secret", attach={"a.txt": b"x"})
        fake.say("general", f"{fake.mention} for you")
        fake.say(fake.dm(), "in private")
        seen = [(await blind.until("MESSAGE_CREATE")) for _ in range(3)]
        assert [message["content"] for message in seen] == ["", f"{fake.mention} for you", "in private"]
        assert seen[0]["attachments"] == []
        assert (await sighted.until("MESSAGE_CREATE"))["content"] == "secret"


async def test_an_answer_to_a_hidden_message_does_not_show_it(bot: RawBot, fake: FakeDiscord) -> None:
    first = fake.say("general", "secret", user="bob")
    async with bot.session(EVERYTHING & ~CONTENT) as blind:
        fake.say("general", f"{fake.mention} what of this?", reply_to=first)
        message = await blind.until("MESSAGE_CREATE")
        assert message["referenced_message"]["content"] == ""


@pytest.mark.parametrize(("intents", "told"), [(1 << 9, ["general"]), (1 << 12, ["dm"]), (0, [])])
async def test_only_events_of_the_intents_are_sent(
    bot: RawBot, fake: FakeDiscord, intents: int, told: list[str]
) -> None:
    async with bot.session(intents | CONTENT) as socket:
        fake.say("general", "general")
        fake.say(fake.dm(), "dm")
        payloads = await socket.settled()
    assert [p["d"]["content"] for p in payloads if p["t"] == "MESSAGE_CREATE"] == told


async def test_a_channel_that_the_bot_cannot_see_is_not_sent(bot: RawBot, fake: FakeDiscord) -> None:
    fake.forbid("general", "VIEW_CHANNEL")
    thread = fake.add_private_thread("general", "without the bot")
    async with bot.session() as socket:
        fake.say("general", "hidden")
        fake.say(thread, "hidden as well")
        assert all(p["t"] != "MESSAGE_CREATE" for p in await socket.settled())


async def test_guilds_are_divided_among_shards(bot: RawBot, fake: FakeDiscord) -> None:
    shard = (fake.guild >> 22) % 2
    for other in (shard, 1 - shard):
        async with bot.socket() as socket:
            await socket.identify(shard=[other, 2])
            assert len((await socket.until("READY"))["guilds"]) == (other == shard)
            fake.say("general", "one shard hears it")
            heard = [p for p in await socket.settled() if p["t"] == "MESSAGE_CREATE"]
            assert bool(heard) == (other == shard)


async def test_events_are_sent_twice_on_request() -> None:
    async with (
        FakeDiscord(figures=relaxed(), repeats=1) as fake,
        aiohttp.ClientSession() as http,
        RawBot(fake, http).session() as socket,
    ):
        fake.say("general", "twice")
        first, second = [await socket.until("MESSAGE_CREATE") for _ in range(2)]
        assert first == second


async def test_events_can_come_in_the_wrong_order(bot: RawBot, fake: FakeDiscord) -> None:
    async with bot.session() as socket:
        with fake.held(reverse=True):
            fake.say("general", "one")
            fake.say("general", "two")
        told = [(await socket.until("MESSAGE_CREATE"))["content"] for _ in range(2)]
    assert told == ["two", "one"]


async def test_anything_can_be_delivered() -> None:
    async with (
        FakeDiscord(figures=relaxed()) as fake,
        aiohttp.ClientSession() as http,
        RawBot(fake, http).session() as socket,
    ):
        fake.deliver_raw({"t": "MESSAGE_CREATE", "d": {"id": "not whole"}})
        assert await socket.until("MESSAGE_CREATE") == {"id": "not whole"}
        fake.deliver_raw("not even JSON")
        with pytest.raises(json.JSONDecodeError):
            await socket.read()


async def test_members_are_sent_when_they_are_asked_for(bot: RawBot, fake: FakeDiscord) -> None:
    ada = fake.user("ada")
    async with bot.session() as socket:
        guild = {"guild_id": str(fake.guild), "nonce": "n"}
        await socket.send(8, {**guild, "query": "", "limit": 0})
        chunk = await socket.until("GUILD_MEMBERS_CHUNK")
        assert len(chunk["members"]) == 3
        await socket.send(8, {**guild, "user_ids": str(ada.id)})
        chunk = await socket.until("GUILD_MEMBERS_CHUNK")
        assert [member["user"]["username"] for member in chunk["members"]] == ["ada"]
        assert chunk["nonce"] == "n"


async def test_a_bot_that_does_not_read_does_not_stop_the_others(bot: RawBot, fake: FakeDiscord) -> None:
    async with bot.session(), bot.session() as reading, asyncio.timeout(60):
        for number in range(200):
            fake.say("general", f"{number} " + "x" * 1000)
        told = [(await reading.until("MESSAGE_CREATE"))["content"].split()[0] for _ in range(200)]
    assert told == [str(number) for number in range(200)]
