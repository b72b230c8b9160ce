"""Protocols of the services that the broker needs of higher packages."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, Protocol

from gateway.contract.services import Table


class GrantService(Protocol):
    """The grants of confined plugins that were given or refused since their installation."""

    def given(self, plugin: str) -> Collection[str]:
        """Return the grants that a plugin was given."""
        ...

    def refused(self, plugin: str) -> Collection[str]:
        """Return the grants that a plugin was refused permanently."""
        ...

    async def ask(
        self, plugin: str, grant: str, action: str, session: str
    ) -> Literal["once", "always", "never"] | None:
        """Ask an admin of the session's chat for a grant. None if none can be asked, or none answers.

        ``action`` completes the sentence "The plugin x wants to …". "always" and "never" are durable when
        this returns.
        """
        ...


class CapabilityLog(Protocol):
    """The audit log of what confined plugins do."""

    def record(
        self,
        plugin: tuple[str, str, str],
        action: str,
        value: str,
        arguments: object = (),
        *,
        allowed: bool = True,
        microseconds: int = 0,
    ) -> None:
        """Note an action, to be written soon. ``plugin`` is its name, version and content hash.

        Only a digest of ``arguments`` is stored.
        """
        ...


class SizedTable(Table, Protocol):
    """A table that knows its size."""

    async def size(self, *, without: str = "") -> int:
        """Return the bytes of all values as JSON, except that of one key."""
        ...


class SendService(Protocol):
    """Sends a text to the chat of a session, once for each key. Returns once it is durable."""

    async def __call__(self, session: str, text: str, key: str) -> None: ...


class Completion(Protocol):
    """The answer of a model to a plugin. ``cost`` is in US dollars, None without a known price."""

    @property
    def text(self) -> str: ...
    @property
    def input_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def cost(self) -> float | None: ...


class CompletionService(Protocol):
    """Calls models for plugins."""

    async def complete(
        self,
        plugin: str,
        session: str,
        prompt: str,
        *,
        system: str = "",
        model: str = "",
        max_tokens: int = 4_096,
        budget: float | None = None,
    ) -> Completion:
        """Call a model for a plugin that works in a session.

        ``max_tokens`` limits the answer with the reasoning before it. ``budget`` is in US dollars, for this
        plugin in this session. Raises BudgetExceededError and ProviderError.
        """
        ...
