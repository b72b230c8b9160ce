"""A backend as a model provider: its answer, its reasoning and its tools become deltas."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

import msgspec

from gateway import (
    AuthMethod,
    Capabilities,
    ChatOptions,
    Complete,
    Delta,
    DeltaWriter,
    Message,
    Metadata,
    MetadataDelta,
    ModelInfo,
    ProviderConfig,
    ToolResultDelta,
    ToolResultEnd,
    assembled,
)
from plugins.cli_backends.contract import DispatchOptions, DispatchResult, Done, Progress, Started
from plugins.cli_backends.dispatcher import Dispatcher
from plugins.cli_backends.talk import Called, Returned, Said, Spent
from plugins.cli_backends.transcript import earlier, last_answer, shown, wanted

ACTIVE = "cli"
"""The provider that stands for whichever backend is active; its models are ``active`` and the backends."""
DEFAULT = "default"
"""The model that is left to a program's own settings."""

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
        return await assembled(self.stream, messages, options)

    async def stream(self, messages: Sequence[Message], options: ChatOptions) -> AsyncGenerator[Delta, None]:
        """The answer as it comes. Raises BackendError."""
        order = DispatchOptions(
            conversation_id=messages[-1].session_id,
            model="" if self.id == ACTIVE or options.model == DEFAULT else options.model,
            system_prompt_suffix=options.system_prompt,
            earlier=earlier(messages),
            answer_id=options.message_id,
            after=last_answer(messages),
            begins=not options.first_part,
            images=shown(messages),
            ask=options.ask,
        )
        teller = Teller(options.message_id, options.first_part)
        progress = self._dispatcher().stream(wanted(messages), order, self._backend(options.model))
        async with aclosing(progress):
            async for step in progress:
                if isinstance(step, Done):
                    if step.result.error is not None:
                        raise step.result.error
                    for delta in teller.close(step.result, options.model, self.id):
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


class Teller:
    """Makes deltas of progress."""

    def __init__(self, message_id: str, first_part: int) -> None:
        self._writer = DeltaWriter(message_id, first_part)
        self._first = first_part
        self._spent: Spent | None = None
        self._open: dict[str, tuple[str, float]] = {}
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
            case Started(after=error) if error is not None and self._writer.next_index > self._first:
                return [
                    *self._closed(),
                    self._writer.text(f"\n\n*{error}. {step.backend} goes on.*\n\n"),
                ]
            case Started() | Done():
                return []

    def close(self, result: DispatchResult, model: str, provider: str) -> list[Delta]:
        """What is left, what has changed, the tokens if they are known, and the end."""
        deltas = self._closed()
        if result.git_changes is not None and result.git_changes.stat:
            summary = result.git_changes.stat.splitlines()[-1].strip()
            deltas.append(self._writer.text(f"\n\n*{summary}*"))
        metadata = Metadata(model=model, provider=provider)
        message_id, spent = self._writer.message_id, self._spent
        if spent is not None:
            counts = (spent.input, spent.output, spent.cost or 0.0, spent.cached)
            deltas.append(MetadataDelta(message_id, *counts))
            metadata = Metadata(model, provider, spent.input, spent.output, spent.cached)
        return [*deltas, Complete(message_id, metadata, "end_turn")]

    def _call(self, call: Called) -> list[Delta]:
        name = call.id
        while name in self._ids:
            name += "'"
        self._ids.add(name)
        self._open[call.id] = (name, time.monotonic())
        arguments = msgspec.json.encode(call.arguments).decode()
        return [self._writer.tool_call(name, call.tool), self._writer.arguments(name, arguments)]

    def _result(self, result: Returned) -> list[Delta]:
        if result.id not in self._open:
            return []
        name, begun = self._open.pop(result.id)
        start = self._writer.result(name)
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
