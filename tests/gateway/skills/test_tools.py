"""Skills in a chat: what the model sees of them, what it loads, and what they do to its tools."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from gateway import Plugin, Tool, ToolContext, ToolResultPart, tool_from
from gateway.settings import Settings
from gateway.settings.sections import Origin
from gateway.skills import SkillLibrary
from gateway.testing.chat import Chat, chatting
from gateway.testing.fake_models.script import Gate, Reply, Say, Use
from tests.gateway.skills.conftest import Desk


def use(tool: str, /, **arguments: Any) -> Reply:
    return Reply((Use(tool, json.dumps(arguments)),), "tools")


async def results(chat: Chat, *replies: Reply, session: str = "s", **fields: Any) -> list[ToolResultPart]:
    """Let the model make calls; returns their results."""
    chat.model.then(*replies, Reply((Say("done"),)))
    answer = await chat.say("go", session, **fields)
    return [part for part in answer.parts if isinstance(part, ToolResultPart)]


class Nesting(Plugin):
    """A tool that runs an agent with one task."""

    name = "nesting"

    def tools(self) -> list[Tool]:
        return [tool_from(self.work)]

    async def work(self, agent: str, context: ToolContext) -> str:
        """Work on a task."""
        return await context.run_nested("a task", agent=agent)


async def test_004_T23_skills_are_discovered_and_loaded_on_demand(desk: Desk) -> None:
    folder = desk.skill(more="allowed-tools: [calculator]\n")
    (folder / "fields.md").write_text("Field A")
    desk.skill("news", desk.user)
    desk.skill("pdf-forms", desk.user)
    desk.skill("broken", more="color: red\n")
    async with chatting(desk.data, kind=desk.kind) as chat:
        assert [each.output for each in await results(chat)] == []
        prompt = chat.model.calls[-1].options.system_prompt or ""
        assert "- pdf-forms: Fills pdf-forms. Use it for forms.\n- news: Fills news." in prompt
        assert "Read the form first." not in prompt
        assert "broken" not in prompt
        loaded, file, away = await results(
            chat,
            use("skill", name="pdf-forms"),
            use("skill_file", name="pdf-forms", path="fields.md"),
            use("skill_file", name="pdf-forms", path="../../trunkline.toml"),
        )
        assert loaded.output == (
            "# Steps of pdf-forms\n\nRead the form first.\n\n"
            f"Files of this skill, for skill_file: fields.md\n\nThey are below {folder}\n\n"
            "Until the end of your answer you have only these tools: calculator"
        )
        assert file.output == "Field A"
        assert "has no file '../../trunkline.toml'" in away.output
        (unknown,) = await results(chat, use("skill", name="broken"))
        assert unknown.output == "Error: there is no skill 'broken'; the system prompt lists them"


async def test_allowed_tools_narrows_the_tools_until_the_end_of_the_answer(desk: Desk) -> None:
    desk.skill(more="allowed-tools: calculator(1 + *)\n")
    rules = {"calculator": "ask", "*": "allow"}
    async with chatting(desk.data, kind=desk.kind, permissions=rules, channels={}) as chat:
        found = await results(
            chat,
            use("utc_time"),
            use("skill", name="pdf-forms"),
            use("utc_time"),
            use("skill_file", name="pdf-forms", path="none"),
            unattended=True,
        )
        assert [each.is_error for each in found] == [False, False, True, True]
        assert "Unknown tool: utc_time" in found[2].output
        offered = {tool.name for tool in chat.model.calls[-1].options.tools}
        assert offered == {"calculator", "skill", "skill_file"}
        # What is allowed by the skill still needs the permission of the settings.
        _, asked = await results(
            chat,
            use("skill", name="pdf-forms"),
            use("calculator", expression="1 + 1"),
            session="unattended",
            unattended=True,
        )
        assert "needs a person's approval" in asked.output
        (later,) = await results(chat, use("utc_time"))
        assert not later.is_error


async def test_a_pattern_of_allowed_tools_must_match_the_call(desk: Desk) -> None:
    desk.skill(more="allowed-tools: calculator(1 + *)\n")
    async with chatting(desk.data, kind=desk.kind) as chat:
        _, one, two = await results(
            chat,
            use("skill", name="pdf-forms"),
            use("calculator", expression="1 + 1"),
            use("calculator", expression="2 + 1"),
        )
        assert one.output == "2"
        assert two.output == (
            "Error: the skill 'pdf-forms' does not allow this call; it allows calculator(1 + *)."
        )


async def test_an_agent_has_only_its_skills_and_so_have_its_nested_runs(desk: Desk) -> None:
    desk.skill()
    desk.skill("news")
    agents = {"desk": {"skills": ["news"]}, "none": {"skills": []}}
    async with chatting(desk.data, Nesting(), kind=desk.kind, agents=agents) as chat:
        (refused,) = await results(chat, use("skill", name="pdf-forms"), agent="desk")
        assert refused.output == "Error: this agent may not use the skill 'pdf-forms'."
        prompt = chat.model.calls[-1].options.system_prompt or ""
        assert "- news:" in prompt
        assert "- pdf-forms:" not in prompt
        await results(chat, session="t", agent="none")
        assert "Skills are" not in (chat.model.calls[-1].options.system_prompt or "")
        assert "skill" not in {tool.name for tool in chat.model.calls[-1].options.tools}
        for nested in ("general", "unknown"):
            calls = len(chat.model.calls)
            await results(chat, use("work", agent=nested), session=nested, agent="desk")
            prompt = chat.model.calls[calls + 1].options.system_prompt or ""
            assert ("- news:" in prompt, "- pdf-forms:" in prompt) == (True, False)


async def test_the_main_settings_limit_agents_that_say_nothing(desk: Desk) -> None:
    desk.skill()
    desk.skill("news")
    async with chatting(desk.data, kind=desk.kind, skills=["news"], agents={"desk": {}}) as chat:
        for agent in (None, "desk"):
            await results(chat, session=f"of {agent}", agent=agent)
            prompt = chat.model.calls[-1].options.system_prompt or ""
            assert ("- news:" in prompt, "- pdf-forms:" in prompt) == (True, False)


async def test_a_gateway_without_skills_has_neither_tools_nor_hooks(desk: Desk) -> None:
    async with chatting(desk.data, kind=desk.kind) as chat:
        await results(chat)
        assert "skill" not in {tool.name for tool in chat.model.calls[-1].options.tools}
        assert not chat.gateway.registry.get_hooks().uses("before_tool_exec")


async def test_a_nested_run_is_narrowed_with_the_answer(desk: Desk) -> None:
    desk.skill(more="allowed-tools: [work]\n")
    async with chatting(desk.data, Nesting(), kind=desk.kind) as chat:
        await results(
            chat,
            use("skill", name="pdf-forms"),
            use("work", agent="general"),
            use("utc_time"),
            Reply((Say("It failed."),)),
        )
        nested = next(each for each in chat.model.calls if each.messages[-1].text == "a task")
        assert {tool.name for tool in nested.options.tools} <= {"work", "skill", "skill_file"}


async def test_an_answer_that_continues_after_a_restart_stays_narrowed(desk: Desk) -> None:
    desk.skill(more="allowed-tools: [calculator]\n")
    async with chatting(desk.data, kind=desk.kind, limits={"drain_seconds": 0}) as chat:
        chat.model.then(use("skill", name="pdf-forms"), Reply((Gate(asyncio.Event()),)))
        answer_id = await chat.accept("go")
        while len(chat.model.calls) < 2:
            await asyncio.sleep(0.01)
    async with chatting(desk.data, kind=desk.kind) as chat:
        await chat.answer(answer_id)
        offered = {tool.name for tool in chat.model.calls[0].options.tools}
        assert offered == {"calculator", "skill", "skill_file"}


def test_the_first_place_wins(desk: Desk, tmp_path: Path) -> None:
    desk.skill()
    desk.skill("pdf-forms", desk.user)
    settings = Settings(data_dir=tmp_path).with_origin(Origin(file=desk.config))
    found = list(SkillLibrary(settings, str(desk.home)).discover())
    assert [(each.source.name, each.problem) for each in found if each.name == "pdf-forms"] == [
        ("settings", ""),
        ("user", f"the one in {desk.own / 'pdf-forms'} is used"),
    ]


async def test_the_folders_are_read_again_when_a_file_changes(desk: Desk) -> None:
    async with chatting(desk.data, kind=desk.kind) as chat:
        library = chat.gateway.skills
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(library.watch(0.05))

            async def known(names: set[str], description: str = "") -> None:
                async with asyncio.timeout(60):
                    while {*library.skills} != names or description not in str([*library.skills.values()]):
                        await asyncio.sleep(0.01)

            folder = desk.skill()
            await known({"pdf-forms"})
            await results(chat)
            assert "- pdf-forms: Fills pdf-forms." in (chat.model.calls[-1].options.system_prompt or "")
            (folder / "fields.md").write_text("Field A")
            await known({"pdf-forms"}, "fields.md")
            (file,) = await results(chat, use("skill_file", name="pdf-forms", path="fields.md"))
            assert file.output == "Field A"
            (folder / "SKILL.md").write_text("no skill")
            await known(set())
            await results(chat)
            assert "pdf-forms" not in (chat.model.calls[-1].options.system_prompt or "")
            watching.cancel()
