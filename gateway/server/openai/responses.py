"""Requests to ``/v1/responses``, and their conversion to chat messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, assert_never

from msgspec import Meta, Struct

from gateway.contract.errors import InvalidRequestError, NotFoundError
from gateway.contract.provider import AnswerSchema, Effort, TurnOptions
from gateway.server.openai.chat import (
    AssistantMessage,
    CalledFunction,
    ChatMessage,
    ImageContent,
    ImageUrl,
    JsonSchema,
    ResponseFormat,
    SystemMessage,
    TextContent,
    ToolCall,
    ToolMessage,
    UserMessage,
    answer_format,
    answer_schema,
    refuse_unsupported,
)

_ID_PREFIX = "resp_"
_ANSWER_ID_LENGTH = 36


class InputText(Struct, frozen=True, tag_field="type", tag="input_text"):
    """Text of the user, or instructions."""

    text: str


class OutputText(Struct, frozen=True, tag_field="type", tag="output_text"):
    """Text of the model."""

    text: str


class InputImage(Struct, frozen=True, tag_field="type", tag="input_image"):
    """An image: a data URL, or an http or https URL."""

    image_url: str


class OutputRefusal(Struct, frozen=True, tag_field="type", tag="refusal"):
    """A refusal of the model."""

    refusal: str


_InputPart = InputText | OutputText | InputImage | OutputRefusal


class InputItem(Struct, frozen=True):
    """A message, tool call or tool result. ``type`` determines which of the other fields are used."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["user", "assistant", "system", "developer"] = "user"
    content: str | list[InputText | OutputText | InputImage | OutputRefusal] | None = None
    call_id: str = ""
    name: str = ""
    arguments: str = "{}"
    output: str | list[InputText] | None = None


class TextFormat(ResponseFormat, frozen=True):
    """The format of the answer's text, with its schema beside the type."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")] = "answer"
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextOptions(Struct, frozen=True):
    """Options of the answer's text."""

    format: TextFormat | None = None


class ReasoningOptions(Struct, frozen=True):
    """Options of the reasoning before the answer."""

    effort: Effort | None = None


class ResponseRequest(Struct, frozen=True):
    """A conversation to answer. ``previous_response_id`` continues the session of an earlier answer.

    The limits of the agent apply to all options.
    """

    input: str | Annotated[list[InputItem], Meta(min_length=1, max_length=10_000)]
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    stream: bool | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    background: Literal[False] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    tools: list[dict[str, Any]] | None = None
    top_logprobs: int | None = None
    max_tool_calls: int | None = None
    conversation: Any = None
    prompt: Any = None


_IGNORED_VALUES: Mapping[str, tuple[Any, ...]] = {
    "tools": ([],),
    "top_logprobs": (0,),
    "max_tool_calls": (),
    "conversation": (),
    "prompt": (),
}
"""Accepted values of unsupported parameters: they change nothing."""


def response_options(request: ResponseRequest) -> TurnOptions:
    """Return the options of the model call. Raises InvalidRequestError for an unsupported parameter."""
    refuse_unsupported(request, _IGNORED_VALUES)
    return TurnOptions(
        temperature=request.temperature,
        top_p=request.top_p,
        max_tokens=request.max_output_tokens,
        response_format=answer_format(request.text and request.text.format, "text.format"),
        answer_schema=_schema(request.text and request.text.format),
        effort=request.reasoning and request.reasoning.effort,
        server_retries=1,
    )


def _schema(given: TextFormat | None) -> AnswerSchema | None:
    if given is None or given.type != "json_schema":
        return None
    return answer_schema(JsonSchema(given.name, given.schema, given.strict), "text.format")


def conversation_of(request: ResponseRequest) -> list[ChatMessage]:
    """Return the conversation of a request, the instructions first."""
    first: list[ChatMessage] = [SystemMessage(request.instructions)] if request.instructions else []
    if isinstance(request.input, str):
        return [*first, UserMessage(request.input)]
    return [*first, *(message for item in request.input for message in _messages(item))]


def response_id(session: str, answer_id: str) -> str:
    """Return the id of a response. It contains the session, so that a later request can continue it."""
    return f"{_ID_PREFIX}{session}.{answer_id}"


def session_of_response(given: str) -> str:
    """Return the session of a response id. Raises NotFoundError for an id of another form."""
    session, dot, answer_id = given.removeprefix(_ID_PREFIX).rpartition(".")
    if not given.startswith(_ID_PREFIX) or not (session and dot) or len(answer_id) != _ANSWER_ID_LENGTH:
        raise NotFoundError("there is no such previous response")
    return session


def _messages(item: InputItem) -> Sequence[ChatMessage]:
    match item.type:
        case "message":
            return [_message(item)]
        case "function_call":
            function = CalledFunction(item.name, item.arguments)
            return [AssistantMessage(None, [ToolCall(item.call_id, function)])]
        case "function_call_output":
            return [ToolMessage(item.call_id, _joined(item.output))]
        case "reasoning":
            return []
        case _:
            assert_never(item.type)


def _message(item: InputItem) -> ChatMessage:
    if item.role == "user":
        content = item.content
        return UserMessage(
            content if isinstance(content, str) else [_content(part) for part in content or ()]
        )
    text = _joined(item.content)
    return AssistantMessage(text) if item.role == "assistant" else SystemMessage(text)


def _content(part: _InputPart) -> TextContent | ImageContent:
    if isinstance(part, InputImage):
        return ImageContent(ImageUrl(part.image_url))
    return TextContent(_text(part))


def _joined(content: str | Sequence[_InputPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if any(isinstance(part, InputImage) for part in content):
        raise InvalidRequestError("only user messages may contain images")
    return "\n\n".join(filter(None, map(_text, content)))


def _text(part: _InputPart) -> str:
    match part:
        case InputText() | OutputText():
            return part.text
        case OutputRefusal():
            return part.refusal
        case InputImage():
            return ""
        case _:
            assert_never(part)
