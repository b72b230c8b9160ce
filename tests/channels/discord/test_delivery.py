"""Answers are placed on Discord exactly once, despite errors, rate limits, crashes and lost responses."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import select

from channels.discord.api import Api
from channels.discord.channel import DiscordChannel
from channels.discord.delivery import Delivery
from channels.discord.fake import FakeDiscord, relaxed
from channels.discord.fake.state import SUPPRESS_EMBEDS, VOICE_MESSAGE
from gateway import Message, TextPart
from gateway.channel import Address, OutboundMessage, Placed, PlacementDeferred
from gateway.store import schema as t
from gateway.testing.fake_models.script import Gate, Reply, Say, Use, titling
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.fake_platform import FAULTS, Fault
from tests.channels.discord.talking import (
    CREATE,
    EDIT,
    HISTORY,
    NO_DRAIN,
    Measuring,
    bots,
    gateway_at,
    registered,
    sessions,
    settled,
    states,
    until,
)
from tests.recordings import MP3, SILENCE, Speaking, ogg_opus

SPOKEN = Speaking(("audio/ogg", ogg_opus(), "said.ogg"))


async def test_answers_open_a_thread_where_the_conversation_continues(
    fake: FakeDiscord, tmp_path: Path
) -> None:
    async with gateway_at(fake, tmp_path, threads="open") as gateway:
        asked = fake.say("general", f"{fake.mention} what about lunch?")
        await settled(gateway, 1)
        (thread,) = fake.threads("general")
        assert (thread.id, thread.name) == (asked, "what about lunch?")
        fake.say(thread, "and dinner?")
        await settled(gateway, 2)
        assert await sessions(gateway) == 1
    said = [answer for answer in fake.answers(thread) if answer]  # one tells that the thread was opened
    assert said == ["You said: what about lunch?", "You said: and dinner?"]
    assert fake.answers("general") == []
    fake.transcript.check()


async def test_004_t10_a_thread_of_the_bot_is_named_after_its_conversation(
    fake: FakeDiscord, tmp_path: Path
) -> None:
    more = {"small_model": "openai/fake-title"}
    async with (
        FakeModels(titling('"Lunch plans"')) as models,
        gateway_at(fake, tmp_path, models=models, more=more, threads="open") as gateway,
    ):
        fake.say("general", f"{fake.mention} what about lunch?")
        await fake.until(lambda: [one.name for one in fake.threads("general")] == ["Lunch plans"])
        (thread,) = fake.threads("general")
        fake.say(thread, "/title Dinner plans")
        await fake.until(lambda: fake.threads("general")[0].name == "Dinner plans")
        await settled(gateway, 2)
    fake.transcript.check()


async def test_the_threads_and_channels_of_others_keep_their_names(fake: FakeDiscord, tmp_path: Path) -> None:
    thread = fake.start_thread("general", "aside")
    more = {"small_model": "openai/fake-title"}
    async with (
        FakeModels(titling("Lunch plans")) as models,
        gateway_at(fake, tmp_path, models=models, more=more) as gateway,
    ):
        fake.say(thread, f"{fake.mention} hello")
        fake.say("general", f"{fake.mention} hello")
        await settled(gateway, 2)
        rows = gateway.parts.sessions.live()
        await until(lambda: [session.row.title for session in rows] == ["Lunch plans"] * 2)
    assert fake.threads("general")[0].name == "aside"
    assert fake.transcript.of("PATCH /channels/{channel_id}") == []
    fake.transcript.check()


async def test_where_no_thread_may_be_opened_the_answer_stays_in_the_channel(
    fake: FakeDiscord, tmp_path: Path
) -> None:
    fake.forbid("general", "CREATE_PUBLIC_THREADS")
    async with gateway_at(fake, tmp_path, threads="open") as gateway:
        fake.say("general", f"{fake.mention} hello")
        await settled(gateway, 1)
    assert fake.answers("general") == ["You said: hello"]
    fake.transcript.check()


async def test_an_archived_thread_is_written_in_again(fake: FakeDiscord, tmp_path: Path) -> None:
    thread = fake.start_thread("general", "aside")
    async with FakeModels() as models, gateway_at(fake, tmp_path, models=models) as gateway:
        go_on = asyncio.Event()
        models.then(Reply((Say("one"), Gate(go_on), Say(" two"))))
        fake.say(thread, f"{fake.mention} hello")
        await fake.until(lambda: fake.answers(thread) == ["one"])
        fake.archive(thread)
        go_on.set()
        await settled(gateway, 1)
    assert fake.answers(thread) == ["one two"]


async def test_where_it_may_not_read_back_it_answers_without_a_reference(
    fake: FakeDiscord, tmp_path: Path
) -> None:
    fake.forbid("general", "READ_MESSAGE_HISTORY")
    async with gateway_at(fake, tmp_path) as gateway:
        fake.say("general", f"{fake.mention} hello")
        await settled(gateway, 1)
    assert fake.answers("general") == ["You said: hello"]
    assert fake.messages("general")[-1].reference is None
    fake.transcript.check()


async def test_tools_and_their_files_are_shown(fake: FakeDiscord, tmp_path: Path) -> None:
    async with (
        FakeModels() as models,
        gateway_at(fake, tmp_path, models=models, plugins=[Measuring()]) as gateway,
    ):
        models.then(Reply((Use("draw"),), "tools"), Reply((Say("There it is."),)))
        fake.say(fake.dm("ada"), "draw")
        await settled(gateway, 1)
    (answer,) = bots(fake, fake.dm("ada"))
    assert answer.content.startswith("-# 🔧 `draw` ✓")
    assert answer.content.endswith("There it is.")
    (file,) = answer.attachments
    assert (file.filename, file.data) == ("plan.png", b"hello")
    assert len(fake.transcript.of(CREATE)) == 1
    assert fake.transcript.of(EDIT)
    fake.transcript.check()


async def test_what_is_spoken_comes_as_a_voice_message(fake: FakeDiscord, tmp_path: Path) -> None:
    packets = [SILENCE] * 10 + [SILENCE + bytes(90)] * 5
    spoken = Speaking(
        ("audio/ogg", ogg_opus(packets=packets), "said.ogg"),
        ("audio/mpeg", MP3, "sung.mp3"),
        ("audio/ogg; codecs=opus", ogg_opus(30), "long"),
    )
    async with (
        FakeModels() as models,
        gateway_at(fake, tmp_path, models=models, plugins=[spoken]) as gateway,
    ):
        models.then(Reply((Use("speak"),), "tools"))
        fake.say("general", f"{fake.mention} say it aloud")
        await settled(gateway, 1)
    text, short, long = bots(fake, "general")
    assert [file.filename for file in text.attachments] == ["sung.mp3"]
    assert (short.flags, long.flags) == (VOICE_MESSAGE, VOICE_MESSAGE)
    [file] = short.attachments
    assert (file.filename, file.data) == ("said.ogg", ogg_opus(packets=packets))
    assert (file.duration_secs, base64.b64decode(file.waveform or "")) == (0.3, bytes([8, 8, 255]))
    [file] = long.attachments
    assert (file.filename[:7], file.duration_secs) == ("long.og", 30.0)  # .oga, or .ogg since Python 3.14
    assert base64.b64decode(file.waveform or "") == bytes([255] * 256)
    fake.transcript.check()


async def test_a_recording_is_a_file_where_voice_messages_are_forbidden(
    fake: FakeDiscord, tmp_path: Path
) -> None:
    fake.forbid("general", "SEND_VOICE_MESSAGES")
    async with (
        FakeModels() as models,
        gateway_at(fake, tmp_path, models=models, plugins=[SPOKEN], tools=False) as gateway,
    ):
        await registered(fake)
        models.then(*[Reply((Use("speak"),), "tools"), Reply(())] * 2)
        fake.say("general", f"{fake.mention} say it aloud")
        await settled(gateway, 1)
        fake.slash(fake.dm("ada"), "ask", {"text": "say it aloud"})
        await settled(gateway, 2)
    [refused] = bots(fake, "general")
    [instead_of_thinking] = bots(fake, fake.dm("ada"))
    for message in (refused, instead_of_thinking):
        assert not message.flags & VOICE_MESSAGE
        assert message.attachments[0].data == ogg_opus()
    fake.transcript.check()


async def test_a_voice_message_that_goes_wrong_is_made_good_and_not_doubled(
    fake: FakeDiscord, tmp_path: Path
) -> None:
    async with (
        FakeModels() as models,
        gateway_at(fake, tmp_path, models=models, streaming=False, plugins=[SPOKEN]) as gateway,
    ):
        models.then(Reply((Use("speak"),), "tools"))
        fake.say(fake.dm("ada"), "say it aloud")
        fake.then("none", *FAULTS, method=CREATE)
        await settled(gateway, 1)
    assert [said.flags for said in bots(fake, fake.dm("ada"))] == [SUPPRESS_EMBEDS, VOICE_MESSAGE]
    fake.transcript.check()


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("streaming", [False, True])
async def test_the_text_of_an_answer_does_not_depend_on_its_files(
    fake: FakeDiscord, tmp_path: Path, streaming: bool
) -> None:
    fake.forbid("general", "ATTACH_FILES")
    async with (
        FakeModels() as models,
        gateway_at(fake, tmp_path, models=models, streaming=streaming, plugins=[SPOKEN]) as gateway,
    ):
        models.then(Reply((Use("speak"),), "tools"), Reply((Say("That was it."),)))
        fake.say("general", f"{fake.mention} say it aloud")
        await settled(gateway, 1)
    shown = "\n".join(fake.answers("general"))
    assert (
        shown.count("That was it.") == shown.count("`said.ogg` could not be sent: `Missing Permissions") == 1
    )


async def test_a_search_waits_while_discord_rejects_the_token(fake: FakeDiscord) -> None:
    delivery = Delivery(Api(fake.api_url, lambda: "wrong"), by_user=False)
    address = Address("discord", chat=str(fake.channel("general").id), reply_to="1")
    text = Message(session_id="s", role="assistant", parts=(TextPart("hello"),))
    with pytest.raises(PlacementDeferred):
        await delivery.find(OutboundMessage(address=address, message=text, nonce="n"))


@pytest.mark.slow
async def test_an_answer_is_found_again_when_discord_has_forgotten_its_nonce(tmp_path: Path) -> None:
    async with FakeDiscord(figures=replace(relaxed(), nonces=0)) as fake:
        async with gateway_at(fake, tmp_path, streaming=False) as gateway:
            for chat, text in (("general", f"{fake.mention} hello"), (fake.dm("ada"), "hello")):
                fake.then("fail_after", method=CREATE)
                fake.say(chat, text)
            await settled(gateway, 2)
        assert fake.answers("general") == ["You said: hello"]
        assert fake.answers(fake.dm("ada")) == ["You said: hello"]


@pytest.mark.slow
@pytest.mark.parametrize("placed", [False, True])
async def test_a_crash_before_the_answer_was_confirmed_does_not_double_it(
    tmp_path: Path, *, placed: bool
) -> None:
    async with FakeDiscord(figures=replace(relaxed(), nonces=0)) as fake:
        # The gateway cannot look for it until it is restarted.
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
async def test_a_room_that_refuses_the_bot_ends_as_a_dead_letter(fake: FakeDiscord, tmp_path: Path) -> None:
    async with gateway_at(fake, tmp_path) as gateway:
        fake.forbid("general", "SEND_MESSAGES")
        fake.say("general", f"{fake.mention} hello")
        async with asyncio.timeout(60):
            while await states(gateway) != ["dead"]:
                await asyncio.sleep(0.02)
        query = select(t.dead_letter.c.reason)
        (reason,) = await gateway.parts.store.read(lambda c: list(c.execute(query).scalars()))
        assert reason.endswith("(403, code 50013); give the role of the bot the permission in this channel")
        fake.permit("general", "SEND_MESSAGES")
        fake.say("general", f"{fake.mention} again")
        await fake.until(lambda: fake.answers("general") == ["You said: again"])
