"""A call that is to be made, its place in line, and the right to make it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType

from msgspec import Struct

from gateway.errors import RateLimitError
from gateway.messages import ImagePart, Message, ToolResultPart
from gateway.provider import ProviderConfig
from gateway.wire.allowance import Key, Use

_PICTURE_TOKENS = 1000
_BYTES_PER_TOKEN = 4


class Wish(Struct, frozen=True):
    """A call to be made: for which session, of which model, and of how many tokens about."""

    session: str
    model: str
    tokens: int = 0
    tried: frozenset[int] = frozenset()
    """The keys that were tried for this call, by position."""

    @property
    def line(self) -> tuple[str, str]:
        """Who stands in the same line: calls of a session of the same model."""
        return self.session, self.model


class Slot:
    """The right to make one call with one key. It is given back once, by ``release``."""

    __slots__ = ("_free", "_key", "_tokens", "wish")

    def __init__(self, free: Callable[[Key], None], key: Key, wish: Wish, tokens: Use | None) -> None:
        self._free: Callable[[Key], None] | None = free
        self._key = key
        self._tokens = tokens
        self.wish = wish

    @property
    def config(self) -> ProviderConfig:
        """How the provider is reached with this key."""
        return self._key.config

    @property
    def position(self) -> int:
        """Which of the keys it is, from 1."""
        return self._key.position

    def used(self, tokens: int) -> None:
        """The call came to so many tokens."""
        if self._key.tokens is not None and self._tokens is not None:
            self._key.tokens.correct(self._tokens, tokens)

    def release(self) -> None:
        """The call is over."""
        free, self._free = self._free, None
        if free is not None:
            free(self._key)


class Waiting:
    """A call that waits in line, left with the block if there is no slot in the end.

    ``seconds`` is how long that will take as far as it is known, else 0.
    """

    __slots__ = ("_leave", "_provider", "future", "seconds", "wish")

    def __init__(self, leave: Callable[[Waiting], None], provider: str, wish: Wish, seconds: float) -> None:
        self._leave = leave
        self._provider = provider
        self.wish = wish
        self.seconds = seconds
        self.future: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()

    def __enter__(self) -> Waiting:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._leave(self)

    async def slot(self, most: float) -> Slot:
        """Wait for a slot. Raises RateLimitError if there is none within ``most`` seconds."""
        try:
            if self.seconds > most:
                raise TimeoutError
            async with asyncio.timeout(most):
                return await self.future
        except TimeoutError:
            name, wait = self._provider, self.seconds
            how_long = f"for {wait:.0f} s" if wait > most else f"for {most:.0f} s and more"
            raise RateLimitError(
                f"the limits of {name} leave no room {how_long}, longer than a call may wait",
                provider=name,
                retry_after=wait or None,
            ) from None


def wish_for(messages: Sequence[Message], model: str, size: int) -> Wish:
    """The wish for a call whose request has so many bytes. A picture is reckoned apart from its size."""
    pictures = [data for message in messages for data in _pictures(message)]
    size -= sum(map(len, pictures))
    tokens = max(1, size // _BYTES_PER_TOKEN) + _PICTURE_TOKENS * len(pictures)
    return Wish(messages[-1].session_id if messages else "", model, tokens)


def _pictures(message: Message) -> list[str]:
    found: list[str] = []
    for part in message.parts:
        if isinstance(part, ImagePart):
            found.append(part.data)
        elif isinstance(part, ToolResultPart):
            found += [attachment.data for attachment in part.attachments]
    return found
