"""Outputs of tools that are too long for a conversation, and the tool that reads their full text."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from gateway import Plugin, Tool, ToolResultPart, tool_from
from gateway.files import ToolOutputs
from gateway.testing.chat import Chat, chatting
from gateway.testing.fake_models.script import Reply, Use

LINES = "\n".join(f"line {number}" for number in range(10_000))
SECRET = "sk-very-secret-1234567890"


class Talker(Plugin):
    """A tool that says what the test gives it."""

    name = "talker"

    def __init__(self, text: str) -> None:
        async def talk() -> str:
            """Talk a lot."""
            return text

        self._tools = (tool_from(talk),)

    def tools(self) -> tuple[Tool, ...]:
        return self._tools


async def result(chat: Chat, name: str, session: str = "s", **arguments: Any) -> ToolResultPart:
    """The result of a call that the model is made to ask for."""
    chat.model.then(Reply((Use(name, json.dumps(arguments)),), "tools"))
    answer = await chat.say("go", session)
    [part] = [part for part in answer.parts if isinstance(part, ToolResultPart)]
    return part


def id_in(output: str) -> str:
    """The id that a cut output names."""
    found = re.search(r"read_output, id (\w+)", output)
    assert found is not None, output
    return found[1]


async def read_all(chat: Chat, name: str, session: str = "s") -> str:
    """The full text, page by page."""
    text, offset = "", 0
    while True:
        header, _, page = (
            await result(chat, "read_output", session, id=name, offset=offset)
        ).output.partition("\n")
        text += page
        following = re.search(r"continue at offset (\d+)", header)
        if following is None:
            return text
        assert int(following[1]) > offset
        offset = int(following[1])


@pytest.mark.parametrize(
    "text",
    [LINES, "ä" * 60_000, "\n" * 2_001, "x" * 51_201, "a\ud800b" * 20_000],
    ids=["lines", "one line", "empty lines", "a byte too many", "lone surrogates"],
)
async def test_004_t14_a_long_output_is_cut_at_head_and_tail_and_its_full_text_can_be_read(
    tmp_path: Path, text: str
) -> None:
    async with chatting(tmp_path, Talker(text)) as chat:
        output = (await result(chat, "talk")).output
        whole = text.replace("\ud800", "\ufffd")
        head, _, rest = output.partition("\n[output cut here: ")
        tail = rest.partition("]\n")[2]
        assert whole.startswith(head)
        assert whole.endswith(tail)
        assert len(output.encode()) <= 51_200 + 200
        assert output.count("\n") <= 2_002
        assert await read_all(chat, id_in(output)) == whole


@pytest.mark.parametrize("text", ["x" * 51_200, "\n" * 1_999, "short"])
async def test_an_output_within_the_limits_is_whole_and_no_tool_is_offered(tmp_path: Path, text: str) -> None:
    async with chatting(tmp_path, Talker(text)) as chat:
        assert (await result(chat, "talk")).output == text
        await chat.say("again")
        assert "read_output" not in [tool.name for tool in chat.model.calls[-1].options.tools]
    assert not (tmp_path / "tool_outputs").exists()


async def test_an_output_belongs_to_its_conversation(tmp_path: Path) -> None:
    async with chatting(tmp_path, Talker(LINES)) as chat:
        name = id_in((await result(chat, "talk")).output)
        other = await result(chat, "read_output", "other", id=name)
        assert other.is_error
        assert "no output" in other.output
        for wrong in ("", "..", "../x", name.upper(), name + "/../" + name, "/etc/passwd", "0" * 32, "\0"):
            assert (await result(chat, "read_output", id=wrong)).is_error
        assert (await result(chat, "read_output", id=name, offset=-1)).is_error
        past = await result(chat, "read_output", id=name, offset=10**9)
        assert "this is the end" in past.output


async def test_a_kept_output_survives_a_restart_and_only_its_user_may_open_the_file(tmp_path: Path) -> None:
    async with chatting(tmp_path, Talker(LINES)) as chat:
        name = id_in((await result(chat, "talk")).output)
    [file] = (tmp_path / "tool_outputs").glob("*/*")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    async with chatting(tmp_path, Talker(LINES), permissions={"read_output": "allow"}) as chat:
        assert await read_all(chat, name) == LINES


async def test_a_kept_output_goes_with_its_conversation(tmp_path: Path) -> None:
    async with chatting(tmp_path, Talker(LINES)) as chat:
        await result(chat, "talk")
        await result(chat, "talk", "other")
        await chat.host.sessions.delete("s")
        assert len([*(tmp_path / "tool_outputs").glob("*/*")]) == 1


async def test_a_secret_is_masked_in_the_kept_text(tmp_path: Path) -> None:
    providers = {"openai": {"api_key": SECRET}}
    async with chatting(tmp_path, Talker(f"{SECRET} " * 5_000), providers=providers) as chat:
        await result(chat, "talk")
    [file] = (tmp_path / "tool_outputs").glob("*/*")
    assert SECRET not in file.read_text()


async def test_texts_are_deleted_after_seven_days(tmp_path: Path) -> None:
    outputs = ToolOutputs(tmp_path / "kept", 1000)
    old, new = [id_in(await outputs.shorten(LINES, s, str)) for s in ("old", "new")]
    [file] = (tmp_path / "kept").glob(f"*/{old}")
    week = file.stat().st_mtime + 7 * 86_400
    os.utime(file, (week - 8 * 86_400, week - 8 * 86_400))
    assert outputs.sweep(week - 10)
    assert [path.name for path in (tmp_path / "kept").glob("*/*")] == [new]
    assert not outputs.sweep(week + 10)
    assert [*(tmp_path / "kept").iterdir()] == []


async def test_an_output_that_cannot_be_kept_is_cut_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "tool_outputs").write_text("a file where the folder should be")
    async with chatting(tmp_path, Talker(LINES)) as chat:
        output = (await result(chat, "talk")).output
        assert "could not be kept" in output
        assert len(output.encode()) < 52_000
