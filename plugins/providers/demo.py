"""The provider without a model: it says so and demonstrates streaming and tools."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any

import msgspec

from gateway import (
    AuthMethod,
    Capabilities,
    ChatOptions,
    Delta,
    Message,
    ModelInfo,
    Provider,
    ProviderConfig,
    ToolResultPart,
)
from gateway.provider_http import AnswerWriter, assemble

PAUSE_SECONDS = 0.015
"""Seconds between two words, so that the answer visibly grows."""

INTRODUCTION = """\
I am the built-in demo; no model is connected. I can still show how an answer looks here:

- **the time**: ask *what time is it in Europe/Oslo?*
- **arithmetic**: ask *what is 12 * (3 + 4)?*
- **a slow tool with progress**: ask *count slowly to 5*

```python
def greet(name: str) -> str:
    return f"Hello, {name}!"
```

"""
CONNECT = (
    "To talk to a real model, run `trunkline setup`, or set `OPENAI_API_KEY` or `ANTHROPIC_API_KEY`, "
    "and start again."
)

_SLOW = re.compile(r"\b(slow|slowly|count)\b", re.IGNORECASE)
_TIME = re.compile(r"\b(time|clock|date|today)\b", re.IGNORECASE)
_ZONE = re.compile(r"\b(?:[A-Z][A-Za-z]+/[A-Z][A-Za-z_]+(?:/[A-Z][A-Za-z_]+)?|UTC)\b")
_SUM = re.compile(r"(?<![\w.])[-+(]*\d[\d.]*(?:[\s()]*(?:\*\*|//|[-+*/%^])[\s(]*[-+]?[\s(]*\d[\d.]*\)*)+")
_NUMBER = re.compile(r"\d{1,3}")


class DemoProvider:
    """Answers by rule, word by word, and calls the built-in tools on request."""

    name = "Built-in demo"
    api_endpoint = "built in"
    auth_method: AuthMethod = "custom"
    capabilities = Capabilities(images=False, json_mode=False)

    def __init__(self, config: ProviderConfig, pause: float = PAUSE_SECONDS) -> None:
        self._id = config.id
        self._pause = pause

    @property
    def id(self) -> str:
        """The id under which the provider is configured."""
        return self._id

    async def initialize(self, config: ProviderConfig) -> None:
        """Apply the id, the only setting that is used."""
        self._id = config.id

    async def chat(self, messages: Sequence[Message], options: ChatOptions) -> Message:
        """Return the complete answer."""
        return await assemble(self.stream, messages, options)

    async def stream(self, messages: Sequence[Message], options: ChatOptions) -> AsyncGenerator[Delta]:
        """Yield the answer word by word."""
        writer = AnswerWriter(options)
        words = 0
        for call in _answer(messages, options):
            if isinstance(call, str):
                await asyncio.sleep(self._pause)
                writer.text(call)
                words += 1
            else:
                name, arguments = call
                writer.arguments(writer.call(name), msgspec.json.encode(arguments).decode())
            for delta in writer.take():
                yield delta
            if options.max_tokens is not None and words >= options.max_tokens:
                writer.stop("max_tokens")
                break
        writer.usage(sum(len(message.text.split()) for message in messages), words)
        for delta in writer.close(options.model, self._id):
            yield delta

    async def list_models(self) -> Sequence[ModelInfo]:
        """Return the only model."""
        return [ModelInfo("demo", self._id, self.name)]

    async def close(self) -> None:
        """Do nothing; the demo has no connection."""


def create(config: ProviderConfig) -> Provider:
    """Make the demo provider; of its settings only the id is used."""
    return DemoProvider(config)


def _answer(messages: Sequence[Message], options: ChatOptions) -> Iterator[str | tuple[str, dict[str, Any]]]:
    """Yield the words of the answer, or the tools to call first."""
    asked = next((message.text for message in reversed(messages) if message.role == "user"), "")
    results = _results(messages)
    offered = {tool.name for tool in options.tools}
    calls = [] if results else [call for call in _wanted(asked) if call[0] in offered]
    if calls:
        yield from re.findall(r"\S+\s*", "Let me see. ")
        yield from calls
    else:
        text = _report(results) if results else _quote(asked) + INTRODUCTION
        yield from re.findall(r"\s*\S+\s*", text + CONNECT)


def _results(messages: Sequence[Message]) -> list[ToolResultPart]:
    """Return the tool results since the last user message."""
    found: list[ToolResultPart] = []
    for message in reversed(messages):
        if message.role == "user":
            break
        found = [*(part for part in message.parts if isinstance(part, ToolResultPart)), *found]
    return found


def _wanted(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the tools that a text asks for."""
    if _SLOW.search(text):
        number = _NUMBER.search(text)
        yield "slow_count", {"n": min(20, max(1, int(number[0]))) if number else 5}
    if _TIME.search(text):
        zone = _ZONE.search(text)
        yield "utc_time", {"zone": zone[0]} if zone else {}
    if found := _SUM.search(text):
        expression = found[0].strip().replace("^", "**")
        yield "calculator", {"expression": expression}


def _report(results: Sequence[ToolResultPart]) -> str:
    lines = [
        f"- {'That went wrong' if result.is_error else 'The tool says'}: **{result.output.strip()}**"
        for result in results
    ]
    return "\n".join(lines) + "\n\nI am the built-in demo; no model is connected. "


def _quote(text: str) -> str:
    lines = text.strip().splitlines()
    return f"> {lines[0][:200]}\n\n" if lines else ""
