"""Feedback on answers: stored before it is acknowledged, counted, and only of those who may use the bot."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import event, select

from gateway.channel import Feedback, feedback_value
from gateway.contract.events import Activity
from gateway.delivery.feedback import FeedbackRecord, read_feedback
from gateway.store import schema as t
from gateway.testing.chat import Chat
from tests.gateway.access.rooms import Platforms, guarded


async def kept(chat: Chat) -> list[FeedbackRecord]:
    return await chat.gateway.parts.store.read(lambda c: read_feedback(c, 10))


async def give(chat: Chat, *given: Feedback) -> None:
    await chat.gateway.parts.intake.receiver("home")(signals=given)


def about(message: str, user: str = "ada", value: Any = "up", chat: str = "g") -> Feedback:
    return Feedback("bot", chat, message, user, value)


async def asked(chat: Chat, platforms: Platforms) -> None:
    """Ask in a room; return when the place of the answer is stored."""
    assert await platforms.room("g", group=True).ask("ada", "hi") == "You said: hi"
    placed = select(t.outbox.c.id).where(t.outbox.c.platform_id.is_not(None))
    async with asyncio.timeout(60):
        while not await chat.gateway.parts.store.read(lambda c: c.execute(placed).all()):
            await asyncio.sleep(0)


async def test_feedback_on_an_answer_is_stored_counted_and_published(tmp_path: Path) -> None:
    seen: list[Activity] = []
    async with guarded(tmp_path) as (chat, platforms):
        chat.gateway.activity.subscribe(seen.append)
        await asked(chat, platforms)
        await give(chat, about("1"))
        [record] = await kept(chat)
        assert (record.session, record.user_id, record.value) == ("home:bot:g", "ada", "up")
        session = await chat.gateway.parts.sessions.find("home:bot:g")
        assert record.answer_id == session.messages()[-1].id
        assert chat.gateway.counters.feedback["home", "up"] == 1
        assert [(one.source, one.summary) for one in seen if one.kind == "feedback"] == [("home:bot:g", "up")]


async def test_the_answer_of_a_reaction_is_found_by_an_index(tmp_path: Path) -> None:
    plans: list[str] = []

    def note(c: Any, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        if statement.startswith("SELECT outbox.address"):
            plans.extend(map(str, c.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)))

    async with guarded(tmp_path) as (chat, _):
        event.listen(chat.gateway.parts.store.engine, "before_cursor_execute", note)
        await give(chat, about("1"), about("room:1"))
    assert len([plan for plan in plans if "outbox USING INDEX outbox_tail" in plan]) == 2, plans


async def test_the_newest_value_of_a_user_counts(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (chat, platforms):
        await asked(chat, platforms)
        await give(chat, about("1", value="up"), about("1", "root", "down"))
        await give(chat, about("1", value="down"))
        assert _values(await kept(chat)) == {("ada", "down"), ("root", "down")}
        await give(chat, about("1", value="none"))
        assert _values(await kept(chat)) == {("root", "down")}


async def test_feedback_of_others_and_on_other_messages_is_ignored(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (chat, platforms):
        await asked(chat, platforms)
        await give(chat, about("1", "eve"), about("99"), about("1", chat="other"))
        assert await kept(chat) == []
        assert not chat.gateway.counters.feedback


def _values(records: Sequence[FeedbackRecord]) -> set[tuple[str, str]]:
    return {(one.user_id, one.value) for one in records}


async def test_each_sign_of_a_user_counts_until_it_is_taken_back(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (chat, platforms):
        await asked(chat, platforms)
        hand, heart, frown = (replace(about("1"), sign=sign) for sign in ("hand", "heart", "frown"))
        frown = replace(frown, value="down")
        await give(chat, hand, heart, frown, replace(hand, user="root"))
        assert _values(await kept(chat)) == {("ada", "down"), ("root", "up")}
        await give(chat, replace(hand, value="none"), replace(frown, value="none"))
        assert _values(await kept(chat)) == {("ada", "up"), ("root", "up")}
        await give(chat, replace(hand, user="", value="none"))
        assert _values(await kept(chat)) == {("ada", "up")}, "the heart stays"
        await give(chat, replace(hand, user="root"), about("1", "", "none"))
        assert await kept(chat) == []
        assert chat.gateway.counters.feedback["home", "none"] == 5


async def test_what_was_never_given_is_not_taken_back(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (chat, platforms):
        await asked(chat, platforms)
        await give(chat, about("1", value="none"), about("2", "", "none"))
        assert not chat.gateway.counters.feedback


@pytest.mark.parametrize(
    ("emojis", "value"),
    [
        (["\N{THUMBS UP SIGN}"], "up"),
        (["\N{THUMBS UP SIGN}\N{EMOJI MODIFIER FITZPATRICK TYPE-4}"], "up"),
        (["\N{HEAVY BLACK HEART}\ufe0f", "\N{EYES}"], "up"),
        (["\N{THUMBS UP SIGN}", "\N{THUMBS DOWN SIGN}"], "down"),
        (["\N{EYES}", ""], "none"),
        ([], "none"),
    ],
)
def test_what_reactions_say(emojis: list[str], value: str) -> None:
    assert feedback_value(emojis) == value
