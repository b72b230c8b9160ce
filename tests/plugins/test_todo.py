"""The plugin ``todo``: one list for each conversation, shown as one message that is edited."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gateway import ToolResultPart
from gateway.testing.chat import Chat, chatting
from gateway.testing.fake_models.script import Reply, Use
from gateway.testing.polling_channel import PollingChannel
from gateway.testing.polling_platform import PollingPlatform
from gateway.testing.served import until
from plugins.todo import Todo
from tests.e2e.test_announcements import Editor
from tests.small_plugins import Brings


def item(content: str, status: str = "pending", priority: str = "medium") -> dict[str, str]:
    return {"content": content, "status": status, "priority": priority}


def write(*items: dict[str, str]) -> Reply:
    """A reply of the model that writes a list."""
    return Reply((Use("todo_write", json.dumps({"todos": items})),), "tools")


async def results(chat: Chat, *replies: Reply, session: str = "s") -> list[str]:
    """Let the model reply, and return the results of its calls."""
    chat.model.then(*replies)
    answer = await chat.say("go", session)
    return [part.output for part in answer.parts if isinstance(part, ToolResultPart)]


async def test_004_t16_a_list_is_written_read_and_outlives_a_restart(tmp_path: Path) -> None:
    read = Reply((Use("todo_read"),), "tools")
    listed = "- ☑ Read the code\n- ▶️ Write (high)\n- ☐ Check\n- ✖️ ~~Ask~~"
    async with chatting(tmp_path, Todo()) as chat:
        wrote = write(
            item("Read the code", "completed"),
            item("Write", "in_progress", "high"),
            item(" Check\n"),
            item("Ask", "cancelled"),
        )
        assert await results(chat, read, wrote) == [
            "The list is empty.",
            "The list has 4 items, 2 of them open.",
        ]
    async with chatting(tmp_path, Todo()) as chat:
        assert await results(chat, read) == [listed]
        assert await results(chat, read, session="other") == ["The list is empty."]


async def test_wrong_lists_are_refused(tmp_path: Path) -> None:
    async with chatting(tmp_path, Todo()) as chat:
        [wrong] = await results(chat, write(item("x", "done")))
        assert "todos.0.status" in wrong
        [unknown] = await results(chat, write({**item("x"), "id": "1"}))
        assert unknown.endswith("todos.0.id: Extra inputs are not permitted")
        [long] = await results(chat, write(*[item("x")] * 51))
        assert "at most 50 items" in long


async def test_004_t16_the_chat_shows_one_message_that_is_edited(tmp_path: Path) -> None:
    async with PollingPlatform() as platform:
        editor = Editor(platform.url)
        line = PollingChannel(platform.url, lambda channel: chat.host.cursors(channel))
        plugins: tuple[Any, ...] = (Brings(line), editor, Todo())
        async with chatting(tmp_path, *plugins, channels={"line": {"allow": "*"}}) as chat:
            chat.model.then(write(item("Bake")))
            platform.say("kitchen", "go")
            await until(lambda: "**To do**\n\n- ☐ Bake" in platform.answers("kitchen"))
            chat.model.then(write(item("Bake", "completed")))
            platform.say("kitchen", "go on")
            await until(lambda: editor.edits == ["**To do**\n\n- ☑ Bake"])
            await until(
                lambda: (
                    [text for text in platform.answers("kitchen") if "To do" in text]
                    == ["**To do**\n\n- ☑ Bake"]
                )
            )
            assert not any("To do" in str(call.messages) for call in chat.model.calls), "only people see it"
