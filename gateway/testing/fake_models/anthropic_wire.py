"""The server's side of Anthropic's messages API, with strict checks of requests."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from gateway.testing.fake_models.dialect import IMAGE_TYPES, TOOL_NAME, key_in, sse, text_event, tool_problem
from gateway.testing.fake_models.script import (
    Count,
    ModelRequest,
    Refusal,
    Reply,
    Say,
    Think,
    Tokens,
    Use,
    UseTogether,
)

_STOPS = {"end": "end_turn", "length": "max_tokens", "tools": "tool_use", "filter": "refusal"}
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
_REQUIRED = ("model", "messages", "max_tokens")
_OPTIONAL = (
    "stream",
    "temperature",
    "top_p",
    "stop_sequences",
    "system",
    "tools",
    "tool_choice",
    "cache_control",
    "thinking",
    "output_config",
)
_NO_SAMPLING = re.compile(r"claude-(opus-(4-[7-9]|[5-9])|(sonnet|haiku)-[5-9]|fable|mythos)")
_ADAPTIVE = re.compile(r"claude-(opus-4-[6-8]|sonnet-4-6|(opus|sonnet|haiku)-[5-9]|fable|mythos)(?!\d)")
_UNFORCED = re.compile(r"claude-((opus|sonnet)-(5-[5-9]|[6-9])|(fable|mythos)-5-[1-9])")
_FIELDS = frozenset({*_REQUIRED, *_OPTIONAL})
_TOOL_ID = re.compile(r"[A-Za-z0-9_-]+")


class AnthropicWire:
    """The writer of one answer's stream: content blocks that start, grow and stop, one after the other."""

    def __init__(self, model: str, tokens: Tokens) -> None:
        self._model = model
        self._tokens = tokens
        self._index = -1
        self._open = ""
        self._thought = ""

    def begin(self) -> bytes:
        """Return the start of the message with the input tokens, and a ping."""
        message = {**_message(self._model), "usage": {**_input(self._tokens), "output_tokens": 1}}
        return _event({"type": "message_start", "message": message}) + _event({"type": "ping"})

    def events(self, move: Say | Think | Use | UseTogether | Count) -> Iterator[bytes]:
        """Yield the events of one move."""
        match move:
            case Say():
                yield from self._enter("text", {"type": "text", "text": ""})
                yield self._delta({"type": "text_delta", "text": move.text})
            case Think():
                yield from self._enter("thinking", {"type": "thinking", "thinking": "", "signature": ""})
                self._thought += move.text
                yield self._delta({"type": "thinking_delta", "thinking": move.text})
            case Use():
                yield from self._use(move)
            case UseTogether():
                for call in move.calls:
                    yield from self._use(call)
            case Count():
                counts = {**_input(move.tokens), "output_tokens": move.tokens.output}
                yield _event({"type": "message_delta", "delta": {}, "usage": counts})

    def end(self, reply: Reply) -> bytes:
        """Return the stop reason with the output tokens, and the end."""
        delta = {"stop_reason": _STOPS[reply.stop], "stop_sequence": None}
        return (
            b"".join(self._leave())
            + _event(
                {"type": "message_delta", "delta": delta, "usage": {"output_tokens": reply.tokens.output}}
            )
            + _event({"type": "message_stop"})
        )

    def _use(self, call: Use) -> Iterator[bytes]:
        yield from self._leave()
        yield from self._enter(
            "tool_use", {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        )
        yield self._delta({"type": "input_json_delta", "partial_json": ""})
        for fragment in call.fragments():
            yield self._delta({"type": "input_json_delta", "partial_json": fragment})

    def _enter(self, kind: str, block: dict[str, Any]) -> Iterator[bytes]:
        if self._open == kind:
            return
        yield from self._leave()
        self._open = kind
        self._index += 1
        yield _event({"type": "content_block_start", "index": self._index, "content_block": block})

    def _leave(self) -> Iterator[bytes]:
        if self._open:
            if self._open == "thinking":
                signature, self._thought = signature_of(self._thought), ""
                yield self._delta({"type": "signature_delta", "signature": signature})
            yield _event({"type": "content_block_stop", "index": self._index})
            self._open = ""

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event({"type": "content_block_delta", "index": self._index, "delta": delta})


def answer_body(reply: Reply, model: str) -> dict[str, Any]:
    """Return the answer to a request without a stream."""
    content: list[dict[str, Any]] = []
    for move in reply.moves:
        match move:
            case Say():
                content.append({"type": "text", "text": move.text})
            case Think():
                signature = signature_of(move.text)
                content.append({"type": "thinking", "thinking": move.text, "signature": signature})
            case Use():
                content.append(_tool_use(move))
            case UseTogether():
                content += [_tool_use(call) for call in move.calls]
            case _:
                pass
    tokens = {**_input(reply.tokens), "output_tokens": reply.tokens.output}
    return {**_message(model), "content": content, "stop_reason": _STOPS[reply.stop], "usage": tokens}


def signature_of(thought: str) -> str:
    """Return the signature of a block of thinking, which the server verifies when it is sent back."""
    return b64encode(b"signed " + thought.encode()).decode()


def error(refusal: Refusal) -> dict[str, Any]:
    """Return an error body."""
    kind = refusal.code or _TYPES.get(refusal.status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": refusal.message}, "request_id": "req_fake"}


def model_list(names: Sequence[str]) -> dict[str, Any]:
    """Return the list of models."""
    listed = [
        {"type": "model", "id": name, "display_name": name.title(), "created_at": "2026-01-01T00:00:00Z"}
        for name in names
    ]
    return {"data": listed, "has_more": False, "first_id": names[0], "last_id": names[-1]}


def parse_request(path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> ModelRequest:
    """Return the request in the terms of scripts."""
    user_text, results = "", list[str]()
    for message in body["messages"]:
        if message["role"] != "user":
            continue
        blocks = _blocks(message)
        if text := "".join(block["text"] for block in blocks if block["type"] == "text"):
            user_text, results = text, []
        results += [_result_text(block) for block in blocks if block["type"] == "tool_result"]
    tools = tuple(tool["name"] for tool in body.get("tools", ()))
    return ModelRequest(path, headers, body, user_text, tuple(results), tools)


def problem(body: Mapping[str, Any], headers: Mapping[str, str]) -> str:
    """Return the problem with a request, or an empty string."""
    if unknown := sorted(set(body) - _FIELDS):
        return f"{unknown[0]}: Extra inputs are not permitted"
    if "anthropic-version" not in headers:
        return "anthropic-version: header is required"
    if fault := _parameter_problem(body, headers):
        return fault
    if not isinstance(body.get("max_tokens"), int):
        return "max_tokens: Field required"
    if not isinstance(body.get("model"), str) or not body.get("messages"):
        return "model and messages are required"
    if not all(block["text"].strip() for block in _blocks_in(body.get("system", ()))):
        return "system: text content blocks must be non-empty"
    for tool in body.get("tools", ()):
        if fault := tool_problem(tool["name"], tool["input_schema"]):
            return f"tools: {fault}"
    has_calls = any(block["type"] == "tool_use" for m in body["messages"] for block in _blocks(m))
    if has_calls and not body.get("tools"):
        return "Requests which include `tool_use` or `tool_result` blocks must define tools"
    return _transcript_problem(body["messages"])


def _parameter_problem(body: Mapping[str, Any], headers: Mapping[str, str]) -> str:
    sampling = [name for name in ("temperature", "top_p") if name in body]
    if sampling and headers["anthropic-version"] != "2023-06-01":
        return f"{sampling[0]}: Extra inputs are not permitted"
    if len(sampling) > 1:
        return "`temperature` and `top_p` cannot both be specified for this model. Please use only one."
    if sampling and _NO_SAMPLING.search(str(body.get("model"))):
        return f"{sampling[0]}: not supported by this model"
    if body.get("temperature", 0) > 1:
        return "temperature: range: 0..1"
    if "tool_choice" in body and not body.get("tools"):
        return "tool_choice: may only be specified while providing `tools`"
    # platform.claude.com/docs/en/build-with-claude/thinking, and the pages on what is new in each model.
    forced, model = "tool_choice" in body, str(body.get("model"))
    if forced and (_UNFORCED.search(model) or "thinking" in body):
        return "tool_choice: forced tool use is not supported by this model, or with thinking"
    if body.get("thinking", {"type": "adaptive"})["type"] != "adaptive":
        return "thinking.type: only adaptive is supported here"
    return "adaptive thinking is not supported on this model" * (
        "thinking" in body and not _ADAPTIVE.search(model)
    )


def _transcript_problem(messages: Sequence[Mapping[str, Any]]) -> str:
    """Check the order of messages: the user begins and ends, results follow calls, ids are unique."""
    # platform.claude.com/docs/en/api/messages: messages of one role in a row are accepted, and combined.
    if messages[0]["role"] != "user":
        return "messages: the first message must be the user's"
    # platform.claude.com/docs/en/about-claude/models/migration-guide: no prefill from Claude Opus 4.6 on.
    if messages[-1]["role"] != "user":
        return (
            "This model does not support assistant message prefill. "
            "The conversation must end with a user message."
        )
    pending, seen = set[str](), set[str]()
    for number, message in enumerate(messages):
        blocks = _blocks(message)
        if fault := _content_problem(message["role"], blocks):
            return f"messages.{number}: {fault}"
        result_ids = {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"}
        if result_ids != pending:
            return f"messages.{number}: tool_use and tool_result blocks do not match"
        pending = {block["id"] for block in blocks if block["type"] == "tool_use"}
        if pending & seen or not all(map(_TOOL_ID.fullmatch, pending)):
            return f"messages.{number}: tool_use ids must be unique and consist of letters, digits, _ and -"
        seen |= pending
    return "tool_use blocks without tool_result blocks" if pending else ""


def _content_problem(role: str, blocks: Sequence[Mapping[str, Any]]) -> str:
    if role not in ("user", "assistant") or not blocks:
        return "unknown role or no content"
    # platform.claude.com/docs/en/agents-and-tools/tool-use/handle-tool-calls: results come before text.
    kinds = [block["type"] for block in blocks]
    if "tool_result" in kinds[kinds.count("tool_result") :]:
        return "tool_result blocks must come first in the content"
    # "all messages must have non-empty content except for the optional final assistant message" (its error).
    thoughts = ("thinking", "redacted_thinking")
    allowed = ("text", "tool_use", *thoughts) if role == "assistant" else ("text", "image", "tool_result")
    if kinds and kinds[-1] in thoughts:
        return "The final block in an assistant message cannot be `thinking`."
    for block in blocks:
        if block["type"] == "thinking" and block["signature"] != signature_of(block["thinking"]):
            return "Invalid `signature` in `thinking` block"
        if block["type"] not in allowed:
            return f"{block['type']} blocks are not allowed here"
        if block["type"] == "text" and not block["text"].strip():
            return "text content blocks must contain non-whitespace text"
        if block["type"] == "tool_use" and not TOOL_NAME.fullmatch(block["name"]):
            return f"tool_use.name: must match {TOOL_NAME.pattern}"
        if block["type"] == "image" and block["source"]["media_type"] not in IMAGE_TYPES:
            return "image.source.media_type: unknown image type"
    return ""


def _blocks(message: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return _blocks_in(message["content"])


def _blocks_in(content: str | Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _result_text(block: Mapping[str, Any]) -> str:
    content = block.get("content", "")
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part["type"] == "text")


def _message(model: str) -> dict[str, Any]:
    return {
        "id": "msg_fake",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _input(tokens: Tokens) -> dict[str, int]:
    return {
        "input_tokens": tokens.input - tokens.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": tokens.cached,
    }


def _tool_use(call: Use) -> dict[str, Any]:
    arguments = msgspec.json.decode(call.arguments)
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}


def _event(event: dict[str, Any]) -> bytes:
    return b"event: " + event["type"].encode() + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"


class AnthropicDialect:
    """The messages API."""

    path = "/anthropic"
    chat_routes = ("/v1/messages",)
    models_route = "/v1/models"
    content_type = "text/event-stream; charset=utf-8"
    stream_error = _event({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
    refusals = {
        "too_long": Refusal(400, "prompt is too long: 210000 tokens > 200000 maximum"),
        "filtered": Refusal(400, "Output blocked by content filtering policy"),
        "no_model": Refusal(404, "model: x not found"),
        "overloaded": Refusal(529, "Overloaded"),
    }

    def key(self, headers: Mapping[str, str]) -> str:
        """Return the key in its own header, or the bearer token."""
        return key_in(headers)

    def problem(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> str:
        """Return the problem with a request, or an empty string."""
        return problem(body, headers)

    def parse(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> ModelRequest:
        """Return the request in the terms of scripts."""
        return parse_request(path, headers, body)

    def streams(self, request: ModelRequest) -> bool:
        """Return whether the request is for a stream."""
        return bool(request.body.get("stream"))

    def wire(self, request: ModelRequest, reply: Reply) -> AnthropicWire:
        """Return the writer of a streamed answer."""
        return AnthropicWire(request.body["model"], reply.tokens)

    def answer_body(self, request: ModelRequest, reply: Reply) -> dict[str, Any]:
        """Return the answer as one JSON value."""
        return answer_body(reply, request.body["model"])

    def error(self, refusal: Refusal) -> dict[str, Any]:
        """Return an error body."""
        return error(refusal)

    def model_list(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the list of models."""
        return model_list(names)

    def event(self, kind: str, payload: bytes) -> bytes:
        """Return a server-sent event."""
        return sse(kind, payload)

    def text_event(self, literal: bytes) -> bytes:
        """Return an event with any JSON in place of its text."""
        return text_event(AnthropicWire("fake-small", Tokens()), literal)
