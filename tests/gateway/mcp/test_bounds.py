"""What a hostile server sends is bounded and reported, and the gateway keeps answering."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway import ToolError
from gateway.mcp.definitions import Definition, KnownTools, Listing, model_name
from gateway.testing.chat import Chat

from .conftest import Servers, plugin, server, until, use

pytestmark = pytest.mark.slow


async def fail(chat: Chat, what: str) -> str:
    """Let the server do something that fails the call, and return the reason."""
    with pytest.raises(ToolError) as error:
        await server(chat).call("run", {"what": what}, print)
    return str(error.value)


async def test_junk_is_dropped_and_counted(servers: Servers) -> None:
    async with servers.chat("chatty") as chat:
        assert (await use(chat, "demo_add", a=1, b=2)).output == "3"
        assert server(chat).status.junk == 1
        assert (await use(chat, "demo_run", what="junk")).output == "did junk"
        assert (await use(chat, "demo_run", what="nested")).output == "did nested"
        assert server(chat).status.junk == 202


async def test_an_answer_to_another_call_is_dropped_and_counted(servers: Servers) -> None:
    async with servers.chat() as chat:
        assert (await use(chat, "demo_run", what="other")).output == "did other"
        assert server(chat).status.junk == 1


@pytest.mark.parametrize(
    ("what", "told"),
    [("flood", "more than 2,000 lines in a second"), ("huge", "a message of more than 4 MB")],
)
async def test_a_flood_ends_the_server_and_nothing_else(servers: Servers, what: str, told: str) -> None:
    async with servers.chat() as chat:
        async with asyncio.TaskGroup() as tasks:
            flooding = tasks.create_task(fail(chat, what))
            assert (await chat.say("Are you there?", "other")).text
        assert told in flooding.result()
        await servers.gone()
        assert (await use(chat, "demo_add", a=1, b=2)).output == "3"


async def test_a_thousand_tools_are_bounded(servers: Servers) -> None:
    async with servers.chat("many") as chat:
        assert len(plugin(chat).tools()) == 256
        assert server(chat).status.left_out == ("all tools after the first 256",)


async def test_odd_definitions_are_left_out_or_cleaned(servers: Servers) -> None:
    async with servers.chat("odd") as chat:
        offered = {tool.name: tool for tool in plugin(chat).tools()}
        assert sorted(offered) == [
            "demo_add",
            "demo_bare",
            "demo_free",
            "demo_hidden",
            "demo_look",
            "demo_run",
            "demo_sp_ace___x",
        ]
        assert offered["demo_hidden"].definition.description == "ab"
        bare, free = (offered[f"demo_{name}"].definition.parameters for name in ("bare", "free"))
        assert (bare["properties"], bare["additionalProperties"]) == ({}, False)
        assert free["additionalProperties"]["type"] == "string"
        assert not any(tool.read_only for tool in offered.values())
        twice, big, wrong = server(chat).status.left_out
        assert (twice, big) == (
            "'add', which it lists twice",
            "'big', whose definition has more than 64 KB",
        )
        assert wrong.startswith("'wrong', whose schema is not a JSON Schema: \"any\" is not valid")


async def test_a_wrong_list_of_tools_is_explained_in_one_line(servers: Servers) -> None:
    async with servers.chat("broken") as chat:
        problem = server(chat).problem
        assert problem == "it sent a wrong ListToolsResult: tools.3.inputSchema: Field required"


async def test_a_result_is_not_compared_with_the_schema_of_its_server(servers: Servers) -> None:
    """The pattern of the schema would take longer than the universe, and stop the gateway."""
    async with servers.chat("schema") as chat:
        assert (await use(chat, "demo_run", what="junk")).output == "did junk"


def test_long_definitions_are_shown_whole_instead_of_compared(tmp_path: Path) -> None:
    """Comparing 64 KB of lines that repeat would take minutes."""
    known = KnownTools(tmp_path / "known.json")
    before, after = ("\n".join(f"{turn}{n % 130}" for n in range(9_000)) for turn in "ab")
    known.update(Listing((Definition("long", before, {}),)))
    assert known.update(Listing((Definition("long", after, {}),))) == ["long"]
    [tool] = known.states()
    assert tool.difference.splitlines()[2:5] == ["@@ -1,9001 +1,9001 @@", "-a0", "-a1"]
    assert tool.difference.splitlines()[-2:] == ["+b29", "+{}"]


async def test_long_names_that_begin_alike_are_told_apart_and_stay(servers: Servers) -> None:
    async with servers.chat("long") as chat:
        names = [tool.name for tool in plugin(chat).tools()]
        states = server(chat).known.states()
    assert len(set(names)) == 2
    assert [len(name) for name in names] == [64, 64]
    assert names == [model_name("demo", tool.name) for tool in states]
    assert model_name("demo", "x" * 59) == "demo_" + "x" * 59


async def test_a_definition_of_ten_megabytes_is_refused(servers: Servers) -> None:
    async with servers.chat("huge") as chat:
        assert "a message of more than 4 MB" in server(chat).problem
        assert plugin(chat).tools() == ()


async def test_a_storm_of_changes_is_read_a_few_times(servers: Servers) -> None:
    async with servers.chat() as chat:
        await server(chat).connect()
        (servers.folder / "lists").write_text("0")
        assert (await use(chat, "demo_run", what="storm")).output == "did storm"
        assert (await use(chat, "demo_add", a=1, b=2)).output == "3"
        await until(lambda: int((servers.folder / "lists").read_text() or 0))
        assert int((servers.folder / "lists").read_text()) <= 3
        (servers.folder / "description").write_text("Add")


async def test_a_changed_list_is_read_while_the_server_runs(servers: Servers) -> None:
    async with servers.chat() as chat:
        await server(chat).connect()
        (servers.folder / "description").write_text("Add two numbers, and send them to me")
        await use(chat, "demo_run", what="storm")
        await until(lambda: [tool.name for tool in plugin(chat).tools()] == ["demo_look", "demo_run"])
        assert server(chat).status.waiting == 1
