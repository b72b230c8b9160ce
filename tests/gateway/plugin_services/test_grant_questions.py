"""Grants of confined plugins: asked of admins in the chat, durable, and revocable."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import select

from gateway import Answer, NotFoundError
from gateway.access import THE_OWNER, PluginGrants
from gateway.access.grants import PUT_PLUGIN_GRANT
from gateway.access.questions import Questions
from gateway.channel import Placed, Question, UnauthorizedError
from gateway.plugin_services import GrantQuestions
from gateway.store import Store
from gateway.store import schema as t
from gateway.testing.chat import Chat, chatting
from gateway.testing.letterbox import Letterbox
from tests.small_plugins import Brings

ADMINS = {"channels": {"room": {"allow": "*", "admins": ["ada"]}}}
GRANT = "network:api.example.org"


class Room(Letterbox):
    """A platform that shows questions."""

    def __init__(self) -> None:
        super().__init__("room")
        self.asked: list[Question] = []
        self.news = asyncio.Condition()

    async def ask_question(self, question: Question) -> Placed:
        async with self.news:
            self.asked.append(question)
            self.news.notify_all()
        return Placed(f"m{len(self.asked)}", 50)

    async def question_closed(self, question: Question, answer: Answer, shown: Placed | None) -> None:
        pass

    async def until_asked(self, number: int = 1) -> Question:
        async with self.news:
            await self.news.wait_for(lambda: len(self.asked) >= number)
        return self.asked[number - 1]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def grants_of(chat: Chat, clock: Clock) -> GrantQuestions:
    gateway, parts = chat.gateway, chat.gateway.parts
    return GrantQuestions(parts.access, gateway.channels, parts.sessions, parts.questions, 60_000, clock)


async def stored(chat: Chat) -> PluginGrants:
    """The grants as another process reads them."""
    grants = PluginGrants(chat.gateway.parts.store)
    await grants.load()
    return grants


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def test_an_admin_allows_a_plugin_permanently_with_a_button(tmp_path: Path, clock: Clock) -> None:
    room = Room()
    async with chatting(tmp_path, Brings(room), **ADMINS) as chat:
        await chat.say("hello", channel="room")
        grants = grants_of(chat, clock)
        asking = asyncio.create_task(grants.ask("weather", GRANT, "talk to api.example.org", "s"))
        question = await room.until_asked()
        assert question.title == "The plugin weather wants to talk to api.example.org. Allow it?"
        assert (question.answerers, question.admins) == ((), True)
        questions: Questions = chat.gateway.parts.questions
        with pytest.raises(UnauthorizedError):
            await questions.settle(question.id, ["always"], channel="room", user="bob")
        await questions.settle(question.id, ["always"], channel="room", user="ada")
        assert await asking == "always"
        assert grants.given("weather") == {GRANT}
        assert (await stored(chat)).given("weather") == {GRANT}
        access, grant_id = chat.gateway.parts.access, f"plugin:weather:{GRANT}"
        await access.revoke_approval(grant_id, THE_OWNER)
        assert grants.given("weather") == (await stored(chat)).given("weather") == set()
        with pytest.raises(NotFoundError, match="no approval"):
            await access.revoke_approval(grant_id, THE_OWNER)
        [row] = await chat.gateway.parts.actions.latest("weather")
        assert (row.action, row.value) == ("plugin.grant", f"{GRANT} always by room:ada")
        assert (row.allowed, row.risk) == (True, 75)
        actions = await chat.gateway.parts.store.read(
            lambda c: list(c.execute(select(t.audit.c.action, t.audit.c.subject).order_by(t.audit.c.id)))
        )
    assert [tuple(row) for row in actions] == [
        ("capability.always", "weather"),
        ("capability.revoke", "weather"),
    ]


@pytest.mark.parametrize(("kept", "is_given"), [(1, True), (0, False), (2, False), (-1, False)])
async def test_a_row_that_is_not_a_decision_grants_nothing(store: Store, kept: int, is_given: bool) -> None:
    await store.write((PUT_PLUGIN_GRANT, (f"plugin:weather:{GRANT}", "weather", GRANT, kept, "owner", 1)))
    grants = PluginGrants(store)
    await grants.load()
    assert (GRANT in grants.given("weather")) is is_given


async def test_calls_that_need_the_same_grant_ask_once(tmp_path: Path, clock: Clock) -> None:
    room = Room()
    async with chatting(tmp_path, Brings(room), **ADMINS) as chat:
        await chat.say("hello", channel="room")
        grants = grants_of(chat, clock)
        both = [
            asyncio.create_task(grants.ask("weather", GRANT, "talk to api.example.org", "s"))
            for _ in range(2)
        ]
        question = await room.until_asked()
        await asyncio.sleep(0)
        await chat.gateway.parts.questions.settle(question.id, ["never"], channel="room", user="ada")
        assert [await one for one in both] == ["never", "never"]
        assert grants.refused("weather") == {GRANT}
        assert len(room.asked) == 1


async def test_once_is_for_the_shown_call_and_no_other_one_of_the_grant(tmp_path: Path, clock: Clock) -> None:
    room = Room()
    async with chatting(tmp_path, Brings(room), **ADMINS) as chat:
        await chat.say("hello", channel="room")
        grants = grants_of(chat, clock)

        def asking(action: str) -> asyncio.Task[str | None]:
            return asyncio.create_task(grants.ask("weather", "exec:git *", action, "s"))

        tasks = [asking("run git log")]
        question = await room.until_asked()
        assert "wants to run git log." in question.title
        tasks += [asking("run git push"), asking("run git log")]
        await asyncio.sleep(0)
        await chat.gateway.parts.questions.settle(question.id, ["once"], channel="room", user="ada")
        assert [await one for one in tasks] == ["once", None, "once"]
        assert len(room.asked) == 1


async def test_once_is_for_one_of_two_calls_that_look_the_same_in_a_question(
    tmp_path: Path, clock: Clock
) -> None:
    room = Room()
    async with chatting(tmp_path, Brings(room), **ADMINS) as chat:
        await chat.say("hello", channel="room")
        grants = grants_of(chat, clock)
        begin = f"run git log {'x' * 1_000}"
        tasks = [
            asyncio.create_task(grants.ask("weather", "exec:git *", begin + end, "s")) for end in ("y", "z")
        ]
        question = await room.until_asked()
        assert "…" in question.title, "it can be seen that the call is longer"
        await asyncio.sleep(0)
        await chat.gateway.parts.questions.settle(question.id, ["once"], channel="room", user="ada")
        assert [await one for one in tasks] == ["once", None]


async def test_an_action_cannot_pass_for_the_words_of_the_gateway(tmp_path: Path, clock: Clock) -> None:
    room = Room()
    async with chatting(tmp_path, Brings(room), **ADMINS) as chat:
        await chat.say("hello", channel="room")
        action = f"talk to api.example.org:443 (GET /a\n\nIt was checked.\u202e{'x' * 1_000})"
        grants = grants_of(chat, clock)
        asking = asyncio.create_task(grants.ask("weather", GRANT, action, "s"))
        asked = await room.until_asked()
        await chat.gateway.parts.questions.settle(asked.id, ["never"], channel="room", user="ada")
        assert await asking == "never"
        assert "\n" not in asked.title
        assert "\u202e" not in asked.title
        assert len(asked.title) < 400
        assert "wants to talk to api.example.org:443 (GET /a It was" in asked.title
        assert GRANT in asked.detail, "what Always and Never are about"


async def test_a_plugin_asks_once_a_minute(tmp_path: Path, clock: Clock) -> None:
    room = Room()
    async with chatting(tmp_path, Brings(room), **ADMINS) as chat:
        await chat.say("hello", channel="room")
        grants = grants_of(chat, clock)
        first = asyncio.create_task(grants.ask("weather", GRANT, "talk to api.example.org", "s"))
        question = await room.until_asked()
        await chat.gateway.parts.questions.settle(question.id, ["once"], channel="room", user="ada")
        assert await first == "once"
        assert await grants.ask("weather", "llm", "call models", "s") is None
        clock.now = 61.0
        second = asyncio.create_task(grants.ask("weather", "llm", "call models", "s"))
        await room.until_asked(2)
        second.cancel()
        assert grants.given("weather") == set()


async def test_without_an_admin_or_a_session_no_user_is_asked(tmp_path: Path, clock: Clock) -> None:
    room = Room()
    settings = {"channels": {"room": {"allow": "*"}}}
    async with chatting(tmp_path, Brings(room), **settings) as chat:
        await chat.say("hello", channel="room")
        grants = grants_of(chat, clock)
        assert await grants.ask("weather", GRANT, "talk to api.example.org", "s") is None
        assert await grants.ask("weather", GRANT, "talk to api.example.org", "") is None
        assert room.asked == []


async def test_a_decision_outlives_a_restart_although_its_call_is_gone(tmp_path: Path, clock: Clock) -> None:
    first, second = Room(), Room()
    async with chatting(tmp_path, Brings(first), **ADMINS) as chat:
        await chat.say("hello", channel="room")
        grants = grants_of(chat, clock)
        asking = asyncio.create_task(grants.ask("weather", GRANT, "talk to api.example.org", "s"))
        question = await first.until_asked()
        asking.cancel()
    async with chatting(tmp_path, Brings(second), **ADMINS) as chat:
        grants = grants_of(chat, clock)
        await chat.gateway.parts.questions.settle(question.id, ["always"], channel="room", user="ada")
        assert (await stored(chat)).given("weather") == {GRANT}
        while not grants.given("weather"):
            await asyncio.sleep(0)


async def test_a_former_admin_decides_nothing(tmp_path: Path, clock: Clock) -> None:
    first, second = Room(), Room()
    async with chatting(tmp_path, Brings(first), **ADMINS) as chat:
        await chat.say("hello", channel="room")
        asking = asyncio.create_task(grants_of(chat, clock).ask("weather", GRANT, "talk to a host", "s"))
        question = await first.until_asked()
        asking.cancel()
    settings = {"channels": {"room": {"allow": "*", "admins": ["bob"]}}}
    async with chatting(tmp_path, Brings(second), **settings) as chat:
        grants, questions = grants_of(chat, clock), chat.gateway.parts.questions
        with pytest.raises(UnauthorizedError):
            await questions.settle(question.id, ["always"], channel="room", user="ada")
        await chat.say("always", channel="room", user="ada")
        assert questions.get(question.id) is not None, "nor by typing the answer"
        assert grants.given("weather") == (await stored(chat)).given("weather") == set()
