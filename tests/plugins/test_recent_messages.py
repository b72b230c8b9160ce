"""The plugin ``recent_messages``: how many messages a model call has, and where they begin."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway import Message, PluginError, TextPart, ToolCallPart, ToolResultPart, now_ms
from gateway.testing.chat import chatting
from gateway.testing.fake_models.script import Reply, Say, Use
from plugins.recent_messages import RecentMessages


@pytest.mark.parametrize(
    ("most", "sent"),
    [
        (5, ["one", "1", "two", "2", "three"]),
        (4, ["two", "2", "three"]),
        (3, ["two", "2", "three"]),
        (2, ["three"]),
        (1, ["three"]),
    ],
)
async def test_a_call_begins_with_a_user_message_within_the_limit(
    tmp_path: Path, most: int, sent: list[str]
) -> None:
    settings = {"plugins": {"recent_messages": {"messages": most}}}
    async with chatting(tmp_path, RecentMessages(), **settings) as chat:
        chat.model.then(Reply((Say("1"),)), Reply((Say("2"),)))
        for text in ("one", "two", "three"):
            await chat.say(text)
        assert [message.text for message in chat.model.calls[-1].messages] == sent
        kept = (await chat.gateway.parts.sessions.find("s")).messages()
    assert len(kept) == 6


async def test_a_tool_call_keeps_its_question_and_its_result(tmp_path: Path) -> None:
    settings = {"plugins": {"recent_messages": {"messages": 1}}}
    async with chatting(tmp_path, RecentMessages(), **settings) as chat:
        await chat.say("hi")
        chat.model.then(Reply((Use("calculator", '{"expression": "6 * 7"}'),), "tools"), Reply((Say("42"),)))
        await chat.say("6 times 7?")
        question, answer = chat.model.calls[-1].messages
    assert question.text == "6 times 7?"
    assert [type(part) for part in answer.parts] == [ToolCallPart, ToolResultPart]


async def test_old_messages_are_left_out_and_system_messages_stay(tmp_path: Path) -> None:
    def earlier(role: str, text: str, hours: float) -> Message:
        created = now_ms() - round(hours * 3_600_000)
        return Message(session_id="s", role=role, parts=(TextPart(text),), created_at=created)

    before = (
        earlier("system", "be brief", 9),
        earlier("user", "old", 8),
        earlier("assistant", "older answer", 8),
        earlier("user", "new", 1),
        earlier("assistant", "newer answer", 1),
    )
    settings = {"plugins": {"recent_messages": {"hours": 2}}}
    async with chatting(tmp_path, RecentMessages(), **settings) as chat:
        await chat.say("now", before=before)
        sent = [message.text for message in chat.model.calls[0].messages]
    assert sent == ["be brief", "new", "newer answer", "now"]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"messages": 0}, "plugins.recent_messages.messages = 0 must be greater than or equal to 1"),
        ({"hours": -1}, "plugins.recent_messages.hours = -1 must be greater than 0"),
        ({"mesages": 5}, "plugins.recent_messages.mesages is not a setting; did you mean plugins.recent_"),
    ],
)
async def test_a_wrong_setting_stops_the_start(
    tmp_path: Path, settings: dict[str, object], complaint: str
) -> None:
    with pytest.raises(PluginError) as caught:
        async with chatting(tmp_path, RecentMessages(), plugins={"recent_messages": settings}):
            pass
    assert complaint in str(caught.value)
