"""Conversations of confined plugins: what they read and send there, and models that they call for them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from gateway.contract.errors import InvalidRequestError
from gateway.contract.services import SessionService
from gateway.extensions.admission.capabilities import Capabilities
from gateway.extensions.broker.gate import Gate, Use
from gateway.extensions.broker.services import Completion, CompletionService, SendService

_MOST_MESSAGES = 200
_MOST_TEXT = 100_000
"""Characters of a text to send, and of a prompt."""


class SendCall(Struct, frozen=True, forbid_unknown_fields=True):
    """A text for a chat, in Markdown. The same ``key`` is one message."""

    session: str
    text: str
    key: str


class MessagesCall(Struct, frozen=True, forbid_unknown_fields=True):
    """A query of the newest messages of a session."""

    session: str
    last: int = 20


class MetadataCall(Struct, frozen=True, forbid_unknown_fields=True):
    """A query of the facts about the session that the plugin works in."""

    session: str = ""


class CompleteCall(Struct, frozen=True, forbid_unknown_fields=True):
    """A request to a model; "" is the small model of the session's agent, or its model."""

    prompt: str
    system: str = ""
    model: str = ""
    max_tokens: int = 4_096
    session: str = ""


class Conversations:
    """Conversations of one plugin. ``is_open`` returns whether the plugin works in a session now."""

    def __init__(
        self,
        capabilities: Capabilities,
        gate: Gate,
        is_open: Callable[[str], bool],
        sessions: SessionService,
        send: SendService,
        models: CompletionService,
        facts: Callable[[str], Awaitable[Mapping[str, Any]]],
    ) -> None:
        self._capabilities = capabilities
        self._gate = gate
        self._is_open = is_open
        self._sessions = sessions
        self._send = send
        self._models = models
        self._facts = facts

    async def send(self, call: SendCall) -> None:
        """Send a text to a chat. It is durable when this returns, and sent once for each key."""
        if not call.text.strip() or len(call.text) > _MOST_TEXT:
            raise InvalidRequestError(f"send: a text has 1 to {_MOST_TEXT:,} characters")
        grant = "send" if self._capabilities.send else None
        await self._gate.check(
            Use(
                "send",
                call.session,
                grant,
                "write to chats",
                "capabilities.send: true",
                call.session if self._is_open(call.session) else "",
                (call.session, call.key),
            )
        )
        await self._send(call.session, call.text, call.key)

    async def messages(self, call: MessagesCall) -> list[Mapping[str, Any]]:
        """Return the newest messages of a session that the plugin works in, oldest first."""
        declared, is_open = self._capabilities.messages, self._is_open(call.session)
        grant = None if declared == "none" else f"messages:{declared}"
        await self._gate.check(
            Use(
                "messages",
                call.session,
                grant,
                "read the messages of conversations",
                "capabilities.messages: read",
                call.session if is_open else "",
                (call.session, call.last),
                "" if is_open else f"the plugin does not work in the session {call.session[:100]!r} now",
            )
        )
        if not 0 < call.last <= _MOST_MESSAGES:
            raise InvalidRequestError(f"session.messages: last is 1 to {_MOST_MESSAGES}")
        session = await self._sessions.find(call.session)
        return [msgspec.to_builtins(message) for message in session.messages()[-call.last :]]

    async def metadata(self, call: MetadataCall) -> Mapping[str, Any]:
        """Return facts about the session that the plugin works in. They have no text, and need no grant."""
        if not self._is_open(call.session):
            raise InvalidRequestError("session.metadata: the plugin works in no session now")
        return await self._facts(call.session)

    async def complete(self, plugin: str, call: CompleteCall) -> Completion:
        """Call a model. The cost counts for the session, the plugin and their budgets."""
        llm = self._capabilities.llm
        if not call.prompt.strip() or len(call.prompt) + len(call.system) > _MOST_TEXT:
            raise InvalidRequestError(f"llm.complete: a prompt has 1 to {_MOST_TEXT:,} characters")
        is_open = self._is_open(call.session)
        grant = "llm" if llm.enabled else None
        budget = "" if llm.budget is None else f", up to ${llm.budget:g} in each conversation"
        use = Use(
            "llm",
            call.model or "model",
            grant,
            f"call models{budget}",
            "capabilities.llm: {enabled: true, budget: 1.0}",
            call.session,
            (call.model, len(call.prompt)),
            "" if is_open else "a model is called for a session that the plugin works in",
        )
        async with self._gate.using(use):
            return await self._models.complete(
                plugin,
                call.session,
                call.prompt,
                system=call.system,
                model=call.model,
                max_tokens=call.max_tokens,
                budget=llm.budget,
            )
