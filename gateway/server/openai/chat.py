"""Requests to ``/v1/chat/completions``.

Unsupported parameters that would change the answer are refused by name. Those that only inform
(``user``, ``metadata``, ``store``, ``parallel_tool_calls``, hints about cost) are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from gateway.contract.errors import InvalidRequestError
from gateway.contract.provider import AnswerSchema, Effort, OneTool, ToolChoice, ToolDefinition, TurnOptions


class TextContent(Struct, frozen=True, tag_field="type", tag="text"):
    """Text."""

    text: str


class ImageUrl(Struct, frozen=True):
    """An image: a data URL, or an http or https URL."""

    url: str


class ImageContent(Struct, frozen=True, tag_field="type", tag="image_url"):
    """An image."""

    image_url: ImageUrl


class RefusalContent(Struct, frozen=True, tag_field="type", tag="refusal"):
    """A refusal of the model."""

    refusal: str


class SystemMessage(Struct, frozen=True, tag_field="role", tag="system"):
    """Instructions."""

    content: str | list[TextContent]


class DeveloperMessage(Struct, frozen=True, tag_field="role", tag="developer"):
    """Instructions, under the newer role name."""

    content: str | list[TextContent]


class UserMessage(Struct, frozen=True, tag_field="role", tag="user"):
    """A user message."""

    content: str | list[TextContent | ImageContent]


class CalledFunction(Struct, frozen=True):
    """A function with its arguments as JSON text."""

    name: str
    arguments: str = "{}"


class ToolCall(Struct, frozen=True):
    """A tool call of the model."""

    id: str
    function: CalledFunction


class AssistantMessage(Struct, frozen=True, tag_field="role", tag="assistant"):
    """An answer of the model, with its tool calls."""

    content: str | list[TextContent | RefusalContent] | None = None
    tool_calls: list[ToolCall] | None = None


class ToolMessage(Struct, frozen=True, tag_field="role", tag="tool"):
    """A tool result."""

    tool_call_id: str
    content: str | list[TextContent]


ChatMessage = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


class StreamOptions(Struct, frozen=True):
    """Options of a streamed answer."""

    include_usage: bool = False


class JsonSchema(Struct, frozen=True):
    """A JSON schema of the answer."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(Struct, frozen=True):
    """The format of the answer: text, a JSON object, or one that meets a schema."""

    type: str
    json_schema: JsonSchema | None = None


class Function(Struct, frozen=True):
    """A function of the client. ``parameters`` is a JSON schema of type object."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ClientTool(Struct, frozen=True, tag_field="type", tag="function"):
    """A tool that the client runs itself."""

    function: Function


class FunctionName(Struct, frozen=True):
    """The name of a function."""

    name: str


class ChosenTool(Struct, frozen=True, tag_field="type", tag="function"):
    """The tool that the model must call."""

    function: FunctionName


class ChatRequest(Struct, frozen=True):
    """A conversation to answer.

    With ``tools`` the model gets these instead of the gateway's own. The answer contains its calls; the
    client runs them and sends the results in another request. The limits of the agent apply to all options.
    """

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=10_000)]
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    tools: Annotated[list[ClientTool], Meta(max_length=512)] | None = None
    tool_choice: Literal["auto", "none", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    stop: (
        Annotated[str, Meta(min_length=1)]
        | Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(max_length=4)]
        | None
    ) = None
    response_format: ResponseFormat | None = None
    reasoning_effort: Effort | None = None
    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    functions: list[dict[str, Any]] | None = None
    function_call: Any = None
    modalities: list[str] | None = None
    audio: Any = None
    web_search_options: Any = None


_IGNORED_VALUES: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "functions": ([],),
    "function_call": ("auto", "none"),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
}
"""Accepted values of unsupported parameters: they change nothing."""


_FORMATS: Mapping[str | None, Literal["text", "json"] | None] = {
    None: None,
    "text": "text",
    "json_object": "json",
    "json_schema": "json",
}


def turn_options(body: ChatRequest) -> TurnOptions:
    """Return the options of the model call. Raises InvalidRequestError for an unsupported parameter."""
    refuse_unsupported(body, _IGNORED_VALUES)
    tools, choice = _tools(body)
    return TurnOptions(
        temperature=body.temperature,
        top_p=body.top_p,
        seed=body.seed,
        max_tokens=min(filter(None, (body.max_tokens, body.max_completion_tokens)), default=None),
        stop_sequences=_stop(body.stop),
        response_format=answer_format(body.response_format, "response_format"),
        answer_schema=_schema(body.response_format),
        effort=body.reasoning_effort,
        tools=tools,
        tool_choice=choice,
        server_retries=1,
    )


def refuse_unsupported(body: Struct, ignored: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise InvalidRequestError for a parameter with a value other than null and the ``ignored`` ones."""
    for name, accepted in ignored.items():
        value = getattr(body, name)
        if value is not None and value not in accepted:
            instead = f" or use {accepted[0]!r}" if accepted else ""
            raise InvalidRequestError(
                f"{name} = {_quoted(value)} is not supported; omit it{instead}", param=name
            )


def answer_format(given: ResponseFormat | None, key: str) -> Literal["text", "json"] | None:
    """Return the format of the answer; ``key`` names the parameter. Raises InvalidRequestError."""
    kind = None if given is None else given.type
    if kind not in _FORMATS:
        raise InvalidRequestError(
            f"{key}.type = {_quoted(kind)} is not supported; use text, json_object or json_schema",
            param=key.partition(".")[0],
        )
    return _FORMATS[kind]


def answer_schema(given: JsonSchema | None, key: str) -> AnswerSchema:
    """Return the schema of the answer; ``key`` names the parameter. Raises InvalidRequestError."""
    if given is None or given.schema is None:
        raise InvalidRequestError(f"{key} has no schema", param=key.partition(".")[0])
    return AnswerSchema(given.schema, given.name, bool(given.strict))


def _schema(given: ResponseFormat | None) -> AnswerSchema | None:
    if given is None or given.type != "json_schema":
        return None
    return answer_schema(given.json_schema, "response_format.json_schema")


def _tools(body: ChatRequest) -> tuple[tuple[ToolDefinition, ...] | None, ToolChoice]:
    """Return the client's tools, None if it has none, and the tool choice."""
    choice = body.tool_choice
    if not body.tools:
        if choice == "required" or isinstance(choice, ChosenTool):
            raise InvalidRequestError("tool_choice requires a tool, but tools is empty", param="tool_choice")
        return None, "auto"
    names = [tool.function.name for tool in body.tools]
    if len(names) != len(set(names)):
        raise InvalidRequestError("two tools have the same name", param="tools")
    if choice == "none":
        return (), "auto"
    if isinstance(choice, ChosenTool) and choice.function.name not in names:
        raise InvalidRequestError(
            f"tool_choice names {_quoted(choice.function.name)}, which is not in tools",
            param="tool_choice",
        )
    tools = tuple(
        ToolDefinition(
            tool.function.name,
            tool.function.description or "",
            tool.function.parameters or {"type": "object", "properties": {}},
        )
        for tool in body.tools
    )
    if isinstance(choice, ChosenTool):
        return tools, OneTool(choice.function.name)
    return tools, "required" if choice == "required" else "auto"


def _stop(given: str | list[str] | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    return (given,) if isinstance(given, str) else tuple(given)


def _quoted(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
