"""The tool contract: a typed, documented async function becomes a tool for models.

The function's name, docstring and annotations make the schema. A parameter annotated ``ToolContext`` is
filled in by the gateway and hidden from the model.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from gateway.contract.errors import PluginError, ToolError
from gateway.contract.messages import Attachment, DisplayHints, ResultMetadata
from gateway.contract.provider import ToolDefinition

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError


class ToolOutput(Struct, frozen=True):
    """An explicit result; a plain string is one too, and an error if it begins with ``Error:``."""

    content: str
    is_error: bool = False
    title: str | None = None
    metadata: ResultMetadata | None = None
    attachments: tuple[Attachment, ...] = ()


class RunNested(Protocol):
    """Runs the agent on a task within this call, and returns its final text.

    ``tools`` names the allowed tools (None: all of the turn). Permissions, approvals and hooks are the
    turn's; stopping the turn stops the run. Raises ToolError if the run fails.
    """

    async def __call__(
        self,
        task: str,
        *,
        agent: str = "sub",
        tools: Collection[str] | None = None,
        system_prompt: str | None = None,
        model: str | None = None,
    ) -> str: ...


class ToolContext(Struct, frozen=True, kw_only=True):
    """The context of a tool call.

    ``progress`` shows text to users while the tool runs; it is not part of the result for the model. ``key``
    is the same if a call is repeated after a crash, so that a tool can use it as an idempotency key.
    ``run_nested`` runs the agent on a subtask.
    """

    session: str
    message_id: str
    call_id: str
    key: str
    user: str
    progress: Callable[[str], None]
    run_nested: RunNested


ToolFunction = Callable[..., Awaitable[str | ToolOutput]]
Execute = Callable[[Mapping[str, Any], ToolContext], Awaitable[str | ToolOutput]]
MatchKey = Callable[[Mapping[str, Any]], str | None]


class Tool(Struct, frozen=True, kw_only=True):
    """A tool as the gateway keeps it.

    ``match_key`` returns the text that permission globs are compared with; without it only plain rules
    apply, and "always" is not offered. ``idempotent``: repeating a call after a crash is harmless.
    ``read_only``: a call changes nothing; this is trusted for built-in tools only, which then run without an
    approval if no rule names them. ``timeout_ms`` is the time limit of one call; default: the limit of its
    plugin (60 s unless set).
    """

    definition: ToolDefinition
    execute: Execute
    display: DisplayHints = DisplayHints()
    match_key: MatchKey | None = None
    idempotent: bool = False
    timeout_ms: int | None = None
    read_only: bool = False

    @property
    def name(self) -> str:
        """The name that the model uses."""
        return self.definition.name


def as_output(result: str | ToolOutput) -> ToolOutput:
    """Convert a result to its explicit form."""
    if isinstance(result, ToolOutput):
        return result
    return ToolOutput(result, is_error=result.startswith("Error:"))


def tool_from(
    function: ToolFunction,
    *,
    display: DisplayHints | None = None,
    match_key: MatchKey | None = None,
    idempotent: bool = False,
    timeout_ms: int | None = None,
    read_only: bool = False,
) -> Tool:
    """Make a tool of a typed async function. Raises PluginError if it has no docstring or is not async."""
    # Loaded with the first tool: 60 ms that every `trunkline` command would spend otherwise.
    from pydantic import ValidationError

    name = function.__name__
    doc = inspect.getdoc(function)
    if not inspect.iscoroutinefunction(function) or not doc:
        raise PluginError(f"tool {name!r} must be an async function with a docstring")
    context_name, arguments = _arguments_model(name, function)
    schema = arguments.model_json_schema()
    schema.pop("title", None)

    async def execute(raw: Mapping[str, Any], context: ToolContext) -> str | ToolOutput:
        try:
            given = arguments.model_validate(dict(raw))
        except ValidationError as error:
            raise ToolError(_readable(name, error)) from None
        values = {field: getattr(given, field) for field in arguments.model_fields}
        if context_name is not None:
            values[context_name] = context
        return await function(**values)

    return Tool(
        definition=ToolDefinition(name=name, description=doc, parameters=schema),
        execute=execute,
        display=display or DisplayHints(),
        match_key=match_key,
        idempotent=idempotent,
        timeout_ms=timeout_ms,
        read_only=read_only,
    )


def _arguments_model(name: str, function: ToolFunction) -> tuple[str | None, type[BaseModel]]:
    from pydantic import ConfigDict, create_model

    hints = typing.get_type_hints(function, include_extras=True)
    context_name: str | None = None
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        annotation = hints.get(parameter.name)
        if annotation is None:
            raise PluginError(f"tool {name!r}: parameter {parameter.name!r} has no annotation")
        if annotation is ToolContext:
            context_name = parameter.name
            continue
        default: Any = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[parameter.name] = (annotation, default)
    return context_name, create_model(f"{name}_arguments", __config__=ConfigDict(extra="forbid"), **fields)


def _readable(name: str, error: ValidationError) -> str:
    problems = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}" for e in error.errors())
    return f"wrong arguments for {name}: {problems}"
