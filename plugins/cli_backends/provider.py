"""A backend as a model provider: its answer, its reasoning and its tools become deltas."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Literal

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
    Called,
    DispatchOptions,
    DispatchResult,
    Done,
    Progress,
    Returned,
    Said,
    Spent,
    Started,
)
from plugins.cli_backends.dispatcher import Dispatcher
from plugins.cli_backends.login import log_in
from plugins.cli_backends.prompt import earlier, last_answer, shown, so_far, wanted, without_answer

ACTIVE = "cli"
"""The provider that stands for whichever backend is active; its models are ``active`` and the backends."""
DEFAULT = "default"
"""The model that is left to a program's own settings."""

_KINDS: Mapping[str, Literal["file-read", "file-write", "shell"]] = {
    **dict.fromkeys(("Bash", "shell", "execute"), "shell"),
    **dict.fromkeys(("Read", "read"), "file-read"),
    **dict.fromkeys(("Write", "Edit", "MultiEdit", "NotebookEdit", "edit", "file_change"), "file-write"),
}
"""What the programs' own tools do, by their names; those of the Agent Client Protocol are lower case."""
_CONCEPTS = {
    "command": ("command",),
    "path": ("file_path", "notebook_path", "path"),
    "url": ("url",),
    "query": ("query", "pattern"),
}
"""What arguments may hold, and the names that the programs give them."""
_OUTPUT_CHARS = 64 * 1024
_NO_RESULT = "(it did not say what became of this)"


class CliProvider:
    """One backend, or the active one with those behind it, as a provider.

    What it does with tools it does itself, and asks for permission through ``ChatOptions.ask``.
    """

    api_endpoint = "a program on this machine"
    auth_method: AuthMethod = "custom"
    capabilities = Capabilities(tools=False, reasoning=True, json_mode=False)

    def __init__(self, provider_id: str, name: str, dispatcher: Callable[[], Dispatcher]) -> None:
        self.id = provider_id
        self.name = name
        self._dispatcher = dispatcher

    async def initialize(self, config: ProviderConfig) -> None:
        """Its settings are those of the plugin."""

    async def chat(self, messages: Sequence[Message], options: ChatOptions) -> Message:
        """The whole answer at once."""
        return await assemble(self.stream, messages, options)

    async def stream(self, messages: Sequence[Message], options: ChatOptions) -> AsyncGenerator[Delta, None]:
        """The answer as it comes. Raises BackendError."""
        messages, begun = without_answer(messages, options.message_id)
        order = DispatchOptions(
            conversation_id=messages[-1].session_id,
            model="" if self.id == ACTIVE or options.model == DEFAULT else options.model,
            system_prompt_suffix=options.system_prompt,
            earlier=earlier(messages),
            answer_id=options.message_id,
            after=last_answer(messages),
            begins=begun is None,
            images=shown(messages),
            ask=options.ask,
        )
        teller = Teller(options.message_id, options.first_part)
        prompt = "\n\n".join(filter(None, (wanted(messages), so_far(begun))))
        progress = self._dispatcher().stream(prompt, order, self._backend(options.model))
        async with aclosing(progress):
            async for step in progress:
                if isinstance(step, Done):
                    if step.result.error is not None:
                        raise step.result.error
                    model = DEFAULT if self.id == ACTIVE else options.model
                    for delta in teller.close(step.result, model):
                        yield delta
                    return
                for delta in teller.tell(step):
                    yield delta

    async def list_models(self) -> Sequence[ModelInfo]:
        """What is sure to be there; a program knows more models, by names of its own."""
        if self.id != ACTIVE:
            return [ModelInfo(DEFAULT, self.id)]
        return [ModelInfo(name, self.id) for name in ("active", *self._dispatcher().backends)]

    async def close(self) -> None:
        """Nothing is held between two answers."""

    def _backend(self, model: str) -> str | None:
        if self.id != ACTIVE:
            return self.id
        return None if model == "active" else model


class LoginProvider(CliProvider):
    """A backend whose program has a login that the gateway can run."""

    async def sign_in(self, show: Callable[[str], None]) -> None:
        """Run the program's own login, which the program keeps. Raises BackendError and AuthFailedError."""
        dispatcher = self._dispatcher()
        await dispatcher.refreshed()
        await log_in(dispatcher.backends[self.id], show)


def hints_for(call: Called) -> DisplayHints | None:
    """Return how a channel may show a program's tool: its kind, and the argument that tells most."""
    kind = _KINDS.get(call.tool)
    # By its protocol a command of Gemini CLI stands in the title, where it gives no arguments.
    concepts = {**_CONCEPTS, "command": ("command", "title")} if kind == "shell" else _CONCEPTS
    fields = {
        concept: found
        for concept, names in concepts.items()
        if (found := next((n for n in names if isinstance(call.arguments.get(n), str)), None))
    }
    return DisplayHints(kind=kind, fields=fields) if kind or fields else None


class Teller:
    """Makes deltas of progress."""

    def __init__(self, message_id: str, first_part: int) -> None:
        self._writer = DeltaWriter(message_id, first_part)
        self._spent: Spent | None = None
        self._open: dict[str, tuple[str, float, DisplayHints | None]] = {}
        self._ids: set[str] = set()

    def tell(self, step: Progress) -> list[Delta]:
        """One step."""
        match step:
            case Said():
                return [self._writer.text(step.text, "reasoning" if step.reasoning else "text")]
            case Called():
                return self._call(step)
            case Returned():
                return self._result(step)
            case Spent():
                self._spent = step
                return []
            case Started(after=error) if error is not None:
                line = fallback_notice(error.backend, error, step.backend)
                return [*self._closed(), self._writer.part(TextPart(line, "notice"))]
            case Started() | Done():
                return []

    def close(self, result: DispatchResult, model: str) -> list[Delta]:
        """Return what is left, what has changed, the tokens if known, and the end with who answered."""
        deltas = self._closed()
        if result.git_changes is not None and result.git_changes.stat:
            summary = result.git_changes.stat.splitlines()[-1].strip()
            deltas.append(self._writer.text(f"\n\n*{summary}*"))
        metadata = Metadata(model=model, provider=result.backend)
        message_id, spent = self._writer.message_id, self._spent
        if spent is not None:
            counts = (spent.input, spent.output, spent.cost or 0.0, spent.cached)
            deltas.append(MetadataDelta(message_id, *counts))
            metadata = Metadata(model, result.backend, spent.input, spent.output, spent.cached)
        return [*deltas, Complete(message_id, metadata, "end_turn")]

    def _call(self, call: Called) -> list[Delta]:
        name = call.id
        while name in self._ids:
            name += "'"
        self._ids.add(name)
        self._open[call.id] = (name, time.monotonic(), hints_for(call))
        arguments = msgspec.json.encode(call.arguments).decode()
        return [self._writer.tool_call(name, call.tool), self._writer.arguments(name, arguments)]

    def _result(self, result: Returned) -> list[Delta]:
        if result.id not in self._open:
            return []
        name, begun, hints = self._open.pop(result.id)
        start = self._writer.result(name, display=hints)
        message_id, index = self._writer.message_id, start.part_index
        output, took = result.output, round((time.monotonic() - begun) * 1000)
        if len(output) > _OUTPUT_CHARS:
            output = output[:_OUTPUT_CHARS] + "\n[output cut here]"
        return [
            start,
            ToolResultDelta(message_id, index, name, output),
            ToolResultEnd(message_id, index, name, result.is_error, took),
        ]

    def _closed(self) -> list[Delta]:
        """A result for every call that got none: a call without one would be run by the agent."""
        return [
            delta for call in tuple(self._open) for delta in self._result(Returned(call, _NO_RESULT, True))
        ]
