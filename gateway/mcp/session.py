"""Sessions with servers, by the SDK ``mcp`` over streams of the gateway, which bound what a server sends.

The SDK takes a second to import, so ``server`` imports this module with the first connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import anyio
import mcp_types as types
import structlog
from mcp import Client, MCPError
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.message import SessionMessage
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from gateway.contract.errors import ToolError
from gateway.contract.messages import Attachment, to_json
from gateway.contract.tool import ToolOutput
from gateway.mcp.definitions import (
    MOST_PROMPTS,
    MOST_TOOLS,
    Definition,
    Listing,
    checked,
    checked_prompts,
    visible,
)
from gateway.mcp.process import LocalProcess, first_of
from gateway.mcp.requests import Caller, Requests
from gateway.mcp.resources import add_contents, add_file, has_resources, use_resources
from gateway.version import VERSION

log = structlog.get_logger("trunkline.mcp")

MOST_MESSAGE_BYTES = 4 * 1024 * 1024
"""Longest message of a local server; a longer one ends it."""
MOST_PER_SECOND = 2_000
"""Most lines of a local server in a second; more end it."""
MOST_PROMPT_CHARACTERS = 64_000
"""Longest text of a prompt; a longer one is refused."""
_MOST_WAITING_BYTES = 8 * 1024 * 1024
_MOST_PAGES = 50
_CLOSED = (asyncio.IncompleteReadError, OSError, anyio.ClosedResourceError, anyio.BrokenResourceError)


class Guard:
    """Counts and filters what a server sends. ``problem`` is why it has to end, once it has.

    ``junk`` is the number of lines that were not messages, or were answers to calls that were not made.
    ``needs`` is what a remote server lacks that refused a request: a valid login, or a client for it.
    """

    def __init__(self, name: str) -> None:
        self.problem = ""
        self.junk = 0
        self.needs: Literal["", "login", "registration"] = ""
        self._name = name
        self._open: set[types.RequestId] = set()
        self._second = 0.0
        self._count = 0

    def send(self, message: types.JSONRPCMessage) -> None:
        """Note a message to the server."""
        if isinstance(message, types.JSONRPCRequest):
            self._open.add(message.id)

    def take(self, line: bytes) -> types.JSONRPCMessage | None:
        """Return the message of a line; None for junk and if the server has to end."""
        now = asyncio.get_running_loop().time()
        if now - self._second >= 1:
            self._second, self._count = now, 0
        self._count += 1
        if self._count > MOST_PER_SECOND:
            self.problem = f"it sent more than {MOST_PER_SECOND:,} lines in a second"
            return None
        try:
            message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            return self._drop("a line that is not a message", line)
        if isinstance(message, types.JSONRPCResponse | types.JSONRPCError) and message.id is not None:
            if message.id not in self._open:
                return self._drop("an answer to a call that was not made", line)
            self._open.discard(message.id)
        return message

    def _drop(self, what: str, line: bytes) -> None:
        self.junk += bool(line.strip())
        if self.junk == 1:
            log.warning(
                f"an MCP server sent {what}; further ones are counted", server=self._name, line=line[:200]
            )


class Session:
    """An open session. ``wake`` is set when it ends and when one of its lists has changed."""

    def __init__(self, name: str, requests: Requests) -> None:
        self.guard = Guard(name)
        self.requests = requests
        self.wake = asyncio.Event()
        self.is_open = True
        self.has_changed = False
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """The connected client of the SDK."""
        assert self._client is not None, "the session is connected before it is used"
        return self._client

    @property
    def protocol(self) -> str:
        """The revision of the protocol that was agreed on."""
        return self.client.protocol_version

    async def offers(self) -> Listing:
        """Return the tools and prompts. Raises ToolError."""
        found: list[types.Tool] = []
        cursor: str | None = None
        can = self.client.server_capabilities
        with _tool_errors():
            # A server that has other things only need not know the list of tools.
            for _ in range(_MOST_PAGES if can.tools or not (can.prompts or can.resources) else 0):
                page = await self.client.list_tools(cursor=cursor, cache_mode="bypass")
                found += page.tools
                cursor = page.next_cursor
                if cursor is None or len(found) > MOST_TOOLS:
                    break
            resources = await has_resources(self.client)
            prompts = checked_prompts(
                (
                    each.name,
                    each.description or each.title or "",
                    {argument.name: bool(argument.required) for argument in each.arguments or ()},
                )
                for each in await self._prompts()
            )
        tools = checked(
            ((tool.name, tool.description or tool.title or "", tool.input_schema) for tool in found),
            resources=resources,
        )
        return Listing(tools.tools, (*tools.left_out, *prompts.left_out), prompts.prompts)

    async def _prompts(self) -> list[types.Prompt]:
        found: list[types.Prompt] = []
        cursor: str | None = None
        if self.client.server_capabilities.prompts is None:
            return found
        try:
            for _ in range(_MOST_PAGES):
                page = await self.client.list_prompts(cursor=cursor, cache_mode="bypass")
                found += page.prompts
                cursor = page.next_cursor
                if cursor is None or len(found) > MOST_PROMPTS:
                    break
        except MCPError as error:
            if error.code == types.CONNECTION_CLOSED:
                raise
        return found

    async def prompt(self, name: str, arguments: Mapping[str, str]) -> str:
        """Return the text of a prompt, without its other parts. Raises ToolError."""
        with _tool_errors():
            made = await self.client.get_prompt(name, dict(arguments))
        spoken: list[tuple[str, str]] = []
        for message in made.messages:
            texts, attachments = _contents([message.content])
            spoken.append(
                (message.role, "\n".join(texts) or "[an attachment is left out]" * bool(attachments))
            )
        alone = all(role == "user" for role, _ in spoken)
        text = "\n\n".join(each if alone else f"{role}: {each}" for role, each in spoken)
        if len(text) > MOST_PROMPT_CHARACTERS:
            raise ToolError(f"its text has more than {MOST_PROMPT_CHARACTERS:,} characters")
        return visible(text).strip()

    async def call(
        self,
        tool: Definition,
        arguments: Mapping[str, Any],
        show: Callable[[str], None],
        caller: Caller | None = None,
    ) -> ToolOutput:
        """Call a tool. Raises ToolError."""

        async def report(progress: float, total: float | None, message: str | None) -> None:
            of = "" if total is None else f" of {total:g}"
            show(f"{message or f'{progress:g}{of}'}\n")

        with self.requests.of(caller), _tool_errors():
            if tool.kind == "resources":
                return await use_resources(self.client, arguments)
            return _as_output(
                await self.client.call_tool(tool.name, dict(arguments), progress_callback=report)
            )

    async def listen(self) -> None:
        """Subscribe to changes of lists, at servers whose protocol revision requires that."""
        can = self.client.server_capabilities
        tools = can.tools is not None and bool(can.tools.list_changed)
        resources = can.resources is not None and bool(can.resources.list_changed)
        prompts = can.prompts is not None and bool(can.prompts.list_changed)
        if self.protocol not in MODERN_PROTOCOL_VERSIONS or not (tools or resources or prompts):
            return
        with contextlib.suppress(SubscriptionLost, MCPError, TimeoutError):
            async with self.client.listen(
                tools_list_changed=tools,
                resources_list_changed=resources,
                prompts_list_changed=prompts,
            ) as events:
                async for _ in events:
                    self.note_change()

    def note_change(self) -> None:
        """Note that a list has changed."""
        self.has_changed = True
        self.wake.set()

    def lose(self, problem: str) -> None:
        """End the session, for the first reason given."""
        self.guard.problem = self.guard.problem or problem
        self.end()

    def end(self) -> None:
        """Note that the server closed the session."""
        self.is_open = False
        self.wake.set()

    @asynccontextmanager
    async def over(self, transport: Any) -> AsyncGenerator[None]:
        """Be connected over a transport of the SDK for as long as the block. Raises ToolError."""

        async def handle(message: object) -> None:
            if isinstance(
                message,
                types.ToolListChangedNotification
                | types.ResourceListChangedNotification
                | types.PromptListChangedNotification,
            ):
                self.note_change()

        client = Client(
            transport,
            message_handler=handle,
            client_info=types.Implementation(name="trunkline", version=VERSION),
            cache=None,
            **self.requests.callbacks(),
        )
        async with contextlib.AsyncExitStack() as stack:
            with _tool_errors():
                self._client = await stack.enter_async_context(client)
                client.session.validate_tool_result = _unchecked
            yield


@asynccontextmanager
async def pipes(process: LocalProcess, session: Session) -> AsyncGenerator[Any]:
    """Carry the messages of a session over the pipes of a process: one line for each."""
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=MOST_MESSAGE_BYTES)
    reading, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), process.stdout)
    writing, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, process.stdin)
    received, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, sent = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        async with received:
            with contextlib.suppress(*_CLOSED):
                while not session.guard.problem:
                    message = session.guard.take(await _line(lines, session.guard))
                    if message is not None:
                        await received.send(SessionMessage(message))
            # Before the SDK fails the open calls, so that these can distinguish an end from an answer.
            session.end()

    async def write() -> None:
        async with sent:
            async for message in sent:
                session.guard.send(message.message)
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                writing.write(text.encode() + b"\n")
                if writing.get_write_buffer_size() > _MOST_WAITING_BYTES:
                    session.guard.problem = "it does not read what is sent to it"
                    break
        await received.aclose()

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            tasks.start_soon(write)
            yield incoming, outgoing
            tasks.cancel_scope.cancel()
    finally:
        session.end()
        if session.guard.problem:
            process.kill(session.guard.problem)
        reading.close()
        if not writing.is_closing():
            writing.abort()
        for stream in (received, incoming, outgoing, sent):
            stream.close()


async def _line(lines: asyncio.StreamReader, guard: Guard) -> bytes:
    try:
        return await lines.readuntil(b"\n")
    except asyncio.LimitOverrunError:
        guard.problem = f"it sent a message of more than {MOST_MESSAGE_BYTES // 1024**2} MB"
        raise asyncio.IncompleteReadError(b"", None) from None


@contextlib.contextmanager
def _tool_errors() -> Generator[None]:
    """Raise ToolError in place of errors of the SDK, with their text."""
    try:
        yield
    except Exception as raised:  # noqa: BLE001 - of the SDK and the libraries below it
        error = first_of(raised)
        text = _mistakes(error) if isinstance(error, ValidationError) else str(error)
        raise ToolError(text[:1000] or type(error).__name__) from None


def _mistakes(error: ValidationError) -> str:
    """Return in one line what is wrong with a message."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    named = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in found[:3])
    return f"it sent a wrong {error.title}: {'; '.join(named)}"


async def _unchecked(name: str, result: types.CallToolResult) -> None:
    """Accept any result.

    The SDK would compare it with the server's own schema, on the event loop: a pattern in that can take
    forever and stop the gateway.
    """


def _as_output(result: types.CallToolResult) -> ToolOutput:
    """Return the result of a call: its texts, and the pictures and sounds as attachments."""
    texts, attachments = _contents(result.content)
    if not texts and result.structured_content is not None:
        texts.append(to_json(result.structured_content).decode())
    text = "\n".join(texts) or ("[see the attachment]" if attachments else "[no output]")
    return ToolOutput(text, is_error=result.is_error, attachments=tuple(attachments))


def _contents(content: Sequence[types.ContentBlock]) -> tuple[list[str], list[Attachment]]:
    texts: list[str] = []
    attachments: list[Attachment] = []
    for block in content:
        match block:
            case types.TextContent():
                texts.append(block.text)
            case types.ImageContent() | types.AudioContent():
                add_file(block.mime_type, block.data, texts, attachments)
            case types.ResourceLink():
                texts.append(f"{block.title or block.name}: {block.uri}")
            case types.EmbeddedResource():
                add_contents(block.resource, texts, attachments)
    return texts, attachments
