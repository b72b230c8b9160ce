"""/agent new: a model drafts an agent, and an admin saves it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.contract.errors import NotFoundError
from gateway.contract.messages import Message
from gateway.session.frames import ApprovalAsked
from gateway.testing.chat import Chat, chatting, written
from gateway.testing.fake_models.script import Reply, Say

DRAFT = """---
name: counter
description: Counts things
tools: ["calculator"]
---
You count what the user names.
"""


async def draft(chat: Chat, text: str, decision: str | None, *, about: str = '"counts things"') -> Message:
    """Ask for an agent that the model drafts as ``text``, and decide about it if it is shown."""
    chat.model.then(Reply((Say(text),)))
    answer = await chat.accept(f"/agent new {about}", role="admin")
    if decision is not None:
        asked = await chat.decide(decision)
        assert asked.title == "Save this agent as counter?"
        assert asked.detail == DRAFT.replace("name: counter\n", "").rstrip("\n") + "\n"
    return await chat.answer(answer)


def files(data_dir: Path) -> list[str]:
    folder = data_dir / "saved_agents"
    return sorted(file.name for file in folder.iterdir()) if folder.exists() else []


async def test_an_admin_saves_a_draft_and_it_is_usable_at_once_and_after_a_restart(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        saved = await draft(chat, f"```markdown\n{DRAFT}```", "yes")
        assert saved.text == "The agent `counter` is saved. `/agent counter` selects it."
        request = chat.model.calls[0]
        assert request.messages[0].text.startswith("counts things\n\nThe tools are: calculator, ")
        assert request.options.tools == ()
        assert (await chat.say("/agent counter")).text == "This session now uses the agent `counter`."
        await chat.say("three apples")
        assert chat.model.calls[-1].options.system_prompt == "You count what the user names."
        assert [tool.name for tool in chat.model.calls[-1].options.tools] == ["calculator"]
        assert files(tmp_path) == ["counter.md"]
    async with chatting(tmp_path) as chat:
        assert "- `counter` Counts things" in (await chat.say("/agent", "other")).text


async def test_a_draft_that_is_not_wanted_is_not_saved(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        assert (await draft(chat, DRAFT, "no")).text == "The agent `counter` is not saved."
        assert files(tmp_path) == []
        assert "unknown agent 'counter'" in (await chat.say("/agent counter")).text


async def test_only_admins_draft_agents(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        assert (await chat.say("/agent new counts things")).text == "/agent new is for admins."
        usage = (await chat.say("/agent new", role="admin")).text
        assert usage.startswith('`/agent new "DESCRIPTION"`')
        assert chat.model.calls == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("I would rather not.", "the model wrote no agent file with a name"),
        (DRAFT.replace("name: counter\n", ""), "the model wrote no agent file with a name"),
        (DRAFT.replace("---\nYou", "You"), "the settings are not closed"),
        (
            DRAFT.replace('["calculator"]', '["calculater"]'),
            "unknown tool 'calculater'; did you mean calculator?",
        ),
        (DRAFT.replace('tools: ["calculator"]\n', ""), "it does not say which tools the agent may use"),
        (DRAFT.replace("tools:", "color: red\ntools:"), "color"),
        (DRAFT.replace("tools:", "fallback: ['x']\ntools:"), "a draft cannot set fallback"),
        (DRAFT.replace("tools:", "model: nobody/nothing\ntools:"), "nobody/nothing"),
        (DRAFT.replace("You count what the user names.\n", ""), "it has no system prompt"),
        (DRAFT.replace("user", "us\u202eer"), "it contains invisible characters"),
        (DRAFT + "x" * 8_000, "at most 8,000 can be shown"),
        (DRAFT.replace("counter", "../counter"), "'../counter' is not a name"),
        (DRAFT.replace("counter", "/etc/counter"), "'/etc/counter' is not a name"),
        (DRAFT.replace("counter", ".hidden"), "'.hidden' is not a name"),
        (DRAFT.replace("counter", "Counter Strike"), "'Counter Strike' is not a name"),
        (DRAFT.replace("counter", "a" * 41), "is not a name"),
        (DRAFT.replace("counter", "explore"), "an agent 'explore' exists already"),
        (DRAFT.replace("counter", "clerk"), "an agent 'clerk' exists already"),
        *(
            (DRAFT.replace("counter", name), f"an agent '{name}' exists already, or the name is reserved")
            for name in ("main", "title", "compaction", "drafter", "new", "default", "readme")
        ),
    ],
)
async def test_a_bad_draft_is_refused_with_the_reason(tmp_path: Path, text: str, reason: str) -> None:
    agents: dict[str, Any] = {"clerk": {"description": "Files things"}}
    async with chatting(tmp_path, agents=agents) as chat:
        refused = (await draft(chat, text, None)).text
        assert refused.startswith("The draft is refused: ")
        assert reason in refused
        assert files(tmp_path) == []


async def test_a_draft_has_no_tool_that_its_author_lacks(tmp_path: Path) -> None:
    agents: dict[str, Any] = {"clerk": {"tools": ["utc_time"]}}
    async with chatting(tmp_path, agents=agents) as chat:
        await chat.say("/agent clerk")
        refused = (await draft(chat, DRAFT, None)).text
        assert "unknown tool 'calculator'; it does not exist, or you lack it" in refused
        assert chat.model.calls[0].messages[0].text.endswith("The tools are: utc_time.")
    denied = {"*": "allow", "calculator@admin": "deny"}
    async with chatting(tmp_path / "denied", permissions=denied) as chat:
        assert "unknown tool 'calculator'" in (await draft(chat, DRAFT, None)).text


async def test_hidden_agents_cannot_be_selected(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        for name in ("title", "compaction", "drafter"):
            assert f"unknown agent '{name}'" in (await chat.say(f"/agent {name}")).text
            with pytest.raises(NotFoundError, match="unknown agent"):
                await chat.host.submit(written("hi"), agent=name)


async def test_a_file_of_that_name_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "saved_agents").mkdir()
    async with chatting(tmp_path) as chat:
        chat.model.then(Reply((Say(DRAFT),)))
        answer = await chat.accept("/agent new counts", role="admin")
        asked = await (await chat.watch()).until(lambda frame: isinstance(frame, ApprovalAsked))
        (tmp_path / "saved_agents/counter.md").write_text("Mine.")
        await chat.host.settle(asked.approval_id, "yes", session="s")
        assert "an agent 'counter' exists already" in (await chat.answer(answer)).text
    assert (tmp_path / "saved_agents/counter.md").read_text() == "Mine."
    assert files(tmp_path) == ["counter.md"]
