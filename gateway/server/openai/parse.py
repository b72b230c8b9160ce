"""From a conversation as clients send it to one message of a session, with what was said before it."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from gateway.contract.client_message import SESSION_NAME, ClientMessage
from gateway.contract.errors import InvalidRequestError, PartValidationError
from gateway.contract.messages import ImagePart, Message, Part, TextPart, ToolCallPart, ToolResultPart
from gateway.server.openai.chat import (
    AssistantSaid,
    ChatMessage,
    DeveloperSaid,
    PictureContent,
    RefusalContent,
    SystemSaid,
    TextContent,
    ToolCalled,
    ToolSaid,
    UserSaid,
)
from gateway.session.log import UNNAMED_PREFIX

_DATA_URL = re.compile(r"data:(image/[\w.+-]+)(?:;[^,;]*)*;base64,(.*)", re.DOTALL | re.IGNORECASE)
_SPELT = {"image/jpg": "image/jpeg"}
_NAMES = uuid.UUID("8d2f7c1e-5f2b-5c38-9b5e-6a3f1f0f7d11")
_Content = str | Sequence[TextContent | PictureContent | RefusalContent] | None


class Conversation(Struct, frozen=True):
    """What came since the model's last words: the user's words and the results of tools; and all before."""

    text: str
    pictures: tuple[ImagePart, ...]
    before: tuple[Message, ...]
    results: tuple[ToolResultPart, ...] = ()


def conversation(messages: Sequence[ChatMessage], session: str) -> Conversation:
    """Split a conversation behind the last word of the model. Raises InvalidRequestError.

    What the user said since then is one message, however many pieces it came in, and holds the results of the
    client's tools.
    """
    answers = [n for n, said in enumerate(messages, 1) if isinstance(said, AssistantSaid)]
    begin = answers[-1] if answers else 0
    asked = [said for said in messages[begin:] if isinstance(said, UserSaid)]
    results = tuple(
        ToolResultPart(said.tool_call_id, _text(said.content))
        for said in messages[begin:]
        if isinstance(said, ToolSaid)
    )
    if not (asked or results):
        raise InvalidRequestError(
            "the conversation has to end with what the user says, or with a tool's result", param="messages"
        )
    system = (said for said in messages[begin:] if isinstance(said, SystemSaid | DeveloperSaid))
    earlier = [*messages[:begin], *system]
    pictures = tuple(picture for said in asked for picture in _pictures(said))
    text = "\n\n".join(filter(None, (_text(said.content) for said in asked)))
    return Conversation(text, pictures, _before(earlier, session), results)


def session_named(user: str) -> str:
    """The session of a ``user``, who may be called anything."""
    return user if SESSION_NAME.fullmatch(user) else f"user-{uuid.uuid5(_NAMES, _sound(user))}"


def session_of_key(user: str, key: str) -> str:
    """The session that a request with an idempotency key begins: the same one, however often it comes."""
    return f"{UNNAMED_PREFIX}{uuid.uuid5(_NAMES, _sound(f'{user}:{key}'))}"


def _before(messages: Sequence[ChatMessage], session: str) -> tuple[Message, ...]:
    """Earlier messages; neighbouring ones of the model, with the results of its tools, are one of ours."""
    found: list[Message] = []
    for said in messages:
        role, parts = _told(said)
        if isinstance(said, ToolSaid) and not (found and found[-1].role == "assistant"):
            raise InvalidRequestError(
                "a tool's result has to follow the call it belongs to", param="messages"
            )
        if role == "assistant" and found and found[-1].role == role:
            found[-1] = msgspec.structs.replace(found[-1], parts=(*found[-1].parts, *parts))
        elif parts:
            found.append(Message(session_id=session, role=role, parts=parts))
    return tuple(found)


def _told(said: ChatMessage) -> tuple[Any, tuple[Part, ...]]:
    """The role and the parts of a message."""
    match said:
        case ToolSaid():
            return "assistant", (ToolResultPart(said.tool_call_id, _text(said.content)),)
        case AssistantSaid():
            return "assistant", (*_words(said.content), *map(_call, said.tool_calls or ()))
        case UserSaid():
            parts = (*_words(said.content), *_pictures(said))
            return "user", ClientMessage.checked("", "", parts).parts if parts else ()
        case SystemSaid() | DeveloperSaid():
            return "system", _words(said.content)


def _words(content: _Content) -> tuple[TextPart, ...]:
    text = _text(content).replace("\0", "\ufffd")
    return (TextPart(text),) if text.strip() else ()


def _text(content: _Content) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = (
        part.text if isinstance(part, TextContent) else part.refusal
        for part in content
        if not isinstance(part, PictureContent)
    )
    return "\n\n".join(filter(None, texts))


def _pictures(said: UserSaid) -> list[ImagePart]:
    parts = () if isinstance(said.content, str) else said.content
    return [_picture(part.image_url.url) for part in parts if isinstance(part, PictureContent)]


def _picture(url: str) -> ImagePart:
    found = _DATA_URL.fullmatch(url.strip())
    if found is None:
        raise PartValidationError("a picture has to come as a data URL or by an http or https address")
    kind = found[1].lower()
    return ImagePart(found[2], _SPELT.get(kind, kind))


def _call(call: ToolCalled) -> ToolCallPart:
    try:
        arguments = msgspec.json.decode(call.function.arguments or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return ToolCallPart(call.id, call.function.name, {}, call.function.arguments)
    return ToolCallPart(call.id, call.function.name, arguments)


def _sound(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
