"""Answers stand on Discord exactly once: whatever it refuses, delays, repeats, loses or does not confirm."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from channels.discord.channel import DiscordChannel
from channels.discord.cursor import Budget
from channels.discord.fake import FakeDiscord, Figures, relaxed
from gateway import Message, TextPart
from gateway.app import Gateway
from gateway.channel import Address, OutboundMessage, Placed, PlacementDeferred
from gateway.testing.faults import Fault
from gateway.testing.models import FakeModels
from gateway.testing.script import Gate, Reply, Say
from tests.channels.discord.raw_bot import misfits
from tests.channels.discord.talking import (
    CALLBACK,
    CREATE,
    EDIT,
    ORIGINAL,
    bot_at,
    gateway_at,
    healthy,
    later,
    quarantined,
    settings_for,
    settled,
    states,
    until,
)

pytestmark = pytest.mark.slow

NO_DRAIN = {"limits": {"drain_seconds": 0}}
HISTORY = "GET /channels/{channel_id}/messages"


@pytest.mark.parametrize("fault", ["slow_down", "fail_before", "fail_after", "drop_before", "drop_after"])
@pytest.mark.parametrize("call", [CREATE, EDIT])
async def test_a_call_that_goes_wrong_is_made_good_and_not_doubled(
    fake: FakeDiscord, tmp_path: Path, fault: Fault, call: str
) -> None:
    async with FakeModels() as models, gateway_at(fake, tmp_path, models=models) as gateway:
        go_on = asyncio.Event()
        models.then(Reply((Say("one"), Gate(go_on), Say(" two"))))
        fake.then(fault, fault, method=call)
        fake.say("general", f"{fake.mention} hello")
        await fake.until(lambda: bool(fake.transcript.of(CREATE)))
        go_on.set()
        await settled(gateway, 1)
    assert fake.answers("general") == ["one two"]
    fake.transcript.check()


@pytest.mark.parametrize("fault", ["slow_down", "fail_before", "fail_after", "drop_before", "drop_after"])
@pytest.mark.parametrize("call", [CALLBACK, ORIGINAL])
async def test_a_command_is_answered_once_whatever_goes_wrong(
    fake: FakeDiscord, tmp_path: Path, fault: Fault, call: str
) -> None:
    async with gateway_at(fake, tmp_path) as gateway:
        await fake.until(lambda: bool(fake.transcript.of("PUT /applications/{application_id}/commands")))
        fake.then(fault, method=call)
        pressed = fake.slash("general", "ask", {"text": "hello"})
        await settled(gateway, 1)
    assert fake.answers("general") == ["You said: hello"]
    assert not fake.failed(pressed)


async def test_an_answer_is_found_again_when_discord_has_forgotten_its_nonce(tmp_path: Path) -> None:
    async with FakeDiscord(figures=replace(relaxed(), nonces=0)) as fake:
        async with gateway_at(fake, tmp_path, streaming=False) as gateway:
            for chat, text in (("general", f"{fake.mention} hello"), (fake.dm("ada"), "hello")):
                fake.then("fail_after", method=CREATE)
                fake.say(chat, text)
            await settled(gateway, 2)
        assert fake.answers("general") == ["You said: hello"]
        assert fake.answers(fake.dm("ada")) == ["You said: hello"]


@pytest.mark.parametrize("placed", [False, True])
async def test_a_crash_before_the_answer_was_confirmed_does_not_double_it(
    tmp_path: Path, *, placed: bool
) -> None:
    async with FakeDiscord(figures=replace(relaxed(), nonces=0)) as fake:
        # Nobody can look whether it stands there until the gateway is gone.
        fake.then("fail_after" if placed else "drop_before", method=CREATE)
        fake.slow_down(HISTORY, seconds=60)
        async with gateway_at(fake, tmp_path, more=NO_DRAIN, streaming=False):
            fake.say("general", f"{fake.mention} hello")
            await fake.until(lambda: bool(fake.transcript.of(HISTORY)))
        assert len(fake.answers("general")) == placed
        fake.advance(60)
        async with gateway_at(fake, tmp_path) as gateway:
            await settled(gateway, 1)
        assert fake.answers("general") == ["You said: hello"]


async def test_an_answer_that_was_cut_by_a_crash_is_finished_where_it_began(
    fake: FakeDiscord, tmp_path: Path
) -> None:
    async with FakeModels() as models:
        models.then(Reply((Say("the beginning"), Gate(asyncio.Event()))))
        async with gateway_at(fake, tmp_path, models=models, more=NO_DRAIN):
            fake.say("general", f"{fake.mention} hello")
            await fake.until(lambda: fake.answers("general") == ["the beginning"])
        async with gateway_at(fake, tmp_path, models=models) as gateway:
            await settled(gateway, 1)
    assert fake.answers("general") == ["You said: hello"]
    assert len(fake.transcript.of("IDENTIFY")) == len(fake.transcript.of("RESUME")) == 1
    fake.transcript.check()


async def test_a_restart_resumes_the_session_and_hears_what_was_said_meanwhile(
    fake: FakeDiscord, tmp_path: Path
) -> None:
    async with gateway_at(fake, tmp_path) as gateway:
        fake.say(fake.dm("ada"), "one")
        await settled(gateway, 1)
    fake.say(fake.dm("ada"), "two")
    fake.say("general", f"{fake.mention} three")
    async with gateway_at(fake, tmp_path) as gateway:
        await settled(gateway, 3)
    assert fake.answers(fake.dm("ada")) == ["You said: one", "You said: two"]
    assert fake.answers("general") == ["You said: three"]
    assert [call.status for call in fake.transcript.of("CLOSE")] == []
    assert len(fake.transcript.of("IDENTIFY")) == 1
    fake.transcript.check()


@pytest.mark.parametrize("streaming", [False, True])
async def test_what_was_said_while_no_session_could_be_resumed_is_read_from_the_rooms(
    fake: FakeDiscord, tmp_path: Path, *, streaming: bool
) -> None:
    thread = fake.start_thread("general", "aside")
    async with gateway_at(fake, tmp_path) as gateway:
        fake.say(fake.dm("ada"), "one")
        fake.say("general", f"{fake.mention} two")
        await settled(gateway, 2)
    fake.expire_sessions()
    later(tmp_path)
    fake.say(fake.dm("ada"), "three")
    fake.say("general", f"{fake.mention} four")
    fake.say("general", "not for the bot")
    fake.say(thread, f"{fake.mention} five")
    async with gateway_at(fake, tmp_path, streaming=streaming) as gateway:
        await settled(gateway, 5)
        fake.say("general", f"{fake.mention} six")
        await settled(gateway, 6)
    assert fake.answers(fake.dm("ada")) == ["You said: one", "You said: three"]
    assert fake.answers("general") == ["You said: two", "You said: four", "You said: six"]
    assert fake.answers(thread) == ["You said: five"]
    assert len(fake.transcript.of("IDENTIFY")) == 2
    fake.transcript.check()


async def test_what_was_changed_while_no_session_could_be_resumed_is_answered_in_its_last_wording(
    fake: FakeDiscord, tmp_path: Path
) -> None:
    dm, other = fake.dm("ada"), fake.dm("bob")
    async with gateway_at(fake, tmp_path) as gateway:
        known = fake.say(dm, "one")
        fake.say(other, "hello", "bob")
        await settled(gateway, 2)
    fake.expire_sessions()
    fake.edit(dm, known, "once")
    new = fake.say(other, "tow", "bob")
    fake.edit(other, new, "two")
    async with gateway_at(fake, tmp_path) as gateway:
        await settled(gateway, 5)
    assert fake.answers(dm) == ["You said: one", "You said: once"]
    assert fake.answers(other) == ["You said: hello", "You said: two"]
    fake.transcript.check()


async def test_what_was_said_before_the_first_login_worked_is_read(tmp_path: Path) -> None:
    async with FakeDiscord(figures=replace(relaxed(), identifies=1)) as fake, FakeModels() as models:
        fake.say("general", f"{fake.mention} before there was a gateway")
        fake.account.spend(1)
        gateway = Gateway(settings_for(tmp_path, models, bot_at(fake)))
        async with gateway.running():
            await until(lambda: "next login" in gateway.health()["discord"][1])
        fake.say("general", f"{fake.mention} hello")
        fake.advance(86_400)
        async with gateway_at(fake, tmp_path) as gateway:
            await settled(gateway, 1)
        assert fake.answers("general") == ["You said: hello"]


async def test_an_answer_is_not_taken_for_that_to_another_message(fake: FakeDiscord, tmp_path: Path) -> None:
    async with gateway_at(fake, tmp_path) as gateway:
        other = fake.say("general", "not for the bot")
        asked = fake.say("general", f"{fake.mention} hello")
        await settled(gateway, 1)
        found: list[Placed | None] = []
        channel = gateway.channels.get("discord")
        assert isinstance(channel, DiscordChannel)
        for message in (other, asked):
            address = Address("discord", chat=str(fake.channel("general").id), reply_to=str(message))
            text = Message(session_id="s", role="assistant", parts=(TextPart("You said: hello"),))
            (page,) = channel.pages(text, final=True)
            found.append(
                await channel.find(OutboundMessage(address=address, message=text, page=page, nonce="n"))
            )
    assert found[0] is None
    assert found[1] is not None
    assert found[1].platform_id.endswith(str(fake.messages("general")[-1].id))


async def test_an_answer_whose_question_is_gone_is_placed_once_it_is_final_and_found_again(
    fake: FakeDiscord, tmp_path: Path
) -> None:
    async with gateway_at(fake, tmp_path) as gateway:
        asked = fake.say("general", "not for the bot")
        fake.delete("general", asked)
        channel = gateway.channels.get("discord")
        assert isinstance(channel, DiscordChannel)
        text = Message(session_id="s", role="assistant", parts=(TextPart("too late"),))
        (page,) = channel.pages(text, final=True)
        address = Address("discord", chat=str(fake.channel("general").id), reply_to=str(asked))
        outbound = OutboundMessage(address=address, message=text, page=page, nonce="n", final=False)
        with pytest.raises(PlacementDeferred):  # what refers to nothing could not be found to be deleted
            await channel.send(outbound)
        assert fake.answers("general") == []
        assert await channel.find(outbound) is None
        placed = await channel.send(replace(outbound, final=True))
        assert fake.answers("general") == ["too late"]
        assert await channel.find(replace(outbound, final=True)) == placed
    fake.transcript.check()


async def test_an_answer_is_found_among_many_messages(tmp_path: Path) -> None:
    async with FakeDiscord(figures=replace(relaxed(), nonces=0)) as fake, FakeModels() as models:
        async with gateway_at(fake, tmp_path, models=models, streaming=False) as gateway:
            go_on = asyncio.Event()
            models.then(Reply((Gate(go_on), Say("found"))))
            fake.then("fail_after", method=CREATE)
            fake.say("general", f"{fake.mention} hello")
            await until(lambda: bool(models.requests))
            for number in range(250):
                fake.say("general", f"chatter {number}")
            go_on.set()
            await settled(gateway, 1)
        assert fake.answers("general") == ["found"]


async def test_a_try_that_stood_there_already_shows_the_newest_text(
    fake: FakeDiscord, tmp_path: Path
) -> None:
    async with FakeModels() as models, gateway_at(fake, tmp_path, models=models) as gateway:
        go_on = asyncio.Event()
        models.then(Reply((Say("one"), Gate(go_on), Say(" two"))))
        fake.then("fail_after", method=CREATE)
        fake.say("general", f"{fake.mention} hello")
        await fake.until(lambda: fake.answers("general") == ["one"])
        # The history does not show it yet, so it is sent again; its nonce is known.
        fake.forbid("general", "READ_MESSAGE_HISTORY")
        go_on.set()
        await settled(gateway, 1)
    assert fake.answers("general") == ["one two"]


async def test_a_session_that_ends_while_the_gateway_runs_leaves_no_gap(
    fake: FakeDiscord, tmp_path: Path
) -> None:
    async with gateway_at(fake, tmp_path) as gateway:
        fake.say(fake.dm("ada"), "one")
        await settled(gateway, 1)
        fake.expire_sessions()
        fake.sever()
        fake.say(fake.dm("ada"), "two")
        fake.say("general", f"{fake.mention} three")
        await settled(gateway, 3)
    assert fake.answers(fake.dm("ada")) == ["You said: one", "You said: two"]
    assert fake.answers("general") == ["You said: three"]
    fake.transcript.check()


async def test_histories_that_cannot_be_read_yet_are_read_later(fake: FakeDiscord, tmp_path: Path) -> None:
    async with gateway_at(fake, tmp_path) as gateway:
        fake.say(fake.dm("ada"), "one")
        await settled(gateway, 1)
    fake.expire_sessions()
    later(tmp_path)
    for number in range(150):
        fake.say(fake.dm("ada"), f"/unknown{number}" if number < 149 else "last")
    fake.then("fail_before", "drop_before", "slow_down", method=HISTORY)
    async with gateway_at(fake, tmp_path, more={"limits": {"session_inbox": 20}}) as gateway:
        await settled(gateway, 151, seconds=60)
    assert fake.answers(fake.dm("ada"))[-1] == "You said: last"
    assert len(fake.answers(fake.dm("ada"))) == 151


async def test_complete_pages_of_a_long_answer_are_not_edited_again(
    fake: FakeDiscord, tmp_path: Path
) -> None:
    """Each message is placed or completed once; only the last one is edited when the answer ends."""
    gates = [asyncio.Event() for _ in range(3)]
    steps = [
        step for number, gate in enumerate(gates) for step in (Say(f"{number} " + "word " * 500), Gate(gate))
    ]
    async with FakeModels() as models, gateway_at(fake, tmp_path, models=models) as gateway:
        models.then(Reply((*steps, Say("The end."))))
        fake.say(fake.dm("ada"), "tell me more")
        for number, gate in enumerate(gates, 1):
            await fake.until(lambda number=number: len(fake.answers(fake.dm("ada"))) > number)
            gate.set()
        await settled(gateway, 1)
    shown: dict[str, str] = {}
    for call in fake.transcript.of(CREATE, EDIT):
        assert shown.get(call.answer["id"]) != call.arguments["content"], "nothing is shown twice"
        shown[call.answer["id"]] = call.arguments["content"]
    assert list(shown.values()) == fake.answers(fake.dm("ada"))
    assert len(shown) == 4
    fake.transcript.check()


async def test_a_long_answer_that_was_cut_off_shows_the_right_text_after_a_restart(
    fake: FakeDiscord, tmp_path: Path
) -> None:
    never = asyncio.Event()
    async with FakeModels() as models:
        models.then(Reply((Say("word " * 900), Gate(never))))
        async with gateway_at(fake, tmp_path, models=models, more=NO_DRAIN) as gateway:
            fake.say(fake.dm("ada"), "tell me more")
            await fake.until(lambda: len(fake.answers(fake.dm("ada"))) == 3)
            gateway.parts.dispatcher.cancel()
        models.forget()
        models.then(Reply((Say("other " * 700),)))
        async with gateway_at(fake, tmp_path, models=models) as gateway:
            await settled(gateway, 1)
        never.set()
    assert " ".join(fake.answers(fake.dm("ada"))).split() == ["other"] * 700


@pytest.mark.parametrize("odd", [True, [], "odd", 7, {}, {"id": None}])
@pytest.mark.parametrize("call", [CREATE, EDIT])
async def test_answers_of_an_unexpected_shape_neither_lose_nor_double_a_message(
    tmp_path: Path, call: str, odd: Any
) -> None:
    go_on = asyncio.Event()
    async with (
        FakeDiscord(figures=relaxed()) as fake,
        FakeModels() as models,
        gateway_at(fake, tmp_path, models=models) as gateway,
    ):
        models.then(Reply((Say("one"), Gate(go_on), Say(" two"))))
        fake.answer_next(call, odd, odd)
        fake.say("general", f"{fake.mention} hello")
        await fake.until(lambda: bool(fake.transcript.of(CREATE)))
        go_on.set()
        await settled(gateway, 1)
        assert await states(gateway) == ["done"]
        assert fake.answers("general") == ["one two"]


async def test_a_token_that_is_refused_shows_at_once(fake: FakeDiscord, tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with FakeModels() as models, gateway_at(fake, tmp_path, models=models, more=NO_DRAIN) as gateway:
        models.then(Reply((Gate(gate), Say("Done."))))
        fake.say(fake.dm("ada"), "hello")
        await until(lambda: models.requests)
        assert healthy(gateway)
        fake.account.reset()
        gate.set()
        await until(lambda: gateway.health()["discord"] == (False, "Discord refuses the token"))


async def test_a_history_that_cannot_be_read_is_reported_until_it_is(
    fake: FakeDiscord, tmp_path: Path
) -> None:
    async with gateway_at(fake, tmp_path) as gateway:
        fake.say(fake.dm("ada"), "one")
        await settled(gateway, 1)
    fake.expire_sessions()
    later(tmp_path)
    fake.say(fake.dm("ada"), "two")
    fake.answer_next(HISTORY, {"odd": 1}, True)
    fake.then("fail_before", "fail_before", method=HISTORY)
    async with gateway_at(fake, tmp_path) as gateway:
        await until(lambda: "cannot be read yet" in gateway.health()["discord"][1])
        await settled(gateway, 2)
        await until(lambda: gateway.health()["discord"] == (True, ""))
    assert fake.answers(fake.dm("ada")) == ["You said: one", "You said: two"]


async def test_messages_that_the_gateway_does_not_take_are_handed_in_until_it_does(
    fake: FakeDiscord, tmp_path: Path
) -> None:
    gate = asyncio.Event()
    limits = {"limits": {"global_inbox": 3}}
    async with FakeModels() as models, gateway_at(fake, tmp_path, models=models, more=limits) as gateway:
        models.then(Reply((Gate(gate), Say("Done."))))
        for number in range(9):
            fake.say(fake.dm("ada"), f"{number}")
        await until(lambda: gateway.parts.dispatcher.waiting == 3)
        gate.set()
        await settled(gateway, 9)
    assert fake.answers(fake.dm("ada")) == ["Done.", *(f"You said: {number}" for number in range(1, 9))]


@pytest.mark.parametrize("how", ["sever", "ask_reconnect", "invalid", "closed"])
async def test_a_connection_that_breaks_is_made_again(tmp_path: Path, how: str) -> None:
    async with FakeDiscord(figures=relaxed()) as fake:
        async with gateway_at(fake, tmp_path) as gateway:
            match how:
                case "invalid":
                    fake.invalidate(resumable=True)
                case "closed":
                    fake.close(4000)
                case _:
                    getattr(fake, how)()
            fake.say("general", f"{fake.mention} hello")
            await settled(gateway, 1)
            await until(lambda: healthy(gateway))
        assert fake.answers("general") == ["You said: hello"]
        assert len(fake.transcript.of("IDENTIFY")) == 1


async def test_events_that_come_twice_are_answered_once(tmp_path: Path) -> None:
    async with FakeDiscord(figures=relaxed(), repeats=1) as fake:
        async with gateway_at(fake, tmp_path) as gateway:
            fake.say(fake.dm("ada"), "hello")
            fake.say("general", f"{fake.mention} hi")
            await settled(gateway, 2)
        assert fake.answers(fake.dm("ada")) == ["You said: hello"]
        assert fake.answers("general") == ["You said: hi"]
        fake.transcript.check()


async def test_a_malformed_event_goes_into_quarantine_and_stops_nothing(tmp_path: Path) -> None:
    async with FakeDiscord(figures=relaxed()) as fake, gateway_at(fake, tmp_path) as gateway:
        session = next(iter(fake.gateway.sessions.values()))
        for name in ("MESSAGE_CREATE", "MESSAGE_UPDATE", "MESSAGE_DELETE", "INTERACTION_CREATE"):
            for data in ({"id": 5, "author": 1, "content": "lost"}, {}, None, [1], "text"):
                session.tell(name, data)  # pyright: ignore[reportArgumentType]
        for name in ("GUILD_CREATE", "GUILD_DELETE", "CHANNEL_CREATE", "THREAD_MEMBERS_UPDATE", "NEW", ""):
            session.tell(name, {"id": "x" * 70_000, "added_members": [1], "\0": "\0"})
        fake.deliver_raw("no JSON at all")
        fake.deliver_raw('{"op": 0}')
        fake.deliver_raw("[]")
        fake.deliver_raw('"\\ud800\\u0000"')
        fake.say(fake.dm("ada"), "hello")
        await settled(gateway, 1)
        assert any("lost" in raw for raw in await quarantined(gateway))
        assert fake.answers(fake.dm("ada")) == ["You said: hello"]
        assert len(fake.transcript.of("IDENTIFY", "RESUME")) == 1
    fake.transcript.check()


async def test_a_fault_storm_leaves_exactly_one_answer_each(tmp_path: Path) -> None:
    async with FakeDiscord(figures=relaxed(), faults=0.15, repeats=0.3, seed=7) as fake:
        rooms = ["general", fake.dm("ada"), fake.add_channel("kitchen"), fake.dm("bob")]
        async with gateway_at(fake, tmp_path) as gateway:
            for number in range(5):
                for room in rooms:
                    user = "bob" if room == rooms[3] else "ada"
                    fake.say(room, f"{fake.mention} {number}", user)
                if number in (1, 3):
                    fake.sever()
                await asyncio.sleep(0)
            await settled(gateway, 20, seconds=80)
        for room in rooms:
            assert fake.answers(room) == [f"You said: {number}" for number in range(5)]
        fake.transcript.check()


async def test_the_real_limits_are_kept(tmp_path: Path) -> None:
    async with FakeDiscord(figures=Figures()) as fake:
        async with FakeModels() as models, gateway_at(fake, tmp_path, models=models) as gateway:
            models.then(Reply(tuple(Say(f"word{n} " * 40) for n in range(30))))
            fake.say("general", f"{fake.mention} hello")
            for number in range(4):
                fake.say(fake.dm("ada"), f"/help {number}")
            await settled(gateway, 5, seconds=60)
        assert {call.status for call in fake.transcript.of(CREATE, EDIT)} == {200}
        fake.transcript.check()
        assert misfits(fake) == []


async def test_a_crowd_is_answered_within_what_discord_takes_of_a_bot_altogether(tmp_path: Path) -> None:
    async with FakeDiscord(figures=Figures()) as fake:
        rooms = [fake.dm(f"user{number}") for number in range(70)]
        async with gateway_at(fake, tmp_path) as gateway:
            for number, room in enumerate(rooms):
                fake.say(room, "hello", f"user{number}")
            await settled(gateway, len(rooms), seconds=60)
        assert [fake.answers(room) for room in rooms] == [["You said: hello"]] * len(rooms)
        assert fake.limits.impatient == 0
        fake.transcript.check()


async def test_a_room_that_refuses_the_bot_ends_as_a_dead_letter(fake: FakeDiscord, tmp_path: Path) -> None:
    async with gateway_at(fake, tmp_path) as gateway:
        fake.forbid("general", "SEND_MESSAGES")
        fake.say("general", f"{fake.mention} hello")
        async with asyncio.timeout(20):
            while await states(gateway) != ["dead"]:
                await asyncio.sleep(0.02)
        fake.permit("general", "SEND_MESSAGES")
        fake.say("general", f"{fake.mention} again")
        await fake.until(lambda: fake.answers("general") == ["You said: again"])


@pytest.mark.parametrize("fault", ["slow_down", "fail_before", "drop_before"])
async def test_a_login_that_fails_is_tried_again(fake: FakeDiscord, tmp_path: Path, fault: Fault) -> None:
    for call in ("GET /users/@me", "GET /gateway/bot", "GET /applications/@me"):
        fake.then(fault, fault, method=call)
    async with gateway_at(fake, tmp_path) as gateway:
        fake.say(fake.dm("ada"), "hello")
        await settled(gateway, 1)
    fake.transcript.check()


async def test_logins_are_counted_over_restarts(tmp_path: Path) -> None:
    async with FakeDiscord(figures=relaxed()) as fake:
        for _ in range(2):
            async with gateway_at(fake, tmp_path):
                fake.expire_sessions()
            later(tmp_path)
        async with gateway_at(fake, tmp_path) as gateway:
            cursors = {c.shard: c.value for c in await gateway.parts.host.cursors("discord")}
        assert float(cursors["identify"].strip("[").split(",")[0]) < 98
        assert len(fake.transcript.of("IDENTIFY")) == 3


async def test_the_last_login_of_the_day_is_not_spent(tmp_path: Path) -> None:
    async with FakeDiscord(figures=replace(relaxed(), identifies=1)) as fake:
        fake.account.spend(1)
        async with FakeModels() as models:
            gateway = Gateway(settings_for(tmp_path, models, bot_at(fake)))
            async with gateway.running():
                await until(lambda: "next login" in gateway.health()["discord"][1])
        assert fake.transcript.of("IDENTIFY") == []


@pytest.mark.parametrize("jump", [-3_600_000, 3_600_000])
def test_a_login_waits_no_longer_though_the_clock_was_wrong(jump: int) -> None:
    now = 1_800_000_000_000
    spent = Budget().spend(now + jump)
    assert spent.wait(now) <= 5
    assert spent.spend(now).wait(now) == 5
    used_up = Budget(0.0, now + jump)
    assert used_up.wait(now) <= 86_400 / 850 + 1
