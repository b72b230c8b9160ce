"""Calls of a provider in tests: messages to send, a connected provider, and its deltas and errors."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from gateway.contract.deltas import Delta, TextDelta
from gateway.contract.errors import ProviderError
from gateway.contract.messages import Message, Part, TextPart
from gateway.contract.provider import ChatOptions, Provider, ProviderConfig

OPTIONS = ChatOptions(model="fake-small", message_id="answer")


def user(*parts: Part | str, **fields: Any) -> Message:
    """Return a message of a user; strings become text parts."""
    converted = tuple(TextPart(part) if isinstance(part, str) else part for part in parts)
    return Message(session_id="s", role="user", parts=converted, **fields)


def assistant(*parts: Part) -> Message:
    """Return a message of the assistant."""
    return Message(session_id="s", role="assistant", parts=parts)


@asynccontextmanager
async def connected(
    create: Callable[[ProviderConfig], Provider], base_url: str, **settings: Any
) -> AsyncGenerator[Provider]:
    """Yield an initialized provider with the id ``fake``, and close it."""
    config = ProviderConfig(id="fake", base_url=base_url, **settings)
    provider = create(config)
    await provider.initialize(config)
    try:
        yield provider
    finally:
        await provider.close()


async def deltas_of(provider: Provider, *messages: Message, options: ChatOptions = OPTIONS) -> list[Delta]:
    """Return all deltas of an answer; the message is "Hi" if none is given."""
    return [delta async for delta in provider.stream(messages or (user("Hi"),), options)]


def text_of(deltas: Sequence[Delta]) -> str:
    """Return the text of deltas."""
    return "".join(delta.content for delta in deltas if isinstance(delta, TextDelta))


async def failure_of(provider: Provider, seen: list[Delta] | None = None) -> ProviderError:
    """Return the error of a call; the deltas before it are added to ``seen``."""

    async def consume() -> None:
        async for delta in provider.stream((user("Hi"),), OPTIONS):
            if seen is not None:
                seen.append(delta)

    return await raised_by(consume())


async def raised_by(call: Awaitable[Any]) -> ProviderError:
    """Return the error that a call raises. Raises AssertionError if it raises none."""
    try:
        await call
    except ProviderError as error:
        return error
    raise AssertionError("the call should have failed")
