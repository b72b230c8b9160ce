"""What clients send to ``/v1/responses``, as far as it means something here, and as the older form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

from gateway.contract.errors import InvalidRequestError, NotFoundError
from gateway.server.openai.chat import (
    AssistantSaid,
    CalledFunction,
    ChatMessage,
    PictureAddress,
    PictureContent,
    SystemSaid,
    TextContent,
    ToolCalled,
    ToolSaid,
    UserSaid,
)

PREFIX = "resp_"
_ID_LENGTH = 36


class InputText(Struct, frozen=True, tag_field="type", tag="input_text"):
    """Text of a user, or instructions."""

    text: str


class OutputText(Struct, frozen=True, tag_field="type", tag="output_text"):
    """Text of the model."""

    text: str


class InputImage(Struct, frozen=True, tag_field="type", tag="input_image"):
    """A picture as a data URL, or by an http or https address."""

    image_url: str


class Refused(Struct, frozen=True, tag_field="type", tag="refusal"):
    """What a model said in place of an answer."""

    refusal: str


class InputItem(Struct, frozen=True):
    """Something said, called or answered; ``type`` says which of the fields count."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["user", "assistant", "system", "developer"] = "user"
    content: str | list[InputText | OutputText | InputImage | Refused] | None = None
    call_id: str = ""
    name: str = ""
    arguments: str = "{}"
    output: str | list[InputText] | None = None


class TextFormat(Struct, frozen=True):
    """What the answer is written in: text, for no other form can be promised."""

    type: Literal["text"] = "text"


class TextOptions(Struct, frozen=True):
    """How the answer is written."""

    format: TextFormat | None = None


class ResponseRequest(Struct, frozen=True):
    """A conversation to answer. ``previous_response_id`` continues the session of an earlier answer."""

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


def conversation_of(request: ResponseRequest) -> list[ChatMessage]:
    """The conversation of a request, its instructions first."""
    first: list[ChatMessage] = [SystemSaid(request.instructions)] if request.instructions else []
    if isinstance(request.input, str):
        return [*first, UserSaid(request.input)]
    return [*first, *(said for item in request.input for said in _said(item))]


def response_id(session: str, answer_id: str) -> str:
    """The id of an answer; it holds its session, so that the answer can be continued."""
    return f"{PREFIX}{session}.{answer_id}"


def session_of_response(given: str) -> str:
    """The session of an answer. Raises NotFoundError for what is no id of ours."""
    session, dot, answer_id = given.removeprefix(PREFIX).rpartition(".")
    if not given.startswith(PREFIX) or not (session and dot) or len(answer_id) != _ID_LENGTH:
        raise NotFoundError("there is no such previous response")
    return session


def _said(item: InputItem) -> Sequence[ChatMessage]:
    match item.type:
        case "message":
            return [_message(item)]
        case "function_call":
            return [
                AssistantSaid(None, [ToolCalled(item.call_id, CalledFunction(item.name, item.arguments))])
            ]
        case "function_call_output":
            return [ToolSaid(item.call_id, _joined(item.output))]
        case "reasoning":
            return []


def _message(item: InputItem) -> ChatMessage:
    if item.role == "user":
        content = item.content
        return UserSaid(content if isinstance(content, str) else [_shown(part) for part in content or ()])
    text = _joined(item.content)
    return AssistantSaid(text) if item.role == "assistant" else SystemSaid(text)


def _shown(part: InputText | OutputText | InputImage | Refused) -> TextContent | PictureContent:
    if isinstance(part, InputImage):
        return PictureContent(PictureAddress(part.image_url))
    return TextContent(_word(part))


def _joined(content: str | Sequence[InputText | OutputText | InputImage | Refused] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if any(isinstance(part, InputImage) for part in content):
        raise InvalidRequestError("only what the user says may hold pictures")
    return "\n\n".join(filter(None, (_word(part) for part in content)))


def _word(part: InputText | OutputText | InputImage | Refused) -> str:
    match part:
        case InputText() | OutputText():
            return part.text
        case Refused():
            return part.refusal
        case InputImage():
            return ""
