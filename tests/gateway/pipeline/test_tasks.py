"""Tasks: nested runs in stored sessions, what they may do, and how they end with their turn."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import create_engine, select, update

from gateway import (
    DisplayHints,
    Intercept,
    Plugin,
    Tool,
    ToolCallPart,
    ToolContext,
    ToolResultPart,
    TurnContext,
    UserInput,
    tool_from,
)
from gateway.contract.errors import InvalidRequestError, InvalidStateError
from gateway.contract.messages import Message
from gateway.conversations import ChangeSummary, as_json_lines, as_markdown
from gateway.pipeline.nested import MOST_RUNS
from gateway.session.frames import ApprovalAsked
from gateway.session.log import SessionRow, read_child_sessions
from gateway.store import schema as t
from gateway.testing.chat import Chat, chatting
from gateway.testing.fake_models.script import Cut, Gate, Reply, Say, Tokens, Use, UseTogether
from gateway.testing.served import until


class Notes(Plugin):
    """A tool that changes something, and one that only reads."""

    name = "notes"

    def __init__(self) -> None:
        self.written: list[str] = []

        async def write_note(text: str) -> str:
            """Write a note."""
            self.written.append(text)
            return "written"

        self._tools = (tool_from(write_note, display=DisplayHints(verb="writing a note")),)

    def tools(self) -> Sequence[Tool]:
        return self._tools


def task(
    prompt: str = "Count the files.", agent: str = "general", call: str = "call_0", **more: Any
) -> Reply:
    arguments = {"description": "Count files", "prompt": prompt, "agent": agent, **more}
    return Reply((Use("task", json.dumps(arguments), id=call),), "tools", Tokens(1, 1))


def said(text: str) -> Reply:
    return Reply((Say(text),), tokens=Tokens(1, 1))


async def results(chat: Chat, *replies: Any, session: str = "s") -> list[ToolResultPart]:
    chat.model.then(*replies)
    answer = await chat.say("go", session)
    return [part for part in answer.parts if isinstance(part, ToolResultPart)]


async def children(chat: Chat, session: str = "s") -> list[SessionRow]:
    sessions = chat.gateway.parts.sessions
    return await sessions.children(await sessions.find(session))


async def stored(chat: Chat, session: str) -> list[Message]:
    return [message for _, message in await chat.gateway.parts.sessions.read(session)]


async def test_004_t05_a_task_runs_in_a_stored_child_session_and_its_last_text_is_the_result(
    tmp_path: Path,
) -> None:
    begun: list[tuple[str, str]] = []
    async with chatting(tmp_path) as chat:
        chat.gateway.activity.subscribe(lambda event: begun.append((event.kind, event.summary)))
        use = Reply((Say("Let me see."), Use("calculator", '{"expression": "2 + 2"}')), "tools", Tokens(1, 1))
        [result] = await results(chat, task(), use, said("There are 4."), said("Four."))
        [child] = await children(chat)
        assert result.output == f"There are 4.\n\n(task session: {child.id})"
        assert not result.is_error
        assert result.metadata is not None
        assert result.metadata.sessions == (child.id,)
        assert (child.title, child.agent) == ("Count files (@general)", "general")
        assert (child.parent, child.root, child.call_id) == ("s", "s", "call_0")
        asked, answer = await stored(chat, child.id)
        assert (asked.role, asked.text) == ("user", "Count the files.")
        assert [part.__struct_config__.tag for part in answer.parts] == [
            "text",
            "tool_call",
            "tool_result",
            "text",
        ]
        assert child.messages == 2
        inner = chat.model.calls[1]
        assert [message.text for message in inner.messages] == ["Count the files."]
        assert "You work on one task for another agent" in inner.options.system_prompt
        assert [row.id for row in await chat.gateway.parts.sessions.list()] == ["s"]
    # Of the conversation: what counts running answers must not count its tasks, too.
    assert {said for kind, said in begun if kind == "agent_start"} == {"s"}


async def test_an_export_has_the_sessions_of_tasks_below_their_calls(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        inner = Reply((Say("Let me see."), Use("calculator", '{"expression": "2 + 2"}')), "tools")
        await results(chat, task(), inner, said("There are 4."), said("Four."))
        sessions = chat.gateway.parts.sessions
        parent, messages = await sessions.find("s"), await stored(chat, "s")
        [child] = await sessions.child_sessions(parent, messages)
        assert (child.messages, child.omitted) == (tuple(await stored(chat, child.session.id)), 0)
        text = "".join(as_markdown(parent.row, messages, [child]))
        call, nested = text.index("**Tool** `task`"), text.index("> **Task session** Count files (@general)")
        assert call < nested < text.index("> ## User, ") < text.index("\n**Result**")
        assert "> Count the files.\n" in text
        assert "> **Tool** `calculator`\n" in text
        whole = json.loads("".join(as_json_lines(parent.row, messages, ChangeSummary(0, 0, 0, ()), [child])))
        [exported] = whole["children"]
        assert exported["session"]["call_id"] == "call_0"
        assert [message["id"] for message in exported["messages"]] == [m.id for m in child.messages]
        assert await sessions.child_sessions(parent, messages[:1]) == ()


async def test_an_export_is_bounded(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await results(chat, task(), said("There are 4."), task(call="call_1"), said("Five."), said("Done."))
        parent, messages = (await chat.gateway.parts.sessions.find("s")).row, await stored(chat, "s")
        found = await chat.gateway.parts.store.read(
            lambda c: read_child_sessions(c, parent, messages, most=3)
        )
        assert [(len(child.messages), child.omitted) for child in found] == [(2, 0), (1, 1)]
        text = "".join(as_markdown(parent, messages, found))
        assert "2 messages; 1 earlier ones are not in this export" in text
        assert "Five." in text


async def test_a_task_is_continued_with_what_it_knows(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await results(chat, task(), said("There are 4."), said("Four."))
        [child] = await children(chat)
        [result] = await results(
            chat, task("And folders?", session=child.id, call="call_1"), said("Two."), said("Done.")
        )
        assert result.output.startswith("Two.")
        assert [message.text for message in chat.model.calls[-2].messages] == [
            "Count the files.",
            "There are 4.",
            "And folders?",
        ]
        assert len(await children(chat)) == 1
        assert len(await stored(chat, child.id)) == 4


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"agent": "generel"}, "unknown agent 'generel'; did you mean general"),
        ({"agent": "zzz"}, "unknown agent 'zzz'; the agents are explore, general, main, plan"),
        ({"agent": "title"}, "unknown agent 'title'; "),
        ({"agent": "compaction"}, "unknown agent 'compaction'; "),
        ({"prompt": "  "}, "the description and the prompt must not be empty"),
        (
            {"session": "task-0123456789abcdef"},
            "no task session 'task-0123456789abcdef' in this conversation",
        ),
        ({"session": "s"}, "no task session 's' in this conversation"),
    ],
)
async def test_bad_arguments_are_explained_to_the_model(
    tmp_path: Path, arguments: dict[str, str], error: str
) -> None:
    async with chatting(tmp_path) as chat:
        [result] = await results(chat, task(**arguments), said("Oh."))
        assert result.is_error
        assert f"Error: {error}" in result.output
        assert await children(chat) == []


async def test_a_task_of_another_conversation_is_not_continued(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await results(chat, task(), said("4"), said("ok"))
        [child] = await children(chat)
        [result] = await results(chat, task(session=child.id), said("ok"), session="other")
        assert f"no task session '{child.id}' in this conversation" in result.output
        assert len(await stored(chat, child.id)) == 2


async def test_a_task_that_says_nothing_or_fails_is_an_error_and_can_be_continued(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        [silent] = await results(chat, task(), Reply(()), said("ok"))
        assert silent.is_error
        assert silent.output.startswith("Error: the nested run gave no answer")
        [failed] = await results(chat, task(), Reply((Say("Hm"), Cut())), said("ok"))
        assert failed.output.startswith("Error: the nested run failed")
        child = (await children(chat))[-1]
        assert child.id in failed.output
        [result] = await results(chat, task("Again", session=child.id), said("4"), said("ok"))
        assert result.output.startswith("4")


async def test_in_plan_mode_a_task_changes_nothing(tmp_path: Path) -> None:
    notes = Notes()
    async with chatting(tmp_path, notes) as chat:
        await chat.say("/plan")
        write = Reply((Use("write_note", '{"text": "x"}'),), "tools", Tokens(1, 1))
        await results(chat, task(), write, said("I could not."), said("ok"))
        offered = {tool.name for tool in chat.model.calls[1].options.tools}
        assert {"calculator", "task"} <= offered
        assert not {"write_note", "exit_plan_mode"} & offered
        assert notes.written == []
        await chat.say("/plan off")
        await results(chat, task(agent="explore"), write, said("I could not."), said("ok"))
        assert notes.written == [], "an agent that only reads"
        await results(chat, task(), write, said("Done."), said("ok"))
        assert notes.written == ["x"]


async def test_a_task_has_no_tool_that_its_parent_lacks(tmp_path: Path) -> None:
    agents = {"clerk": {"tools": ["task", "utc_time"]}, "boss": {"tools": ["write_note", "utc_time"]}}
    async with chatting(tmp_path, Notes(), agents=agents) as chat:
        await chat.say("/agent clerk")
        await results(chat, task(agent="boss"), said("hi"), said("ok"))
        assert [tool.name for tool in chat.model.calls[1].options.tools] == ["utc_time"]


async def test_the_approval_is_asked_in_the_parents_chat_with_the_description(tmp_path: Path) -> None:
    notes = Notes()
    async with chatting(tmp_path, notes, permissions={"write_note": "ask"}) as chat:
        write = Reply((Use("write_note", '{"text": "x"}'),), "tools", Tokens(1, 1))
        description = "Write [it](http://evil) *now*"
        chat.model.then(task(description=description), write, said("Done."), said("ok"))
        answer = await chat.accept("go")
        asked = await (await chat.watch()).until(lambda frame: isinstance(frame, ApprovalAsked))
        assert (asked.tool_name, asked.reason) == ("write_note", 'Task "Write it (http://evil) now".')
        await chat.host.settle(asked.approval_id, "once", session="s")
        await chat.answer(answer)
        assert notes.written == ["x"]


async def test_tasks_end_with_their_turn_and_keep_what_they_said(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        chat.model.then(task(), Reply((Say("So far"), Gate(asyncio.Event()))))
        answer_id = await chat.accept("go")
        while not (
            rows := await children(chat)
            if chat.gateway.parts.sessions.get("s") and len(chat.model.calls) == 2
            else []
        ):
            await asyncio.sleep(0.01)
        session = await chat.gateway.parts.sessions.find(rows[0].id)
        assert session.turn is not None
        await (await chat.watch(session.id)).until(lambda frame: getattr(frame, "content", "") == "So far")
        assert (await chat.say("/stop")).text == "Stopped."
        await chat.answer(answer_id)
        asked, partial = await stored(chat, session.id)
        assert (asked.text, partial.text, partial.metadata.stop_reason) == (
            "Count the files.",
            "So far",
            "cancelled",
        )
        assert session.turn is None
        assert session.pending == 0


async def test_a_task_that_is_stored_while_its_turn_is_stopped_has_one_answer(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with chatting(tmp_path) as chat:
        chat.model.then(task(), Reply((Say("Three."), Gate(gate))))
        answer_id = await chat.accept("go")
        await until(lambda: len(chat.model.calls) == 2)
        [child] = await children(chat)
        writer = chat.gateway.parts.store.writer
        with closing(sqlite3.connect(tmp_path / "trunkline.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")  # the commit of the task's answer waits for its end
            gate.set()
            await until(lambda: writer.oldest_started is not None)
            stopping = asyncio.create_task(chat.host.abort("s"))
            await asyncio.sleep(0)
            other.execute("ROLLBACK")
        assert await stopping
        answer = await chat.answer(answer_id)
        assert [type(part) for part in answer.parts] == [ToolCallPart, ToolResultPart]
        assert [message.text for message in await stored(chat, child.id)] == ["Count the files.", "Three."]
        session = await chat.gateway.parts.sessions.find(child.id)
        assert [message.text for message in session.messages()] == ["Count the files.", "Three."]
        assert session.row.messages == 2


async def test_a_running_task_can_be_stopped_alone(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        chat.model.then(task(), Reply((Say("So far"), Gate(asyncio.Event()))), said("Then that."))
        answer_id = await chat.accept("go")
        while not (chat.gateway.parts.sessions.get("s") and len(chat.model.calls) == 2):
            await asyncio.sleep(0.01)
        [child] = await children(chat)
        await (await chat.watch(child.id)).until(lambda frame: getattr(frame, "content", "") == "So far")
        assert await chat.host.abort(child.id)
        answer = await chat.answer(answer_id)
        assert answer.text == "Then that."
        assert not await chat.host.abort(child.id)


async def test_a_task_takes_no_messages_and_lives_as_long_as_its_conversation(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        inner = task("Deeper", call="call_1")
        await results(chat, task(), inner, said("deep"), said("up"), said("ok"))
        [child] = await children(chat)
        [grandchild] = await children(chat, child.id)
        assert (grandchild.parent, grandchild.root) == (child.id, "s")
        with pytest.raises(InvalidRequestError, match="is a task of session 's'; write there"):
            await chat.accept("hello", child.id)
        sessions = chat.gateway.parts.sessions
        with pytest.raises(InvalidStateError, match="is deleted with its conversation 's'"):
            await sessions.delete(child.id)
        fork = await chat.host.fork(child.id, "ada")
        await sessions.delete("s")
        for gone in ("s", child.id, grandchild.id):
            assert await stored(chat, gone) == []
        assert fork.row.root is None
        assert (await chat.say("and now?", fork.id)).text == "You said: and now?"


async def test_depth_and_number_of_tasks_are_limited(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        deeper = [task("Deeper", call=f"call_{n}") for n in range(4)]
        await results(chat, *deeper, *[said(str(n)) for n in range(5)])
        assert "task" not in {tool.name for tool in chat.model.calls[3].options.tools}
        bottom = chat.model.calls[4].messages[-1].parts[-1]
        assert isinstance(bottom, ToolResultPart)
        assert bottom.output.startswith("Error: Unknown tool: task")
    async with chatting(tmp_path / "number") as chat:
        calls = tuple(_use(f"call_{n}") for n in range(MOST_RUNS + 1))
        together = Reply((UseTogether(calls),), "tools", Tokens(1, 1))
        found = await results(chat, together, *[said("a")] * MOST_RUNS, said("ok"))
        assert [result.is_error for result in found] == [False] * MOST_RUNS + [True]
        assert f"one message may start at most {MOST_RUNS} nested runs" in found[-1].output


def _use(call: str) -> Use:
    return Use("task", json.dumps({"description": call, "prompt": call, "agent": "general"}), id=call)


class Many(Plugin):
    """A tool that starts more runs at once than may run."""

    name = "many"

    def tools(self) -> Sequence[Tool]:
        async def many(context: ToolContext) -> str:
            """Start eleven runs."""
            async with asyncio.TaskGroup() as tasks:
                runs = [tasks.create_task(context.run_nested(str(n))) for n in range(11)]
            return " ".join(run.result() for run in runs)

        return (tool_from(many),)


async def test_at_most_ten_run_at_once_and_the_others_wait(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with chatting(tmp_path, Many()) as chat:
        waits = Reply((Gate(gate), Say("x")))
        chat.model.then(Reply((Use("many"),), "tools", Tokens(1, 1)), *[waits] * 10, said("x"), said("ok"))
        answer_id = await chat.accept("go")
        while len(chat.model.calls) < 11:
            await asyncio.sleep(0.01)
        assert len(await children(chat)) == 10
        gate.set()
        [result] = [p for p in (await chat.answer(answer_id)).parts if isinstance(p, ToolResultPart)]
        assert result.output == " ".join(["x"] * 11)
        assert result.metadata is not None
        assert len(set(result.metadata.sessions)) == 11


async def test_the_budget_of_a_conversation_holds_for_its_tasks(tmp_path: Path) -> None:
    budgets = {"mine": {"scope": "session", "per": "ever", "stop": 3}}
    models = {"script/one": {"input_price": 1000, "output_price": 1000}}
    async with chatting(tmp_path, budgets=budgets, models=models) as chat:
        dear = msgspec.structs.replace(task(), tokens=Tokens(3_000, 1))
        [result] = await results(chat, dear, said("4"))
        assert result.is_error
        assert "budget" in result.output
        assert len(chat.model.calls) == 1


class Delegate(Plugin):
    """A tool that starts a nested run, and is not made again after a crash."""

    name = "delegate"

    def tools(self) -> Sequence[Tool]:
        async def delegate(context: ToolContext) -> str:
            """Let another agent do it."""
            return await context.run_nested("Count the files.", agent="general")

        return (tool_from(delegate),)


async def test_what_a_call_left_that_is_not_made_again_ends_with_its_recorded_steps(tmp_path: Path) -> None:
    use = Reply((Use("calculator", '{"expression": "2 + 2"}'),), "tools", Tokens(1, 1))
    async with chatting(tmp_path, Delegate(), limits={"drain_seconds": 0}) as chat:
        chat.model.then(Reply((Use("delegate"),), "tools"), use, Reply((Gate(asyncio.Event()),)))
        answer_id = await chat.accept("go")
        while len(chat.model.calls) < 3:
            await asyncio.sleep(0.01)
    async with chatting(tmp_path, Delegate()) as chat:
        answer = await chat.answer(answer_id)
        [result] = [part for part in answer.parts if isinstance(part, ToolResultPart)]
        assert "Its outcome is unknown" in result.output
        [child] = await children(chat)
        asked, left = await stored(chat, child.id)
        assert (asked.text, left.metadata.stop_reason) == ("Count the files.", "cancelled")
        assert [part.output for part in left.parts if isinstance(part, ToolResultPart)] == ["4"]
        steps = await chat.gateway.parts.store.read(lambda c: c.execute(select(t.turn_step)).all())
        assert steps == []


class Closed(Plugin):
    """Answers every message itself."""

    name = "closed"

    async def transform_user_input(self, text: str, ctx: TurnContext) -> UserInput:
        return Intercept("Closed today.")


@pytest.mark.parametrize("end", ["answered by a hook", "deleted"])
async def test_a_task_ends_although_its_message_is_not_given_to_the_agent_again(
    tmp_path: Path, end: str
) -> None:
    async with chatting(tmp_path, limits={"drain_seconds": 0}) as chat:
        chat.model.then(task(), Reply((Gate(asyncio.Event()),)))
        answer_id = await chat.accept("go")
        while len(chat.model.calls) < 2:
            await asyncio.sleep(0.01)
    if end == "deleted":
        engine = create_engine(f"sqlite:///{tmp_path / 'trunkline.db'}")
        with engine.begin() as connection:
            connection.execute(update(t.inbox).values(interrupted="withdrawn"))
        engine.dispose()
    plugins = () if end == "deleted" else (Closed(),)
    async with chatting(tmp_path, *plugins) as chat:
        if plugins:
            assert (await chat.answer(answer_id)).text == "Closed today."
        [child] = await children(chat)
        while len(found := await stored(chat, child.id)) < 2:
            await asyncio.sleep(0.01)
        assert [message.metadata.stop_reason for message in found[1:]] == ["cancelled"]


async def test_an_open_question_of_a_task_is_found_again_after_a_restart(tmp_path: Path) -> None:
    rules = {"*": "allow", "write_note": "ask"}
    write = Reply((Use("write_note", '{"text": "x"}'),), "tools", Tokens(1, 1))
    async with chatting(tmp_path, Notes(), permissions=rules, limits={"drain_seconds": 0}) as chat:
        chat.model.then(task(), write)
        answer_id = await chat.accept("go")
        first = await (await chat.watch()).until(lambda frame: isinstance(frame, ApprovalAsked))
    notes = Notes()
    async with chatting(tmp_path, notes, permissions=rules) as chat:
        chat.model.then(said("Noted."), said("ok"))
        asked = await (await chat.watch()).until(lambda frame: isinstance(frame, ApprovalAsked))
        assert (asked.approval_id, asked.reason) == (first.approval_id, 'Task "Count files".')
        await chat.host.settle(asked.approval_id, "once", session="s")
        answer = await chat.answer(answer_id)
        [result] = [part for part in answer.parts if isinstance(part, ToolResultPart)]
        assert result.output.startswith("Noted.")
        assert notes.written == ["x"]
