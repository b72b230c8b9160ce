"""A backend as a model provider: its text, its reasoning and its tool calls become deltas."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Literal, assert_never

import msgspec

from gateway import (
    AuthMethod,
    Capabilities,
    ChatOptions,
    Complete,
    Delta,
    DisplayHints,
    Message,
    Metadata,
    ModelInfo,
    ProviderConfig,
    TextPart,
)
from gateway.provider_http import (
    DeltaWriter,
    MetadataDelta,
    ToolResultDelta,
    ToolResultEnd,
    assemble,
    fallback_notice,
)
from plugins.cli_backends.contract import (
    DispatchOptions,
    DispatchResult,
    Done,
    GitChanges,
    Progress,
    Started,
    TextChunk,
    ToolCall,
    ToolResult,
    Usage,
)
from plugins.cli_backends.dispatcher import Dispatcher
from plugins.cli_backends.login import log_in
from plugins.cli_backends.prompt import (
    last_answer_id,
    new_user_images,
    new_user_text,
    render_history,
    render_partial_answer,
    split_partial_answer,
)

ACTIVE = "cli"
"""The provider of the active backend; its models are ``active`` and the names of the backends."""
DEFAULT = "default"
"""The model name for the default of the program's settings."""

_KINDS: Mapping[str, Literal["file-read", "file-write", "shell"]] = {
    **dict.fromkeys(("Bash", "shell", "execute"), "shell"),
    **dict.fromkeys(("Read", "read"), "file-read"),
    **dict.fromkeys(("Write", "Edit", "MultiEdit", "NotebookEdit", "edit", "file_change"), "file-write"),
}
"""The kind of each tool of the programs; names of the Agent Client Protocol are in lower case."""
_ARGUMENT_NAMES = {
    "command": ("command",),
    "path": ("file_path", "notebook_path", "path"),
    "url": ("url",),
    "query": ("query", "pattern"),
}
"""The names that programs give to an argument with a display hint."""
_MAX_OUTPUT_CHARS = 64 * 1024
_MOST_COMMITS = 5
_NO_RESULT = "(the program reported no result)"


class CliProvider:
    """One backend, or the active one with its fallbacks, as a provider.

    The program runs its tools itself and asks for permission through ``ChatOptions.ask``.
    """

    api_endpoint = "a program on this machine"
    auth_method: AuthMethod = "custom"
    capabilities = Capabilities(tools=False, reasoning=True, json_mode=False)

    def __init__(self, provider_id: str, name: str, dispatcher: Callable[[], Dispatcher]) -> None:
        self.id = provider_id
        self.name = name
        self._dispatcher = dispatcher

    async def initialize(self, config: ProviderConfig) -> None:
        """Do nothing: the plugin has the settings."""

    async def chat(self, messages: Sequence[Message], options: ChatOptions) -> Message:
        """Return the whole answer."""
        return await assemble(self.stream, messages, options)

    async def stream(self, messages: Sequence[Message], options: ChatOptions) -> AsyncGenerator[Delta, None]:
        """Yield the answer. Raises BackendError."""
        messages, partial = split_partial_answer(messages, options.message_id)
        dispatch = DispatchOptions(
            conversation_id=messages[-1].session_id,
            model="" if self.id == ACTIVE or options.model == DEFAULT else options.model,
            system_prompt_suffix=options.system_prompt,
            history=render_history(messages),
            answer_id=options.message_id,
            after=last_answer_id(messages),
            starts_answer=partial is None,
            images=new_user_images(messages),
            ask=options.ask,
            tools=options.allowed_tools,
        )
        mapper = DeltaMapper(options.message_id, options.first_part)
        prompt = "\n\n".join(filter(None, (new_user_text(messages), render_partial_answer(partial))))
        progress = self._dispatcher().stream(prompt, dispatch, self._backend(options.model))
        async with aclosing(progress):
            async for step in progress:
                if isinstance(step, Done):
                    if step.result.error is not None:
                        raise step.result.error
                    model = DEFAULT if self.id == ACTIVE else options.model
                    for delta in mapper.close(step.result, model):
                        yield delta
                    return
                for delta in mapper.deltas(step):
                    yield delta

    async def list_models(self) -> Sequence[ModelInfo]:
        """Return the models that always exist. A program may know more."""
        if self.id != ACTIVE:
            return [ModelInfo(DEFAULT, self.id)]
        return [ModelInfo(name, self.id) for name in ("active", *self._dispatcher().backends)]

    async def close(self) -> None:
        """Do nothing: no resources are held between answers."""

    def _backend(self, model: str) -> str | None:
        if self.id != ACTIVE:
            return self.id
        return None if model == "active" else model


class LoginProvider(CliProvider):
    """A backend whose program has a login that the gateway can run."""

    async def sign_in(self, show: Callable[[str], None]) -> None:
        """Run the program's own login, which the program stores. Raises BackendError and AuthFailedError."""
        dispatcher = self._dispatcher()
        await dispatcher.refresh_settings()
        await log_in(dispatcher.backends[self.id], show)


def hints_for(call: ToolCall) -> DisplayHints | None:
    """Return the display hints of a program's tool call: its kind, and the arguments to show."""
    kind = _KINDS.get(call.tool)
    # Gemini CLI sends no arguments of commands; the command is in the title of the call.
    concepts = {**_ARGUMENT_NAMES, "command": ("command", "title")} if kind == "shell" else _ARGUMENT_NAMES
    fields = {
        concept: found
        for concept, names in concepts.items()
        if (found := next((n for n in names if isinstance(call.arguments.get(n), str)), None))
    }
    return DisplayHints(kind=kind, fields=fields) if kind or fields else None


def changes_text(changes: GitChanges) -> str:
    """Return the changes of a dispatch in Markdown: git's summary, and the new commits, oldest first."""
    lines = [f"*{changes.stat.splitlines()[-1].strip()}*"] if changes.stat else []
    older, newest = changes.new_commits[_MOST_COMMITS:], changes.new_commits[:_MOST_COMMITS]
    if older:
        lines.append(f"- *{len(older)} commits, then*")
    lines += ["- `{}`".format(commit.replace("`", "'")) for commit in reversed(newest)]
    return "\n".join(lines)


class DeltaMapper:
    """The translation of a dispatch's progress into deltas."""

    def __init__(self, message_id: str, first_part: int) -> None:
        self._writer = DeltaWriter(message_id, first_part)
        self._usage: Usage | None = None
        self._open: dict[str, tuple[str, float, DisplayHints | None]] = {}
        self._ids: set[str] = set()

    def deltas(self, step: Progress) -> list[Delta]:
        """Return the deltas of one event."""
        match step:
            case TextChunk():
                return [self._writer.text(step.text, "reasoning" if step.reasoning else "text")]
            case ToolCall():
                return self._call(step)
            case ToolResult():
                return self._result(step)
            case Usage():
                self._usage = step
                return []
            case Started(after=error) if error is not None:
                notice = fallback_notice(error.backend, error, step.backend)
                return [*self._end_open_calls(), self._writer.part(TextPart(notice, "notice"))]
            case Started() | Done():
                return []
            case _:
                assert_never(step)

    def close(self, result: DispatchResult, model: str) -> list[Delta]:
        """Return the last deltas: open calls, the summary of changes, the usage if known, and the end."""
        deltas = self._end_open_calls()
        if result.git_changes is not None:
            deltas.append(self._writer.text(f"\n\n{changes_text(result.git_changes)}"))
        metadata = Metadata(model=model, provider=result.backend)
        message_id, usage = self._writer.message_id, self._usage
        if usage is not None:
            counts = (usage.input, usage.output, usage.cost or 0.0, usage.cached)
            deltas.append(MetadataDelta(message_id, *counts))
            metadata = Metadata(model, result.backend, usage.input, usage.output, usage.cached)
        return [*deltas, Complete(message_id, metadata, "end_turn")]

    def _call(self, call: ToolCall) -> list[Delta]:
        name = call.id
        while name in self._ids:
            name += "'"
        self._ids.add(name)
        self._open[call.id] = (name, time.monotonic(), hints_for(call))
        arguments = msgspec.json.encode(call.arguments).decode()
        return [self._writer.tool_call(name, call.tool), self._writer.arguments(name, arguments)]

    def _result(self, result: ToolResult) -> list[Delta]:
        if result.id not in self._open:
            return []
        name, begun, hints = self._open.pop(result.id)
        start = self._writer.result(name, display=hints)
        message_id, index = self._writer.message_id, start.part_index
        output, took = result.output, round((time.monotonic() - begun) * 1000)
        if len(output) > _MAX_OUTPUT_CHARS:
            output = output[:_MAX_OUTPUT_CHARS] + "\n[output truncated]"
        return [
            start,
            ToolResultDelta(message_id, index, name, output),
            ToolResultEnd(message_id, index, name, result.is_error, took),
        ]

    def _end_open_calls(self) -> list[Delta]:
        """Return a result for every call without one; otherwise the agent would run the call."""
        return [
            delta for call in tuple(self._open) for delta in self._result(ToolResult(call, _NO_RESULT, True))
        ]
