"""Forks: copies of conversations that leave the original as it is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs
from playwright.async_api import Browser, expect

from gateway import Message
from gateway.access import UserRef
from gateway.access.grants import grant
from gateway.contract.errors import InvalidStateError, NotFoundError
from gateway.contract.messages import Metadata, TextPart, new_id
from gateway.session.log import SessionRow, put_message
from gateway.testing.chat import Chat, chatting, written
from gateway.testing.fake_models.script import Gate, Reply, Say, Use
from gateway.testing.served import serving
from tests.e2e.page_browser import answers, say, session_of, words
from tests.e2e.page_browser import chat as chat_page

ADA = UserRef("test", "ada")


async def log_of(chat: Chat, session: str) -> list[tuple[int, Message]]:
    """The stored log."""
    return await chat.gateway.parts.sessions.read(session)


def same(messages: Sequence[tuple[int, Message]]) -> list[Message]:
    """Messages without what a copy changes: their ids and their session."""
    return [structs.replace(message, id="", session_id="") for _, message in messages]


async def rest_of(
    chat: Chat, session: str
) -> tuple[SessionRow, list[tuple[int, Message]], tuple[Message, ...]]:
    """A session as it is stored, as people see it, and as the model sees it."""
    found = await chat.gateway.parts.sessions.find(session)
    return structs.replace(found.row), await log_of(chat, session), found.model_view()


async def test_004_t08_a_fork_has_copies_of_the_messages_and_the_parent_is_unchanged(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        chat.model.then(Reply((Use("calculator", '{"expression": "6*7"}'),), "tools"), Reply((Say("42"),)))
        await chat.say("What is 6*7?")
        answer = await chat.say("And now?")
        await chat.say("Later")
        before = await rest_of(chat, "s")
        fork = await chat.host.fork("s", "ada", answer.id)
        assert await rest_of(chat, "s") == before
        parent, copied = before[1][:4], await log_of(chat, fork.id)
        assert same(copied) == same(parent)
        assert [seq for seq, _ in copied] == [seq for seq, _ in parent]
        ids = [message.id for _, message in copied]
        assert ids == sorted(ids)
        assert not {*ids} & {message.id for _, message in before[1]}
        assert {message.session_id for _, message in copied} == {fork.id}
        row = fork.row
        assert (row.messages, row.cost, row.input_tokens) == (4, 0.0, 0)
        assert (row.parent, row.parent_message) == ("s", answer.id)
        assert row.title == "What is 6*7? (fork)"
        # The fork goes on with what it copied, and the parent does not notice.
        await chat.say("What did I ask?", fork.id)
        texts = [message.text for message in chat.model.calls[-1].messages if message.role == "user"]
        assert texts == ["What is 6*7?", "And now?", "What did I ask?"]
        assert await rest_of(chat, "s") == before
        # The parent's end is not the fork's.
        await chat.gateway.parts.sessions.delete("s")
        assert len(await log_of(chat, fork.id)) == 6
        assert (await chat.gateway.parts.sessions.list())[0].parent == "s"


async def test_a_fork_at_a_message_of_a_user_ends_before_it(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("one")
        await chat.say("two")
        log = [message for _, message in await log_of(chat, "s")]
        fork = await chat.host.fork("s", "ada", log[2].id)
        assert [message.text for _, message in await log_of(chat, fork.id)] == ["one", "You said: one"]
        assert fork.row.parent_message == log[1].id
        with pytest.raises(InvalidStateError, match="no earlier message"):
            await chat.host.fork("s", "ada", log[0].id)
        with pytest.raises(NotFoundError, match="no message"):
            await chat.host.fork("s", "ada", new_id())
        with pytest.raises(NotFoundError, match="no message"):
            await chat.host.fork(fork.id, "ada", log[0].id)
        with pytest.raises(NotFoundError, match="no session"):
            await chat.host.fork("none", "ada")


async def test_a_running_answer_is_not_part_of_a_fork(tmp_path: Path) -> None:
    gate = Gate(asyncio.Event())
    async with chatting(tmp_path) as chat:
        await chat.say("one")
        chat.model.then(Reply((Say("half"), gate, Say(" whole"))))
        running = await chat.accept("two")
        fork = await chat.host.fork("s", "ada")
        assert [message.text for _, message in await log_of(chat, fork.id)] == ["one", "You said: one"]
        with pytest.raises(NotFoundError):
            await chat.host.fork("s", "ada", running)
        gate.opened.set()
        assert (await chat.answer(running)).text == "half whole"


async def test_what_new_hid_stays_hidden_unless_the_fork_ends_there(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("one")
        await chat.say("/new")
        answer = await chat.say("two")
        for message, seen in ((answer.id, ["two"]), ((await log_of(chat, "s"))[1][1].id, ["one"])):
            fork = await chat.host.fork("s", "ada", message)
            await chat.say("three", fork.id)
            asked = [one.text for one in chat.model.calls[-1].messages if one.role == "user"]
            assert asked == [*seen, "three"]


async def test_grants_and_waiting_messages_are_not_copied(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("one")
        parts = chat.gateway.parts
        await parts.store.write(grant("s", ADA, "shell", "ls", ADA).put())
        session = await parts.sessions.find("s")
        session.bus.inject_next(Message(session_id="s", role="user", parts=(TextPart("for the next turn"),)))
        fork = await chat.host.fork("s", "ada")
        assert [one.session for one in await parts.access.grants.all()] == ["s"]
        await chat.say("two", fork.id)
        asked = [message.text for message in chat.model.calls[-1].messages if message.role == "user"]
        assert asked == ["one", "two"]


async def test_a_fork_on_postgresql_is_the_same_copy(tmp_path: Path, migrated_postgres_url: str) -> None:
    async with chatting(tmp_path, store={"url": migrated_postgres_url}) as chat:
        chat.model.then(Reply((Use("calculator", '{"expression": "6*7"}'),), "tools"), Reply((Say("42"),)))
        await chat.say("What is 6*7?")
        answer = await chat.say("And now?")
        await chat.say("Later")
        before = await rest_of(chat, "s")
        fork = await chat.host.fork("s", "ada", answer.id)
        assert same(await log_of(chat, fork.id)) == same(before[1][:4])
        assert (fork.row.messages, fork.row.cost, fork.row.parent) == (4, 0.0, "s")
        assert await rest_of(chat, "s") == before
        assert (await chat.say("/fork")).text.startswith("This chat continues in a copy")


async def test_a_chat_continues_in_the_fork_and_returns(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        assert (await chat.say("/fork")).text == "There is nothing to fork yet."
        await chat.say("one")
        reply = (await chat.say("/fork")).text
        assert (
            reply
            == "This chat continues in a copy of the conversation. `/fork back` returns to the original."
        )
        await chat.say("two")
        moved = chat.gateway.parts.access.moved_chats
        fork = moved.session_of("s")
        assert [message.text for _, message in await log_of(chat, fork)][-2:] == ["two", "You said: two"]
        assert (await log_of(chat, "s"))[-1][1].text == reply
        assert (await chat.say("/fork now")).text.startswith("Type `/fork`")
        assert (await chat.say("/fork back")).text == "This chat continues in the original conversation."
        assert moved.session_of("s") == "s"
        assert (await chat.say("/fork back")).text == "This conversation is not a fork."
    async with chatting(tmp_path) as chat:
        await chat.say("/fork")
        await chat.say("three")
        await chat.gateway.parts.sessions.delete("s")
        assert (await chat.say("/fork back")).text == "The original conversation was deleted."


async def test_only_admins_fork_the_conversation_of_a_group(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("one")
        message = written("/fork")
        grouped = structs.replace(message, address=structs.replace(message.address, group=True))
        answer = await chat.host.submit(grouped)
        assert answer is not None
        assert answer.text == "Only admins can fork the conversation of a group."


async def test_a_fork_of_ten_thousand_messages_is_a_few_statements(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("one")
        store = chat.gateway.parts.store
        session = await chat.gateway.parts.sessions.find("s")
        ops: list[Any] = []
        for number in range(10_000):
            message = Message(id=new_id(), session_id="s", role="assistant", parts=(TextPart(f"m{number}"),))
            ops += put_message(structs.replace(message, metadata=Metadata()), session.row.seq + 1 + number)
        await store.write(*ops)
        row, writes = await chat.gateway.parts.conversations.forks.prepare(session, "ada")
        assert len(writes) == 5
        await store.write(*writes)
        copied = await log_of(chat, row.id)
        assert same(copied) == same(await log_of(chat, "s"))
        assert (await chat.gateway.parts.sessions.find(row.id)).row.messages == 10_002


STEPS = st.lists(
    st.tuples(st.sampled_from(["say", "say", "new", "fork", "fork at"]), st.integers(0, 30)), max_size=8
)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
async def test_forks_in_any_order_keep_every_log_and_view(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    async with chatting(tmp_path_factory.mktemp("forks")) as chat:
        await chat.say("first", "s0")
        known = ["s0"]
        for number, (step, pick) in enumerate(steps):
            session = known[pick % len(known)]
            others = {one: await rest_of(chat, one) for one in known if one != session}
            if step == "say":
                await chat.say(f"message {number}", session)
            elif step == "new":
                await chat.say("/new", session)
            else:
                before = await rest_of(chat, session)
                log = before[1]
                answers = [(seq, one) for seq, one in log if one.role == "assistant"]
                at = answers[pick % len(answers)] if step == "fork at" else log[-1]
                fork = await chat.host.fork(session, "ada", at[1].id if step == "fork at" else None)
                assert same(await log_of(chat, fork.id)) == same([one for one in log if one[0] <= at[0]])
                assert fork.row.parent == session
                if step == "fork" and before[0].context_from < at[0]:
                    assert [m.parts for m in fork.model_view()] == [m.parts for m in before[2]]
                others[session] = before
                known.append(fork.id)
            assert {one: await rest_of(chat, one) for one in others} == others
        ids = [message.id for one in known for _, message in await log_of(chat, one)]
        assert len(ids) == len(set(ids))


@pytest.mark.slow
async def test_004_t08_a_session_is_forked_over_rest(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        for text in ("one", "two"):
            await served.ask("POST", "/api/sessions/s/messages", json={"text": text})
            await served.idle("s")
        _, said = await served.ask("GET", "/api/sessions/s/messages")
        _, before = await served.ask("GET", "/api/sessions/s")
        ids = [one["message"]["id"] for one in said["messages"]]
        status, fork = await served.ask("POST", "/api/sessions/s/fork", json={"message_id": ids[1]})
        assert status == 201
        assert fork["parent"] == {"session": "s", "message_id": ids[1]}
        assert (fork["title"], fork["messages"], fork["channel"]) == ("one (fork)", 2, "api")
        _, whole = await served.ask("POST", "/api/sessions/s/fork", json={})
        assert (whole["messages"], whole["parent"]["message_id"]) == (4, ids[3])
        _, again = await served.ask("POST", f"/api/sessions/{whole['id']}/fork", json={})
        assert (again["title"], again["parent"]["session"]) == ("one (fork)", whole["id"])
        assert (await served.ask("GET", "/api/sessions/s"))[1] == before
        _, listed = await served.ask("GET", "/api/sessions")
        assert fork in listed["sessions"]
        assert before["parent"] is None
        for path, body, expected in (
            ("s", {"message_id": ids[0]}, (409, "InvalidStateError")),
            ("s", {"message_id": "none"}, (404, "NotFoundError")),
            ("none", {}, (404, "NotFoundError")),
            ("s", {"at": ids[0]}, (400, "InvalidRequestError")),
        ):
            status, refused = await served.ask("POST", f"/api/sessions/{path}/fork", json=body)
            assert (status, refused["error_name"]) == expected, (path, body)


@pytest.mark.slow
async def test_004_t08_the_page_opens_a_fork_of_an_answer(browser: Browser, tmp_path: Path) -> None:
    async with serving(tmp_path) as served, chat_page(browser, served.url) as page:
        await say(page, "one")
        await expect(words(answers(page))).to_have_text(["You said: one"])
        await say(page, "two")
        await expect(words(answers(page))).to_have_text(["You said: one", "You said: two"])
        original = session_of(page)
        await answers(page).first.hover()
        await answers(page).first.get_by_role("button", name="Fork from here").click()
        await expect(page.locator("tl-bar h1")).to_have_text("one (fork)")
        await expect(words(answers(page))).to_have_text(["You said: one"])
        await say(page, "three")
        await expect(words(answers(page))).to_have_text(["You said: one", "You said: three"])
        assert session_of(page) != original
        await expect(page.locator("tl-sidebar .title")).to_have_text(["one (fork)", "one"])
        await page.locator("tl-sidebar a", has_text="one").last.click()
        await expect(words(answers(page))).to_have_text(["You said: one", "You said: two"])
