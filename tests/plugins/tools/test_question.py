"""The tool ``question`` and the questions of hooks, asked in the chat of their turn."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import pytest

from gateway import Plugin, PluginContext, ToolCall, ToolResultPart
from gateway.session.frames import ApprovalAsked
from gateway.testing.chat import Chat, chatting
from gateway.testing.fake_models.script import Reply, Use
from gateway.testing.letterbox import Letterbox

COLOUR: dict[str, Any] = {
    "question": "Which colour?",
    "header": "Colour",
    "options": [{"label": "Red"}, {"label": "Blue", "description": "as the sky"}],
}
NAME: dict[str, Any] = {"question": "Which name?", "header": "Name"}


def result(message: Any) -> ToolResultPart:
    return next(part for part in message.parts if isinstance(part, ToolResultPart))


async def asked(chat: Chat, title: str) -> ApprovalAsked:
    watcher = await chat.watch()
    return await watcher.until(lambda frame: isinstance(frame, ApprovalAsked) and frame.title == title)


def uses(*questions: dict[str, Any]) -> Reply:
    return Reply((Use("question", json.dumps({"questions": questions})),), "tools")


async def test_004_t16_the_model_asks_and_a_repeated_turn_asks_only_what_is_open(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        chat.model.then(uses(COLOUR, NAME))
        answer_id = await chat.accept("go")
        shown = await asked(chat, "Which colour?")
        assert [choice.text for choice in shown.choices or ()] == ["Red", "Blue", "Decline"]
        await chat.host.settle(shown.approval_id, "2", session="s")
        name = await asked(chat, "Which name?")
    async with chatting(tmp_path) as chat:
        again = await asked(chat, "Which name?")
        assert again.approval_id == name.approval_id
        await chat.host.settle(again.approval_id, "Ada", session="s")
        told = result(await chat.answer(answer_id))
        assert (told.output, told.is_error) == ("Colour: Blue\nName: Ada", False)


@pytest.mark.parametrize(
    ("question", "answer", "told"),
    [
        ({**COLOUR, "multiple": True}, ["1", "2"], "Colour: Red, Blue"),
        (COLOUR, "dark green", "Colour: dark green"),
        (COLOUR, "declined", "Error: the user declined to answer 'Colour'; do not ask it again"),
        (NAME, "declined", "Error: the user declined to answer 'Name'; do not ask it again"),
    ],
)
async def test_what_the_user_says_is_the_result(
    tmp_path: Path, question: dict[str, Any], answer: str | list[str], told: str
) -> None:
    async with chatting(tmp_path) as chat:
        chat.model.then(uses(question))
        answer_id = await chat.accept("go")
        shown = await asked(chat, question["question"])
        await chat.host.settle(shown.approval_id, answer, session="s")
        assert result(await chat.answer(answer_id)).output == told


async def test_a_call_may_have_an_id_of_any_length(tmp_path: Path, migrated_postgres_url: str) -> None:
    """LiteLLM puts the signature of a thought, thousands of characters, into the id of a call."""
    long_id = f"call_1__thought__{secrets.token_hex(4_000)}"
    async with chatting(tmp_path, store={"url": migrated_postgres_url}) as chat:
        chat.model.then(Reply((Use("question", json.dumps({"questions": [NAME]}), long_id),), "tools"))
        answer_id = await chat.accept("go")
        shown = await asked(chat, "Which name?")
        await chat.host.settle(shown.approval_id, "Ada", session="s")
        assert result(await chat.answer(answer_id)).output == "Name: Ada"


async def test_a_call_ends_without_a_user_and_after_the_time_limit(tmp_path: Path) -> None:
    async with chatting(tmp_path, limits={"approval_timeout_ms": 1}) as chat:
        chat.model.then(uses(NAME))
        assert "did not answer 'Name' in time" in result(await chat.say("go")).output
        chat.gateway.channels.register(Letterbox())
        chat.model.then(uses(NAME))
        assert "cannot be asked" in result(await chat.say("go", channel="letters", session="t")).output


class Careful(Plugin):
    """Asks before each call, with a time limit that is shorter than a user needs."""

    name = "careful"

    def __init__(self) -> None:
        self.outside: object = None

    async def activate(self, ctx: PluginContext) -> None:
        assert ctx.ui is not None
        self.ui = ctx.ui
        self.outside = await ctx.ui.confirm("Start?", "")

    async def before_tool_exec(self, call: ToolCall, ctx: Any) -> Any:
        from gateway import ToolBlock

        if not await self.ui.confirm("Really?", call.name):
            return ToolBlock("not confirmed")
        picked = await self.ui.select("How?", ["fast", "slow"])
        return ToolBlock(f"{picked} {await self.ui.input('Why?')}")


async def test_a_hook_asks_in_the_chat_of_its_turn_and_without_one_the_answer_is_never_yes(
    tmp_path: Path,
) -> None:
    careful = Careful()
    limits = {"plugins": {"careful": {"hook_timeout_ms": 5_000}}}
    async with chatting(tmp_path, careful, **limits) as chat:
        assert careful.outside is False
        chat.model.then(Reply((Use("calculator", '{"expression": "1"}'),), "tools"))
        answer_id = await chat.accept("go")
        for title, answer in (("Really?", "yes"), ("How?", "slow"), ("Why?", "because")):
            shown = await asked(chat, title)
            await chat.host.settle(shown.approval_id, answer, session="s")
        assert result(await chat.answer(answer_id)).output == "slow because"
        chat.model.then(Reply((Use("calculator", '{"expression": "1"}'),), "tools"))
        answer_id = await chat.accept("again")
        shown = await asked(chat, "Really?")
        await chat.host.settle(shown.approval_id, "no", session="s")
        assert result(await chat.answer(answer_id)).output == "not confirmed"
