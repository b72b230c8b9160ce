"""How many tokens a conversation may be, where nobody has counted them. Rather too many than too few."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.messages import (
    FilePart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    to_json,
)
from gateway.provider import ChatOptions

_CHARACTERS_PER_TOKEN = 3
"""English has four or more; other languages and code have fewer."""
_TOKENS_PER_PICTURE = 1_600
_TOKENS_PER_MESSAGE = 8


def input_tokens(messages: Sequence[Message], options: ChatOptions) -> int:
    """Those that a model is sent."""
    tools = sum(len(to_json(tool)) for tool in options.tools)
    said = sum(size(part) for message in messages for part in message.parts)
    characters = len(options.system_prompt) + tools + said
    return characters // _CHARACTERS_PER_TOKEN + _TOKENS_PER_MESSAGE * (len(messages) + 1)


def output_tokens(characters: int) -> int:
    """Those that a text of so many characters was made of."""
    return -(-characters // _CHARACTERS_PER_TOKEN)


def size(part: Part) -> int:
    """A part in characters, or in as many as its tokens would be."""
    match part:
        case TextPart():
            return len(part.content)
        case ToolCallPart():
            return len(part.tool_name) + len(to_json(part.arguments))
        case ToolResultPart():
            return len(part.output)
        case ImagePart():
            return _TOKENS_PER_PICTURE * _CHARACTERS_PER_TOKEN
        case FilePart():
            return len(part.path) + len(part.content or "")
        case _:
            return 0
