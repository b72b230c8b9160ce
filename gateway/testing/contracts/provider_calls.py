"""Talking to a provider in tests: messages to send, a provider to send them to, deltas to look at."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from gateway.contract.deltas import Delta, TextDelta
from gateway.contract.messages import Message, Part, TextPart
from gateway.contract.provider import ChatOptions, Provider, ProviderConfig

OPTIONS = ChatOptions(model="fake-small", message_id="answer")


def user(*parts: Part | str, **fields: Any) -> Message:
    """A message of a user; strings are text parts."""
    made = tuple(TextPart(part) if isinstance(part, str) else part for part in parts)
    return Message(session_id="s", role="user", parts=made, **fields)


def assistant(*parts: Part) -> Message:
    """A message of the assistant."""
    return Message(session_id="s", role="assistant", parts=parts)


@asynccontextmanager
async def connected(
    create: Callable[[ProviderConfig], Provider], base_url: str, **settings: Any
) -> AsyncGenerator[Provider]:
    """A provider, initialized and in the end closed. Its id is ``fake``."""
    config = ProviderConfig(id="fake", base_url=base_url, **settings)
    provider = create(config)
    await provider.initialize(config)
    try:
        yield provider
    finally:
        await provider.close()


async def deltas_of(provider: Provider, *messages: Message, options: ChatOptions = OPTIONS) -> list[Delta]:
    """All deltas of an answer, to "Hi" if no message is given."""
    return [delta async for delta in provider.stream(messages or (user("Hi"),), options)]


def text_of(deltas: Sequence[Delta]) -> str:
    """The text that deltas bring."""
    return "".join(delta.content for delta in deltas if isinstance(delta, TextDelta))
