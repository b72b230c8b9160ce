"""The base of the vendors' protocols: adapters, parsers, and encodings that several of them share.

An adapter derives from ``ProtocolAdapter`` and its parser from ``EventParser``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar

import msgspec

from gateway import (
    AuthMethod,
    Capabilities,
    ChatOptions,
    Message,
    ProviderConfig,
    SettingsError,
    ToolCallPart,
    ToolResultPart,
)
from gateway.provider_http import (
    IMAGE_TYPES,
    UNDECODABLE,
    AnswerWriter,
    DeltaParseError,
    OneTool,
    Step,
    StreamAbortedError,
    StreamEvent,
    ToolChoice,
    ToolDefinition,
    Transport,
    decode_ignoring_usage,
    image_attachments,
    is_supported_image,
    normalize_tool_schema,
    part_as_text,
    split_steps,
)

JSON_ONLY = "Answer with a single JSON object and nothing else."
"""The instruction for JSON answers, for models and requests without a JSON mode."""
OPENING = "(the conversation continues)"
"""The text of the first user message if older messages are out of the window: the user has to begin."""
EMPTY_OUTPUT = "(no output)"
"""The text of an empty tool result, for protocols that refuse an empty text."""
CLAUDE_WITHOUT_SAMPLING = re.compile(r"claude-(opus-(4-[7-9]|[5-9])|(sonnet|haiku)-[5-9]|fable|mythos)")
"""Claude models that refuse ``temperature`` and ``top_p`` in every version of the API."""
CLAUDE_THINKS = re.compile(r"claude-((opus|sonnet|haiku)-[5-9]|fable|mythos)(?!\d)")
"""Claude models that think unless the request disables it, but with a forced tool not always."""
_CLAUDE_MAY_THINK = re.compile(r"claude-(opus|sonnet)-4[-.][6-9]")
"""Claude models that think only if the request asks for it."""
_CLAUDE_UNFORCED = re.compile(
    r"claude-((opus|sonnet)-(5[-.][5-9]|[6-9])|(fable|mythos)-(5[-.][1-9]|[6-9]))(?!\d)"
)
"""Claude models that refuse a request that forces them to call a tool."""

UNSIGNED = "skip_thought_signature_validator"
"""The signature for Gemini of a call that another model made."""
GEMINI_SIGNED = re.compile(r"gemini-(?![12]\b)")
"""Gemini models that require the signatures of their calls."""

T = TypeVar("T")
Block = dict[str, Any]
Turn = tuple[bytes, list[Block]]
"""The mark of a turn's role, and its blocks."""


class ProtocolAdapter:
    """The defaults of an adapter: an API key, server-sent events, variants by capabilities."""

    auth_method: AuthMethod = "api_key"
    transport: Transport = "sse"

    def __init__(self, capabilities: Capabilities) -> None:
        self.capabilities = capabilities

    def with_capabilities(self, capabilities: Capabilities) -> Self:
        """Return the same adapter for models with other capabilities."""
        return type(self)(capabilities)


class EventParser:
    """The base of a parser: it writes to ``_writer`` and sets ``done`` at the end of the answer."""

    __slots__ = ("_writer", "done")

    def __init__(self, writer: AnswerWriter) -> None:
        self._writer = writer
        self.done = False

    def finish(self) -> None:
        """Handle the end of the stream. Raises StreamAbortedError if the answer is incomplete."""
        if not self._writer.stopped:
            raise StreamAbortedError("the stream ended before the answer did")
        self._end()

    def _end(self) -> None:
        self._writer.stop("end_turn")
        self.done = True


def decode_event(decode: Callable[[bytes], T], event: StreamEvent, usage: str) -> T:
    """Decode an event, without the counts in field ``usage`` if they are bad. Raises DeltaParseError."""
    try:
        return decode(event.data)
    except UNDECODABLE as error:
        return decode_ignoring_usage(decode, event.data, usage, error)


def decode_models(decode: Callable[[bytes], T], body: bytes) -> T:
    """Decode a list of models. Raises DeltaParseError."""
    try:
        return decode(body)
    except UNDECODABLE as error:
        raise DeltaParseError(f"the list of models cannot be read: {error}") from None


def json_headers(config: ProviderConfig, authorization: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the headers of a JSON request; the configured ones win."""
    return {
        **(authorization or {}),
        "Content-Type": "application/json",
        # A compressed stream arrives in larger pieces, so tokens would be shown late.
        "Accept-Encoding": "identity",
        **config.custom_headers,
    }


def check_credentials(config: ProviderConfig, known: Sequence[str]) -> None:
    """Check the names in ``config.credentials``. Raises SettingsError for an unknown one."""
    if unknown := sorted(set(config.credentials) - set(known)):
        verb = "is" if len(known) == 1 else "are"
        raise SettingsError(
            f"providers.{config.id}.credentials.{unknown[0]} is not known; known {verb} {', '.join(known)}"
        )


def system_texts(messages: Sequence[Message], options: ChatOptions, *, as_json: bool) -> tuple[str, ...]:
    """Return the system prompt and the system messages, for protocols with a field for them."""
    own = (m.text for m in messages if m.role == "system" and m.for_model)
    texts = (
        options.system_prompt,
        *own,
        json_instruction(options) if as_json else "",
        accepted_choice(options)[1],
    )
    return tuple(text for text in texts if text.strip())


def json_instruction(options: ChatOptions) -> str:
    """Return the instruction for JSON answers, with their schema."""
    schema = options.answer_schema
    if schema is None:
        return JSON_ONLY
    return f"{JSON_ONLY} It must meet this JSON schema:\n{msgspec.json.encode(schema.schema).decode()}"


def accepted_choice(options: ChatOptions) -> tuple[ToolChoice, str]:
    """Return the choice of a tool, and the instruction that replaces it for models that refuse one."""
    choice = options.tool_choice
    if choice == "auto" or not options.tools or not _CLAUDE_UNFORCED.search(options.model):
        return choice, ""
    wanted = f"the tool `{choice.name}`" if isinstance(choice, OneTool) else "at least one of your tools"
    return "auto", f"Call {wanted} before you answer."


def claude_effort(options: ChatOptions) -> Block:
    """Return the fields of a request to a Claude model for the effort of its reasoning."""
    effort, model = options.effort, options.model
    if effort is None:
        return {}
    if effort == "none":
        return {"thinking": {"type": "disabled"}} if CLAUDE_THINKS.search(model) else {}
    config: Block = {"output_config": {"effort": "low" if effort == "minimal" else effort}}
    if _CLAUDE_MAY_THINK.search(model) and options.tool_choice == "auto":
        config["thinking"] = {"type": "adaptive"}
    return config


def content_blocks(
    message: Message,
    text: Callable[[str], Block],
    image: Callable[[str, str], Block],
    types: Collection[str],
) -> list[Block]:
    """Encode the parts of a user message; images of other types than ``types`` become text."""
    blocks: list[Block] = []
    for part in message.parts:
        if is_supported_image(part, types):
            blocks.append(image(part.mime_type, part.data))
        elif content := part_as_text(part):
            blocks.append(text(content))
    return blocks


def message_encoder(
    form: str,
    step: Callable[[Step, Collection[str]], list[Block]],
    text: Callable[[str], Block],
    image: Callable[[str, str], Block],
    *,
    images: bool,
) -> Callable[[Message], bytes]:
    """Make an encoder of one message to items joined by commas; empty if nothing is sent.

    ``step`` encodes a step of the assistant, whose reasoning is returned in the ``form``.
    """
    types = IMAGE_TYPES if images else frozenset[str]()

    def encode(message: Message) -> bytes:
        if not message.for_model:
            return b""
        if message.role == "assistant":
            items = [item for one in split_steps(message, form) for item in step(one, types)]
        else:
            content = content_blocks(message, text, image, types if message.role == "user" else ())
            items = [{"role": message.role, "content": content}] if content else []
        return b",".join(map(msgspec.json.encode, items))

    return encode


def result_images(
    results: Iterable[ToolResultPart], image: Callable[[str, str], Block], types: Collection[str]
) -> list[Block]:
    """Encode the images in tool results."""
    return [
        image(attachment.mime_type, attachment.data)
        for result in results
        for attachment in image_attachments(result.attachments, types)
    ]


def encode_turns(turns: Iterable[Turn]) -> bytes:
    """Encode blocks with the mark of their role before each turn, for ``join_turns``."""
    return b",".join(mark + b",".join(map(msgspec.json.encode, blocks)) for mark, blocks in turns)


def tool_specs(tools: Iterable[ToolDefinition], schema: str) -> list[Block]:
    """Return tools as objects of a name, a description and the parameters, named ``schema``."""
    return [
        {
            "name": tool.name,
            "description": tool.description,
            schema: normalize_tool_schema(tool.parameters),
        }
        for tool in tools
    ]


def function_tools(tools: tuple[ToolDefinition, ...]) -> bytes:
    """Encode tools as OpenAI's functions, which other vendors adopted."""
    specs = tool_specs(tools, "parameters")
    return msgspec.json.encode([{"type": "function", "function": spec} for spec in specs])


def function_call(call: ToolCallPart, call_id: str) -> Block:
    """Return a tool call as OpenAI's function call."""
    arguments = msgspec.json.encode(call.arguments).decode()
    return {"id": call_id, "type": "function", "function": {"name": call.tool_name, "arguments": arguments}}


def image_url(mime_type: str, data: str) -> Block:
    """Return an image as OpenAI's ``image_url`` with a data address."""
    return {"type": "image_url", "image_url": {"url": f"data:{mime_type};base64,{data}"}}


def result_image_messages(results: Iterable[ToolResultPart], types: Collection[str]) -> list[Block]:
    """Return a user message with the images of tool results, where a tool message holds only text."""
    images = result_images(results, image_url, types)
    text = {"type": "text", "text": "(images from the tools above)"}
    return [{"role": "user", "content": [text, *images]}] if images else []


def system_message(text: str) -> bytes:
    """Encode the system prompt as a message."""
    return msgspec.json.encode({"role": "system", "content": text})
