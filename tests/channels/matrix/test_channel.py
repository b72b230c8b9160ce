"""The channel in a gateway, with the fake homeserver."""

from __future__ import annotations

import asyncio
import base64
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from channels.matrix.api import Api
from channels.matrix.channel import MatrixChannel
from channels.matrix.delivery import Delivery
from channels.matrix.fake import FakeMatrix, Room
from channels.matrix.options import Options
from channels.matrix.render import Text
from gateway import Message
from gateway.app import Gateway
from gateway.channel import Address, OutboundMessage
from gateway.testing.contracts.channel_platform import (
    Trial,
    freeze_after_placing,
    settled,
    trial,
    until,
)
from gateway.testing.fake_models.script import Gate, Reply, Say
from tests.channels.matrix.test_contract import BOT, MatrixPlatform

ADA, BEN, EVE = (f"@{name}:fake.example" for name in ("ada", "ben", "eve"))
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@asynccontextmanager
async def running(tmp_path: Path, **settings: Any) -> AsyncIterator[tuple[Trial, MatrixPlatform, Gateway]]:
    platform = MatrixPlatform()
    async with trial(platform, tmp_path) as made, made.gateway(**{"envelope": "off", **settings}) as gateway:
        yield made, platform, gateway


def stored_order(tmp_path: Path) -> int:
    """Return the order in the stored position."""
    with sqlite3.connect(tmp_path / "trunkline.db") as database:
        [(value,)] = database.execute("select value from cursor where channel = 'matrix'").fetchall()
    database.close()
    return int(value.partition(" ")[0])


def impatient(gateway: Gateway) -> None:
    """Let the channel give up early what it would repeat for some seconds."""
    channel = gateway.channels.get("matrix")
    assert isinstance(channel, MatrixChannel)
    channel._api.patience = 0.1  # pyright: ignore[reportPrivateUsage]


def texts(room: Room) -> list[str]:
    return [str(one.get("body")) for one in room.shown(BOT)]


def inbox(tmp_path: Path) -> list[Any]:
    with sqlite3.connect(tmp_path / "trunkline.db") as database:
        rows = database.execute("select payload from inbox order by ord, seq").fetchall()
    database.close()
    return [msgspec.json.decode(payload) for (payload,) in rows]


@pytest.mark.slow
async def test_a_gap_of_more_than_a_thousand_messages_is_complete_and_in_order(tmp_path: Path) -> None:
    """The clock of the homeserver jumps back meanwhile: order is that of the timeline."""
    platform = MatrixPlatform()
    backlog = {"session_backlog": 5000, "sender_backlog": 5000}
    said = [f"note {number}" for number in range(1_234)]
    async with trial(platform, tmp_path) as made:
        async with made.gateway(envelope="off"):
            platform.write("one")
            await made.shows("You said: one")
        for number, text in enumerate(said):
            platform.fake.skew_ms = -3_600_000 if number % 2 else 0
            platform.write(text)
        made.models.then(Reply((Say("never"), Gate(asyncio.Event()))))
        async with made.gateway(limits=backlog) as gateway:
            await until(lambda: gateway.parts.dispatcher.waiting == len(said))
        assert [one["text"] for one in inbox(tmp_path)] == ["one", *said]


async def test_a_history_that_cannot_be_read_is_skipped_and_logged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    platform = MatrixPlatform()
    async with trial(platform, tmp_path) as made:
        async with made.gateway(envelope="off"):
            platform.write("one")
            await made.shows("You said: one")
        for number in range(60):
            platform.fake.room.put("m.room.message", BEN, {"msgtype": "m.text", "body": f"note {number}"})
        platform.fake.room.readable = False
        async with made.gateway(envelope="off") as gateway:
            platform.write_in_room("hello", addressed=True)
            await until(lambda: texts(platform.fake.room) == ["You said: hello"])
            await settled(gateway)
    assert "the messages of a room cannot be read" in capsys.readouterr().out


async def test_only_people_who_may_use_the_bot_can_invite_it(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, platform, _gateway):
        fake = platform.fake
        foreign = fake.create(EVE, direct=True)
        await until(lambda: fake.left)
        assert fake.left == [(foreign.id, "the person who invites may not use this bot")]
        own = fake.create(ADA)
        await until(lambda: own.membership(BOT) == "join")
        assert foreign.membership(BOT) == "leave"


async def test_what_is_written_with_an_invitation_is_answered_and_nothing_before_it(tmp_path: Path) -> None:
    async with running(tmp_path) as (made, platform, _):
        fake = platform.fake
        room = fake.create(ADA, invite=BEN)
        fake.say("@trunkline:fake.example before", room=room)
        room.put("m.room.member", ADA, {"membership": "invite"}, state_key=BOT)
        fake.say(f"{BOT} after", room=room)
        await until(lambda: texts(room) == ["You said: after"])
        assert made.asked() == ["after"]


async def test_a_room_that_cannot_be_joined_is_tried_again_and_then_left(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, platform, _gateway):
        fake = platform.fake
        fake.refused_joins = 2
        again = fake.create(ADA)
        await until(lambda: again.membership(BOT) == "join")
        fake.refused_joins = 100
        never = fake.create(ADA)
        await until(lambda: fake.left)
        assert fake.left[0][0] == never.id
        assert fake.left[0][1].startswith("the bot cannot join: ")


async def test_a_join_waits_as_long_as_the_homeserver_asks(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, platform, _gateway):
        platform.fake.slow_joins = True
        room = platform.fake.create(ADA)
        await until(lambda: room.membership(BOT) == "join")
        assert platform.fake.left == []


async def test_files_of_many_messages_are_not_in_memory_at_once(tmp_path: Path) -> None:
    """A message with a file is committed before the next one is read."""
    platform = MatrixPlatform()
    async with trial(platform, tmp_path) as made:
        async with made.gateway():
            platform.write("one")
            await made.shows("You said: one")
        async with made.gateway() as gateway:
            batches: list[int] = []
            orders: list[int] = []
            accept = gateway.parts.intake.accept

            async def counted(channel: str, messages: Any, *given: Any, **more: Any) -> Any:
                batches.append(len(messages))
                receipts = await accept(channel, messages, *given, **more)
                orders.append(stored_order(tmp_path))
                return receipts

            gateway.parts.intake.accept = counted  # type: ignore[method-assign]
            for number in range(5):
                url = platform.fake.keep("text/plain", b"x" * 1_000)
                platform.fake.say(f"more {number}.txt", msgtype="m.file", url=url)
            platform.write("last")
            await until(lambda: texts(platform.fake.direct)[-1:] and sum(batches) == 6)
            assert max(batches[:5]) == 1
            # Each batch stores the order of its messages: what comes after a crash has to be behind them.
            assert orders == sorted(set(orders))


async def test_a_direct_chat_of_three_is_a_room(tmp_path: Path) -> None:
    async with running(tmp_path) as (made, platform, _):
        fake = platform.fake
        platform.write("one")
        await made.shows("You said: one")
        fake.join(fake.direct, EVE)
        platform.write("two")
        platform.write(f"{BOT}: three")
        await made.shows("You said: one", "You said: three")
        assert [one["address"].get("group", False) for one in inbox(tmp_path)] == [False, True]
        # A room without a name is named after its members, as in clients.
        assert [one["address"].get("title", "") for one in inbox(tmp_path)] == ["", f"{ADA}, {EVE}"]
        assert fake.account_data["", "m.direct"] == {ADA: [fake.direct.id]}


async def test_an_event_whose_lookup_always_fails_stops_no_other(tmp_path: Path) -> None:
    async with running(tmp_path) as (made, platform, gateway):
        impatient(gateway)
        platform.fake.broken.add("$broken")
        platform.fake.edit("$broken", "changed")
        for text, event in (("what?", "$broken"), ("odd", "$x\u0000" + "y" * 70_000)):
            platform.fake.say(text, **{"m.relates_to": {"m.in_reply_to": {"event_id": event}}})
        platform.write("one")
        await made.shows("You said: what?", "You said: odd", "You said: one")
        await settled(gateway)
        with sqlite3.connect(tmp_path / "trunkline.db") as database:
            rows = database.execute("select reason from quarantine").fetchall()
        database.close()
        assert len(rows) == 1
        assert "status 500" in rows[0][0]


async def test_a_room_whose_gap_cannot_be_read_stops_no_other(tmp_path: Path) -> None:
    async with running(tmp_path) as (made, platform, gateway):
        impatient(gateway)
        platform.fake.timeline = 1
        platform.fake.then(*["fail_before"] * 100, method="messages")
        for text in ("lost", "seen"):
            platform.fake.say(f"{BOT} {text}", room=platform.fake.room)
        platform.write("one")
        await made.shows("You said: one")
        await until(lambda: texts(platform.fake.room) == ["You said: seen"])


async def test_calls_that_fail_at_times_lose_no_message_and_no_file(tmp_path: Path) -> None:
    async with running(tmp_path) as (made, platform, gateway):
        fake = platform.fake
        for method in ("sync", "state_event", "event", "download", "members"):
            fake.then("fail_before", "drop_after", "slow_down", method=method)
        first = fake.say("one", room=fake.room)
        related = {"m.relates_to": {"m.in_reply_to": {"event_id": first}}}
        file = {"msgtype": "m.file", "filename": "a.txt", "url": fake.keep("text/plain", b"Hello file")}
        fake.say(f"{BOT} two", room=fake.room, **related, **file)
        await until(lambda: texts(fake.room))
        await settled(gateway)
        assert "Hello file" in str(made.models.requests[0].body)
        assert gateway.health()["matrix"][0]


async def test_an_encrypted_room_gets_one_notice(tmp_path: Path) -> None:
    platform = MatrixPlatform()
    async with trial(platform, tmp_path) as made:
        for token in ("token-1", "token-2"):
            platform.fake.token = token  # another device, for which no transaction id is known
            async with made.gateway(envelope="off"):
                for user in (EVE, ADA, ADA):
                    platform.fake.direct.put("m.room.encrypted", user, {"algorithm": "m.megolm.v1.aes-sha2"})
                platform.write(token)
                await until(lambda said=token: texts(platform.fake.direct)[-1:] == [f"You said: {said}"])
    notices = [one["body"] for one in platform.fake.direct.shown(BOT) if one["msgtype"] == "m.notice"]
    assert len(notices) == 1
    assert "encrypted" in notices[0]


async def test_own_messages_notices_and_edits_of_others_are_ignored(tmp_path: Path) -> None:
    async with running(tmp_path) as (made, platform, gateway):
        fake = platform.fake
        first = platform.write("one")
        await made.shows("You said: one")
        fake.direct.put("m.room.message", BOT, {"msgtype": "m.text", "body": "mine"})
        fake.say("a notice", msgtype="m.notice")
        fake.say("Ada wants to verify", msgtype="m.key.verification.request")
        fake.join(fake.direct, BEN)
        fake.edit(first, "forged", user="ben")
        fake.edit("$unknown", "forged")
        fake.say(f"{BOT} last")
        await until(lambda: texts(fake.direct)[-1] == "You said: last")
        await settled(gateway)
        assert made.asked() == ["one", "last"]


async def test_only_the_author_can_edit_a_message(tmp_path: Path) -> None:
    """Homeservers pass on edits by others; clients have to ignore them."""
    async with running(tmp_path, allow="*") as (made, platform, gateway):
        room = platform.fake.room
        first = platform.write_in_room("one", addressed=True)
        await until(lambda: texts(room) == ["You said: one"])
        await settled(gateway)
        platform.fake.edit(first, f"{BOT} forged", user="ben", room=room)
        platform.write_in_room("two", addressed=True)
        await until(lambda: texts(room)[-1] == "You said: two")
        await settled(gateway)
        assert made.asked() == ["one", "two"]


async def test_the_order_of_messages_continues_after_a_restart(tmp_path: Path) -> None:
    platform = MatrixPlatform()
    async with trial(platform, tmp_path) as made:
        shown: list[str] = []
        for pair in (("one", "two"), ("three", "four")):
            async with made.gateway():
                for text in pair:
                    platform.write(text)
                    shown.append(f"You said: {text}")
                    await made.shows(*shown)
    rows = inbox(tmp_path)
    orders = [one["order"] for one in rows]
    assert [one["text"] for one in rows] == ["one", "two", "three", "four"]
    assert orders == sorted(set(orders))


async def test_edits_can_be_ignored(tmp_path: Path) -> None:
    async with running(tmp_path, edits="ignore") as (made, platform, _):
        first = platform.write("one")
        await made.shows("You said: one")
        platform.edit(first, "changed")
        platform.write("two")
        await made.shows("You said: one", "You said: two")


async def test_a_thread_continues_without_a_mention_and_has_its_history(tmp_path: Path) -> None:
    async with running(tmp_path) as (made, platform, gateway):
        fake, room = platform.fake, platform.fake.room
        root = fake.say("lunch?", user="ben", room=room)
        thread = {"rel_type": "m.thread", "event_id": root, "is_falling_back": True}
        fake.say("pizza", user="ben", room=room, **{"m.relates_to": thread})
        fake.say(f"{BOT} what do you say", room=room, **{"m.relates_to": thread})
        await until(lambda: texts(room) == ["You said: what do you say"])
        answer = room.shown(BOT)[0]["m.relates_to"]
        assert (answer["rel_type"], answer["event_id"]) == ("m.thread", root)
        asked = str(made.models.requests[0].body)
        assert asked.index("lunch?") < asked.index("pizza")
        fake.say("and you?", room=room, **{"m.relates_to": thread})
        fake.say("@eve:fake.example come", room=room, **{"m.relates_to": thread})
        fake.say("not in the thread", room=room)
        await until(lambda: len(texts(room)) == 2)
        await settled(gateway)
        assert made.asked()[1] == "and you?"
        assert len(made.models.requests) == 2
        assert {one["address"].get("thread") for one in inbox(tmp_path)} >= {root}


async def test_a_thread_is_known_after_a_restart(tmp_path: Path) -> None:
    platform = MatrixPlatform()
    async with trial(platform, tmp_path) as made:
        room = platform.fake.room
        async with made.gateway(envelope="off"):
            root = platform.fake.say(f"{BOT} one", room=room)
            await until(lambda: texts(room) == ["You said: one"])
        thread = {"m.relates_to": {"rel_type": "m.thread", "event_id": root}}
        async with made.gateway(envelope="off"):
            platform.fake.say("two", room=room, **thread)
            await until(lambda: texts(room)[1:] == ["You said: two"])


async def test_a_reply_brings_what_it_replies_to_with_its_file(tmp_path: Path) -> None:
    async with running(tmp_path) as (made, platform, gateway):
        fake, room = platform.fake, platform.fake.room
        file = {
            "msgtype": "m.file",
            "filename": "plan.txt",
            "url": fake.keep("text/plain", b"the secret plan"),
        }
        original = fake.say("our plan", user="ben", room=room, **file)
        related = {"m.relates_to": {"m.in_reply_to": {"event_id": original}}}
        fake.say(f"> <@ben:fake.example> our plan\n\n{BOT}: explain", room=room, **related)
        await until(lambda: texts(room))
        await settled(gateway)
        asked = str(made.models.requests[0].body)
        assert made.asked()[0].endswith("explain")
        assert "the secret plan" in asked
        assert "Ben" in asked
        assert "> <@ben" not in asked
        assert room.shown(BOT)[0]["m.relates_to"]["m.in_reply_to"]["event_id"] != original
        mine = next(
            e["event_id"] for _, e in room.stream if e["sender"] == BOT and e["type"] == "m.room.message"
        )
        fake.say("why?", room=room, **{"m.relates_to": {"m.in_reply_to": {"event_id": mine}}})
        await until(lambda: len(texts(room)) == 2)


async def test_stickers_and_polls_are_described(tmp_path: Path) -> None:
    async with running(tmp_path) as (made, platform, gateway):
        direct, content = platform.fake.direct, {"body": "a cat\nwaves", "url": "mxc://fake.example/cat"}
        sticker = direct.put("m.sticker", ADA, {**content, "info": {}})
        await made.shows("You said: [sticker: a cat waves]")
        poll = {"org.matrix.msc1767.text": "Tea?\n1. Yes\n2. No", "org.matrix.msc3381.poll.start": {}}
        direct.put("org.matrix.msc3381.poll.start", ADA, poll)
        await made.shows("You said: [sticker: a cat waves]", "You said: [poll: Tea? 1. Yes 2. No]")
        related = {"m.relates_to": {"m.in_reply_to": {"event_id": sticker["event_id"]}}}
        platform.fake.say("what is that?", **related)
        await until(lambda: len(texts(direct)) == 3)
        await settled(gateway)
        assert "> \\\\[sticker: a cat waves]" in str(made.models.requests[-1].body)


async def test_a_new_name_of_the_bot_is_a_mention(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, platform, _):
        fake = platform.fake
        fake.names[BOT] = "Robin"
        fake.join(fake.room, BOT)
        fake.say("Robin: hello", room=fake.room)
        await until(lambda: texts(fake.room) == ["You said: hello"])


@pytest.mark.parametrize("user", [ADA, BEN])
async def test_the_bot_follows_an_upgrade_by_a_user_who_may_use_it(tmp_path: Path, user: str) -> None:
    async with running(tmp_path, allow=[ADA]) as (made, platform, gateway):
        fake = platform.fake
        hidden, new = (fake.upgrade(fake.room, user, public=public) for public in (False, True))
        fake.say(f"{BOT} before it was there", room=new)
        fake.say("last")
        await made.shows("You said: last")
        assert hidden.membership(BOT) == "leave"
        assert new.membership(BOT) == ("join" if user == ADA else "leave")
        if user == ADA:
            fake.say(f"{BOT} after that", room=new)
            await until(lambda: texts(new))
            await settled(gateway)
            assert texts(new) == ["You said: after that"]


async def test_a_reply_that_also_mentions_the_bot_is_a_reply(tmp_path: Path) -> None:
    async with running(tmp_path, groups="reply") as (_, platform, _):
        fake, room = platform.fake, platform.fake.room
        fake.say("!help", room=room)
        await until(lambda: texts(room))
        mine = next(
            e["event_id"] for _, e in room.stream if e["sender"] == BOT and e["type"] == "m.room.message"
        )
        # As Element writes it: a reply mentions the user whose message it answers.
        related = {"m.relates_to": {"m.in_reply_to": {"event_id": mine}}}
        fake.say("why?", room=room, **related, **{"m.mentions": {"user_ids": [BOT]}})
        await until(lambda: len(texts(room)) == 2)


async def test_files_come_in_and_go_out(tmp_path: Path) -> None:
    async with running(tmp_path) as (made, platform, _):
        fake = platform.fake
        info = {"msgtype": "m.image", "url": fake.keep("image/png", PIXEL), "info": {"mimetype": "image/png"}}
        fake.say("pixel.png", **info)
        await until(lambda: len(made.models.requests) == 1)
        assert base64.b64encode(PIXEL).decode() in str(made.models.requests[0].body)
        fake.say("lost.txt", msgtype="m.file", url="mxc://fake.example/none")
        fake.say("secret.txt", msgtype="m.file", file={"url": "mxc://fake.example/none"})
        fake.say("large.txt", msgtype="m.file", url=fake.keep("text/plain", b"x" * 2_000_000))
        await until(lambda: len(made.models.requests) == 4)
        asked = str(made.models.requests[-1].body)
        assert "could not be downloaded: 404" in asked
        assert "it is encrypted" in asked


async def test_a_file_over_the_limit_is_named(tmp_path: Path) -> None:
    async with running(tmp_path, file_bytes=10) as (made, platform, _):
        platform.fake.say("a.txt", msgtype="m.file", url=platform.fake.keep("text/plain", b"x" * 11))
        await until(lambda: len(made.models.requests) == 1)
        assert "it has more than 10 bytes" in str(made.models.requests[0].body)


async def test_a_very_long_answer_is_also_a_file(tmp_path: Path) -> None:
    async with running(tmp_path, pages=1) as (made, platform, _):
        words = " ".join(f"word{number}" for number in range(8_000))
        made.models.then(Reply((Say(words),)))
        platform.write("recite")
        await until(lambda: len(platform.fake.direct.shown(BOT)) == 2)
        text, file = platform.fake.direct.shown(BOT)
        assert (text["msgtype"], file["msgtype"], file["filename"]) == ("m.text", "m.file", "answer.md")
        assert platform.shown()[1] == words
        made.models.then(Reply((Say(words * 20),)))
        platform.write("recite more")
        await until(lambda: len(platform.fake.direct.shown(BOT)) == 4)
        assert "too large for the homeserver" in platform.fake.direct.shown(BOT)[3]["body"]


async def test_a_file_that_a_proxy_refuses_is_named(tmp_path: Path) -> None:
    """nginx accepts 1 MB, whatever the homeserver allows."""
    async with running(tmp_path, pages=1) as (made, platform, gateway):
        platform.fake.proxy_bytes = 1_000
        made.models.then(Reply((Say(" ".join(f"word{number}" for number in range(8_000))),)))
        platform.write("recite")
        await until(lambda: len(platform.fake.direct.shown(BOT)) == 2)
        await settled(gateway)
        assert platform.fake.direct.shown(BOT)[1]["body"].startswith("📎 answer.md could not be sent: 413")


async def test_an_answer_grows_by_edits_while_typing_is_shown(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with running(tmp_path) as (made, platform, gateway):
        made.models.then(Reply((Say("The beginning "), Gate(gate), Say("and the **end**"))))
        platform.write("tell me")
        await until(lambda: texts(platform.fake.direct) == ["The beginning"])
        await until(lambda: platform.fake.typing)
        gate.set()
        await made.shows("The beginning and the end")
        await settled(gateway)
        answer = platform.fake.direct.shown(BOT)[0]
        assert answer["formatted_body"] == "<p>The beginning and the <strong>end</strong></p>"
        assert len(platform.fake.transcript.of("edit")) >= 1
        await until(lambda: platform.fake.receipts)


async def test_an_answer_whose_message_was_deleted_is_sent_again_and_once(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with running(tmp_path) as (made, platform, gateway):
        made.models.then(Reply((Say("One "), Gate(gate), Say("two."))))
        platform.write("count")
        room = platform.fake.direct
        await until(lambda: texts(room) == ["One"])
        shown = next(one for one in room.events if one["type"] == "m.room.message" and one["sender"] == BOT)
        room.redact(shown["event_id"], ADA)
        platform.fake.changed()
        # Once the bot has a later message, it has seen the deletion.
        platform.write("more")
        await until(lambda: gateway.parts.dispatcher.waiting == 2)
        gate.set()
        await settled(gateway)
        assert texts(room) == ["One two.", "You said: more"]


async def test_a_page_that_was_deleted_can_be_sent_again() -> None:
    """The homeserver would answer the same transaction with the deleted message."""
    async with FakeMatrix() as fake:
        options = Options.model_validate({"homeserver": fake.url, "access_token": fake.token, "pace": 1000})
        api = Api(options)
        async with api.connected():
            delivery = Delivery(api, options)
            fake.join(fake.direct, BOT)
            answer = Message(id="m", session_id="s", role="assistant")
            address = Address("matrix", BOT, fake.direct.id)
            page = OutboundMessage(address=address, message=answer, page=Text("hello"), nonce="n")
            first = await delivery.send(page)
            assert await delivery.send(page) == first
            await delivery.delete(first, address)
            assert await delivery.send(page) != first
            assert texts(fake.direct) == ["hello"]


async def test_without_streaming_nothing_is_edited(tmp_path: Path) -> None:
    async with running(tmp_path, streaming=False) as (made, platform, gateway):
        platform.write("one")
        await made.shows("You said: one")
        await settled(gateway)
        assert platform.fake.transcript.of("edit") == []


async def test_a_reaction_is_feedback(tmp_path: Path) -> None:
    async with running(tmp_path) as (made, platform, gateway):
        fake = platform.fake
        platform.write("one")
        await made.shows("You said: one")
        await settled(gateway)
        answer = next(
            e for _, e in fake.direct.stream if e["sender"] == BOT and e["type"] == "m.room.message"
        )

        def stored() -> list[str]:
            with sqlite3.connect(tmp_path / "trunkline.db") as database:
                rows = database.execute("select value from feedback").fetchall()
            database.close()
            return [value for (value,) in rows]

        reaction = fake.react(answer["event_id"], "👍🏽")
        await until(lambda: stored() == ["up"])
        fake.react(answer["event_id"], "👀")
        fake.direct.redact(reaction, ADA)
        await until(lambda: stored() == ["none"])
        fake.react(answer["event_id"], "👎")
        await until(lambda: sorted(stored()) == ["down", "none"])


async def test_a_stop_reaction_ends_the_answer_and_its_removal_nothing(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with running(tmp_path) as (made, platform, gateway):
        fake = platform.fake
        made.models.then(Reply((Say("Once upon"), Gate(asyncio.Event()))), Reply((Say("Twice"), Gate(gate))))
        platform.write("a story")
        await until(lambda: texts(fake.direct) == ["Once upon"])
        [answer] = fake.direct.messages()[1:]
        reaction = fake.react(answer["id"], "\N{OCTAGONAL SIGN}")
        await settled(gateway)
        platform.write("another")
        await until(lambda: texts(fake.direct) == ["Once upon", "Twice"])
        fake.direct.redact(reaction, ADA)
        fake.react(answer["id"], "\N{EYES}")
        platform.write("the end")
        await until(lambda: gateway.parts.dispatcher.waiting == 2)
        gate.set()
        await settled(gateway)
        assert texts(fake.direct) == ["Once upon", "Twice", "You said: the end"]


async def test_commands_have_the_prefix_of_matrix(tmp_path: Path) -> None:
    async with running(tmp_path) as (made, platform, _):
        platform.fake.say("!help", room=platform.fake.room)
        await until(lambda: len(texts(platform.fake.room)) == 1)
        assert "/new" in texts(platform.fake.room)[0]
        platform.write("!unknown")
        await made.shows("You said: !unknown")


async def test_an_answer_is_found_with_another_access_token(tmp_path: Path) -> None:
    """Another token is another device, which knows no transaction ids of the first."""
    platform = MatrixPlatform()
    async with trial(platform, tmp_path) as made:
        async with made.gateway(envelope="off") as gateway:
            placed = freeze_after_placing(gateway, "matrix")
            platform.write("one")
            async with asyncio.timeout(60):
                await placed.wait()
            gateway.parts.dispatcher.cancel()
        platform.fake.token = "token-2"
        for number in range(250):
            platform.fake.direct.put("m.room.message", BOT, {"msgtype": "m.text", "body": f"other {number}"})
        async with made.gateway(envelope="off") as gateway:
            await settled(gateway)
            platform.write("two")
            await until(lambda: texts(platform.fake.direct)[-1] == "You said: two")
        assert texts(platform.fake.direct).count("You said: one") == 1


async def test_the_fake_takes_messages_over_http() -> None:
    async with FakeMatrix() as fake, aiohttp.ClientSession() as http:
        given = {"text": "hi", "user": "ben", "room": fake.room.id}
        async with http.post(f"{fake.url}/_fake/say", json=given) as answer:
            said = fake.room.find((await answer.json())["result"])
        async with http.get(f"{fake.url}/_fake/state") as answer:
            shown = (await answer.json())["rooms"][1]["messages"]
        assert said is not None
        assert (said["sender"], said["content"]["body"]) == (BEN, "hi")
        assert shown[0]["content"] == said["content"]


async def test_a_wrong_token_is_reported(tmp_path: Path) -> None:
    platform = MatrixPlatform()
    async with trial(platform, tmp_path) as made, made.gateway(envelope="off") as gateway:
        platform.fake.token = "token-2"
        platform.write("one")
        await until(lambda: not gateway.health()["matrix"][0])
        assert "rejects access_token (M_UNKNOWN_TOKEN)" in gateway.health()["matrix"][1]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"homeserver": "matrix.org"}, "must be a URL"),
        ({"access_token": " "}, "must not be blank"),
        ({"access_token": "ü"}, "must be printable ASCII"),
        ({"password": "x"}, "Extra inputs"),
    ],
)
def test_wrong_settings_are_refused(given: dict[str, str], complaint: str) -> None:
    from channels.matrix import Options

    with pytest.raises(ValueError, match=complaint):
        Options.model_validate({"homeserver": "https://matrix.org", "access_token": "x", **given})
