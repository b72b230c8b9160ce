"""What clients send to ``/v1/chat/completions``, as far as it means something here.

How the model is asked (temperature, token limits and the like) is the gateway's own setting, so those
fields are not read. What would break a promise if it were passed over is refused by its type.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct


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
    """What the answer is written in: text, for no other form can be promised."""

    type: Literal["text"]


class ChatRequest(Struct, frozen=True):
    """A conversation to answer. The gateway's own tools are used; those of the request are not offered."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=10_000)]
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    n: Annotated[int, Meta(ge=1, le=1)] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    response_format: ResponseFormat | None = None
