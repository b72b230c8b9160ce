"""The tool contract: a typed, documented async function becomes something a model can call.

The function's name, docstring and annotations make the schema. A parameter annotated ``ToolContext`` is
filled in by the gateway and hidden from the model.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Protocol

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from gateway.errors import PluginError, ToolError
from gateway.messages import Attachment, DisplayHints, ResultMetadata
from gateway.provider import ToolDefinition


class ToolOutput(Struct, frozen=True):
    """An explicit result; a plain string is one too, and an error if it begins with ``Error:``."""

    content: str
    is_error: bool = False
    title: str | None = None
    metadata: ResultMetadata | None = None
    attachments: tuple[Attachment, ...] = ()


class RunNested(Protocol):
    """Lets the agent work on a task within this call, and returns its last words.

    ``tools`` names those it may use (None: all of the turn). Permissions, approvals and hooks are the
    turn's; stopping the turn stops it too. Raises ToolError when it fails.
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
    """What a running tool knows and may do.

    ``progress`` shows more output at once. ``key`` is the same when a call is run again after a crash, so
    that a tool can pass it on as an idempotency key. ``run_nested`` works on a task of its own.
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

    ``match_key`` yields the text that permission globs are held against; without it only plain rules
    apply. ``idempotent`` says that running it again after a crash does no harm.
    """

    definition: ToolDefinition
    execute: Execute
    display: DisplayHints = DisplayHints()
    match_key: MatchKey | None = None
    idempotent: bool = False

    @property
    def name(self) -> str:
        """The name the model calls it by."""
        return self.definition.name


def as_output(result: str | ToolOutput) -> ToolOutput:
    """A result in its explicit form."""
    if isinstance(result, ToolOutput):
        return result
    return ToolOutput(result, is_error=result.startswith("Error:"))


def tool_from(
    function: ToolFunction,
    *,
    display: DisplayHints | None = None,
    match_key: MatchKey | None = None,
    idempotent: bool = False,
) -> Tool:
    """Make a tool of a typed async function. Raises PluginError if it has no docstring or is not async."""
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
    )


def _arguments_model(name: str, function: ToolFunction) -> tuple[str | None, type[BaseModel]]:
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
