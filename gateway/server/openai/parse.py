"""The parser of conversations: a client's messages become one message of a session and its history."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from typing import Any, assert_never

import msgspec
from msgspec import Struct

from gateway.contract.client_message import SESSION_NAME, ClientMessage
from gateway.contract.errors import InvalidRequestError, PartValidationError
from gateway.contract.messages import ImagePart, Message, Part, TextPart, ToolCallPart, ToolResultPart
from gateway.server.openai.chat import (
    AssistantMessage,
    ChatMessage,
    DeveloperMessage,
    ImageContent,
    RefusalContent,
    SystemMessage,
    TextContent,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from gateway.session.log import UNNAMED_PREFIX

_DATA_URL = re.compile(r"data:(image/[\w.+-]+)(?:;[^,;]*)*;base64,(.*)", re.DOTALL | re.IGNORECASE)
_MIME_ALIASES = {"image/jpg": "image/jpeg"}
_NAMESPACE = uuid.UUID("8d2f7c1e-5f2b-5c38-9b5e-6a3f1f0f7d11")
_Content = str | Sequence[TextContent | ImageContent | RefusalContent] | None


class Conversation(Struct, frozen=True):
    """A conversation, split after the last answer of the model.

    ``text``, ``images`` and tool ``results`` came after it and are one message; ``before`` is the history.
    """

    text: str
    images: tuple[ImagePart, ...]
    before: tuple[Message, ...]
    results: tuple[ToolResultPart, ...] = ()


def parse_conversation(messages: Sequence[ChatMessage], session: str) -> Conversation:
    """Split a conversation after the last answer of the model. Raises InvalidRequestError.

    System messages after that answer become part of the history.
    """
    answers = [number for number, message in enumerate(messages, 1) if isinstance(message, AssistantMessage)]
    begin = answers[-1] if answers else 0
    users = [message for message in messages[begin:] if isinstance(message, UserMessage)]
    results = tuple(_result(message) for message in messages[begin:] if isinstance(message, ToolMessage))
    if not (users or results):
        raise InvalidRequestError(
            "the conversation must end with a user message or a tool result", param="messages"
        )
    system = (
        message for message in messages[begin:] if isinstance(message, SystemMessage | DeveloperMessage)
    )
    earlier = [*messages[:begin], *system]
    images = tuple(image for message in users for image in _images(message))
    text = "\n\n".join(filter(None, (_text(message.content) for message in users)))
    return Conversation(text, images, _history(earlier, session), results)


def session_of_user(user: str) -> str:
    """Return the session of the request field ``user``, which may be any text."""
    return (
        user if SESSION_NAME.fullmatch(user) else f"user-{uuid.uuid5(_NAMESPACE, _without_surrogates(user))}"
    )


def session_of_key(user: str, key: str) -> str:
    """Return the session that a request with an idempotency key creates; equal keys give the same session."""
    return f"{UNNAMED_PREFIX}{uuid.uuid5(_NAMESPACE, _without_surrogates(f'{user}:{key}'))}"


def _history(messages: Sequence[ChatMessage], session: str) -> tuple[Message, ...]:
    """Return earlier messages. Adjacent messages of the model and its tools become one message."""
    history: list[Message] = []
    for message in messages:
        role, parts = _parse(message)
        follows_model = bool(history) and history[-1].role == "assistant"
        if isinstance(message, ToolMessage) and not follows_model:
            raise InvalidRequestError("a tool result must follow its tool call", param="messages")
        if role == "assistant" and follows_model:
            history[-1] = msgspec.structs.replace(history[-1], parts=(*history[-1].parts, *parts))
        elif parts:
            history.append(Message(session_id=session, role=role, parts=parts))
    return tuple(history)


def _parse(message: ChatMessage) -> tuple[Any, tuple[Part, ...]]:
    """Return the role and the parts of a message."""
    match message:
        case ToolMessage():
            return "assistant", (_result(message),)
        case AssistantMessage():
            return "assistant", (*_text_parts(message.content), *map(_call, message.tool_calls or ()))
        case UserMessage():
            parts = (*_text_parts(message.content), *_images(message))
            return "user", ClientMessage.checked("", "", parts).parts if parts else ()
        case SystemMessage() | DeveloperMessage():
            return "system", _text_parts(message.content)
        case _:
            assert_never(message)


def _result(message: ToolMessage) -> ToolResultPart:
    return ToolResultPart(message.tool_call_id, _text(message.content))


def _text_parts(content: _Content) -> tuple[TextPart, ...]:
    text = _text(content).replace("\0", "\ufffd")
    return (TextPart(text),) if text.strip() else ()


def _text(content: _Content) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = (
        part.text if isinstance(part, TextContent) else part.refusal
        for part in content
        if not isinstance(part, ImageContent)
    )
    return "\n\n".join(filter(None, texts))


def _images(message: UserMessage) -> list[ImagePart]:
    parts = () if isinstance(message.content, str) else message.content
    return [_image(part.image_url.url) for part in parts if isinstance(part, ImageContent)]


def _image(url: str) -> ImagePart:
    found = _DATA_URL.fullmatch(url.strip())
    if found is None:
        raise PartValidationError("an image must be a base64 data URL, or an http or https URL")
    mime_type = found[1].lower()
    return ImagePart(found[2], _MIME_ALIASES.get(mime_type, mime_type))


def _call(call: ToolCall) -> ToolCallPart:
    try:
        arguments = msgspec.json.decode(call.function.arguments or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return ToolCallPart(call.id, call.function.name, {}, call.function.arguments)
    return ToolCallPart(call.id, call.function.name, arguments)


def _without_surrogates(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
