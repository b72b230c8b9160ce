"""The settings of one room: its agent, prompt and tools, and its own list of users."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gateway.testing.fake_models.script import Reply, Say, Use
from tests.gateway.access.rooms import Platforms, code_in, guarded
from tests.gateway.access.test_approvals import Shell
from tests.gateway.models.test_agents import Office, hand_to

AGENTS: dict[str, Any] = {
    "desk": {"system_prompt": "You are the desk.", "tools": ["shell", "stamp", "delegate"]},
    "cook": {"system_prompt": "You cook."},
    "poet": {"system_prompt": "You write poems."},
}


def rooms(**tables: dict[str, Any]) -> dict[str, Any]:
    """Settings of the platform ``home`` with a table for each room, by chat id."""
    return {"home": {"allow": ["ada"], "admins": ["root"], "groups": "always", "rooms": tables}}


async def test_a_room_has_its_own_agent_and_a_session_may_choose_another(tmp_path: Path) -> None:
    channels = rooms(kitchen={"agent": "cook"})
    channels["home"]["agent"] = "desk"
    async with guarded(tmp_path, channels=channels, agents=AGENTS) as (chat, platforms):
        kitchen, hall = (platforms.room(name, group=True) for name in ("kitchen", "hall"))

        async def prompt_in(room: Any, **fields: Any) -> str:
            await room.ask("ada", "hi", **fields)
            return chat.model.calls[-1].options.system_prompt

        assert await prompt_in(kitchen) == "You cook."
        assert await prompt_in(hall) == "You are the desk."
        assert "`cook`" in await kitchen.ask("ada", "/agent")
        await kitchen.ask("ada", "/agent poet")
        assert await prompt_in(kitchen) == "You write poems."
        assert await prompt_in(kitchen, agent="desk") == "You are the desk."
        await kitchen.ask("ada", "/agent default")
        assert await prompt_in(kitchen) == "You cook."


async def test_a_rooms_prompt_follows_that_of_its_agent(tmp_path: Path) -> None:
    channels = rooms(kitchen={"agent": "cook", "system_prompt": "Answer in French."})
    async with guarded(tmp_path, channels=channels, agents=AGENTS) as (chat, platforms):
        await platforms.room("kitchen", group=True).ask("ada", "hi")
        await platforms.room("hall", group=True).ask("ada", "hi")
        prompts = [call.options.system_prompt for call in chat.model.calls]
        assert prompts == ["You cook.\n\nAnswer in French.", ""]


async def test_a_rooms_tools_narrow_those_of_its_agent_and_of_nested_runs(tmp_path: Path) -> None:
    channels = rooms(lab={"agent": "desk", "tools": ["delegate", "shell", "unknown"]}, quiet={"tools": []})
    shell = Shell()
    async with guarded(tmp_path, shell, Office(), channels=channels, agents=AGENTS) as (chat, platforms):
        lab = platforms.room("lab", group=True)
        chat.model.then(hand_to("cook"), Reply((Use("stamp"),), "tools"), Reply((Say("No."),)))
        await lab.ask("ada", "go")
        outer, nested, *_ = ({tool.name for tool in call.options.tools} for call in chat.model.calls)
        assert (outer, nested) == ({"delegate", "shell"}, {"delegate", "shell"})
        assert "Unknown tool: stamp" in repr(chat.model.calls[2].messages)
        await platforms.room("quiet", group=True).ask("ada", "go")
        assert chat.model.calls[-1].options.tools == ()
        options = chat.model.calls[-1].options
        assert options.ask is not None
        assert not await options.ask("script:run", {}), "a backend's own tool is not among them, either"
        await platforms.room("hall", group=True).ask("ada", "go")
        assert "stamp" in {tool.name for tool in chat.model.calls[-1].options.tools}


async def answered(platforms: Platforms, user: str, chat: str) -> bool:
    """Return whether a user's message in a group is answered."""
    room = platforms.room(chat, group=True)
    before = len(platforms.home.sent)
    if (await room.write(user, "hi")).ignored:
        return False
    await platforms.home.until(before + 1)
    return True


async def test_a_rooms_list_replaces_that_of_its_channel(tmp_path: Path) -> None:
    channels = rooms(open={"allow": "*"}, staff={"allow": ["bob"]}, closed={"allow": []}, same={})
    async with guarded(tmp_path, channels=channels) as (_, platforms):
        wanted = {
            ("ada", "open"): True,
            ("eve", "open"): True,
            ("ada", "staff"): False,
            ("bob", "staff"): True,
            ("bob", "same"): False,
            ("ada", "same"): True,
            ("ada", "closed"): False,
            ("root", "closed"): True,
            ("root", "staff"): True,
            ("ada", "hall"): True,
            ("eve", "hall"): False,
        }
        assert {case: await answered(platforms, *case) for case in wanted} == wanted


async def test_admins_stay_admins_in_every_room_and_no_room_makes_one(tmp_path: Path) -> None:
    channels = rooms(open={"allow": "*"}, closed={"allow": []})
    async with guarded(tmp_path, channels=channels) as (_, platforms):
        for user, chat in (("root", "open"), ("root", "closed"), ("ada", "open")):
            assert await answered(platforms, user, chat)
        assert [role for _, role in platforms.heard] == ["admin", "admin", "user"]


async def test_paired_members_need_a_rooms_list_as_well(tmp_path: Path) -> None:
    channels = rooms(staff={"allow": ["bob"]}, open={"allow": "*"})
    async with guarded(tmp_path, channels=channels) as (_, platforms):
        code = code_in(await platforms.room("1").ask("eve", "hi"))
        await platforms.room("2").ask("root", f"/pair {code}")
        cases = {chat: await answered(platforms, "eve", chat) for chat in ("hall", "open", "staff")}
        assert cases == {"hall": True, "open": True, "staff": False}
