"""A tool waits for a person's word."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway import (
    Answer,
    AskFirst,
    NotFoundError,
    Plugin,
    Tool,
    ToolError,
    ToolResultPart,
    tool_from,
)
from gateway.access import THE_OWNER
from gateway.channel import (
    Address,
    ApprovalRequest,
    InvalidRequestError,
    Placed,
    PlacementDeferred,
    PlacementRefused,
    Question,
    UnauthorizedError,
)
from gateway.contract.messages import Message
from gateway.contract.questions import visible_json
from gateway.events import PermissionReplied
from gateway.session.frames import ApprovalAsked, ApprovalResolved
from gateway.testing.chat import Chat, chatting, written
from gateway.testing.fake_models.script import Reply, Use
from gateway.testing.letterbox import Letterbox
from tests.small_plugins import Brings, Shell

ASK: dict[str, Any] = {"permissions": {"shell": "ask"}}


async def ask(chat: Chat, command: str = "ls", session: str = "s") -> tuple[str, ApprovalAsked]:
    """Let the model ask for a command. Returns the answer's id, and the request for an approval."""
    chat.model.then(Reply((Use("shell", f'{{"command": "{command}"}}'),), "tools"))
    answer_id = await chat.accept("go", session)
    watcher = await chat.watch(session)
    asked = await watcher.until(lambda f: isinstance(f, ApprovalAsked) and f.arguments["command"] == command)
    return answer_id, asked


def seen_in(chat: Chat) -> int:
    """What a client of the session has been shown by now."""
    session = chat.host.live("s")
    assert session is not None
    return session.seq


def result(answer: Message) -> ToolResultPart:
    """The tool result of an answer."""
    return next(part for part in answer.parts if isinstance(part, ToolResultPart))


async def test_a_tool_runs_once_it_is_allowed(tmp_path: Path) -> None:
    shell = Shell()
    async with chatting(tmp_path, shell, **ASK) as chat:
        answer_id, asked = await ask(chat)
        assert (asked.tool_name, asked.arguments) == ("shell", {"command": "ls"})
        assert shell.ran == []
        await chat.host.settle(asked.approval_id, "once", session="s")
        assert result(await chat.answer(answer_id)).output == "ran ls"
        answer_id, again = await ask(chat)
        assert again.approval_id != asked.approval_id, "once is once"
        await chat.host.settle(again.approval_id, "deny", session="s")
        assert result(await chat.answer(answer_id)).output == "Error: Tool 'shell' denied by user."
        assert shell.ran == ["ls"]


async def test_001_03_the_reply_to_a_question_names_the_user_who_answered(tmp_path: Path) -> None:
    replied: list[PermissionReplied] = []
    async with chatting(tmp_path, Shell(), **ASK) as chat:
        chat.gateway.events.subscribe(PermissionReplied, replied.append)
        for user, value in ((None, "once"), ("ada", "always")):
            answer_id, asked = await ask(chat)
            await chat.host.settle(asked.approval_id, value, session="s", user=user)
            await chat.answer(answer_id)
        chat.model.then(Reply((Use("shell", '{"command": "ls"}'),), "tools"))
        await chat.say("again")
    assert [(each.outcome, each.by) for each in replied] == [
        ("once", "user:owner"),
        ("always", "user:ada"),
        ("always", ""),
    ]


async def test_always_holds_for_the_same_key_in_the_same_session(tmp_path: Path) -> None:
    shell = Shell()
    async with chatting(tmp_path, shell, **ASK) as chat:
        answer_id, asked = await ask(chat)
        await chat.host.settle(asked.approval_id, "always", session="s")
        await chat.answer(answer_id)
        chat.model.then(Reply((Use("shell", '{"command": "ls"}'),), "tools"))
        assert result(await chat.say("again")).output == "ran ls"
        for command, session in (("rm", "s"), ("ls", "other")):
            answer_id, asked = await ask(chat, command, session)
            await chat.host.settle(asked.approval_id, "deny", session=session)
            await chat.answer(answer_id, session)
        assert shell.ran == ["ls", "ls"]


async def test_an_approval_is_used_once_and_only_by_its_session(tmp_path: Path) -> None:
    async with chatting(tmp_path, Shell(), **ASK) as chat:
        answer_id, asked = await ask(chat)
        with pytest.raises(NotFoundError):
            await chat.host.settle(asked.approval_id, "once", session="other")
        with pytest.raises(NotFoundError):
            await chat.host.settle("guessed", "once", session="s")
        await chat.host.settle(asked.approval_id, "deny", session="s")
        with pytest.raises(NotFoundError):
            await chat.host.settle(asked.approval_id, "once", session="s")
        assert result(await chat.answer(answer_id)).is_error


async def test_no_answer_is_a_no(tmp_path: Path) -> None:
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
            await chat.host.settle(asked.approval_id, "once", session="s")
        assert shell.ran == []


async def test_always_is_the_word_of_one_person_and_good_for_no_other(tmp_path: Path) -> None:
    shell = Shell()
    async with chatting(tmp_path, shell, **ASK) as chat:
        answer_id, asked = await ask(chat)
        await chat.host.settle(asked.approval_id, "always", session="s")
        await chat.answer(answer_id)
        for user, told in (("ada", "ran ls"), ("eve", "denied by user")):
            chat.model.then(Reply((Use("shell", '{"command": "ls"}'),), "tools"))
            answer_id = await chat.accept("go", user=user)
            if user == "eve":
                await chat.decide("deny")
            assert told in result(await chat.answer(answer_id)).output


@pytest.mark.parametrize("broken", [False, True])
async def test_a_channel_that_can_ask_asks_in_the_room_the_message_came_from(
    tmp_path: Path, broken: bool
) -> None:
    class Asking(Letterbox):
        asked: Question | None = None

        async def ask_question(self, request: Question) -> None:
            self.asked = request
            shown_in_room.set()
            if broken:
                raise ConnectionError("the platform is down")

    box, shell, shown_in_room = Asking(), Shell(), asyncio.Event()
    async with chatting(tmp_path, shell, **ASK) as chat:
        chat.gateway.channels.register(box)
        chat.model.then(Reply((Use("shell", '{"command": "ls"}'),), "tools"))
        answer_id = await chat.accept("go", channel="letters")
        watcher = await chat.watch()
        shown = await watcher.until(lambda frame: isinstance(frame, ApprovalAsked))
        await shown_in_room.wait()
        assert box.asked is not None
        assert (box.asked.id, box.asked.answerers, box.asked.address) == (
            shown.approval_id,
            ("ada",),
            written("go", channel="letters").address,
        )
        await chat.host.settle(shown.approval_id, "once", session="s")
        await chat.answer(answer_id)
        assert shell.ran == ["ls"]


async def test_a_room_that_cannot_be_reached_yet_is_asked_as_soon_as_it_can(tmp_path: Path) -> None:
    class Away(Letterbox):
        tries = 0

        async def ask_question(self, request: Question) -> None:
            self.tries += 1
            if self.tries < 3:
                raise PlacementDeferred("not connected yet", 0.001)
            await chat.host.settle(request.id, "once", session="s")

    box, shell = Away(), Shell()
    async with chatting(tmp_path, shell, **ASK) as chat:
        chat.gateway.channels.register(box)
        chat.model.then(Reply((Use("shell", '{"command": "ls"}'),), "tools"))
        await chat.answer(await chat.accept("go", channel="letters"))
    assert (box.tries, shell.ran) == (3, ["ls"])


async def test_who_cannot_be_asked_in_its_room_can_still_answer_elsewhere(tmp_path: Path) -> None:
    class Away(Letterbox):
        async def ask_question(self, request: Question) -> None:
            raise PlacementDeferred("not connected", 3600)

    shell = Shell()
    async with chatting(tmp_path, shell, **ASK) as chat:
        chat.gateway.channels.register(Away())
        chat.model.then(Reply((Use("shell", '{"command": "ls"}'),), "tools"))
        answer_id = await chat.accept("go", channel="letters")
        await chat.decide("once")
        await chat.answer(answer_id)
    assert shell.ran == ["ls"]


@pytest.mark.parametrize(("word", "ran"), [("yes", True), ("OK!", True), ("No.", False)])
async def test_a_plain_word_decides_and_is_not_answered_itself(tmp_path: Path, word: str, ran: bool) -> None:
    shell = Shell()
    async with chatting(tmp_path, shell, **ASK) as chat:
        answer_id, _ = await ask(chat)
        assert await chat.host.submit(written(word, seen=seen_in(chat))) is None
        assert result(await chat.answer(answer_id)).is_error is not ran
        assert [m.text for m in chat.model.calls[-1].messages if m.role == "user"] == ["go"]
    assert shell.ran == (["ls"] if ran else [])


async def test_a_word_of_another_user_decides_nothing(tmp_path: Path) -> None:
    shell = Shell()
    async with chatting(tmp_path, shell, **ASK) as chat:
        answer_id, asked = await ask(chat)
        await chat.accept("yes", user="eve", seen=seen_in(chat))
        with pytest.raises(UnauthorizedError, match="only the user"):
            await chat.host.settle(asked.approval_id, "once", session="s", user="eve")
        assert shell.ran == []
        await chat.host.settle(asked.approval_id, "once", session="s", user="ada")
        await chat.answer(answer_id)
    assert shell.ran == ["ls"]


async def test_the_channel_gets_the_decision(tmp_path: Path) -> None:
    class Asking(Letterbox):
        def __init__(self) -> None:
            super().__init__("test")
            self.told: list[str] = []

        async def ask_question(self, request: Question) -> None:
            self.told.append(request.title)

        async def question_closed(self, request: Question, answer: Answer, shown: Placed | None) -> None:
            self.told.append(answer.outcome)
            raise ZeroDivisionError("it cannot be shown")

    box = Asking()
    async with chatting(tmp_path, Shell(), Brings(box), **ASK) as chat:
        answer_id, asked = await ask(chat)
        await chat.host.settle(asked.approval_id, "once", session="s")
        await chat.answer(answer_id)
    assert box.told == ["May shell run?", "once"]


class Plain(Plugin):
    """Two tools without a match key. One says of itself that it only reads."""

    name = "plain"

    def __init__(self) -> None:
        self.ran: list[str] = []

        async def send(text: str) -> str:
            """Send a text."""
            self.ran.append(text)
            return f"sent {text}"

        async def look() -> str:
            """Look."""
            self.ran.append("look")
            return "seen"

        self._tools = [tool_from(send), tool_from(look, read_only=True)]

    def tools(self) -> Sequence[Tool]:
        return self._tools


SUM = Reply((Use("calculator", '{"expression": "1 + 2"}'),), "tools")


async def test_without_a_rule_built_in_tools_that_read_run_and_all_others_ask(tmp_path: Path) -> None:
    plain = Plain()
    async with chatting(tmp_path, plain, permissions={}) as chat:
        chat.model.then(SUM)
        assert result(await chat.say("add")).output == "3"
        for use in (Use("send", '{"text": "a"}'), Use("look")):
            chat.model.then(Reply((use,), "tools"))
            answer_id = await chat.accept("go")
            watcher = await chat.watch()
            asked = await watcher.until(
                lambda f, name=use.name: isinstance(f, ApprovalAsked) and f.tool_name == name
            )
            assert plain.ran == []
            await chat.host.settle(asked.approval_id, "deny", session="s")
            await chat.answer(answer_id)
    assert plain.ran == []


@pytest.mark.parametrize("how", [{"unattended": True}, {"channel": "nowhere"}, {"channel": "letters"}])
async def test_a_tool_is_refused_at_once_where_no_user_can_be_asked(
    tmp_path: Path, how: dict[str, Any]
) -> None:
    plain = Plain()
    async with chatting(tmp_path, plain, permissions={}) as chat:
        chat.gateway.channels.register(Letterbox())
        chat.model.then(Reply((Use("send", '{"text": "a"}'),), "tools"))
        answer = await chat.say("go", **how)
        assert result(answer).output == (
            "Error: Tool 'send' needs a person's approval, and no user can be asked here. "
            'The setting permissions.send = "allow" lets it run without asking.'
        )
    assert plain.ran == []


async def test_a_reader_of_the_session_can_be_asked(tmp_path: Path) -> None:
    plain = Plain()
    async with chatting(tmp_path, plain, permissions={}) as chat:
        await chat.say("hello")
        chat.model.then(Reply((Use("send", '{"text": "a"}'),), "tools"))
        answer_id = await chat.accept("go", unattended=True)
        await chat.decide("once")
        await chat.answer(answer_id)
    assert plain.ran == ["a"]


async def test_always_is_not_offered_for_a_call_without_a_match_key(tmp_path: Path) -> None:
    plain = Plain()
    async with chatting(tmp_path, plain, permissions={}) as chat:
        chat.model.then(Reply((Use("send", '{"text": "a"}'),), "tools"))
        answer_id = await chat.accept("go")
        watcher = await chat.watch()
        asked = await watcher.until(lambda frame: isinstance(frame, ApprovalAsked))
        assert asked.always is None
        with pytest.raises(InvalidRequestError, match="not offered"):
            await chat.host.settle(asked.approval_id, "always", session="s")
        assert plain.ran == []
        await chat.host.settle(asked.approval_id, "once", session="s")
        await chat.answer(answer_id)
        assert await chat.gateway.parts.access.grants.all() == []


@pytest.mark.parametrize(
    ("command", "always"),
    [
        ("git status", "git status"),
        ("x" * 64, "x" * 64),
        ("x" * 65, None),
        (" ls", None),
        ("ls\u202e-al", None),
        ("ls\\nrm", None),
    ],
)
async def test_always_is_offered_for_what_a_button_can_show_whole(
    tmp_path: Path, command: str, always: str | None
) -> None:
    async with chatting(tmp_path, Shell(), **ASK) as chat:
        chat.model.then(Reply((Use("shell", f'{{"command": "{command}"}}'),), "tools"))
        answer_id = await chat.accept("go")
        asked = await chat.decide("deny")
        assert asked.always == always
        await chat.answer(answer_id)


async def test_always_outlives_a_restart_until_it_is_revoked(tmp_path: Path) -> None:
    shell = Shell()
    async with chatting(tmp_path, shell, **ASK) as chat:
        answer_id, asked = await ask(chat)
        await chat.host.settle(asked.approval_id, "always", session="s", user="ada")
        await chat.answer(answer_id)
    async with chatting(tmp_path, shell, **ASK) as chat:
        chat.model.then(Reply((Use("shell", '{"command": "ls"}'),), "tools"))
        assert result(await chat.say("again")).output == "ran ls"
        grants = chat.gateway.parts.access.grants
        (found,) = await grants.all()
        told = (found.session, found.channel, found.user_id, found.tool, found.matches, found.approved_by)
        assert told == ("s", "test", "ada", "shell", "ls", "test:ada")
        await grants.revoke(found.id, THE_OWNER)
        with pytest.raises(NotFoundError, match="approvals list"):
            await grants.revoke(found.id, THE_OWNER)
        answer_id, asked = await ask(chat)
        await chat.host.settle(asked.approval_id, "always", session="s")
        await chat.answer(answer_id)
        await chat.gateway.parts.sessions.delete("s")
        assert await grants.all() == []
    assert shell.ran == ["ls", "ls", "ls"]


class Numbering(Letterbox):
    """A platform that numbers its messages; the question is number 50 in the room of ``written``."""

    def __init__(self, placed: Placed | None) -> None:
        super().__init__()
        self.placed = placed
        self.asked = asyncio.Event()

    async def ask_question(self, request: Question) -> Placed | None:
        self.asked.set()
        return self.placed


@pytest.mark.parametrize(
    ("placed", "word", "counts"),
    [
        (Placed("m50", 50), {"order": 51}, True),
        (Placed("m50", 50), {"order": 49}, False),
        (Placed("m50", 50), {"order": 50}, False),
        (Placed("m50", 50), {}, False),
        (Placed("m50", 50), {"order": 49, "in_reply_to": "m50"}, True),
        (Placed("m50", 50), {"order": 49, "in_reply_to": "m48"}, False),
        (Placed("m50", 50), {"order": 51, "revises": "first"}, False),
        (Placed("m50", 50), {"order": 51, "address": Address("letters", "bot", "elsewhere")}, False),
        (Placed("m50"), {"order": 51}, False),
        (None, {"order": 51}, False),
    ],
)
async def test_a_typed_answer_counts_only_if_it_was_written_after_the_question(
    tmp_path: Path, placed: Placed | None, word: dict[str, Any], counts: bool
) -> None:
    box, shell = Numbering(placed), Shell()
    async with chatting(tmp_path, shell, **ASK) as chat:
        chat.gateway.channels.register(box)
        chat.model.then(Reply((Use("shell", '{"command": "ls"}'),), "tools"))
        answer_id = await chat.accept("go", channel="letters")
        watcher = await chat.watch()
        asked = await watcher.until(lambda frame: isinstance(frame, ApprovalAsked))
        await box.asked.wait()
        await chat.host.accept("letters", replace(written("ok", channel="letters"), **word))
        if counts:
            await chat.answer(answer_id)
            assert shell.ran == ["ls"]
            return
        assert shell.ran == []
        await chat.host.settle(asked.approval_id, "deny", session="s")
        assert result(await chat.answer(answer_id)).is_error
    assert shell.ran == []


@pytest.mark.parametrize("behind", [0, 1, None])
async def test_a_client_that_was_not_shown_the_question_has_not_answered_it(
    tmp_path: Path, behind: int | None
) -> None:
    shell = Shell()
    async with chatting(tmp_path, shell, **ASK) as chat:
        answer_id, asked = await ask(chat)
        seen = 0 if behind is None else seen_in(chat) - behind
        await chat.accept("yes", seen=seen)
        if behind == 0:
            await chat.answer(answer_id)
        else:
            await chat.host.settle(asked.approval_id, "deny", session="s")
            assert result(await chat.answer(answer_id)).is_error
    assert shell.ran == (["ls"] if behind == 0 else [])


def asking(**arguments: Any) -> ApprovalRequest:
    return ApprovalRequest(
        id="a",
        session="s",
        address=Address("letters"),
        answerers=("ada",),
        key="a",
        title="May shell run?",
        tool_name="shell",
        arguments=arguments,
        created_at=0,
        expires_at=1,
    )


def test_every_argument_is_shown_and_long_values_are_cut_in_the_middle() -> None:
    hidden = asking(command="ls" + " " * 3000 + "; rm -rf /", cwd="/", environ={"A": "b\u202ec"})
    shown = hidden.shortened(1200)
    assert len(shown) <= 1200
    assert '"cwd": "/"' in shown
    assert '{"A": "b\\u202ec"}' in shown
    assert re.search(r'"command": "ls +… 2,\d\d\d characters … +; rm -rf /"', shown)
    with pytest.raises(PlacementRefused):
        hidden.whole(1200)
    assert asking(command="a\u200bb").whole(100) == '{\n "command": "a\\u200bb"\n}'
    assert json.loads(hidden.in_full()) == hidden.arguments
    assert b"b\\u202ec" in hidden.in_full()


@pytest.mark.parametrize(
    ("character", "shown"),
    [
        ("\u202e", "\\u202e"),
        ("\u00a0", "\\u00a0"),
        ("\u3164", "\\u3164"),
        ("\u2800", "\\u2800"),
        ("\ufe0f", "\\ufe0f"),
        ("\x7f", "\\u007f"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\udb40\\udc41"),
    ],
)
def test_characters_that_cannot_be_seen_are_escaped(character: str, shown: str) -> None:
    assert visible_json({"key": character}) == f'{{"key": "{shown}"}}'
    assert visible_json("naïve 漢字 🙂 \\n") == '"naïve 漢字 🙂 \\\\n"'


@pytest.mark.parametrize("arguments", [{f"key{n}": "v" for n in range(200)}, {"k" * 2000: "v"}])
def test_a_question_with_too_much_to_show_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(PlacementRefused, match="too long to show"):
        asking(**arguments).shortened(1200)


@pytest.mark.parametrize("viewed", [False, True])
async def test_a_question_that_its_channel_cannot_show_is_denied_unless_another_reader_sees_it(
    tmp_path: Path, viewed: bool
) -> None:
    class Small(Letterbox):
        async def ask_question(self, request: Question) -> Placed:
            assert isinstance(request, ApprovalRequest)
            request.whole(10)
            raise AssertionError

    shell = Shell()
    async with chatting(tmp_path, shell, **ASK) as chat:
        chat.gateway.channels.register(Small())
        await chat.say("hello")
        watcher = await chat.watch() if viewed else None
        chat.model.then(Reply((Use("shell", '{"command": "ls"}'),), "tools"))
        answer_id = await chat.accept("go", channel="letters")
        if watcher is None:
            answer = await chat.host.submit(written("go", channel="letters", dedup_key="again"))
            assert answer is not None
            logged = await chat.gateway.parts.sessions.read("s")
            told = result(next(message for _, message in logged if message.id == answer_id))
            assert "'letters' cannot show the whole question" in told.output
            assert "`trunkline chat s`" in told.output
        else:
            await chat.decide("once")
            await chat.answer(answer_id)
    assert shell.ran == (["ls"] if viewed else [])


class Careful(Plugin):
    """A tool that asks about some calls although every tool is allowed."""

    name = "careful"

    def __init__(self) -> None:
        self.ran: list[str] = []

        async def use(thing: str) -> str:
            """Use a thing."""
            self.ran.append(thing)
            return "used"

        def asks(arguments: Mapping[str, Any], role: str) -> AskFirst | None:
            if arguments["thing"] == "forbidden":
                raise ToolError(f"no {role} may use this")
            return AskFirst("It is sharp.", "knives") if "knife" in arguments["thing"] else None

        self._tools = [tool_from(use, asks=asks)]

    def tools(self) -> Sequence[Tool]:
        return self._tools


async def test_a_tool_asks_about_a_call_although_a_rule_allows_it(tmp_path: Path) -> None:
    careful = Careful()

    async def use(chat: Chat, arguments: str) -> str:
        chat.model.then(Reply((Use("use", arguments),), "tools"))
        return result(await chat.say("go")).output

    async with chatting(tmp_path, careful) as chat:
        assert await use(chat, '{"thing": "spoon"}') == "used"
        assert await use(chat, '{"thing": "forbidden"}') == "Error: no user may use this"
        assert "could not check this call" in await use(chat, '{"other": 1}')
        for decision, thing in (("deny", "knife"), ("once", "knife"), ("always", "bread knife")):
            chat.model.then(Reply((Use("use", f'{{"thing": "{thing}"}}'),), "tools"))
            answer_id = await chat.accept("go")
            asked = await chat.decide(decision)
            assert (asked.reason, asked.always) == ("It is sharp.", "knives")
            await chat.answer(answer_id)
        assert await use(chat, '{"thing": "pocket knife"}') == "used"
    assert careful.ran == ["spoon", "knife", "bread knife", "pocket knife"]
