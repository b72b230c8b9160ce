"""Requests of servers: questions to the user, the granted folders, and model calls.

A server may only ask while one of its tools runs, and only the user of that call. Like ``session``, this is
imported with the first connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import Any, Protocol, TypeGuard, TypeVar, cast

import mcp_types as types

from gateway.contract.errors import TrunklineError
from gateway.contract.questions import Answer, Choice
from gateway.contract.tool import AskUser
from gateway.settings import McpServerSettings

T = TypeVar("T")

MOST_FIELDS = 8
"""Fields of one request; one with more is declined."""
_MOST_PROMPT = 200_000
_DECLINE = "decline"
_REFUSED = types.INVALID_REQUEST
_NUMBERS: Mapping[str, type[int] | type[float]] = {"integer": int, "number": float}


class Completes(Protocol):
    """Calls a model in a session, for a server with a budget; see ``PluginCompletions.complete``."""

    async def __call__(
        self, plugin: str, session: str, prompt: str, *, system: str, max_tokens: int, budget: float | None
    ) -> Any: ...


class Caller:
    """The call of a tool: the session of its user, and how to ask that user."""

    def __init__(self, session: str, ask: AskUser) -> None:
        self.session = session
        self.ask = ask
        # With the clock of the call, which stops while the user is asked.
        self.context: Context = copy_context()


_calling: ContextVar[Caller | None] = ContextVar("caller", default=None)


class Requests:
    """Answers the requests of one server. ``complete`` returns what calls models."""

    def __init__(
        self, name: str, settings: McpServerSettings, complete: Callable[[], Completes] | None
    ) -> None:
        self._name = name
        self._settings = settings
        self._complete = complete if settings.capabilities.llm.enabled else None
        self._callers: list[Caller] = []

    @contextmanager
    def of(self, caller: Caller | None) -> Generator[None]:
        """Let the server ask the user of a call within the block."""
        if caller is None:
            yield
            return
        token = _calling.set(caller)
        self._callers.append(caller)
        try:
            yield
        finally:
            self._callers.remove(caller)
            _calling.reset(token)

    def callbacks(self) -> dict[str, Any]:
        """Return the arguments of the SDK's client for what the server may request."""
        found: dict[str, Any] = {"elicitation_callback": self._elicit}
        if self._settings.capabilities.filesystem.roots:
            found["list_roots_callback"] = self._roots
        if self._complete is not None:
            found["sampling_callback"] = self._sample
        return found

    async def _roots(self, _context: object) -> types.ListRootsResult:
        roots = self._settings.capabilities.filesystem.roots
        return types.ListRootsResult.model_validate({"roots": [{"uri": root.as_uri()} for root in roots]})

    async def _elicit(self, _context: object, params: types.ElicitRequestParams) -> types.ElicitResult:
        """Ask the user for the fields of a form, one after the other."""
        caller = self._caller()
        if caller is None or not isinstance(params, types.ElicitRequestFormParams):
            return types.ElicitResult(action=_DECLINE)
        fields: object = params.requested_schema.get("properties") or dict[str, Any]()
        if not _is_form(fields):
            return types.ElicitResult(action=_DECLINE)
        content: dict[str, Any] = {}
        for name, field in (fields or {"": {"type": "boolean"}}).items():
            value = await _within(caller, self._ask(caller, params.message, name, field))
            if value is None:
                return types.ElicitResult(action=_DECLINE)
            if name:
                content[name] = value
            elif not value:
                return types.ElicitResult(action=_DECLINE)
        return types.ElicitResult(action="accept", content=content)

    async def _ask(self, caller: Caller, message: str, name: str, field: Mapping[str, Any]) -> object:
        """Ask for one field. Returns None if the user declines or gives no fitting answer."""
        kind = field.get("type")
        named: Sequence[object] = field.get("enum") or (("true", "false") if kind == "boolean" else ())
        labels = {"true": "Yes", "false": "No"} if kind == "boolean" else {}
        choices = [Choice(str(each), labels.get(str(each), "")) for each in named[:20]]
        asked = str(field.get("title") or field.get("description") or name)[:200]
        answer: Answer | None = await caller.ask(
            f"The MCP server {self._name} asks: {message[:500]}",
            detail=f"{asked}. Give it no password.".lstrip(". "),
            choices=[*choices, Choice(_DECLINE, "Decline", style="bad")],
            free_text=not choices,
        )
        value = answer.value if answer is not None and answer.state == "answered" else None
        if value is None or value == _DECLINE:
            return None
        if kind == "boolean":
            return value == "true"
        number = _NUMBERS.get(kind) if isinstance(kind, str) else None
        try:
            return value if number is None else number(value)
        except ValueError:
            return None

    async def _sample(
        self, _context: object, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.ErrorData:
        """Let a model answer the messages of the server, which sees nothing else of the conversation."""
        caller = self._caller()
        if caller is None or self._complete is None:
            return types.ErrorData(code=_REFUSED, message="a model is called only while one tool runs")
        blocks = [
            (each.role, block)
            for each in params.messages
            for block in (each.content if isinstance(each.content, list) else [each.content])
        ]
        if any(not isinstance(block, types.TextContent) for _, block in blocks):
            return types.ErrorData(code=_REFUSED, message="only text can be sent to a model")
        texts = [(role, block.text) for role, block in blocks if isinstance(block, types.TextContent)]
        prompt = texts[0][1] if len(texts) == 1 else "\n\n".join(f"{role}: {text}" for role, text in texts)
        try:
            made = await self._complete()(
                f"mcp:{self._name}",
                caller.session,
                prompt[:_MOST_PROMPT],
                system=params.system_prompt or "",
                max_tokens=params.max_tokens,
                budget=self._settings.capabilities.llm.budget,
            )
        except TrunklineError as error:
            return types.ErrorData(code=_REFUSED, message=str(error))
        text = types.TextContent(type="text", text=made.text)
        return types.CreateMessageResult(role="assistant", content=text, model="trunkline")

    def _caller(self) -> Caller | None:
        """Return the call that a request belongs to: older revisions of the protocol do not say which."""
        known = _calling.get()
        if known is not None:
            return known
        return self._callers[0] if len(self._callers) == 1 else None


def _is_form(fields: object) -> TypeGuard[dict[str, dict[str, Any]]]:
    """Return whether these are fields that a user can be asked for: the SDK leaves them unchecked."""
    if not isinstance(fields, dict):
        return False
    values = cast("list[object]", [*fields.values()])
    enums = [cast("dict[str, object]", each).get("enum") for each in values if isinstance(each, dict)]
    are_lists = all(each is None or isinstance(each, list) for each in enums)
    return len(values) <= MOST_FIELDS and len(enums) == len(values) and are_lists


async def _within(caller: Caller, work: Awaitable[T]) -> T:
    """Await something in the context of a call."""

    async def run() -> T:
        return await work

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(run(), context=caller.context)
    return task.result()
