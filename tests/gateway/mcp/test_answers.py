"""Answers of servers with any content: each gives a result or a named error, and the session goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.contract.errors import ToolError
from gateway.contract.questions import Answer
from gateway.contract.tool import ToolOutput
from gateway.mcp.definitions import Definition, Listing
from gateway.mcp.process import LocalProcess
from gateway.mcp.requests import Caller, Requests
from gateway.mcp.session import Guard, Session, pipes
from gateway.settings import McpServerSettings

WORDS = st.sampled_from(
    (
        *("name", "description", "inputSchema", "type", "properties", "object", "text", "content", "isError"),
        *("structuredContent", "image", "data", "mimeType", "resource", "uri", "tools", "nextCursor", "code"),
        *("prompts", "arguments", "required", "messages", "role", "user", "message", "requestedSchema"),
        *("enum", "title", "annotations", "tool", "result", "jsonrpc", "2.0", "id", "method", "error"),
    )
)
TEXTS = WORDS | st.text(max_size=20)
LEAVES = st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats() | TEXTS
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=5),
    max_leaves=25,
)
CONTENT = st.fixed_dictionaries({"type": st.sampled_from(("text", "image", "audio", "resource"))}) | JSON
MORE = st.fixed_dictionaries({}, optional={"text": TEXTS, "data": TEXTS, "mimeType": TEXTS, "resource": JSON})
BLOCKS = st.lists(
    st.builds(lambda block, more: {**block, **more} if isinstance(block, dict) else block, CONTENT, MORE),
    max_size=3,
)
SCHEMAS = st.fixed_dictionaries({"type": TEXTS, "properties": JSON, "required": JSON}) | JSON
FIELDS = st.dictionaries(
    TEXTS, st.fixed_dictionaries({}, optional={"enum": JSON, "type": JSON, "title": JSON}) | JSON
)
FORMS = st.fixed_dictionaries({"type": st.just("object"), "properties": FIELDS | JSON})
ABOUT = st.fixed_dictionaries({"name": TEXTS, "inputSchema": SCHEMAS}, optional={"description": JSON})
TOOLS = st.lists(ABOUT | JSON, max_size=4)
# A result that is not an object is not an answer: the call waits for one until its time limit.
OBJECTS = st.dictionaries(TEXTS, JSON, max_size=5)
PROMPTS = st.lists(st.fixed_dictionaries({"name": TEXTS, "arguments": JSON}) | JSON, max_size=3)
OUTPUTS = st.fixed_dictionaries({"content": BLOCKS}, optional={"isError": JSON, "structuredContent": JSON})
RESULTS = st.fixed_dictionaries(
    {
        "tools/list": st.fixed_dictionaries({"tools": TOOLS}) | OBJECTS,
        "prompts/list": st.fixed_dictionaries({"prompts": PROMPTS}) | OBJECTS,
        "tools/call": OUTPUTS | OBJECTS,
        "resources/list": OBJECTS,
        "asked": st.fixed_dictionaries({"message": TEXTS, "requestedSchema": FORMS}) | OBJECTS,
    }
)


class Ended:
    """The family of a server that has no process."""

    problem = ""
    stderr = b""

    def kill(self, problem: str = "") -> None:
        self.problem = problem

    async def wait(self) -> None:
        """It has ended."""


class Server:
    """A server on two pipes that answers each method with a result of the test, and asks before it does."""

    def __init__(self, results: dict[str, Any]) -> None:
        self.results = results

    def answers(self, line: bytes) -> list[dict[str, Any]]:
        request = json.loads(line)
        method, number = request.get("method"), request.get("id")
        if method is None or number is None:
            return []
        if method == "initialize":
            offers = {"tools": {}, "prompts": {}, "resources": {}}
            version = request["params"]["protocolVersion"]
            about = {"protocolVersion": version, "capabilities": offers}
            return [{"id": number, "result": {**about, "serverInfo": {"name": "any", "version": "1"}}}]
        if method not in self.results:
            return [{"id": number, "error": {"code": -32601, "message": "no such method"}}]
        asked = {"id": 1, "method": "elicitation/create", "params": self.results["asked"]}
        before = [asked] if method == "tools/call" else []
        return [*before, {"id": number, "result": self.results[method]}]

    async def serve(self, stdin: int, stdout: int) -> None:
        loop, lines = asyncio.get_running_loop(), asyncio.StreamReader(limit=1 << 24)
        with os.fdopen(stdin, "rb", 0) as file, os.fdopen(stdout, "wb", 0) as out:
            reading, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), file)
            try:
                while line := await lines.readline():
                    for answer in self.answers(line):
                        out.write(json.dumps({"jsonrpc": "2.0", **answer}).encode() + b"\n")
            finally:
                reading.close()


@asynccontextmanager
async def connected(results: dict[str, Any]) -> AsyncGenerator[Session]:
    their_stdin, stdin = os.pipe()
    stdout, their_stdout = os.pipe()
    process = LocalProcess(cast("Any", Ended()), stdin, stdout)
    session = Session("any", Requests("any", McpServerSettings(command=("any",)), None))
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(Server(results).serve(their_stdin, their_stdout))
        try:
            async with asyncio.timeout(30), session.over(pipes(process, session)):
                yield session
        finally:
            serving.cancel()
            await process.end()


async def ask(title: str, **_: object) -> Answer:
    return Answer(question_id="1", key="1", state="answered", values=("42",))


@settings(max_examples=100)
@given(RESULTS)
def test_any_answer_is_a_result_or_a_named_error(results: dict[str, Any]) -> None:
    async def use() -> None:
        async with connected(results) as session:
            with contextlib.suppress(ToolError):
                listing = await session.offers()
                assert isinstance(listing, Listing)
                for tool in listing.tools:
                    assert tool.schema["type"] == "object"
                    assert tool.digest
                    assert tool.lines()
            with contextlib.suppress(ToolError):
                tool = Definition("any", "", {"type": "object"})
                output = await session.call(tool, {}, print, Caller("s", ask))
                assert isinstance(output, ToolOutput)

    with heard() as errors:
        asyncio.run(use())
    assert errors == []


@contextlib.contextmanager
def heard() -> Iterator[list[str]]:
    """Yield what the SDK logs as an error, such as an exception in what answers a request."""
    errors: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            errors.append(record.getMessage())

    logger, ear = logging.getLogger("mcp"), Ear(logging.ERROR)
    logger.addHandler(ear)
    try:
        yield errors
    finally:
        logger.removeHandler(ear)


@settings(max_examples=100)
@given(st.binary(max_size=300) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_line_is_a_message_or_junk(line: bytes) -> None:
    async def take() -> None:
        guard = Guard("any")
        message = guard.take(line)
        assert guard.problem == ""
        assert message is not None or guard.junk == bool(line.strip())

    asyncio.run(take())
