"""A tool waits for a person's word."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway import (
    ApprovalAsked,
    ApprovalRequest,
    ApprovalResolved,
    NotFoundError,
    PlacementDeferred,
    Plugin,
    PluginContext,
    Tool,
    ToolResultPart,
    UnauthorizedError,
    tool_from,
)
from gateway.messages import Message
from gateway.testing.chat import Chat, chatting, written
from gateway.testing.letterbox import Letterbox
from gateway.testing.script import Reply, Use

ASK: dict[str, Any] = {"permissions": {"shell": "ask"}}


class Shell(Plugin):
    """A tool that runs nothing and remembers what it was asked to run."""

    name = "shell"

    def __init__(self) -> None:
        self.ran: list[str] = []

        async def shell(command: str) -> str:
            """Run a command."""
            self.ran.append(command)
            return f"ran {command}"

        self._tools = [tool_from(shell, match_key=lambda arguments: arguments["command"])]

    def tools(self) -> Sequence[Tool]:
        return self._tools


async def ask(chat: Chat, command: str = "ls", session: str = "s") -> tuple[str, ApprovalAsked]:
    """Let the model ask for a command. Returns the answer's id, and the request for an approval."""
    chat.model.then(Reply((Use("shell", f'{{"command": "{command}"}}'),), "tools"))
    answer_id = await chat.accept("go", session)
    watcher = await chat.watch(session)
    asked = await watcher.until(lambda f: isinstance(f, ApprovalAsked) and f.arguments["command"] == command)
    return answer_id, asked


def result(answer: Message) -> ToolResultPart:
    """The tool result of an answer."""
    return next(part for part in answer.parts if isinstance(part, ToolResultPart))


async def test_a_tool_runs_once_it_is_allowed(tmp_path: Path) -> None:
    shell = Shell()
    async with chatting(tmp_path, shell, **ASK) as chat:
        answer_id, asked = await ask(chat)
        assert (asked.tool_name, asked.arguments) == ("shell", {"command": "ls"})
        assert shell.ran == []
        chat.host.approve(asked.approval_id, "once", session="s")
        assert result(await chat.answer(answer_id)).output == "ran ls"
        answer_id, again = await ask(chat)
        assert again.approval_id != asked.approval_id, "once is once"
        chat.host.approve(again.approval_id, "deny", session="s")
        assert result(await chat.answer(answer_id)).output == "Error: Tool 'shell' denied by user."
        assert shell.ran == ["ls"]


async def test_always_holds_for_the_same_key_in_the_same_session(tmp_path: Path) -> None:
    shell = Shell()
    async with chatting(tmp_path, shell, **ASK) as chat:
        answer_id, asked = await ask(chat)
        chat.host.approve(asked.approval_id, "always", session="s")
        await chat.answer(answer_id)
        chat.model.then(Reply((Use("shell", '{"command": "ls"}'),), "tools"))
        assert result(await chat.say("again")).output == "ran ls"
        for command, session in (("rm", "s"), ("ls", "other")):
            answer_id, asked = await ask(chat, command, session)
            chat.host.approve(asked.approval_id, "deny", session=session)
            await chat.answer(answer_id, session)
        assert shell.ran == ["ls", "ls"]


async def test_an_approval_is_used_once_and_only_by_its_session(tmp_path: Path) -> None:
    async with chatting(tmp_path, Shell(), **ASK) as chat:
        answer_id, asked = await ask(chat)
        with pytest.raises(NotFoundError):
            chat.host.approve(asked.approval_id, "once", session="other")
        with pytest.raises(NotFoundError):
            chat.host.approve("guessed", "once", session="s")
        chat.host.approve(asked.approval_id, "deny", session="s")
        with pytest.raises(NotFoundError):
            chat.host.approve(asked.approval_id, "once", session="s")
        assert result(await chat.answer(answer_id)).is_error


async def test_nobody_answering_is_a_no(tmp_path: Path) -> None:
    shell = Shell()
    async with chatting(tmp_path, shell, limits={"approval_timeout_ms": 1}, **ASK) as chat:
        chat.model.then(Reply((Use("shell", '{"command": "ls"}'),), "tools"))
        assert result(await chat.say("go")).output == "Error: Tool 'shell': approval timed out."
        assert shell.ran == []


async def test_stop_withdraws_the_question(tmp_path: Path) -> None:
    shell = Shell()
    async with chatting(tmp_path, shell, **ASK) as chat:
        _, asked = await ask(chat)
        watcher = await chat.watch()
        assert (await chat.say("/stop")).text == "Stopped."
        resolved = await watcher.until(lambda frame: isinstance(frame, ApprovalResolved))
        assert resolved == ApprovalResolved(asked.approval_id, "cancelled")
        with pytest.raises(NotFoundError):
            chat.host.approve(asked.approval_id, "once", session="s")
        assert shell.ran == []


async def test_always_is_the_word_of_one_person_and_good_for_no_other(tmp_path: Path) -> None:
    shell = Shell()
    async with chatting(tmp_path, shell, **ASK) as chat:
        answer_id, asked = await ask(chat)
        chat.host.approve(asked.approval_id, "always", session="s")
        await chat.answer(answer_id)
        for user, told in (("ada", "ran ls"), ("eve", "denied by user")):
            chat.model.then(Reply((Use("shell", '{"command": "ls"}'),), "tools"))
            answer_id = await chat.accept("go", user=user)
            if user == "eve":
                watcher = await chat.watch(after=chat.host.sessions.live()[0].seq - 1)
                again = await watcher.until(lambda f: isinstance(f, ApprovalAsked))
                chat.host.approve(again.approval_id, "deny", session="s")
            assert told in result(await chat.answer(answer_id)).output


@pytest.mark.parametrize("broken", [False, True])
async def test_a_channel_that_can_ask_asks_in_the_room_the_message_came_from(
    tmp_path: Path, broken: bool
) -> None:
    class Asking(Letterbox):
        asked: ApprovalRequest | None = None

        async def ask_approval(self, request: ApprovalRequest) -> None:
            self.asked = request
            if broken:
                raise ConnectionError("the platform is down")

    box, shell = Asking(), Shell()
    async with chatting(tmp_path, shell, **ASK) as chat:
        chat.gateway.channels.register(box)
        chat.model.then(Reply((Use("shell", '{"command": "ls"}'),), "tools"))
        answer_id = await chat.accept("go", channel="letters")
        watcher = await chat.watch()
        shown = await watcher.until(lambda frame: isinstance(frame, ApprovalAsked))
        assert box.asked is not None
        assert (box.asked.id, box.asked.user, box.asked.address) == (
            shown.approval_id,
            "ada",
            written("go", channel="letters").address,
        )
        chat.host.approve(shown.approval_id, "once", session="s")
        await chat.answer(answer_id)
        assert shell.ran == ["ls"]


async def test_a_room_that_cannot_be_reached_yet_is_asked_as_soon_as_it_can(tmp_path: Path) -> None:
    class Away(Letterbox):
        tries = 0

        async def ask_approval(self, request: ApprovalRequest) -> None:
            self.tries += 1
            if self.tries < 3:
                raise PlacementDeferred("not connected yet", 0.001)
            chat.host.approve(request.id, "once", session="s")

    box, shell = Away(), Shell()
    async with chatting(tmp_path, shell, **ASK) as chat:
        chat.gateway.channels.register(box)
        chat.model.then(Reply((Use("shell", '{"command": "ls"}'),), "tools"))
        await chat.answer(await chat.accept("go", channel="letters"))
    assert (box.tries, shell.ran) == (3, ["ls"])


async def test_who_cannot_be_asked_in_its_room_can_still_answer_elsewhere(tmp_path: Path) -> None:
    class Away(Letterbox):
        async def ask_approval(self, request: ApprovalRequest) -> None:
            raise PlacementDeferred("not connected", 3600)

    shell = Shell()
    async with chatting(tmp_path, shell, **ASK) as chat:
        chat.gateway.channels.register(Away())
        chat.model.then(Reply((Use("shell", '{"command": "ls"}'),), "tools"))
        answer_id = await chat.accept("go", channel="letters")
        watcher = await chat.watch()
        shown = await watcher.until(lambda frame: isinstance(frame, ApprovalAsked))
        chat.host.approve(shown.approval_id, "once", session="s")
        await chat.answer(answer_id)
    assert shell.ran == ["ls"]


@pytest.mark.parametrize(("word", "ran"), [("yes", True), ("OK!", True), ("No.", False)])
async def test_a_plain_word_decides_and_is_not_answered_itself(tmp_path: Path, word: str, ran: bool) -> None:
    shell = Shell()
    async with chatting(tmp_path, shell, **ASK) as chat:
        answer_id, _ = await ask(chat)
        assert await chat.host.submit(written(word)) is None
        assert result(await chat.answer(answer_id)).is_error is not ran
        assert [m.text for m in chat.model.calls[-1].messages if m.role == "user"] == ["go"]
    assert shell.ran == (["ls"] if ran else [])


async def test_a_word_of_somebody_else_decides_nothing(tmp_path: Path) -> None:
    shell = Shell()
    async with chatting(tmp_path, shell, **ASK) as chat:
        answer_id, asked = await ask(chat)
        await chat.accept("yes", user="eve")
        with pytest.raises(UnauthorizedError, match="only the person"):
            chat.host.approve(asked.approval_id, "once", session="s", user="eve")
        assert shell.ran == []
        chat.host.approve(asked.approval_id, "once", session="s", user="ada")
        await chat.answer(answer_id)
    assert shell.ran == ["ls"]


async def test_the_channel_is_told_what_was_decided(tmp_path: Path) -> None:
    class Asking(Letterbox):
        def __init__(self) -> None:
            super().__init__("test")
            self.told: list[str] = []

        async def ask_approval(self, request: ApprovalRequest) -> None:
            self.told.append(request.tool_name)

        async def approval_decided(self, request: ApprovalRequest, outcome: str) -> None:
            self.told.append(outcome)
            raise ZeroDivisionError("it cannot be shown")

    class Brings(Plugin):
        name = "brings"

        async def activate(self, ctx: PluginContext) -> None:
            assert ctx.channels is not None
            ctx.channels.register(box)

    box = Asking()
    async with chatting(tmp_path, Shell(), Brings(), **ASK) as chat:
        answer_id, asked = await ask(chat)
        chat.host.approve(asked.approval_id, "once", session="s")
        await chat.answer(answer_id)
    assert box.told == ["shell", "once"]
