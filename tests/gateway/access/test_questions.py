"""Questions that outlive a restart: asked once, answered once, by those who may."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from gateway import Answer, Choice, NotFoundError, Plugin, Tool, ToolResultPart, tool_from
from gateway.access.questions import Questions
from gateway.channel import (
    InvalidRequestError,
    Placed,
    PlacementDeferred,
    PlacementUncertain,
    Question,
    UnauthorizedError,
)
from gateway.contract.messages import now_ms
from gateway.session.frames import ApprovalAsked, ApprovalResolved, Replayed
from gateway.store import schema as t
from gateway.testing.chat import Chat, chatting, written
from gateway.testing.fake_models.script import Reply, Use
from gateway.testing.letterbox import Letterbox
from tests.small_plugins import Brings

ASK: dict[str, Any] = {"permissions": {"shell": "ask"}}
COLOURS = (Choice("red", "Red"), Choice("blue", "Blue", "as the sky"))


class Shell(Plugin):
    """A tool that runs nothing and remembers what it was asked to run."""

    name = "shell"

    def __init__(self) -> None:
        self.ran: list[str] = []

        async def shell(command: str) -> str:
            """Run a command."""
            self.ran.append(command)
            return f"ran {command}"

        self._tools = [tool_from(shell)]

    def tools(self) -> Sequence[Tool]:
        return self._tools


class Room(Letterbox):
    """A platform that numbers its questions, and remembers how each ended."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Question] = []
        self.closed: list[tuple[str, str, Placed | None]] = []
        self.news = asyncio.Condition()

    async def ask_question(self, question: Question) -> Placed:
        async with self.news:
            self.asked.append(question)
            self.news.notify_all()
        return Placed(f"m{len(self.asked)}", 50)

    async def question_closed(self, question: Question, answer: Answer, shown: Placed | None) -> None:
        async with self.news:
            self.closed.append((question.id, answer.outcome, shown))
            self.news.notify_all()

    async def until_asked(self, number: int = 1) -> Question:
        async with self.news:
            await self.news.wait_for(lambda: len(self.asked) >= number)
        return self.asked[number - 1]

    async def until_closed(self, number: int = 1) -> tuple[str, str, Placed | None]:
        async with self.news:
            await self.news.wait_for(lambda: len(self.closed) >= number)
        return self.closed[number - 1]


class Troubled(Room):
    """A platform whose first calls fail, each in its own way."""

    def __init__(self) -> None:
        super().__init__()
        self.to_ask: list[Exception] = [PlacementUncertain(), PlacementDeferred("busy", 0.001)]
        self.to_close: list[Exception] = [PlacementDeferred("busy", 0.001), PlacementUncertain()]

    async def ask_question(self, question: Question) -> Placed:
        if self.to_ask:
            raise self.to_ask.pop(0)
        return await super().ask_question(question)

    async def question_closed(self, question: Question, answer: Answer, shown: Placed | None) -> None:
        if self.to_close:
            raise self.to_close.pop(0)
        await super().question_closed(question, answer, shown)


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The settings of a database."""
    return (
        {}
        if request.param == "sqlite"
        else {"store": {"url": request.getfixturevalue("migrated_postgres_url")}}
    )


def questions_of(chat: Chat) -> Questions:
    return chat.gateway.parts.questions


def colour(**fields: Any) -> Question:
    """A question to Ada, in the room of ``written``."""
    now = now_ms()
    known: dict[str, Any] = {
        "key": "colour",
        "owner": "painter:",
        "session": "s",
        "address": written("go", channel="letters").address,
        "answerers": ("ada",),
        "title": "Which colour?",
        "role": "user",
        "choices": COLOURS,
        "created_at": now,
        "expires_at": now + 600_000,
    }
    return Question(**(known | fields))


def result(message: Any) -> ToolResultPart:
    return next(part for part in message.parts if isinstance(part, ToolResultPart))


async def until_asked(chat: Chat) -> ApprovalAsked:
    watcher = await chat.watch()
    return await watcher.until(lambda frame: isinstance(frame, ApprovalAsked))


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_open_approval_decides_the_repeated_turn_and_is_not_asked_twice(
    tmp_path: Path, store: dict[str, Any], when: str
) -> None:
    """Decided before the turn is repeated, and after it. The shutdown does not wait for a user."""
    before, after = Room(), Room()
    async with chatting(tmp_path, Shell(), Brings(before), **ASK, **store) as chat:
        chat.model.then(Reply((Use("shell", '{"command": "ls"}'),), "tools"))
        answer_id = await chat.accept("go", channel="letters")
        asked = await before.until_asked()
        while (await rows(chat))[0]["shown"] == "":
            await asyncio.sleep(0)
    assert before.closed == []
    shell = Shell()
    async with chatting(tmp_path, shell, Brings(after), **ASK, **store) as chat:
        if when == "after":
            assert (await until_asked(chat)).approval_id == asked.id
        await chat.host.settle(asked.id, "once", channel="letters", user="ada")
        assert (await chat.answer(answer_id)).text
        assert await after.until_closed() == (asked.id, "once", Placed("m1", 50))
        assert after.asked == []
        [kept] = await rows(chat)
        assert (kept["id"], kept["inbox_id"], kept["answer"]) == (asked.id, "", '["once"]')
    assert shell.ran == ["ls"]


async def test_the_number_of_a_restored_question_s_end_is_not_given_again(tmp_path: Path) -> None:
    async with chatting(tmp_path, Brings(Room())) as chat:
        await chat.say("Hello", channel="letters")
        asked = (await questions_of(chat).ask(colour())).question
    async with chatting(tmp_path, Brings(Room())) as chat:
        watcher = await chat.watch()
        await chat.host.settle(asked.id, "red", channel="letters", user="ada")
        await watcher.until(lambda frame: isinstance(frame, ApprovalResolved))
        seen = watcher.events[-1].seq
    async with chatting(tmp_path, Brings(Room())) as chat:
        watcher = await chat.watch(after=seen)
        replayed = await watcher.until(lambda frame: isinstance(frame, Replayed))
        assert [event.frame for event in watcher.events] == [replayed]
        assert watcher.events[0].seq > seen


async def test_a_question_is_answered_once_by_its_answerer_and_kept_until_the_owner_took_it(
    tmp_path: Path, store: dict[str, Any]
) -> None:
    room = Room()
    async with chatting(tmp_path, Brings(room), **store) as chat:
        questions, asked = questions_of(chat), colour()
        await questions.ask(asked)
        assert (await questions.ask(colour())).question.id == asked.id, "the same key asks once"
        await room.until_asked()
        with pytest.raises(NotFoundError):
            await chat.host.settle("forged", "red", channel="letters", user="ada")
        with pytest.raises(UnauthorizedError, match="only the user who was asked"):
            await chat.host.settle(asked.id, "red", channel="letters", user="eve")
        with pytest.raises(UnauthorizedError):
            await chat.host.settle(asked.id, "red", channel="other", user="ada")
        with pytest.raises(InvalidRequestError, match='"red" or "blue"'):
            await chat.host.settle(asked.id, "green", channel="letters", user="ada")
        with pytest.raises(InvalidRequestError):
            await chat.host.settle(asked.id, ["red", "blue"], channel="letters", user="ada")
        await chat.host.settle(asked.id, "red", channel="letters", user="ada")
        with pytest.raises(NotFoundError, match="answered already"):
            await chat.host.settle(asked.id, "blue", channel="letters", user="ada")
    taken: list[Answer] = []
    failed = asyncio.Event()
    took = asyncio.Event()

    async def take(answer: Answer) -> None:
        taken.append(answer)
        if len(taken) == 1:
            failed.set()
            raise ConnectionError("the owner is not ready")
        took.set()

    async with chatting(tmp_path, Brings(Room()), **store) as chat:
        questions_of(chat).handler_of = lambda owner: take if owner == "painter:" else None
        questions_of(chat).deliver()
        await took.wait()
        while not (await rows(chat))[0]["acknowledged"]:
            await asyncio.sleep(0)
        assert (await questions_of(chat).ask(colour())).answer == taken[0]
        audit = await chat.gateway.parts.store.read(
            lambda c: c.execute(select(t.audit.c.actor, t.audit.c.action, t.audit.c.detail)).all()
        )
        assert [tuple(row) for row in audit] == [("letters:ada", "question.answer", "Which colour?: Red")]
    assert taken == [taken[0]] * 2
    assert (taken[0].values, taken[0].by, taken[0].state) == (("red",), "letters:ada", "answered")


async def test_a_question_and_its_end_are_shown_though_the_platform_fails_at_first(tmp_path: Path) -> None:
    room = Troubled()
    async with chatting(tmp_path, Brings(room)) as chat:
        asked = (await questions_of(chat).ask(colour())).question
        await room.until_asked()
        await chat.host.settle(asked.id, "red", channel="letters", user="ada")
        assert await room.until_closed() == (asked.id, "red", Placed("m1", 50))
    assert (len(room.asked), len(room.closed), room.to_ask, room.to_close) == (1, 1, [], [])


class Busy(Troubled):
    """A platform that asks to wait a dozen times, as one does that still signs in, and then fails once."""

    def __init__(self) -> None:
        super().__init__()
        self.to_ask = [*(PlacementDeferred("not signed in", 0.001) for _ in range(12)), PlacementUncertain()]
        self.to_close = [*(PlacementDeferred("busy", 0.001) for _ in range(12)), PlacementUncertain()]


async def test_a_platform_that_asks_to_wait_does_not_lengthen_the_pause_after_a_failure(
    tmp_path: Path,
) -> None:
    """Else a question would be shown a minute after one failure: the pause after seven of them."""
    room = Busy()
    async with chatting(tmp_path, Brings(room)) as chat, asyncio.timeout(20):
        asked = (await questions_of(chat).ask(colour())).question
        await room.until_asked()
        await chat.host.settle(asked.id, "red", channel="letters", user="ada")
        assert await room.until_closed() == (asked.id, "red", Placed("m1", 50))


async def test_an_unexpected_error_does_not_end_the_display_of_questions(tmp_path: Path) -> None:
    room = Troubled()
    room.to_ask, room.to_close = [RuntimeError("session is closed")], [RuntimeError("session is closed")]
    async with chatting(tmp_path, Brings(room)) as chat:
        asked = (await questions_of(chat).ask(colour())).question
        await room.until_asked()
        await chat.host.settle(asked.id, "red", channel="letters", user="ada")
        assert await room.until_closed() == (asked.id, "red", Placed("m1", 50))


class Stuck(Room):
    """A platform that shows no end of a question for now."""

    async def question_closed(self, question: Question, answer: Answer, shown: Placed | None) -> None:
        await super().question_closed(question, answer, shown)
        raise PlacementDeferred("busy", 600)


@pytest.mark.parametrize("end", ["taken", "withdrawn"])
async def test_the_end_of_a_question_is_shown_after_a_restart(tmp_path: Path, end: str) -> None:
    async with chatting(tmp_path, Brings(stuck := Stuck())) as chat:
        asked = (await questions_of(chat).ask(colour())).question
        await stuck.until_asked()
        if end == "taken":
            await chat.host.settle(asked.id, "red", channel="letters", user="ada")
        else:
            await questions_of(chat).withdraw(asked.id, asked.owner)
        await stuck.until_closed()
    outcomes = {"taken": "red", "withdrawn": "cancelled"}
    async with chatting(tmp_path, Brings(room := Room())) as chat:
        assert await room.until_closed() == (asked.id, outcomes[end], Placed("m1", 50))
        while not (await rows(chat))[0]["closed"]:
            await asyncio.sleep(0)
    async with chatting(tmp_path, Brings(room := Room())) as chat:
        await questions_of(chat).ask(colour(key="another"))
        await room.until_asked()
    assert room.closed == []


@pytest.mark.parametrize("end", ["decided", "stopped"])
async def test_the_end_of_an_approval_is_shown_after_a_restart_though_its_turn_is_over(
    tmp_path: Path, end: str
) -> None:
    shell = Shell()
    async with chatting(tmp_path, shell, Brings(stuck := Stuck()), **ASK) as chat:
        chat.model.then(Reply((Use("shell", '{"command": "ls"}'),), "tools"))
        answer_id = await chat.accept("go", channel="letters")
        asked = await stuck.until_asked()
        if end == "decided":
            await chat.host.settle(asked.id, "once", channel="letters", user="ada")
        else:
            await chat.host.abort("s")
        await stuck.until_closed()
        await chat.answer(answer_id)
        assert [row["inbox_id"] for row in await rows(chat)] == [""]
    async with chatting(tmp_path, shell, Brings(room := Room()), **ASK) as chat:
        assert (await room.until_closed())[0] == asked.id
        while not (await rows(chat))[0]["closed"]:
            await asyncio.sleep(0)
    assert len(shell.ran) == (end == "decided")


async def test_an_answer_after_the_withdrawal_is_refused(tmp_path: Path) -> None:
    room = Room()
    async with chatting(tmp_path, Brings(room)) as chat:
        asked = (await questions_of(chat).ask(colour())).question
        await room.until_asked()
        assert await questions_of(chat).withdraw(asked.id)
        assert await room.until_closed() == (asked.id, "cancelled", Placed("m1", 50))
        with pytest.raises(NotFoundError, match="was withdrawn"):
            await chat.host.settle(asked.id, "red", channel="letters", user="ada")
        assert not await questions_of(chat).withdraw(asked.id)


@pytest.mark.parametrize("ahead", [-10_000_000, 10_000_000])
async def test_stored_times_end_a_question_and_a_wrong_clock_does_not_keep_it_open(
    tmp_path: Path, store: dict[str, Any], ahead: int
) -> None:
    """It expired while the gateway was down; or it was asked by a clock that was hours ahead."""
    async with chatting(tmp_path, Brings(Room()), **store) as chat:
        asked = (await questions_of(chat).ask(colour())).question
        begun = now_ms() + ahead
        body = (await rows(chat))[0]["body"]
        moved = body.replace(f'"created_at": {asked.created_at}', f'"created_at": {begun}')
        moved = moved.replace(f'"expires_at": {asked.expires_at}', f'"expires_at": {begun + 1}')
        assert moved != body
        with chat.gateway.parts.store.engine.begin() as connection:
            connection.execute(update(t.question).values(body=moved))
    room = Room()
    async with chatting(tmp_path, Brings(room), **store) as chat:
        assert (await room.until_closed())[:2] == (asked.id, "timeout")
        with pytest.raises(NotFoundError, match="has expired"):
            await chat.host.settle(asked.id, "red", channel="letters", user="ada")


async def test_a_question_is_shown_again_only_if_its_place_is_unknown(tmp_path: Path) -> None:
    async with chatting(tmp_path, Brings(Room())) as chat:
        asked = (await questions_of(chat).ask(colour())).question
        while (await rows(chat))[0]["shown"] == "":
            await asyncio.sleep(0)
        with chat.gateway.parts.store.engine.begin() as connection:
            connection.execute(update(t.question).values(shown=""))
    room = Room()
    async with chatting(tmp_path, Brings(room)) as chat:
        assert (await room.until_asked()).id == asked.id
        await chat.host.settle(asked.id, "blue", channel="letters", user="ada")
        assert (await room.until_closed())[:2] == (asked.id, "blue")


async def test_a_question_that_is_shown_twice_loses_the_buttons_of_both(tmp_path: Path) -> None:
    # A process that is killed between showing and storing the place is followed by one that shows it again.
    room = Room()
    before = Placed("m0", 40)
    async with chatting(tmp_path, Brings(room)) as chat:
        held = await questions_of(chat).ask(colour())
        while held.shown is None:
            await asyncio.sleep(0)
        pressed: dict[str, Any] = {"channel": "letters", "user": "ada", "shown": before}
        await chat.host.settle(held.question.id, "blue", **pressed)
        await room.until_closed(2)
        assert {placed for _, _, placed in room.closed} == {before, Placed("m1", 50)}


@pytest.mark.parametrize(
    ("fields", "text", "values"),
    [
        ({}, "blue", ("blue",)),
        ({}, "Red!", ("red",)),
        ({}, "2", ("blue",)),
        ({}, "green", None),
        ({"multiple": True}, "1, blue", ("red", "blue")),
        ({"multiple": True}, "1, green", None),
        ({"free_text": True}, "dark green", ("dark green",)),
        ({"choices": ()}, "anything", ("anything",)),
        ({"choices": ()}, "/stop", None),
        ({"choices": ()}, "  ", None),
        ({"choices": ()}, "x" * 4_001, None),
    ],
)
def test_a_typed_text_is_read_as_an_answer(
    fields: dict[str, Any], text: str, values: tuple[str, ...] | None
) -> None:
    assert colour(**fields).read(text) == values
    assert values is None or colour(**fields).accepts(values)


async def test_a_text_answers_one_open_question_and_of_two_the_one_it_replies_to(tmp_path: Path) -> None:
    room = Room()
    async with chatting(tmp_path, Brings(room)) as chat:
        await chat.say("hello", channel="letters")
        questions = questions_of(chat)
        for key in ("one", "two"):
            await questions.ask(colour(key=key, choices=()))
        await room.until_asked(2)
        while any(row["shown"] == "" for row in await rows(chat)):
            await asyncio.sleep(0)
        both = {"channel": "letters", "order": 51}
        answer = await chat.host.submit(written("plain", dedup_key="a", **both))
        assert answer is not None, "it is a message like any other"
        reply = written("mine", dedup_key="b", in_reply_to="m2", **both)
        assert await chat.host.submit(reply) is None
        states = {row["key"]: (row["state"], row["answer"]) for row in await rows(chat)}
        assert states == {"one": ("open", "[]"), "two": ("answered", '["mine"]')}
        assert await chat.host.submit(written("now the other", dedup_key="c", **both)) is None
        assert {row["state"] for row in await rows(chat)} == {"answered"}


async def test_readers_of_the_session_see_a_question_with_its_secrets_masked(tmp_path: Path) -> None:
    secret = "sk-a-secret-of-this-gateway"
    server = {"server": {"token": secret.ljust(40, "x")}}
    async with chatting(tmp_path, Brings(Room()), **server) as chat:
        await chat.say("hello")
        watcher = await chat.watch()
        hidden = f"Is {secret.ljust(40, 'x')} right?"
        await questions_of(chat).ask(colour(title=hidden))
        shown = await watcher.until(lambda frame: isinstance(frame, ApprovalAsked))
        assert (shown.tool_name, shown.title) == ("", "Is ********** right?")
        late = await (await chat.watch()).until(lambda frame: isinstance(frame, ApprovalAsked))
        assert late.approval_id == shown.approval_id
        await chat.host.settle(shown.approval_id, "blue", session="s")
        ended = await watcher.until(lambda frame: isinstance(frame, ApprovalResolved))
        assert ended == ApprovalResolved(shown.approval_id, "Blue")
        assert secret not in str(await rows(chat))


async def rows(chat: Chat) -> list[Any]:
    query = select(t.question).order_by(t.question.c.created_at)
    return await chat.gateway.parts.store.read(lambda c: list(c.execute(query).mappings()))


@pytest.mark.parametrize("longest", [300, 1_000, 10_000])
def test_the_words_of_a_question_are_cut_to_what_a_channel_shows(longest: int) -> None:
    choices = [Choice(str(number), f"Choice {number}", "why " * 50) for number in range(5)]
    asked = colour(choices=tuple(choices), detail="detail " * 100)
    words = asked.in_words(longest)
    assert len(words) <= longest
    assert all(f"{number}. Choice {number - 1}" in words for number in range(1, 6))
    assert ("why " * 50 in words) == (longest == 10_000)


def test_more_choices_than_buttons_are_picked_by_number() -> None:
    asked = colour(choices=tuple(Choice(f"v{number}") for number in range(1, 27)))
    assert asked.buttons == ()
    assert asked.in_words().endswith("26. v26\n\nReply with the number of your choice.")
    assert asked.read("26") == ("v26",)
    [button] = colour(choices=(Choice("long", "x" * 100),)).buttons
    assert (button.value, len(button.text)) == ("long", 75)
