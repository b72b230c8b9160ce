"""The server's side of Cohere's chat API, version 2, with strict checks of requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from gateway.testing.fake_models.dialect import TOOL_NAME, key_in, sse, text_event, text_in, tool_problem
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

_STOPS = {"end": "COMPLETE", "length": "MAX_TOKENS", "tools": "TOOL_CALL", "filter": "ERROR_TOXIC"}
_FIELDS = frozenset(
    {
        "model",
        "messages",
        "stream",
        "tools",
        "tool_choice",
        "response_format",
        "max_tokens",
        "stop_sequences",
        "temperature",
        "p",
        "seed",
        "thinking",
    }
)
_ROLES = frozenset({"system", "user", "assistant", "tool"})


class CohereWire:
    """The writer of one answer's stream: numbered blocks of text, then one call after the other."""

    def __init__(self) -> None:
        self._index = -1
        self._open = ""

    def begin(self) -> bytes:
        """Return the start of the message."""
        message: dict[str, Any] = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": []}
        return _event({"id": "fake", "type": "message-start", "delta": {"message": message}})

    def events(self, move: Say | Think | Use | UseTogether | Count) -> Iterator[bytes]:
        """Yield the events of one move."""
        match move:
            case Say():
                yield from self._text("text", move.text)
            case Think():
                yield from self._text("thinking", move.text)
            case Use():
                yield from self._use(move)
            case UseTogether():
                for call in move.calls:
                    yield from self._use(call)
            case Count():
                return  # the usage is in the last event

    def end(self, reply: Reply) -> bytes:
        """Return the stop reason and the usage."""
        delta = {"finish_reason": _STOPS[reply.stop], "usage": usage(reply.tokens)}
        return b"".join(self._leave()) + _event({"type": "message-end", "id": "fake", "delta": delta})

    def _text(self, kind: str, text: str) -> Iterator[bytes]:
        if self._open != kind:
            yield from self._leave()
            self._open = kind
            self._index += 1
            yield self._content("content-start", {"type": kind, kind: ""})
        yield self._content("content-delta", {kind: text})

    def _use(self, call: Use) -> Iterator[bytes]:
        yield from self._leave()
        self._index += 1
        function = {"name": call.name, "arguments": ""}
        yield self._call("tool-call-start", {"id": call.id, "type": "function", "function": function})
        for fragment in call.fragments():
            yield self._call("tool-call-delta", {"function": {"arguments": fragment}})
        yield _event({"type": "tool-call-end", "index": self._index})

    def _leave(self) -> Iterator[bytes]:
        if self._open:
            yield _event({"type": "content-end", "index": self._index})
            self._open = ""

    def _content(self, kind: str, content: dict[str, str]) -> bytes:
        return _event({"type": kind, "index": self._index, "delta": {"message": {"content": content}}})

    def _call(self, kind: str, call: dict[str, Any]) -> bytes:
        return _event({"type": kind, "index": self._index, "delta": {"message": {"tool_calls": call}}})


def usage(tokens: Tokens) -> dict[str, Any]:
    """Return the usage: billed tokens, and all tokens with the service's own prompt."""
    billed = {"input_tokens": tokens.input, "output_tokens": tokens.output}
    processed = {"input_tokens": tokens.input + 60, "output_tokens": tokens.output + 2}
    return {"billed_units": billed, "tokens": processed, "cached_tokens": tokens.cached}


def parse_request(path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> ModelRequest:
    """Return the request in the terms of scripts."""
    user_text, results = "", list[str]()
    for message in body["messages"]:
        if message["role"] == "user":
            user_text, results = _text(message["content"]), []
        elif message["role"] == "tool":
            results.append(_text(message["content"]))
    tools = tuple(tool["function"]["name"] for tool in body.get("tools", ()))
    return ModelRequest(path, headers, body, user_text, tuple(results), tools)


def problem(body: Mapping[str, Any]) -> str:
    """Return the problem with a request, or an empty string."""
    if unknown := sorted(set(body) - _FIELDS):
        return f"unknown field: parameter '{unknown[0]}' is not a valid field"
    if not body.get("model") or not body.get("messages"):
        return "model and messages are required"
    if body.get("tools") and body.get("response_format", {}).get("type") == "json_object":
        return "response_format json_object is not supported with tools"
    # docs.cohere.com/reference/chat: roles in any order, but the last message is the user's or a tool's
    # (its error: "the last message must be from a user or a tool"); no content is empty.
    if body["messages"][-1]["role"] not in ("user", "tool"):
        return "the last message must be from a user or a tool"
    for tool in (entry["function"] for entry in body.get("tools", ())):
        if fault := tool_problem(tool["name"], tool["parameters"]):
            return f"invalid tool: {fault}"
    accepts_images = "vision" in body["model"]
    return _transcript_problem(body["messages"], accepts_images=accepts_images)


def _transcript_problem(messages: Sequence[Mapping[str, Any]], *, accepts_images: bool) -> str:
    pending: list[str] = []
    for number, message in enumerate(messages):
        if message.get("role") not in _ROLES:
            return f"messages[{number}]: unknown role"
        if fault := _content_problem(message, accepts_images=accepts_images):
            return f"messages[{number}]: {fault}"
        if message["role"] == "tool":
            if message.get("tool_call_id") not in pending:
                return f"messages[{number}]: tool_call_id has no matching call"
            pending.remove(message["tool_call_id"])
            continue
        if pending:
            return f"messages[{number}]: comes before the results of {', '.join(pending)}"
        calls = message.get("tool_calls", ())
        if not all(TOOL_NAME.fullmatch(call["function"]["name"]) for call in calls):
            return f"messages[{number}]: tool names consist of letters, digits, _ and -"
        pending = [call["id"] for call in calls]
    return f"no results for {', '.join(pending)}" if pending else ""


def _content_problem(message: Mapping[str, Any], *, accepts_images: bool) -> str:
    content, calls = message.get("content"), message.get("tool_calls")
    if "tool_plan" in message and not calls:
        return "tool_plan without tool_calls"
    if not content:
        return "" if calls and message["role"] == "assistant" else "content must not be empty"
    kinds = {"text"} if isinstance(content, str) else {part["type"] for part in content}
    if "thinking" in kinds and message["role"] == "assistant":
        return ""
    if kinds - {"text", "image_url"}:
        return "unknown content"
    if "image_url" in kinds and (not accepts_images or message["role"] != "user"):
        return "this model does not support images"
    return "" if _text(content).strip() or "image_url" in kinds else "content must not be blank"


def _text(content: str | Sequence[Mapping[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part["type"] == "text")


class CohereDialect:
    """The chat API."""

    path = "/cohere"
    chat_routes = ("/v2/chat",)
    models_route = "/v1/models"
    content_type = "text/event-stream"
    refusals = {
        "too_long": Refusal(400, "too many tokens: size limit exceeded by 11326 tokens."),
        "filtered": Refusal(400, "blocked by our content policy"),
        "no_model": Refusal(404, "model 'x' not found, make sure the correct model ID was used"),
        "overloaded": Refusal(503, "service unavailable"),
        "no_key": Refusal(498, "invalid token"),
    }

    @property
    def stream_error(self) -> bytes:
        """An end event with an error."""
        return _event({"type": "message-end", "delta": {"finish_reason": "ERROR", "error": "overloaded"}})

    def key(self, headers: Mapping[str, str]) -> str:
        """Return the bearer token."""
        return key_in(headers)

    def problem(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> str:
        """Return the problem with a request, or an empty string."""
        return problem(body)

    def parse(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> ModelRequest:
        """Return the request in the terms of scripts."""
        return parse_request(path, headers, body)

    def streams(self, request: ModelRequest) -> bool:
        """Return whether the request is for a stream."""
        return bool(request.body.get("stream"))

    def wire(self, request: ModelRequest, reply: Reply) -> CohereWire:
        """Return the writer of a streamed answer."""
        return CohereWire()

    def answer_body(self, request: ModelRequest, reply: Reply) -> dict[str, Any]:
        """Return the answer as one JSON value."""
        uses = [move for move in reply.moves if isinstance(move, Use)]
        calls = [
            {"id": use.id, "type": "function", "function": {"name": use.name, "arguments": use.arguments}}
            for use in uses
        ]
        content = [{"type": "text", "text": text_in(reply, Say)}]
        return {
            "id": "fake",
            "message": {"role": "assistant", "content": content, "tool_calls": calls},
            "finish_reason": _STOPS[reply.stop],
            "usage": usage(reply.tokens),
        }

    def error(self, refusal: Refusal) -> dict[str, Any]:
        """Return an error body."""
        return {"id": "fake", "message": refusal.message}

    def model_list(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the list of models."""
        return {
            "models": [{"name": name, "endpoints": ["chat"], "context_length": 128000.0} for name in names]
        }

    def event(self, kind: str, payload: bytes) -> bytes:
        """Return a server-sent event."""
        return sse(kind, payload)

    def text_event(self, literal: bytes) -> bytes:
        """Return an event with any JSON in place of its text."""
        return text_event(CohereWire(), literal)


def _event(event: dict[str, Any]) -> bytes:
    return b"event: " + event["type"].encode() + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"
