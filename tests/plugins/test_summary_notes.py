"""The plugin ``summary_notes``: the settings say what summaries keep."""

from __future__ import annotations

import json
from pathlib import Path

from gateway.testing.chat import chatting
from gateway.testing.fake_models.script import Reply, Say, Use
from plugins.summary_notes import SummaryNotes
from plugins.todo import Todo


async def test_a_summary_keeps_the_open_items_of_the_to_do_list(tmp_path: Path) -> None:
    todos = [{"content": "Pay", "status": "pending"}, {"content": "Order", "status": "completed"}]
    async with chatting(tmp_path, Todo(), SummaryNotes()) as chat:
        chat.model.then(Reply((Use("todo_write", json.dumps({"todos": todos})),), "tools"))
        await chat.say("I ordered 4711 in size 42. " * 20)
        chat.model.then(Reply((Say("Order 4711."),)))
        await chat.say("/compact Be short.")
        prompt = chat.model.calls[-1].options.system_prompt
    assert prompt.endswith("Be short.\nKeep this to-do list:\n- ☐ Pay")


async def test_the_settings_say_what_a_summary_keeps(tmp_path: Path) -> None:
    settings = {"keep": "Keep order numbers.", "agents": {"main": "Keep sizes."}}
    async with chatting(tmp_path, SummaryNotes(), plugins={"summary_notes": settings}) as chat:
        await chat.say("I ordered 4711 in size 42. " * 20)
        chat.model.then(Reply((Say("Order 4711, size 42."),)))
        await chat.say("/compact Be short.")
        prompt = chat.model.calls[-1].options.system_prompt
    assert prompt.endswith("Be short.\nKeep order numbers.\nKeep sizes.")
