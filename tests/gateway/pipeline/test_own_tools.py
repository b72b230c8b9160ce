"""A backend that runs tools itself: it asks first, and what it ran is not run again."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway import (
    AuthMethod,
    Capabilities,
    ChatOptions,
    Complete,
    Delta,
    Message,
    Metadata,
    ModelInfo,
    Plugin,
    PluginContext,
    ProviderConfig,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from gateway.provider_http import DeltaWriter, assemble
from gateway.session.frames import ApprovalResolved
from gateway.testing.chat import chatting

CALL = ToolCallPart("c1", "worker:shell", {"command": "ls"})


class Worker:
    """Runs one command of its own if it may, and says what became of it."""

    id = name = "worker"
    api_endpoint = "in this process"
    auth_method: AuthMethod = "custom"
    capabilities = Capabilities(tools=False)

    def __init__(self) -> None:
        self.calls = 0

    async def initialize(self, config: ProviderConfig) -> None: ...

    async def stream(self, messages: Sequence[Message], options: ChatOptions) -> AsyncGenerator[Delta]:
        self.calls += 1
        writer = DeltaWriter(options.message_id, options.first_part)
        yield writer.part(CALL)
        assert options.ask is not None
        allowed = await options.ask(CALL.tool_name, CALL.arguments)
        yield writer.part(ToolResultPart("c1", "ran" if allowed else "refused", is_error=not allowed))
        yield writer.text("Done.")
        yield Complete(options.message_id, Metadata(), "end_turn")

    async def chat(self, messages: Sequence[Message], options: ChatOptions) -> Message:
        return await assemble(self.stream, messages, options)

    async def list_models(self) -> Sequence[ModelInfo]:
        return []

    async def close(self) -> None: ...


class Working(Plugin):
    name = "working"

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    async def activate(self, ctx: PluginContext) -> None:
        assert ctx.providers is not None
        ctx.providers.register(self.worker)


def told(answer: Message) -> list[str]:
    return [part.output for part in answer.parts if isinstance(part, ToolResultPart)]


@pytest.mark.parametrize(("decision", "output"), [("once", "ran"), ("deny", "refused")])
async def test_a_person_decides_what_a_backend_runs(tmp_path: Path, decision: Any, output: str) -> None:
    worker = Worker()
    async with chatting(tmp_path, Working(worker), model="worker/one") as chat:
        answer_id = await chat.accept("go")
        asked = await chat.decide(decision)
        assert (asked.tool_name, asked.arguments) == ("worker:shell", {"command": "ls"})
        answer = await chat.answer(answer_id)
        assert answer.parts == (
            CALL,
            ToolResultPart("c1", output, is_error=output != "ran"),
            TextPart("Done."),
        )
        assert worker.calls == 1, "a call that has its result is not run by the gateway"


async def test_always_is_good_for_the_same_call(tmp_path: Path) -> None:
    async with chatting(tmp_path, Working(Worker()), model="worker/one") as chat:
        answer_id = await chat.accept("go")
        await chat.decide("always")
        await chat.answer(answer_id)
        assert told(await chat.say("again")) == ["ran"]


@pytest.mark.parametrize(
    ("rules", "output"),
    [
        ({"worker:shell": "allow"}, "ran"),
        ({"worker:shell": "deny"}, "refused"),
        ({"worker:shell": {'*"ls"*': "allow"}}, "ran"),
        ({"worker:shell": {'*"rm"*': "allow"}}, "refused"),
        ({"*": "deny"}, "refused"),
    ],
)
async def test_rules_decide_before_people(tmp_path: Path, rules: dict[str, Any], output: str) -> None:
    async with chatting(tmp_path, Working(Worker()), model="worker/one", permissions=rules) as chat:
        assert told(await chat.say("go")) == [output]


async def test_rules_of_a_role_hold_for_a_backend_s_tools_too(tmp_path: Path) -> None:
    rules: dict[str, Any] = {"worker:shell": "deny", "worker:shell@admin": "allow"}
    async with chatting(tmp_path, Working(Worker()), model="worker/one", permissions=rules) as chat:
        assert told(await chat.say("go", role="user")) == ["refused"]
        assert told(await chat.say("go", role="admin")) == ["ran"]


async def test_what_is_allowed_by_default_is_still_asked(tmp_path: Path) -> None:
    """A tool of ours is known and harmless or not; a backend's may be a shell."""
    rules: dict[str, Any] = {"*": "allow"}
    async with chatting(
        tmp_path,
        Working(Worker()),
        model="worker/one",
        permissions=rules,
        limits={"approval_timeout_ms": 1},
    ) as chat:
        assert told(await chat.say("go")) == ["refused"]
        watcher = await chat.watch()
        await chat.say("again")
        await watcher.until(lambda frame: isinstance(frame, ApprovalResolved))
