"""How the hooks of several plugins combine, seen from a chat."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from gateway import (
    ChatOptions,
    Intercept,
    Message,
    Pass,
    Plugin,
    PluginContext,
    TextDelta,
    TextPart,
    Tool,
    ToolBlock,
    ToolCall,
    ToolCallPart,
    ToolContext,
    ToolResultPart,
    Transform,
    TurnContext,
    tool_from,
)
from gateway.contract.events import ChatMessage
from gateway.extensions.deadlines import BLOCKING_SECONDS
from gateway.testing.chat import chatting, written
from gateway.testing.fake_models.script import Gate, Reply, Say, Think, Use

USE_ECHO = Reply((Use("echo", '{"text": "a"}'),), "tools")


class Named(Plugin):
    """A plugin that is named when it is made, with the hooks it is given as keywords."""

    def __init__(self, name: str, **hooks: Any) -> None:
        self.name = name
        for hook, function in hooks.items():
            setattr(self, hook, function)


class Echo(Plugin):
    """One tool, ``echo``, which remembers what it was called with."""

    name = "echo"

    def __init__(self) -> None:
        self.heard: list[str] = []

        async def echo(text: str) -> str:
            """Repeat a text."""
            self.heard.append(text)
            return f"echo {text}"

        self._tools = [tool_from(echo)]

    def tools(self) -> Sequence[Tool]:
        return self._tools


def result_of(answer: Message) -> ToolResultPart:
    """The only tool result of an answer."""
    [result] = [part for part in answer.parts if isinstance(part, ToolResultPart)]
    return result


def texts(messages: Sequence[Message]) -> list[str]:
    """The visible texts of messages."""
    return [message.text for message in messages]


async def test_002_01_before_llm_call_folds_messages_in_order(tmp_path: Path) -> None:
    def adding(word: str) -> Any:
        def hook(messages: tuple[Message, ...], options: Any, ctx: Any) -> list[Message]:
            return [*messages, Message(session_id=ctx.session, role="user", parts=(TextPart(word),))]

        return hook

    first, second = Named("a", before_llm_call=adding("one")), Named("b", before_llm_call=adding("two"))
    async with chatting(tmp_path, first, second) as chat:
        await chat.say("hi")
        await chat.say("again")
        assert texts(chat.model.calls[0].messages) == ["hi", "one", "two"]
        kept = texts(chat.model.calls[1].messages)
        assert kept == ["hi", "You said: two", "again", "one", "two"], "the transcript is left as it was"


async def test_004_32_before_llm_call_may_change_how_the_model_is_asked(tmp_path: Path) -> None:
    def stopping(_messages: Any, options: ChatOptions, _ctx: Any) -> ChatOptions:
        stops = (*options.stop_sequences, "END")
        return msgspec.structs.replace(options, stop_sequences=stops, model="other", message_id="mine")

    async with chatting(tmp_path, Named("a", before_llm_call=stopping), stop_sequences=("FIN",)) as chat:
        answer = await chat.say("hi")
        [call] = chat.model.calls
        assert call.options.stop_sequences == ("FIN", "END")
        assert (call.options.model, call.options.message_id) == ("one", answer.id)


async def test_002_02_after_llm_call_folds_the_result_in_order(tmp_path: Path) -> None:
    async def shout(result: Any, ctx: Any) -> Any:
        return msgspec.structs.replace(result, content=result.content.upper())

    async def nothing(result: Any, ctx: Any) -> None:
        return None

    async def mark(result: Any, ctx: Any) -> Any:
        return msgspec.structs.replace(result, content=result.content + "!")

    plugins = [Named(str(at), after_llm_call=hook) for at, hook in enumerate((shout, nothing, mark))]
    async with chatting(tmp_path, *plugins) as chat:
        assert (await chat.say("hi")).text == "YOU SAID: HI!"
        await chat.say("again")
        assert chat.model.calls[-1].messages[1].text == "YOU SAID: HI!"


async def test_after_llm_call_changes_the_reasoning_and_leaves_the_text(tmp_path: Path) -> None:
    async def hide(result: Any, ctx: Any) -> Any:
        return msgspec.structs.replace(result, reasoning="")

    async with chatting(tmp_path, Named("hide", after_llm_call=hide)) as chat:
        chat.model.then(Reply((Think("He is rude."), Say("Hello"))))
        answer = await chat.say("hi")
    parts = [part for part in answer.parts if isinstance(part, TextPart)]
    texts = [(part.kind, part.content) for part in parts if part.content]
    assert texts == [("text", "Hello")]


async def test_002_03_rewrites_of_a_call_chain_up(tmp_path: Path) -> None:
    def appending(letter: str) -> Any:
        return lambda call, ctx: ToolCall(call.id, call.name, {"text": call.arguments["text"] + letter})

    echo = Echo()
    b, c = Named("b", before_tool_exec=appending("b")), Named("c", before_tool_exec=appending("c"))
    async with chatting(tmp_path, echo, b, c) as chat:
        chat.model.then(USE_ECHO)
        answer = await chat.say("go")
        assert echo.heard == ["abc"]
        assert result_of(answer).output == "echo abc"
        [call] = [part for part in answer.parts if isinstance(part, ToolCallPart)]
        assert call.arguments == {"text": "a"}, "the answer shows what the model asked for"


async def test_002_03_first_block_ends_the_chain_and_supplies_the_result(tmp_path: Path) -> None:
    later: list[ToolCall] = []
    echo = Echo()
    block = Named("block", before_tool_exec=lambda call, ctx: ToolBlock("not today"))
    after = Named("after", before_tool_exec=lambda call, ctx: later.append(call))
    async with chatting(tmp_path, echo, block, after) as chat:
        chat.model.then(USE_ECHO)
        result = result_of(await chat.say("go"))
        assert (result.output, result.is_error) == ("not today", True)
        assert (echo.heard, later) == ([], [])


async def test_002_03_a_hook_that_raises_blocks_the_call(tmp_path: Path) -> None:
    def broken(call: ToolCall, ctx: Any) -> None:
        raise ValueError("no idea")

    echo = Echo()
    async with chatting(tmp_path, echo, Named("guard", before_tool_exec=broken)) as chat:
        chat.model.then(USE_ECHO)
        result = result_of(await chat.say("go"))
        assert result.is_error
        assert "guard" in result.output
        assert echo.heard == []


async def test_002_04_after_tool_exec_folds_the_text_in_order(tmp_path: Path) -> None:
    plugins = [Named(word, after_tool_exec=lambda c, text, x, word=word: f"{text} {word}") for word in "xy"]
    async with chatting(tmp_path, Echo(), *plugins) as chat:
        chat.model.then(USE_ECHO)
        assert result_of(await chat.say("go")).output == "echo a x y"
        [result] = [p for m in chat.model.calls[1].messages for p in m.parts if isinstance(p, ToolResultPart)]
        assert result.output == "echo a x y"


async def test_002_04_after_tool_exec_sees_blocked_calls_too(tmp_path: Path) -> None:
    seen: list[tuple[ToolCall, str]] = []
    rewrite = Named("r", before_tool_exec=lambda call, ctx: ToolCall(call.id, call.name, {"text": "z"}))
    block = Named("b", before_tool_exec=lambda call, ctx: ToolBlock("no", is_error=False))
    watch = Named("w", after_tool_exec=lambda call, text, ctx: seen.append((call, text)))
    async with chatting(tmp_path, Echo(), rewrite, block, watch) as chat:
        chat.model.then(USE_ECHO)
        assert not result_of(await chat.say("go")).is_error
        assert seen == [(ToolCall("call_1", "echo", {"text": "a"}), "no")]


async def test_002_04_after_tool_exec_sees_calls_with_broken_arguments_too(tmp_path: Path) -> None:
    seen: list[tuple[ToolCall, str]] = []

    def note(call: ToolCall, text: str, ctx: Any) -> str:
        seen.append((call, text))
        return f"{text}!"

    async with chatting(tmp_path, Echo(), Named("w", after_tool_exec=note)) as chat:
        chat.model.then(Reply((Use("echo", '{"text": '),), "tools"))
        result = result_of(await chat.say("go"))
        assert (result.output, result.is_error) == ("Error: Invalid JSON arguments!", True)
        assert seen == [(ToolCall("call_1", "echo", {}), "Error: Invalid JSON arguments")]


async def test_002_04_a_hook_that_raises_is_skipped(tmp_path: Path) -> None:
    def broken(call: ToolCall, text: str, ctx: Any) -> str:
        raise ValueError("no idea")

    last = Named("last", after_tool_exec=lambda call, text, ctx: f"{text}!")
    async with chatting(tmp_path, Echo(), Named("broken", after_tool_exec=broken), last) as chat:
        chat.model.then(USE_ECHO)
        assert result_of(await chat.say("go")).output == "echo a!"


async def test_002_05_filters_narrow_and_never_widen(tmp_path: Path) -> None:
    async def extra() -> str:
        """Should never be offered."""
        return "?"

    hide = Named("hide", filter_tools=lambda tools, ctx: [t for t in tools if t.name != "calculator"])
    widen = Named("widen", filter_tools=lambda tools, ctx: [*tools, tool_from(extra)])
    restore = Named("restore", filter_tools=lambda tools, ctx: None)
    async with chatting(tmp_path, Echo(), hide, widen, restore) as chat:
        await chat.say("hi")
        offered = [tool.name for tool in chat.model.calls[0].options.tools]
        assert offered == ["enter_plan_mode", "task", "utc_time", "slow_count", "question", "echo"]


async def test_002_05_a_hidden_tool_is_an_unknown_tool(tmp_path: Path) -> None:
    echo = Echo()
    async with chatting(tmp_path, echo, Named("hide", filter_tools=lambda tools, ctx: ())) as chat:
        chat.model.then(USE_ECHO)
        result = result_of(await chat.say("go"))
        assert (result.output, result.is_error) == ("Error: Unknown tool: echo. There are no tools.", True)
        assert echo.heard == []


async def test_002_06_system_prompts_are_transformed_left_to_right(tmp_path: Path) -> None:
    plugins = [
        Named(w, transform_system_prompt=lambda prompt, ctx, w=w: f"{prompt} {w}") for w in ("be", "kind")
    ]
    async with chatting(tmp_path, *plugins, system_prompt="Please") as chat:
        await chat.say("hi")
        assert chat.model.calls[0].options.system_prompt == "Please be kind"


async def test_002_07_user_input_threads_its_text(tmp_path: Path) -> None:
    seen: list[str] = []
    upper = Named("upper", transform_user_input=lambda text, ctx: Transform(text.upper()))
    look = Named("look", transform_user_input=lambda text, ctx: seen.append(text))
    leave = Named("leave", transform_user_input=lambda text, ctx: Pass())
    async with chatting(tmp_path, upper, look, leave) as chat:
        assert (await chat.say("hi")).text == "You said: HI"
        assert seen == ["HI"]


async def test_002_07_an_intercept_stops_before_the_model(tmp_path: Path) -> None:
    later: list[str] = []
    gate = Named("gate", transform_user_input=lambda text, ctx: Intercept("Not on the list."))
    after = Named("after", transform_user_input=lambda text, ctx: later.append(text))
    async with chatting(tmp_path, gate, after) as chat:
        assert (await chat.say("hi")).text == "Not on the list."
        assert (chat.model.calls, later) == ([], [])


async def test_002_07_an_intercept_without_words_settles_the_message(tmp_path: Path) -> None:
    async with chatting(tmp_path, Named("mute", transform_user_input=lambda text, ctx: Intercept())) as chat:
        assert await chat.host.submit(written("hi")) is None
        session = await chat.gateway.parts.sessions.find("s")
        assert texts(session.messages()) == ["hi"]
        assert chat.model.calls == []


@pytest.mark.parametrize(
    ("reply", "reason"),
    [(Reply((Say("fine"),)), "complete"), (ValueError("no"), None), (Reply((), "tools"), "complete")],
)
async def test_002_08_after_agent_run_comes_exactly_once(
    tmp_path: Path, reply: Any, reason: str | None
) -> None:
    reasons: list[str] = []
    watch = Named("w", after_agent_run=lambda reason, ctx: reasons.append(reason))
    async with chatting(tmp_path, watch) as chat:
        chat.model.then(reply)
        await chat.say("hi")
        assert reasons == [reason or "complete"]


async def test_002_08_after_agent_run_hears_of_an_abort(tmp_path: Path) -> None:
    reasons: list[str] = []
    async with chatting(tmp_path, Named("w", after_agent_run=lambda why, ctx: reasons.append(why))) as chat:
        chat.model.then(Reply((Say("well"), Gate(asyncio.Event()))))
        await chat.accept("hi")
        watcher = await chat.watch()
        await watcher.until(lambda frame: isinstance(frame, TextDelta))
        assert (await chat.say("/stop")).text == "Stopped."
        assert reasons == ["aborted"]


BROKEN = (
    "before_llm_call",
    "after_llm_call",
    "before_tool_exec",
    "after_tool_exec",
    "filter_tools",
    "transform_system_prompt",
    "transform_user_input",
    "after_agent_run",
)


def broken(*_args: Any) -> Any:
    """A hook that is nothing but a mistake."""
    raise RuntimeError("broken")


@pytest.mark.parametrize(
    "hook", ["before_llm_call", "filter_tools", "transform_system_prompt", "transform_user_input"]
)
async def test_a_hook_that_raises_ends_the_turn_with_a_named_error(tmp_path: Path, hook: str) -> None:
    async with chatting(tmp_path, Named("clumsy", **{hook: broken})) as chat:
        [part] = (await chat.say("hi")).parts
        assert part.error_name == "PluginError"  # type: ignore[union-attr]
        assert "clumsy" in part.message  # type: ignore[union-attr]
        assert hook in part.message  # type: ignore[union-attr]


@pytest.mark.parametrize("slip", [SystemExit, asyncio.CancelledError])
async def test_a_hook_that_ends_what_is_not_its_own_only_ends_its_turn(
    tmp_path: Path, slip: type[BaseException]
) -> None:
    def hook(*_args: Any) -> Any:
        raise slip

    async with chatting(tmp_path, Named("clumsy", transform_user_input=hook)) as chat:
        for _ in range(2):
            [part] = (await chat.say("hi")).parts
            assert part.error_name == "PluginError"  # type: ignore[union-attr]
            assert part.message.startswith("plugin 'clumsy' failed in transform_user_input")  # type: ignore[union-attr]


async def test_a_plugin_that_raises_everywhere_leaves_the_gateway_alive(tmp_path: Path) -> None:
    plugin = Named("clumsy", **dict.fromkeys((*BROKEN, "tools", "commands"), broken))
    async with chatting(tmp_path, plugin) as chat:
        for _ in range(3):
            await chat.say("hi")
        assert [command.name for command in chat.host.commands()][:1] == ["agent"]
        await chat.gateway.registry.unregister("clumsy")
        assert (await chat.say("still there?")).text == "You said: still there?"


async def test_hooks_may_be_async_or_not_and_none_means_unchanged(tmp_path: Path) -> None:
    async def nothing(*_args: Any) -> None:
        return None

    def nothing_at_once(*_args: Any) -> None:
        return None

    both = (
        Named("a", **dict.fromkeys(BROKEN, nothing)),
        Named("b", **dict.fromkeys(BROKEN, nothing_at_once)),
    )
    async with chatting(tmp_path, Echo(), *both, system_prompt="Be kind.") as chat:
        chat.model.then(USE_ECHO)
        answer = await chat.say("go")
        assert result_of(answer).output == "echo a"
        assert chat.model.calls[0].options.system_prompt == "Be kind."


async def test_order_around_a_tool_is_permission_hook_tool_hook(tmp_path: Path) -> None:
    order: list[str] = []

    async def work() -> str:
        """Work."""
        order.append("tool")
        return "done"

    class Worker(Plugin):
        name = "worker"

        def tools(self) -> Sequence[Tool]:
            return [tool_from(work, match_key=lambda arguments: order.append("permission") or "x")]

    hooks = Named(
        "hooks",
        before_tool_exec=lambda call, ctx: order.append("before"),
        after_tool_exec=lambda call, text, ctx: order.append("after"),
    )
    async with chatting(tmp_path, Worker(), hooks, permissions={"work": {"*": "allow"}}) as chat:
        chat.model.then(Reply((Use("work"),), "tools"))
        await chat.say("go")
        # The rules may look at the arguments again, to name the pattern that decided.
        assert list(dict.fromkeys(order)) == ["permission", "before", "tool", "after"]


@pytest.mark.parametrize(
    ("hook", "answer", "wrong"),
    [
        ("before_llm_call", "all of it", "it must return a list of Message or a ChatOptions, not str"),
        ("before_llm_call", ["hello"], "it must return a list of Message or a ChatOptions, not list"),
        ("filter_tools", {"echo"}, "it must return a list of Tool, not set"),
        ("transform_system_prompt", 7, "it must return str, not int"),
        ("transform_user_input", "louder", "it must return Pass or Transform or Intercept, not str"),
        ("transform_user_input", Transform(7), "Transform.text must be str, not int"),  # type: ignore[arg-type]
        ("transform_user_input", Intercept(None), "Intercept.reply must be str, not NoneType"),  # type: ignore[arg-type]
    ],
)
async def test_a_hook_that_answers_wrongly_ends_the_turn_and_is_named(
    tmp_path: Path, hook: str, answer: object, wrong: str
) -> None:
    async def answers(*_args: object) -> object:
        return answer

    async with chatting(tmp_path, Named("odd", **{hook: answers}), Echo()) as chat:
        [part] = (await chat.say("hello")).parts
        assert part.error_name == "PluginError"
        assert part.message == f"plugin 'odd' failed in {hook}: {wrong}"
        assert not chat.model.calls


@pytest.mark.parametrize("hook", ["after_llm_call", "after_tool_exec", "before_tool_exec"])
async def test_where_a_hook_that_raises_is_skipped_or_blocks_a_wrong_answer_does_so_too(
    tmp_path: Path, hook: str
) -> None:
    async def wrong(*_args: object) -> object:
        return 7

    echo = Echo()
    async with chatting(tmp_path, Named("odd", **{hook: wrong}), echo) as chat:
        chat.model.then(USE_ECHO, Reply((Say("done"),)))
        answer = await chat.say("go")
        assert answer.text == "done"
        result = next(part for part in answer.parts if isinstance(part, ToolResultPart))
        blocked = hook == "before_tool_exec"
        assert result.is_error is blocked
        assert ("must return ToolCall or ToolBlock, not int" in result.output) is blocked
        assert echo.heard == ([] if blocked else ["a"])


async def forever(*_args: object) -> None:
    """Never answer."""
    await asyncio.Event().wait()


HASTY = {"slow": {"hook_timeout_ms": 30}}


@pytest.mark.parametrize(
    "hook", ["before_llm_call", "filter_tools", "transform_system_prompt", "transform_user_input"]
)
async def test_a_hook_that_misses_its_deadline_ends_the_turn(tmp_path: Path, hook: str) -> None:
    async with chatting(tmp_path, Named("slow", **{hook: forever}), Echo(), plugins=HASTY) as chat:
        [part] = (await chat.say("hello")).parts
        assert part.error_name == "PluginError"
        assert part.message == f"plugin 'slow' failed in {hook}: no result within 0.03 s"
        assert not chat.model.calls


async def test_a_system_prompt_that_misses_its_deadline_ends_the_turn(tmp_path: Path) -> None:
    plugin = Named("slow")
    plugin.system_prompt = forever  # type: ignore[assignment]
    async with chatting(tmp_path, plugin, plugins=HASTY) as chat:
        [part] = (await chat.say("hello")).parts
        assert "failed in its system prompt: no result within 0.03 s" in part.message  # type: ignore[union-attr]


@pytest.mark.parametrize("hook", ["after_llm_call", "after_tool_exec", "after_agent_run", "before_tool_exec"])
async def test_a_hook_that_misses_its_deadline_is_skipped_or_blocks(tmp_path: Path, hook: str) -> None:
    echo = Echo()
    async with chatting(tmp_path, Named("slow", **{hook: forever}), echo, plugins=HASTY) as chat:
        chat.model.then(USE_ECHO, Reply((Say("done"),)))
        answer = await chat.say("go")
        assert answer.text == "done"
        blocked = hook == "before_tool_exec"
        assert ("no result within 0.03 s" in result_of(answer).output) is blocked
        assert echo.heard == ([] if blocked else ["a"])


class Working(Plugin):
    """Has one tool, ``work``, which does what it is made with."""

    name = "slow"

    def __init__(self, work: Any, timeout_ms: int | None = None) -> None:
        self._tools = [tool_from(work, timeout_ms=timeout_ms)]

    def tools(self) -> Sequence[Tool]:
        return self._tools


@pytest.mark.parametrize(
    ("own", "of_the_plugin", "told"), [(30, 60_000, "0.03"), (None, 40, "0.04"), (50, 40, "0.05")]
)
async def test_a_tool_that_misses_its_deadline_fails_and_the_turn_continues(
    tmp_path: Path, own: int | None, of_the_plugin: int, told: str
) -> None:
    async def work() -> str:
        """Work."""
        await forever()
        return ""

    limits = {"slow": {"tool_timeout_ms": of_the_plugin}}
    async with chatting(tmp_path, Working(work, own), plugins=limits) as chat:
        chat.model.then(Reply((Use("work"),), "tools"), Reply((Say("done"),)))
        answer = await chat.say("go")
        assert (answer.text, result_of(answer).is_error) == ("done", True)
        assert result_of(answer).output == f"Error: TimeoutError: no result within {told} s"


async def test_a_child_run_does_not_count_against_the_deadline_of_a_tool(tmp_path: Path) -> None:
    gate = Gate(asyncio.Event())

    async def work(context: ToolContext) -> str:
        """Work."""
        asyncio.get_running_loop().call_later(0.6, gate.opened.set)
        return await context.run_nested("think about it")

    async with chatting(tmp_path, Working(work, timeout_ms=500)) as chat:
        chat.model.then(Reply((Use("work"),), "tools"), Reply((gate, Say("nested"))), Reply((Say("done"),)))
        answer = await chat.say("go")
        assert (answer.text, result_of(answer).output) == ("done", "nested")


async def test_a_message_that_a_hook_submits_does_not_count_against_its_deadline(tmp_path: Path) -> None:
    gate = Gate(asyncio.Event())

    class Asking(Plugin):
        name = "slow"

        async def activate(self, ctx: PluginContext) -> None:
            self.submit = ctx.submit

        async def transform_user_input(self, text: str, ctx: TurnContext) -> Transform | None:
            if ctx.session != "s" or self.submit is None:
                return None
            asyncio.get_running_loop().call_later(0.6, gate.opened.set)
            answer = await self.submit(written("what is it?", "other"))
            return Transform(answer.text if answer else "")

    async with chatting(tmp_path, Asking(), plugins={"slow": {"hook_timeout_ms": 500}}) as chat:
        chat.model.then(Reply((gate, Say("a ship"))))
        assert (await chat.say("go")).text == "You said: a ship"


def blocking(*_args: object) -> None:
    """Keep the event loop busy for long enough to be noticed."""
    end = time.perf_counter() + BLOCKING_SECONDS
    while time.perf_counter() < end:
        pass


async def blocking_later(*_args: object) -> None:
    """Be asynchronous, and block all the same."""
    await asyncio.sleep(0)
    blocking()


@pytest.mark.parametrize("hook", [blocking, blocking_later])
async def test_a_hook_that_blocks_the_event_loop_is_logged(tmp_path: Path, hook: Any) -> None:
    async with chatting(tmp_path, Named("busy", transform_system_prompt=hook)) as chat:
        with capture_logs() as lines:
            await chat.say("hello")
    [line] = [line for line in lines if line["event"] == "a plugin blocked the event loop"]
    assert (line["plugin"], line["hook"]) == ("busy", "transform_system_prompt")
    assert line["ms"] >= BLOCKING_SECONDS * 1000


async def test_chat_message_is_asked_about_all_that_users_wrote(tmp_path: Path) -> None:
    def hide(event: ChatMessage, ctx: TurnContext) -> Transform | Intercept | None:
        if event.text == "ping":
            return Intercept("pong")
        return Transform(event.text.replace("hunter2", "***")) if "hunter2" in event.text else None

    earlier = [Message(session_id="s", role="user", parts=(TextPart(text),)) for text in ("ping", "hunter2?")]
    async with chatting(tmp_path, Named("hide", chat_message=hide)) as chat:
        assert (await chat.say("it is hunter2", before=tuple(earlier))).text == "You said: it is ***"
        [call] = chat.model.calls
        heard = [message.text for message in call.messages if message.role == "user"]
        assert heard == ["***?", "it is ***"], "an earlier message that a plugin answers is left out"
        assert (await chat.say("ping")).text == "pong"
