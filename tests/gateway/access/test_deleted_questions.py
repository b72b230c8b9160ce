"""Questions whose message or conversation was deleted: nothing that they said is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from gateway.contract.channel import Placed, PlacementDeferred, Withdrawal
from gateway.contract.questions import Answer, Question
from gateway.store import schema as t
from gateway.testing.fake_models.script import Reply, Say, Use
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import until
from tests.gateway.why.cases import Case, Line, Pier, database, line

pytestmark = pytest.mark.slow
SECRET = "the room of ada"
ASKING = {"permissions": {"door": "ask", "*": "allow"}}


async def ask(case: Case, fake: FakeModels, chat: str = "kitchen", answer: str = "") -> tuple[str, str]:
    """Let a message lead to a question, and answer it; return the message's key and the question's id."""
    fake.then(Reply((Use("door", f'{{"which": "{SECRET}"}}'),), "tools"), Reply((Say("Done."),)))
    asked = await case.write("Open it", chat=chat)
    questions = case.served.gateway.parts.questions
    await until(lambda: bool(questions.of_message(asked.message_id)))
    [held] = questions.of_message(asked.message_id)
    await until(lambda: held.stored is not None and held.stored.done())
    if answer:
        path = f"/api/questions/{held.question.id}"
        assert (await case.served.ask("POST", path, json={"values": [answer]}))[0] == 200
        await case.settled()
    return f"{chat}:{case.number}", held.question.id


async def decided(case: Case) -> list[str]:
    _, found = await case.served.ask("GET", "/api/questions?state=decided")
    return [one["id"] for one in found["questions"]]


def stored(engine: dict[str, Any], tmp_path: Path) -> list[str]:
    """Return the bodies of all stored questions."""
    with database(engine, tmp_path) as connection:
        return list(connection.execute(t.question.select()).scalars("body"))


async def test_a_crash_after_the_deletion_of_a_conversation_leaves_no_question(
    tmp_path: Path, engine_settings: dict[str, Any]
) -> None:
    async with FakeModels() as fake, line(tmp_path, fake, engine_settings, **ASKING) as case:
        await ask(case, fake, answer="once")
        _, kept = await ask(case, fake, "garden", "deny")
        sessions = case.served.gateway.parts.sessions

        async def crash(_session: str) -> None:
            raise RuntimeError("the process ends here")

        sessions.on_delete = crash
        with pytest.raises(RuntimeError):
            await sessions.delete("line:bot:kitchen")
    bodies = stored(engine_settings, tmp_path)
    assert [body for body in bodies if '"line:bot:kitchen"' in body] == []
    async with FakeModels() as fake, line(tmp_path, fake, engine_settings, **ASKING) as case:
        assert await decided(case) == [kept]


@pytest.mark.parametrize("answer", ["once", "deny", ""])
async def test_a_deleted_message_leaves_nothing_of_its_questions(
    tmp_path: Path, engine_settings: dict[str, Any], answer: str
) -> None:
    async with FakeModels() as fake, line(tmp_path, fake, engine_settings, **ASKING) as case:
        _, kept = await ask(case, fake, "garden", "once")
        key, gone = await ask(case, fake, answer=answer)
        if answer:
            assert await decided(case) == [gone, kept]
        await case.write("Never mind", "ada", "hall", Withdrawal("bot", key))
        await case.settled()
        await until(lambda: len(case.served.gateway.parts.questions.decided) == 1)
        assert await decided(case) == [kept]
    assert [SECRET in body for body in stored(engine_settings, tmp_path)] == [True]
    async with FakeModels() as fake, line(tmp_path, fake, engine_settings, **ASKING) as case:
        assert await decided(case) == [kept]


class ShowingLine(Line):
    """The line, which cannot show the end of a question at first."""

    is_open = False

    async def question_closed(self, question: Question, answer: Answer, placed: Placed | None) -> None:
        if not self.is_open:
            raise PlacementDeferred("slow down", 600)


class ShowingPier(Pier):
    channel = ShowingLine


class OpenLine(ShowingLine):
    """The line, which shows the end of each question."""

    shown: ClassVar[list[str]] = []

    async def question_closed(self, question: Question, answer: Answer, placed: Placed | None) -> None:
        self.shown.append(question.title)


class OpenPier(Pier):
    channel = OpenLine


async def test_a_question_of_a_deleted_message_that_its_chat_still_shows_says_nothing(
    tmp_path: Path, engine_settings: dict[str, Any]
) -> None:
    async with (
        FakeModels() as fake,
        line(tmp_path, fake, engine_settings, pier=ShowingPier, **ASKING) as case,
    ):
        key, _ = await ask(case, fake)
        await case.write("Never mind", "ada", "hall", Withdrawal("bot", key))
        await case.settled()
    # The row is kept for the buttons in the chat, without what the question said.
    [body] = stored(engine_settings, tmp_path)
    assert SECRET not in body
    assert '"arguments": {}' in body
    OpenLine.shown.clear()
    async with FakeModels() as fake, line(tmp_path, fake, engine_settings, pier=OpenPier, **ASKING) as case:
        assert await decided(case) == []
        await until(lambda: stored(engine_settings, tmp_path) == [])
    assert OpenLine.shown == ["Question of a deleted message"]
