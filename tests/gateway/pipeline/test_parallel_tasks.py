"""Calls of one reply that run at the same time: tasks, and other tools that are ``concurrent``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gateway import Plugin, Tool, ToolContext, ToolError, ToolResultPart, tool_from
from gateway.contract.assembler import Assembler
from gateway.contract.deltas import Complete, Delta, ToolResultEnd
from gateway.contract.messages import ABORTED, Message
from gateway.session.feed import Feed
from gateway.session.frames import ApprovalAsked, TurnStart
from gateway.session.log import SessionRow
from gateway.testing.chat import Chat, chatting
from gateway.testing.fake_models.script import Cut, Gate, Reply, Say, Tokens, Use, UseTogether


class Doing(Plugin):
    """Tools that do what the test gives them: ``side`` is concurrent, ``note`` is not."""

    name = "doing"

    def __init__(self, work: Callable[[str, ToolContext], Any]) -> None:
        async def side(context: ToolContext, text: str) -> str:
            """Do something beside other calls."""
            return str(await work(text, context))

        async def note(context: ToolContext, text: str) -> str:
            """Do something alone."""
            return str(await work(text, context))

        self._tools = (tool_from(side, concurrent=True), tool_from(note))

    def tools(self) -> Sequence[Tool]:
        return self._tools


async def say_it_back(text: str, context: ToolContext) -> str:
    return text


def use(tool: str, text: str) -> Use:
    return Use(tool, json.dumps({"text": text}), id=f"call_{text}")


def task(name: str) -> Use:
    return Use(
        "task", json.dumps({"description": name, "prompt": name, "agent": "general"}), id=f"call_{name}"
    )


def together(*calls: Use) -> Reply:
    return Reply((UseTogether(calls),), "tools", Tokens(1, 1))


def said(text: str, gate: asyncio.Event | None = None) -> Reply:
    return Reply((*([Gate(gate)] if gate else []), Say(text)), tokens=Tokens(1, 1))


def results(answer: Message) -> list[ToolResultPart]:
    return [part for part in answer.parts if isinstance(part, ToolResultPart)]


def prompts(chat: Chat) -> list[str]:
    """What the last message of each call of the model was."""
    return [call.messages[-1].text for call in chat.model.calls]


async def asked(chat: Chat, count: int) -> None:
    """Wait until the model was called that often."""
    while len(chat.model.calls) < count:
        await asyncio.sleep(0.01)


async def children(chat: Chat) -> list[SessionRow]:
    sessions = chat.gateway.parts.sessions
    return sorted(await sessions.children(await sessions.find("s")), key=lambda row: row.call_id or "")


async def test_tasks_of_one_reply_run_at_the_same_time_and_their_results_keep_the_order(
    tmp_path: Path,
) -> None:
    late = asyncio.Event()
    async with chatting(tmp_path) as chat:
        chat.model.then(together(task("a"), task("b"), task("c")), said("1", late), said("2"), said("3"))
        answer_id = await chat.accept("go")
        watcher = await chat.watch()
        await asked(chat, 4)
        said_to = {f"call_{prompt}": str(n) for n, prompt in enumerate(prompts(chat)[1:], 1)}
        for call in [call for call, number in said_to.items() if number != "1"]:
            await watcher.until(lambda f, c=call: isinstance(f, ToolResultEnd) and f.tool_call_id == c)
        chat.model.then(said("ok"))
        late.set()
        answer = await chat.answer(answer_id)
        assert [result.tool_call_id for result in results(answer)] == ["call_a", "call_b", "call_c"]
        assert {result.tool_call_id: result.output[0] for result in results(answer)} == said_to
        seen = [part for part in chat.model.calls[-1].messages[-1].parts if isinstance(part, ToolResultPart)]
        assert [part.tool_call_id for part in seen] == ["call_a", "call_b", "call_c"]
        for row, result in zip(await children(chat), results(answer), strict=True):
            assert result.metadata is not None
            assert (row.call_id, (row.id,)) == (result.tool_call_id, result.metadata.sessions)


async def test_other_calls_run_alone_in_their_order(tmp_path: Path) -> None:
    order: list[str] = []
    both = asyncio.Barrier(2)

    async def work(text: str, context: ToolContext) -> str:
        order.append(f"+{text}")
        if text in "bc":
            await both.wait()
        order.append(f"-{text}")
        return text

    async with chatting(tmp_path, Doing(work)) as chat:
        calls = (use("note", "a"), use("side", "b"), use("side", "c"), use("note", "d"), use("side", "e"))
        chat.model.then(together(*calls), said("ok"))
        answer = await chat.say("go")
        assert [result.output for result in results(answer)] == ["a", "b", "c", "d", "e"]
        assert order[:2] + order[-4:] == ["+a", "-a", "+d", "-d", "+e", "-e"]
        assert order[2:4] == ["+b", "+c"]


async def test_at_most_ten_calls_run_at_once(tmp_path: Path) -> None:
    running: set[str] = set()
    most = 0

    async def work(text: str, context: ToolContext) -> str:
        nonlocal most
        running.add(text)
        most = max(most, len(running))
        for _ in range(5):
            await asyncio.sleep(0)
        running.discard(text)
        return text

    async with chatting(tmp_path, Doing(work)) as chat:
        chat.model.then(together(*(use("side", str(n)) for n in range(25))), said("ok"))
        answer = await chat.say("go")
        assert [result.output for result in results(answer)] == [str(n) for n in range(25)]
        assert most == 10


async def test_a_task_that_fails_does_not_fail_the_others(tmp_path: Path) -> None:
    async def work(text: str, context: ToolContext) -> str:
        if text == "b":
            raise ToolError("no such thing")
        return text

    async with chatting(tmp_path, Doing(work)) as chat:
        calls = (use("side", "a"), use("side", "b"), use("side", "c"))
        chat.model.then(together(*calls), said("ok"))
        outputs = [(one.output, one.is_error) for one in results(await chat.say("go"))]
        assert outputs == [("a", False), ("Error: no such thing", True), ("c", False)]
        chat.model.then(together(task("x"), task("y")), Reply((Cut(),)), said("fine"), said("ok"))
        assert sorted(one.is_error for one in results(await chat.say("go"))) == [False, True]


async def test_stopping_the_turn_stops_all_of_its_tasks_and_keeps_what_each_said(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        begun = Reply((Say("So far"), Gate(asyncio.Event())))
        chat.model.then(together(task("a"), task("b"), task("c")), begun, begun, begun)
        answer_id = await chat.accept("go")
        await asked(chat, 4)
        rows = await children(chat)
        for row in rows:
            await (await chat.watch(row.id)).until(lambda frame: getattr(frame, "content", "") == "So far")
        assert (await chat.say("/stop")).text == "Stopped."
        answer = await chat.answer(answer_id)
        assert [result.output for result in results(answer)] == [ABORTED] * 3
        for row in rows:
            log = [message for _, message in await chat.gateway.parts.sessions.read(row.id)]
            assert [message.text for message in log] == [row.call_id[-1:] if row.call_id else "", "So far"]
            session = await chat.gateway.parts.sessions.find(row.id)
            assert (log[1].metadata.stop_reason, session.turn, session.pending) == ("cancelled", None, 0)
            assert session.row.messages == 2


async def test_stopping_a_batch_of_calls_that_wait_shows_all_of_them_as_aborted(tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def work(text: str, context: ToolContext) -> str:
        begun.set()
        return str(await asyncio.get_running_loop().create_future())

    async with chatting(tmp_path, Doing(work)) as chat:
        chat.model.then(together(*(use("side", str(n)) for n in range(12))))
        answer_id = await chat.accept("go")
        await begun.wait()
        await chat.say("/stop")
        assert [result.output for result in results(await chat.answer(answer_id))] == [ABORTED] * 12


async def test_a_finished_task_is_not_run_again_and_the_others_continue(tmp_path: Path) -> None:
    async with chatting(tmp_path, limits={"drain_seconds": 0}) as chat:
        waits = Reply((Say("?"), Gate(asyncio.Event())))
        chat.model.then(together(task("a"), task("b"), task("c")), waits, said("two"), waits)
        answer_id = await chat.accept("go")
        watcher = await chat.watch()
        await asked(chat, 4)
        _, finished, _ = prompts(chat)[1:]
        await watcher.until(lambda frame: isinstance(frame, ToolResultEnd))
    async with chatting(tmp_path) as chat:
        gate = asyncio.Event()
        chat.model.then(said("one", gate), said("three", gate))
        await asked(chat, 2)
        said_to = dict(zip([*prompts(chat), finished], ["one", "three", "two"], strict=True))
        assert sorted(said_to) == ["a", "b", "c"]
        chat.model.then(said("ok"))
        gate.set()
        answer = await chat.answer(answer_id)
        assert [result.output.split()[0] for result in results(answer)] == [said_to[call] for call in "abc"]
        assert len(await children(chat)) == 3
        assert len(chat.model.calls) == 3


async def test_the_questions_of_parallel_tasks_can_all_be_answered(tmp_path: Path) -> None:
    rules = {"*": "allow", "note": "ask"}
    done: list[str] = []

    async def work(text: str, context: ToolContext) -> str:
        done.append(text)
        return text

    async with chatting(tmp_path, Doing(work), permissions=rules) as chat:
        chat.model.then(
            together(task("a"), task("b")),
            together(use("note", "one")),
            together(use("note", "two")),
            said("x"),
            said("y"),
            said("ok"),
        )
        answer_id = await chat.accept("go")
        watcher = await chat.watch()
        questions = {
            text: await watcher.until(
                lambda f, text=text: isinstance(f, ApprovalAsked) and f.arguments == {"text": text}
            )
            for text in ("one", "two")
        }
        assert {frame.reason for frame in questions.values()} == {'Task "a".', 'Task "b".'}
        await chat.host.settle(questions["two"].approval_id, "deny", session="s")
        await chat.host.settle(questions["one"].approval_id, "once", session="s")
        answer = await chat.answer(answer_id)
        assert [result.is_error for result in results(answer)] == [False, False]
        assert done == ["one"]


async def test_a_decision_of_one_call_outlives_the_record_of_another(tmp_path: Path) -> None:
    """Each call removes its own decisions only: the one that had not begun at a crash finds its own again."""
    rules = {"*": "allow", "side": "ask"}
    hooks = {"one": asyncio.Event(), "two": asyncio.Event()}
    ran: list[str] = []

    async def work(text: str, context: ToolContext) -> str:
        ran.append(text)
        return text

    class Held(Doing):
        async def before_tool_exec(self, call: Any, ctx: Any) -> None:
            if call.name == "side":
                await hooks[call.arguments["text"]].wait()

    async with chatting(tmp_path, Held(work), permissions=rules, limits={"drain_seconds": 0}) as chat:
        chat.model.then(together(use("side", "one"), use("side", "two")))
        answer_id = await chat.accept("go")
        watcher = await chat.watch()
        for text in hooks:
            frame = await watcher.until(
                lambda f, text=text: isinstance(f, ApprovalAsked) and f.arguments == {"text": text}
            )
            await chat.host.settle(frame.approval_id, "once", session="s")
        hooks["one"].set()
        await watcher.until(lambda frame: isinstance(frame, ToolResultEnd))
    async with chatting(tmp_path, Held(work), permissions=rules) as chat:
        chat.model.then(said("ok"))
        hooks["two"].set()
        answer = await chat.answer(answer_id)
        assert [result.output for result in results(answer)] == ["one", "two"]
        assert ran == ["one", "two"]


async def test_open_questions_of_parallel_tasks_do_not_delay_a_shutdown(tmp_path: Path) -> None:
    rules = {"*": "allow", "note": "ask"}
    async with chatting(tmp_path, Doing(say_it_back), permissions=rules) as chat:
        chat.model.then(
            together(task("a"), task("b")),
            together(use("note", "one")),
            together(use("note", "two")),
            said("x"),
        )
        answer_id = await chat.accept("go")
        watcher = await chat.watch()
        frames = [
            await watcher.until(lambda f, n=n: isinstance(f, ApprovalAsked) and f.reason == f'Task "{n}".')
            for n in "ab"
        ]
        # The first is answered, and the turn still waits for the second when the gateway stops.
        await chat.host.settle(frames[0].approval_id, "once", session="s")
        await asked(chat, 4)
    async with chatting(tmp_path, Doing(say_it_back), permissions=rules) as chat:
        chat.model.then(said("y"), said("ok"))
        again = await (await chat.watch()).until(lambda frame: isinstance(frame, ApprovalAsked))
        assert again.approval_id == frames[1].approval_id
        await chat.host.settle(again.approval_id, "once", session="s")
        assert not any(result.is_error for result in results(await chat.answer(answer_id)))


async def test_interleaved_output_assembles_from_every_point_at_which_a_reader_resumes(
    tmp_path: Path,
) -> None:
    turns = [asyncio.Event() for _ in range(9)]
    turns[0].set()
    shown, goes_on = asyncio.Event(), asyncio.Event()

    async def work(text: str, context: ToolContext) -> str:
        # The three tools take turns: each shows a line, then the next one does.
        for line in range(3):
            at = line * 3 + "abc".index(text)
            await turns[at].wait()
            context.progress(f"{text}{line}\n")
            (shown if at == 8 else turns[at + 1]).set()
        if text == "a":
            await goes_on.wait()
        return text

    async with chatting(tmp_path, Doing(work)) as chat:
        await chat.say("hello")
        watcher = await chat.watch()
        chat.model.then(together(use("side", "a"), use("side", "b"), use("side", "c")), said("ok"))
        answer_id = await chat.accept("go")
        await watcher.until(lambda frame: isinstance(frame, ToolResultEnd) and frame.tool_call_id == "call_c")
        events = [event for event in watcher.events if getattr(event.frame, "message_id", "") == answer_id]
        running = assembled(answer_id, [event.frame for event in events])
        assert [part.output for part in results(running)] == ["a0\na1\na2\n", "b", "c"]
        for count, event in enumerate(events, 1):
            feed = Feed()
            await chat.host.follow("s", feed, event.seq, 0)
            seen = [one.frame for one in events[:count]]
            missed = [one.frame for one in await feed.take()] if count < len(events) else []
            assert assembled(answer_id, [*seen, *missed]).parts == running.parts, f"resumed after {event}"
        goes_on.set()
        answer = await chat.answer(answer_id)
        await watcher.until(lambda frame: isinstance(frame, Complete) and frame.message_id == answer_id)
        assert assembled(answer_id, watcher.frames).parts == answer.parts


def assembled(answer_id: str, frames: Sequence[Any]) -> Message:
    """The answer that a reader has built from its frames."""
    message = Assembler("s", answer_id)
    for frame in frames:
        if isinstance(frame, TurnStart) and frame.message_id == answer_id:
            message = Assembler("s", answer_id)
        elif isinstance(frame, Delta) and frame.message_id == answer_id:
            message.apply(frame)
    return message.message()
