"""A conversation goes on in another chat, for whom it belongs to."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.access import THE_OWNER, UserRef
from gateway.testing.chat import Chat
from gateway.testing.fake_models.script import Gate, Reply, Say
from tests.gateway.access.rooms import Platforms, Room, audited, code_in, guarded, texts

pytestmark = pytest.mark.slow

ADA, LOVELACE = UserRef("home", "ada"), UserRef("away", "lovelace")


async def linked(chat: Chat) -> None:
    """ada of ``home`` and lovelace of ``away`` are one person."""
    code = await chat.gateway.parts.access.links.begin(ADA)
    assert code is not None
    await chat.gateway.parts.access.links.finish(code.code, LOVELACE)


async def move(platforms: Platforms, old: Room, new: Room, by: str = "lovelace") -> str:
    """ada carries on elsewhere. Returns what is said there."""
    return await new.ask(by, f"/move {code_in(await old.ask('ada', '/move'))}")


async def test_the_new_chat_continues_with_the_old_one_s_history(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (chat, platforms):
        old, new = platforms.room("1"), platforms.room("2", "away")
        await linked(chat)
        await old.ask("ada", "my number is 7")
        assert await move(platforms, old, new) == "The conversation continues here."
        assert await new.ask("lovelace", "and now?") == "You said: and now?"
        assert texts(chat.model.calls[-1].messages) == [
            "my number is 7",
            "You said: my number is 7",
            "and now?",
        ]
        assert await audited(chat) == [
            ("away:lovelace", "link", "home:ada"),
            ("away:lovelace", "move", new.session),
        ]


async def test_both_chats_are_one_conversation_and_each_gets_its_own_answers(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with guarded(tmp_path) as (chat, platforms):
        old, new = platforms.room("1"), platforms.room("2", "away")
        await linked(chat)
        await move(platforms, old, new)
        chat.model.then(Reply((Gate(gate), Say("first"))), Reply((Say("second"),)))
        before = len(platforms.home.sent), len(platforms.away.sent)
        first = await new.write("lovelace", "from away")
        second = await old.write("ada", "from home")
        assert first.session == second.session == old.session
        gate.set()
        home = (await platforms.home.until(before[0] + 1))[before[0] :]
        away = (await platforms.away.until(before[1] + 1))[before[1] :]
        assert [s.message.text for s in away] == ["first"]
        assert [s.message.text for s in home] == ["second"], "one at a time, in order"
        assert (away[0].address, home[0].address) == (new.address, old.address)


async def test_a_moved_chat_is_still_moved_after_a_restart_and_what_waited_with_it(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (chat, platforms):
        old, new = platforms.room("1"), platforms.room("2", "away")
        await linked(chat)
        await old.ask("ada", "my number is 7")
        await move(platforms, old, new)
        chat.model.then(Reply((Gate(asyncio.Event()), Say("never"))))
        await new.write("lovelace", "and now?")
        chat.gateway.parts.dispatcher.cancel()
    async with guarded(tmp_path) as (chat, platforms):
        [answer] = await platforms.away.until(1)
        assert answer.message.text == "You said: and now?"
        assert texts(chat.model.calls[-1].messages)[0] == "my number is 7"
        assert (await platforms.room("2", "away").write("lovelace", "hi")).session == "home:bot:1"
        await platforms.away.until(2)


async def test_messages_of_a_moved_conversation_are_answered_in_the_order_they_came(tmp_path: Path) -> None:
    """The orders of two platforms cannot be compared."""
    async with guarded(tmp_path) as (chat, platforms):
        old, new = platforms.room("1"), platforms.room("2", "away")
        await linked(chat)
        gate = asyncio.Event()
        chat.model.then(Reply((Gate(gate), Say("ok"))))
        await old.write("ada", "running", order=10)
        await old.write("ada", "before the move", order=10**15)
        code = await chat.gateway.parts.access.moved_chats.begin(ADA, old.session)
        assert code is not None
        await chat.gateway.parts.access.moved_chats.finish(code.code, LOVELACE, new.session)
        await new.write("lovelace", "from away", order=3)
        await old.write("ada", "from home", order=10**15 + 1)
        await new.write("lovelace", "away again", order=4)
        chat.gateway.parts.dispatcher.cancel()
    order = ["running", "before the move", "from away", "from home", "away again"]
    async with guarded(tmp_path) as (chat, platforms):
        await platforms.home.until(3)
        await platforms.away.until(2)
        assert [call.messages[-1].text for call in chat.model.calls] == order


async def test_what_was_deleted_in_a_moved_chat_needs_no_answer(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with guarded(tmp_path) as (chat, platforms):
        old, new = platforms.room("1"), platforms.room("2")
        await move(platforms, old, new, "ada")
        before = len(platforms.home.sent)
        chat.model.then(Reply((Gate(gate), Say("Done."))))
        await old.write("ada", "go")
        await new.write("ada", "oh, nothing", dedup_key="7")
        assert await chat.host.withdraw(new.address.channel, "bot", "7")
        assert not await chat.host.withdraw(new.address.channel, "bot", "8")
        gate.set()
        assert await old.ask("ada", "next") in ("Done.", "You said: next")
        placed = (await platforms.home.until(before + 2))[before:]
        assert texts([sent.message for sent in placed]) == ["Done.", "You said: next"]


async def test_what_is_stopped_in_a_moved_chat_is_the_conversation_that_it_continues(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (chat, platforms):
        old, new = platforms.room("1"), platforms.room("2")
        await old.ask("ada", "hi")
        await move(platforms, old, new, "ada")
        assert not await chat.host.abort(new.session)
        before = len(platforms.home.sent)
        chat.model.then(Reply((Say("I think"), Gate(asyncio.Event()))))
        await new.write("ada", "go")
        while (session := chat.host.live(old.session)) is None or session.turn is None:
            await asyncio.sleep(0.01)
        assert await chat.host.abort(new.session)
        await platforms.home.until(before + 1)
        assert session.turn is None


async def test_a_repeat_after_the_move_is_still_the_same_message(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (chat, platforms):
        old, new = platforms.room("1"), platforms.room("2", "away")
        await linked(chat)
        await new.ask("lovelace", "hi", dedup_key="7")
        await move(platforms, old, new)
        again = await new.write("lovelace", "hi", dedup_key="7")
        assert (again.duplicate, again.session) == (True, new.session)


async def test_another_user_cannot_take_over_a_conversation(tmp_path: Path) -> None:
    async with guarded(tmp_path, channels={"home": {"allow": ["ada", "bob"]}}) as (chat, platforms):
        code = code_in(await platforms.room("1").ask("ada", "/move"))
        refused = await platforms.room("2").ask("bob", f"/move {code}")
        assert refused.startswith("This code is not valid")
        assert "/link" in refused
        assert (await platforms.room("2").write("bob", "hi")).session == platforms.room("2").session
        await platforms.home.until(3)
        assert await audited(chat) == []
        assert "The conversation continues here" in await platforms.room("3").ask("ada", f"/move {code}"), (
            "it was not used up"
        )


async def test_each_conversation_has_its_own_code(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (chat, platforms):
        one, two = [code_in(await platforms.room(name).ask("ada", "/move")) for name in ("1", "2")]
        assert one != two
        assert code_in(await platforms.room("1").ask("ada", "/move")) == one
        await platforms.room("3").ask("ada", f"/move {two}")
        assert chat.gateway.parts.access.moved_chats.session_of("home:bot:3") == "home:bot:2"


async def test_codes_of_who_was_let_out_are_worth_nothing(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (chat, platforms):
        room = platforms.room("2")
        await platforms.room("9").ask("root", f"/pair {code_in(await room.ask('eve', 'hi'))}")
        code = code_in(await room.ask("eve", "/move"))
        await chat.gateway.parts.access.revoke(UserRef("home", "eve"), THE_OWNER)
        assert (await platforms.room("9").ask("root", f"/move {code}")).startswith("This code is not valid")


async def test_guessing_codes_ends(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (_, platforms):
        room = platforms.room("2", "away")
        for n in range(5):
            assert (await room.ask("lovelace", f"/move 34679CD{n}")).startswith("This code is not valid")
        assert (await room.ask("lovelace", "/move 34679CDF")).startswith("Too many wrong codes")


async def test_a_code_moves_one_chat_and_no_second(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (_, platforms):
        code = code_in(await platforms.room("1").ask("ada", "/move"))
        assert "The conversation continues here" in await platforms.room("2").ask("ada", f"/move {code}")
        assert "This code is not valid" in await platforms.room("3").ask("ada", f"/move {code}")


async def test_an_admin_may_carry_on_what_a_user_hands_over(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (_, platforms):
        assert "The conversation continues here" in await move(
            platforms, platforms.room("1"), platforms.room("2", "away"), "chief"
        )


@pytest.mark.parametrize(("user", "allowed"), [("ada", False), ("root", True)])
async def test_only_admins_move_a_group_s_conversation(tmp_path: Path, user: str, allowed: bool) -> None:
    async with guarded(tmp_path) as (_, platforms):
        group, alone = platforms.room("g", group=True), platforms.room("1")
        for text in ("/move", "/move 34679CDF", "/move off"):
            assert ("Only admins" in await group.ask(user, text)) is not allowed
        if allowed:
            code = code_in(await alone.ask(user, "/move"))
            assert "The conversation continues here" in await group.ask(user, f"/move {code}")


async def test_the_web_s_conversation_continues_in_a_chat(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (chat, platforms):
        await chat.say("my number is 7", "s", user="owner", role="admin")
        code = code_in((await chat.say("/move", "s", user="owner", role="admin")).text)
        room = platforms.room("1")
        assert "This code is not valid" in await room.ask("ada", f"/move {code}")
        link = code_in((await chat.say("/link", "s", user="owner", role="admin")).text)
        await room.ask("ada", f"/link {link}")
        assert "The conversation continues here" in await room.ask("ada", f"/move {code}")
        await room.ask("ada", "and now?")
        assert texts(chat.model.calls[-1].messages)[0] == "my number is 7"
        assert (await chat.say(f"/move {code}", "t", user="owner", role="admin")).text.startswith(
            "Not needed here"
        )


async def test_a_chat_gets_its_own_conversation_back(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (chat, platforms):
        old, new = platforms.room("1"), platforms.room("2")
        await new.ask("ada", "what was here")
        await move(platforms, old, new, "ada")
        assert await new.ask("ada", "/move off") == "This chat has its own conversation again."
        assert await new.ask("ada", "/move off") == "This chat was not moved."
        await new.ask("ada", "hi")
        assert texts(chat.model.calls[-1].messages)[0] == "what was here"


async def test_a_conversation_that_comes_home_is_the_chat_s_own(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (chat, platforms):
        old, new = platforms.room("1"), platforms.room("2")
        await move(platforms, old, new, "ada")
        back = code_in(await new.ask("ada", "/move"))
        await old.ask("ada", f"/move {back}")
        assert chat.gateway.parts.access.moved_chats.session_of(old.session) == old.session
        assert chat.gateway.parts.access.moved_chats.session_of(new.session) == old.session


async def test_who_is_let_out_loses_link_and_moved_chats(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (chat, platforms):
        room, gateway = platforms.room("2"), chat.gateway
        code = code_in(await room.ask("eve", "hi"))
        await platforms.room("9").ask("root", f"/pair {code}")
        owners = code_in((await chat.say("/link", user="owner", role="admin")).text)
        await room.ask("eve", f"/link {owners}")
        await room.ask(
            "eve", f"/move {code_in((await chat.say('/move', 's', user='owner', role='admin')).text)}"
        )
        assert (await room.write("eve", "hi")).session == "s"
        assert await gateway.parts.access.links.same(THE_OWNER) == {UserRef("home", "eve")}
        await gateway.parts.access.revoke(UserRef("home", "eve"), THE_OWNER)
        assert await gateway.parts.access.links.same(THE_OWNER) == set()
        assert (await room.write("eve", "hi")).session == room.session
    async with guarded(tmp_path) as (chat, platforms):
        assert chat.gateway.parts.access.moved_chats.session_of(platforms.room("2").session) == "home:bot:2"


async def test_a_stranger_in_a_moved_chat_is_outside_of_the_conversation(tmp_path: Path) -> None:
    """A user whom the settings no longer allow writes to a chat that continues another's session."""
    async with guarded(tmp_path) as (chat, platforms):
        await linked(chat)
        await move(platforms, platforms.room("1"), platforms.room("2", "away"))
    async with guarded(tmp_path, channels={"home": {"allow": ["ada"]}, "away": {}}) as (chat, platforms):
        gate = asyncio.Event()
        chat.model.then(Reply((Gate(gate), Say("Done."))))
        await platforms.room("1").write("ada", "go")
        outside = await platforms.room("2", "away").write("lovelace", "/stop")
        assert outside.session == platforms.room("2", "away").session
        gate.set()
        assert (await platforms.home.until(1))[0].message.text == "Done."
