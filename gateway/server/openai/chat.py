"""What clients send to ``/v1/chat/completions``, as far as it means something here.

Parameters that the gateway cannot keep and that would change the answer are refused by name; those that only
inform (``user``, ``metadata``, ``store``, ``parallel_tool_calls``, hints about cost or effort) are accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from gateway.contract.errors import InvalidRequestError
from gateway.contract.provider import OneTool, ToolChoice, ToolDefinition, TurnOptions


class TextContent(Struct, frozen=True, tag_field="type", tag="text"):
    """Text."""

    text: str


class PictureAddress(Struct, frozen=True):
    """A picture as a data URL, or by an http or https address."""

    url: str


class PictureContent(Struct, frozen=True, tag_field="type", tag="image_url"):
    """A picture."""

    image_url: PictureAddress


class RefusalContent(Struct, frozen=True, tag_field="type", tag="refusal"):
    """What a model said in place of an answer."""

    refusal: str


class SystemSaid(Struct, frozen=True, tag_field="role", tag="system"):
    """Instructions."""

    content: str | list[TextContent]


class DeveloperSaid(Struct, frozen=True, tag_field="role", tag="developer"):
    """Instructions, under their newer name."""

    content: str | list[TextContent]


class UserSaid(Struct, frozen=True, tag_field="role", tag="user"):
    """What the user said."""

    content: str | list[TextContent | PictureContent]


class CalledFunction(Struct, frozen=True):
    """A function and its arguments, as JSON text."""

    name: str
    arguments: str = "{}"


class ToolCalled(Struct, frozen=True):
    """A tool that was called."""

    id: str
    function: CalledFunction


class AssistantSaid(Struct, frozen=True, tag_field="role", tag="assistant"):
    """What the model said, and which tools it called."""

    content: str | list[TextContent | RefusalContent] | None = None
    tool_calls: list[ToolCalled] | None = None


class ToolSaid(Struct, frozen=True, tag_field="role", tag="tool"):
    """What a tool answered."""

    tool_call_id: str
    content: str | list[TextContent]


ChatMessage = SystemSaid | DeveloperSaid | UserSaid | AssistantSaid | ToolSaid


class StreamOptions(Struct, frozen=True):
    """What a stream holds beside the answer."""

    include_usage: bool = False


class ResponseFormat(Struct, frozen=True):
    """What the answer is written in: text, or one JSON object. No schema can be promised."""

    type: str


class Function(Struct, frozen=True):
    """A function of the client's; ``parameters`` is a JSON schema of type object."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ClientTool(Struct, frozen=True, tag_field="type", tag="function"):
    """A tool that the client runs itself."""

    function: Function


class FunctionName(Struct, frozen=True):
    """A function by its name."""

    name: str


class ChosenTool(Struct, frozen=True, tag_field="type", tag="function"):
    """The one tool that has to be called."""

    function: FunctionName


class ChatRequest(Struct, frozen=True):
    """A conversation to answer.

    With ``tools`` the model is offered these and none of the gateway's own; the answer is its calls, and the
    client comes back with their results. How the model is asked is kept within the bounds of its agent.
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


_ONLY: Mapping[str, tuple[Any, ...]] = {
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
"""The values of parameters that are accepted, because they change nothing."""


def turn_options(body: ChatRequest) -> TurnOptions:
    """How a request wants the model to be asked. Raises InvalidRequestError with the parameter's name."""
    for name, accepted in _ONLY.items():
        value = getattr(body, name)
        if value is not None and value not in accepted:
            instead = f" or give {accepted[0]!r}" if accepted else ""
            raise InvalidRequestError(
                f"{name} = {_quoted(value)} is not supported here; leave it out{instead}", param=name
            )
    form = body.response_format.type if body.response_format is not None else None
    if form not in (None, "text", "json_object"):
        raise InvalidRequestError(
            f"response_format.type = {_quoted(form)} is not supported here; text and json_object are",
            param="response_format",
        )
    tools, choice = _tools(body)
    return TurnOptions(
        temperature=body.temperature,
        top_p=body.top_p,
        seed=body.seed,
        max_tokens=min(filter(None, (body.max_tokens, body.max_completion_tokens)), default=None),
        stop_sequences=_stop(body.stop),
        response_format=None if form is None else "json" if form == "json_object" else "text",
        tools=tools,
        tool_choice=choice,
        server_retries=1,
    )


def _tools(body: ChatRequest) -> tuple[tuple[ToolDefinition, ...] | None, ToolChoice]:
    """The client's tools, if it has any, and which of them has to be called."""
    choice = body.tool_choice
    if not body.tools:
        if choice == "required" or isinstance(choice, ChosenTool):
            raise InvalidRequestError(
                "tool_choice asks for a call, but there are no tools", param="tool_choice"
            )
        return None, "auto"
    names = [tool.function.name for tool in body.tools]
    if len(names) != len(set(names)):
        raise InvalidRequestError("two tools have the same name", param="tools")
    if choice == "none":
        return (), "auto"
    if isinstance(choice, ChosenTool) and choice.function.name not in names:
        raise InvalidRequestError(
            f"tool_choice names {_quoted(choice.function.name)}, which is not among the tools",
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
