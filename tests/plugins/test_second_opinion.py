"""The plugin ``second_opinion``: drafts that are revised, and questions to another model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway import ErrorPart, Message, PluginError, ToolCallPart, ToolResultPart
from gateway.contract.errors import ContentFilterError
from gateway.testing.chat import chatting
from gateway.testing.fake_models.script import Reply, Say, Use
from plugins.second_opinion import SecondOpinion

DRAFT, BETTER = "A first answer.", "A better answer."
SETTINGS: dict[str, Any] = {"revise_from": 10, "instruction": "Now better.", "model": "script/two"}


def settings(**changes: Any) -> dict[str, Any]:
    return {"plugins": {"second_opinion": SETTINGS | changes}}


async def test_a_long_answer_is_replaced_by_its_revision(tmp_path: Path) -> None:
    async with chatting(tmp_path, SecondOpinion(), **settings()) as chat:
        chat.model.then(Reply((Say(DRAFT),)), Reply((Say(BETTER),)))
        answer = await chat.say("hi")
        second = chat.model.calls[1].messages
    assert answer.text == BETTER
    assert DRAFT not in str(answer.parts)
    assert [message.text for message in second] == ["hi", DRAFT, "Now better."]


async def test_a_short_answer_is_not_revised(tmp_path: Path) -> None:
    async with chatting(tmp_path, SecondOpinion(), **settings(revise_from=100)) as chat:
        chat.model.then(Reply((Say(DRAFT),)))
        assert (await chat.say("hi")).text == DRAFT
        assert len(chat.model.calls) == 1


async def test_tools_run_before_the_revision(tmp_path: Path) -> None:
    async with chatting(tmp_path, SecondOpinion(), **settings()) as chat:
        chat.model.then(
            Reply((Say("Let me see, please."), Use("calculator", '{"expression": "6 * 7"}')), "tools"),
            Reply((Say(DRAFT),)),
            Reply((Say(BETTER),)),
        )
        answer = await chat.say("6 times 7?")
        revised = chat.model.calls[2].messages
    assert answer.text == f"Let me see, please.\n\n{BETTER}"
    assert [p.output for p in answer.parts if isinstance(p, ToolResultPart)] == ["42"]
    assert len([p for p in answer.parts if isinstance(p, ToolCallPart)]) == 1
    assert [p.output for p in revised[1].parts if isinstance(p, ToolResultPart)] == ["42"]
    assert revised[1].text == f"Let me see, please.\n\n{DRAFT}"


async def test_the_draft_stays_if_its_revision_fails(tmp_path: Path) -> None:
    async with chatting(tmp_path, SecondOpinion(), **settings()) as chat:
        chat.model.then(Reply((Say(DRAFT),)), ContentFilterError("no", provider="script"))
        answer = await chat.say("hi")
    assert answer.text == DRAFT
    assert not [part for part in answer.parts if isinstance(part, ErrorPart)]


async def test_a_model_that_only_calls_tools_is_stopped(tmp_path: Path) -> None:
    async with chatting(tmp_path, SecondOpinion(), **settings()) as chat:
        uses = [Reply((Use("calculator", f'{{"expression": "{n}"}}', f"c{n}"),), "tools") for n in range(60)]
        chat.model.then(*uses)
        answer = await chat.say("hi")
    [error] = [part for part in answer.parts if isinstance(part, ErrorPart)]
    assert error.message == "second_opinion: stopped after 50 model calls in one turn"


async def test_another_model_is_asked_with_the_conversation(tmp_path: Path) -> None:
    async with chatting(tmp_path, SecondOpinion(), **settings(revise_from=1000)) as chat:
        await chat.say("My name is Ada.")
        chat.model.then(Reply((Say("You are Ada."),)))
        answer = await chat.say("/opinion Who am I?")
        assert answer.text == "**script/two**\n\nYou are Ada."
        call = chat.model.calls[-1]
        assert call.options.model == "two"
        assert [message.text for message in call.messages] == [
            "My name is Ada.",
            "You said: My name is Ada.",
            "Who am I?",
        ]
        kept: tuple[Message, ...] = (await chat.gateway.parts.sessions.find("s")).messages()
        assert len([message for message in kept if message.for_model]) == 2
        assert (await chat.say("/opinion")).text == "Write a question after /opinion."


async def test_without_a_model_there_is_no_command(tmp_path: Path) -> None:
    async with chatting(tmp_path, SecondOpinion(), **settings(model=None)) as chat:
        assert "Unknown command: /opinion" in (await chat.say("/opinion Who am I?")).text


async def test_a_wrong_setting_stops_the_start(tmp_path: Path) -> None:
    given = {"second_opinion": {"revise_from": "long"}}
    with pytest.raises(PluginError) as caught:
        async with chatting(tmp_path, SecondOpinion(), plugins=given):
            pass
    assert 'plugins.second_opinion.revise_from = "long" must be a whole number' in str(caught.value)
