"""Events become messages exactly once: new, edited and deleted ones, files, and those of a gap."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from pydantic import ValidationError
from sqlalchemy import select

from channels.discord.fake import FakeDiscord, relaxed
from channels.discord.options import Options
from gateway.app import Gateway
from gateway.delivery.feedback import read_feedback
from gateway.store import schema as t
from gateway.testing.fake_models.script import Gate, Reply, Say
from gateway.testing.fake_models.server import FakeModels
from tests.channels.discord.talking import (
    HISTORY,
    bot_at,
    bots,
    gateway_at,
    later,
    quarantined,
    settings_for,
    settled,
    until,
)
from tests.documents import pdf, word
from tests.recordings import Hearing, ogg_opus


async def test_a_thread_that_the_bot_was_called_into_needs_no_mention(
    fake: FakeDiscord, tmp_path: Path
) -> None:
    thread, other = fake.start_thread("general", "aside"), fake.start_thread("general", "other")
    bob = fake.user("bob").id
    async with gateway_at(fake, tmp_path) as gateway:
        fake.say(other, "nobody asked the bot")
        fake.say(thread, f"{fake.mention} one")
        await settled(gateway, 1)
    async with gateway_at(fake, tmp_path) as gateway:
        fake.say(thread, f"<@{bob}> this is for Bob")
        fake.say(thread, "two")
        fake.say("general", f"{fake.mention} three")
        await settled(gateway, 3)
    assert fake.answers(thread) == ["You said: one", "You said: two"]
    assert fake.answers(other) == []


async def test_an_edited_message_is_answered_again(fake: FakeDiscord, tmp_path: Path) -> None:
    dm = fake.dm("ada")
    async with FakeModels() as models, gateway_at(fake, tmp_path, models=models) as gateway:
        asked = fake.say(dm, "helo")
        await settled(gateway, 1)
        fake.edit(dm, asked, "hello")
        await settled(gateway, 2)
        assert [request.user_text for request in models.requests] == ["helo", "hello"]
        assert "helo" not in str(models.requests[-1].body).replace("hello", "")
    assert fake.answers(dm)[-1] == "You said: hello"
    fake.transcript.check()


async def test_changed_messages_may_be_ignored(fake: FakeDiscord, tmp_path: Path) -> None:
    dm = fake.dm("ada")
    async with gateway_at(fake, tmp_path, edits="ignore") as gateway:
        asked = fake.say(dm, "helo")
        await settled(gateway, 1)
        fake.edit(dm, asked, "hello")
        fake.say(dm, "bye")
        await settled(gateway, 2)
    assert fake.answers(dm) == ["You said: helo", "You said: bye"]


async def test_what_is_spoken_is_heard(fake: FakeDiscord, tmp_path: Path) -> None:
    async with gateway_at(fake, tmp_path, plugins=[Hearing()]) as gateway:
        fake.say(fake.dm("ada"), "", attach={"voice-message.ogg": ogg_opus()}, spoken=True)
        await settled(gateway, 1)
        assert fake.answers(fake.dm("ada")) == [f"You said: audio data:audio/ogg {len(ogg_opus())}"]
    fake.transcript.check()


async def test_a_deleted_message_needs_no_answer_any_more(fake: FakeDiscord, tmp_path: Path) -> None:
    dm = fake.dm("ada")
    async with FakeModels() as models, gateway_at(fake, tmp_path, models=models) as gateway:
        models.then(Reply((Say("never"), Gate(asyncio.Event()))))
        fake.say(dm, "first")
        await until(lambda: len(models.requests) == 1)
        second = fake.say(dm, "second")
        third = fake.say(dm, "third")
        fake.delete(dm, second)
        fake.delete(dm, fake.messages(dm)[0].id)
        await settled(gateway, 3)
        assert [request.user_text for request in models.requests][1:] == ["third"]
    assert fake.answers(dm) == ["You said: third"]
    assert third


async def test_an_answer_whose_message_was_deleted_is_sent_again_and_once(
    fake: FakeDiscord, tmp_path: Path
) -> None:
    dm, go_on = fake.dm("ada"), asyncio.Event()
    async with FakeModels() as models, gateway_at(fake, tmp_path, models=models) as gateway:
        models.then(Reply((Say("One "), Gate(go_on), Say("two."))))
        fake.say(dm, "count")
        await until(lambda: fake.answers(dm) == ["One"])
        fake.delete(dm, next(said.id for said in fake.messages(dm) if said.content == "One"))
        go_on.set()
        await settled(gateway, 1)
        assert fake.answers(dm) == ["One two."]
    fake.transcript.check()


async def test_files_are_read_and_those_that_cannot_be_are_named(fake: FakeDiscord, tmp_path: Path) -> None:
    png = bytes.fromhex("89504e470d0a1a0a") + b"picture"
    async with (
        FakeModels() as models,
        gateway_at(fake, tmp_path, models=models, file_bytes=1000) as gateway,
    ):
        fake.say(
            fake.dm("ada"),
            "look",
            attach={
                "notes.txt": b"remember the milk",
                "plan.png": png,
                "huge.bin": b"\0" * 2000,
                "a.zip": b"PK\5\6" + bytes(18),
            },
        )
        fake.say(fake.dm("ada"), "", attach={"../../only.txt": b"just a file"})
        await settled(gateway, 2)
        first, second = (str(request.body) for request in models.requests)
    assert "remember the milk" in first
    assert "image_url" in first or "base64" in first
    assert "huge.bin" in first
    assert "larger than 1000 bytes" in first
    assert "22 bytes: this kind of file cannot be read" in first
    assert "just a file" in second
    assert ".." not in second


async def test_the_text_of_a_document_reaches_the_model(fake: FakeDiscord, tmp_path: Path) -> None:
    async with FakeModels() as models, gateway_at(fake, tmp_path, models=models) as gateway:
        fake.say(fake.dm("ada"), "read", attach={"plan.docx": word(), "report.pdf": pdf("Revenue was 42")})
        await settled(gateway, 1)
        asked = str(models.requests[-1].body["messages"])
    assert "Sales rose." in asked
    assert "Revenue was 42" in asked


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


async def test_a_clock_that_is_behind_does_not_answer_what_was_said_before(
    fake: FakeDiscord, tmp_path: Path
) -> None:
    fake.advance(7_200)
    fake.say("general", f"{fake.mention} before")
    fake.advance(120)
    async with gateway_at(fake, tmp_path) as gateway:
        fake.say("general", f"{fake.mention} now")
        await settled(gateway, 1)
    assert fake.answers("general") == ["You said: now"]
    fake.transcript.check()


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
        await until(lambda: "is unread" in gateway.health()["discord"][1])
        await settled(gateway, 2)
        await until(lambda: gateway.health()["discord"] == (True, ""))
    assert fake.answers(fake.dm("ada")) == ["You said: one", "You said: two"]


@pytest.mark.slow
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


@pytest.mark.slow
async def test_events_that_come_twice_are_answered_once(tmp_path: Path) -> None:
    async with FakeDiscord(figures=relaxed(), repeats=1) as fake:
        async with gateway_at(fake, tmp_path) as gateway:
            fake.say(fake.dm("ada"), "hello")
            fake.say("general", f"{fake.mention} hi")
            await settled(gateway, 2)
        assert fake.answers(fake.dm("ada")) == ["You said: hello"]
        assert fake.answers("general") == ["You said: hi"]
        fake.transcript.check()


@pytest.mark.slow
async def test_a_malformed_event_goes_into_quarantine_and_stops_nothing(tmp_path: Path) -> None:
    async with FakeDiscord(figures=relaxed()) as fake, gateway_at(fake, tmp_path) as gateway:
        session = next(iter(fake.gateway.sessions.values()))
        for name in ("MESSAGE_CREATE", "MESSAGE_UPDATE", "MESSAGE_DELETE", "INTERACTION_CREATE"):
            for data in ({"id": 5, "author": 1, "content": "lost"}, {}, None, [1], "text"):
                session.add_event(name, data)  # pyright: ignore[reportArgumentType]
        for name in ("GUILD_CREATE", "GUILD_DELETE", "CHANNEL_CREATE", "THREAD_MEMBERS_UPDATE", "NEW", ""):
            session.add_event(name, {"id": "x" * 70_000, "added_members": [1], "\0": "\0"})
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


UP, HEART, DOWN = "\N{THUMBS UP SIGN}", "\N{HEAVY BLACK HEART}\ufe0f", "\N{THUMBS DOWN SIGN}"


async def opinions(gateway: Gateway) -> dict[str, str]:
    """Return the feedback of users that counts, by user id."""
    found = await gateway.parts.store.read(lambda c: read_feedback(c, 10))
    return {one.user_id: one.value for one in found}


async def test_reactions_to_answers_are_feedback(fake: FakeDiscord, tmp_path: Path) -> None:
    thread, ada, bob = (
        fake.start_thread("general", "aside"),
        str(fake.user("ada").id),
        str(fake.user("bob").id),
    )
    async with gateway_at(fake, tmp_path) as gateway:
        asked = fake.say(thread, f"{fake.mention} hello")
        await settled(gateway, 1)
        answer = bots(fake, thread)[0].id
        counted = gateway.counters.feedback
        fake.react(thread, asked, UP)
        fake.react(thread, answer, "\N{EYES}")
        fake.react(thread, answer, UP)
        fake.react(thread, answer, HEART)
        fake.react(thread, answer, UP, "bob")
        fake.react(thread, answer, DOWN)
        await until(lambda: counted["discord", "down"] == 1)
        assert counted["discord", "up"] == 3, "only those to the bot's messages count"
        assert await opinions(gateway) == {ada: "down", bob: "up"}
        fake.react(thread, asked, UP, on=False)
        fake.react(thread, answer, HEART, on=False)
        await until(lambda: counted["discord", "none"] == 1)
        assert await opinions(gateway) == {ada: "down", bob: "up"}, "the other reactions still count"
        fake.react(thread, answer, DOWN, on=False)
        await until(lambda: counted["discord", "none"] == 2)
        assert await opinions(gateway) == {ada: "up", bob: "up"}
        fake.clear_reactions(thread, answer, UP)
        await until(lambda: counted["discord", "none"] == 4)
        assert await opinions(gateway) == {}
        fake.react(thread, answer, DOWN)
        fake.react(thread, answer, UP, "bob")
        fake.clear_reactions(thread, answer)
        await until(lambda: counted["discord", "none"] == 6)
        assert await opinions(gateway) == {}
    fake.transcript.check()


async def test_a_reaction_in_a_private_chat_during_an_outage_is_stored_with_the_position(
    fake: FakeDiscord, tmp_path: Path
) -> None:
    dm, ada = fake.dm("ada"), str(fake.user("ada").id)
    async with gateway_at(fake, tmp_path) as gateway:
        fake.say(dm, "hello")
        await settled(gateway, 1)
    fake.react(dm, bots(fake, dm)[0].id, UP)
    async with gateway_at(fake, tmp_path) as gateway:
        async with asyncio.timeout(60):
            while await opinions(gateway) != {ada: "up"}:
                await asyncio.sleep(0.01)
        position = {c.shard: c.value for c in await gateway.parts.host.cursors("discord")}[""]
        (session,) = fake.gateway.sessions.values()
        added = next(event.seq for event in session.events if event.name == "MESSAGE_REACTION_ADD")
        assert json.loads(position)[1] == added


STOP = "\N{OCTAGONAL SIGN}"


async def interruptions(gateway: Gateway) -> list[str | None]:
    """Return how the accepted messages were interrupted, in order."""
    query = select(t.inbox.c.interrupted).where(t.inbox.c.session != "").order_by(t.inbox.c.ord)
    return await gateway.parts.store.read(lambda c: [*c.execute(query).scalars()])


async def half_shown(fake: FakeDiscord, gateway: Gateway, text: str) -> int:
    """Wait until the beginning of an answer is shown in the channel. Returns its message."""
    await fake.until(lambda: fake.answers("general")[-1:] == [text])
    placed = select(t.outbox.c.id).where(t.outbox.c.platform_id.endswith(f":{bots(fake, 'general')[-1].id}"))
    async with asyncio.timeout(60):
        while not await gateway.parts.store.read(lambda c: c.execute(placed).all()):
            await asyncio.sleep(0)
    return bots(fake, "general")[-1].id


async def test_a_stop_reaction_ends_the_answer(fake: FakeDiscord, tmp_path: Path) -> None:
    async with FakeModels() as models, gateway_at(fake, tmp_path, models=models) as gateway:
        models.then(Reply((Say("Once upon"), Gate(asyncio.Event()), Say(" a time"))))
        fake.say("general", f"{fake.mention} a story")
        answer = await half_shown(fake, gateway, "Once upon")
        fake.react("general", answer, "\N{THINKING FACE}", "eve")
        fake.react("general", answer, STOP, "eve")
        await settled(gateway, 1)
        assert await interruptions(gateway) == ["stopped"], "durable before the position moved past it"
        fake.say("general", f"{fake.mention} thanks")
        await settled(gateway, 2)
    assert fake.answers("general")[0].startswith("Once upon")
    assert "a time" not in fake.answers("general")[0]
    assert fake.answers("general")[1] == "You said: thanks"
    fake.transcript.check()


@pytest.mark.parametrize(("user", "option"), [("eve", STOP), ("ada", ""), ("ada", "\N{HEAVY BLACK HEART}")])
async def test_a_stop_reaction_of_others_or_another_one_stops_nothing(
    fake: FakeDiscord, tmp_path: Path, user: str, option: str
) -> None:
    access = {"allow": [str(fake.user("ada").id)], "stop_reaction": option}
    go_on = asyncio.Event()
    async with FakeModels() as models, gateway_at(fake, tmp_path, models=models, **access) as gateway:
        models.then(Reply((Say("Once upon"), Gate(go_on), Say(" a time"))))
        asked = fake.say("general", f"{fake.mention} a story")
        answer = await half_shown(fake, gateway, "Once upon")
        fake.react("general", asked, STOP)
        fake.react("general", answer, STOP, user)
        fake.react("general", answer, DOWN)
        await until(lambda: gateway.counters.feedback["discord", "down"])
        go_on.set()
        await settled(gateway, 1)
        assert await interruptions(gateway) == [None]
    assert fake.answers("general") == ["Once upon a time"]
    fake.transcript.check()


@pytest.mark.parametrize("emoji", ["stop", ":stop:", "stop:123", "1", STOP * 11])
def test_a_stop_reaction_has_to_be_an_emoji(emoji: str) -> None:
    with pytest.raises(ValidationError, match="must be an emoji"):
        Options.model_validate({"token": "t", "stop_reaction": emoji})
