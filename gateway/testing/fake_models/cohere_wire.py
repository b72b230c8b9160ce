"""The server's side of Cohere's chat, version 2: strict about requests, true to form in answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from gateway.testing.fake_models.dialect import TOOL_NAME, said_by, saying, shown_key, sse, tool_problem
from gateway.testing.fake_models.script import (
    Asked,
    Count,
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
    """Writes one answer's stream: numbered blocks of text, then calls one after the other."""

    def __init__(self) -> None:
        self._index = -1
        self._open = ""

    def begin(self) -> bytes:
        """The start of the message."""
        message: dict[str, Any] = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": []}
        return _event({"id": "fake", "type": "message-start", "delta": {"message": message}})

    def events(self, move: Say | Think | Use | UseTogether | Count) -> Iterator[bytes]:
        """The events for one move."""
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
                return  # counts come with the end

    def end(self, reply: Reply) -> bytes:
        """The reason for the end, with the tokens; a prompt of the service's own is counted apart."""
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
    """The usage: what is billed, and what it took with the service's own prompt."""
    billed = {"input_tokens": tokens.input, "output_tokens": tokens.output}
    taken = {"input_tokens": tokens.input + 60, "output_tokens": tokens.output + 2}
    return {"billed_units": billed, "tokens": taken, "cached_tokens": tokens.cached}


def asked(path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> Asked:
    """The request in the terms of scripts."""
    user_text, results = "", list[str]()
    for message in body["messages"]:
        if message["role"] == "user":
            user_text, results = _text(message["content"]), []
        elif message["role"] == "tool":
            results.append(_text(message["content"]))
    tools = tuple(tool["function"]["name"] for tool in body.get("tools", ()))
    return Asked(path, headers, body, user_text, tuple(results), tools)


def problem(body: Mapping[str, Any]) -> str:
    """What is wrong with a request, in words; empty if nothing is."""
    if unknown := sorted(set(body) - _FIELDS):
        return f"unknown field: parameter '{unknown[0]}' is not a valid field"
    if not body.get("model") or not body.get("messages"):
        return "model and messages are required"
    if body.get("tools") and body.get("response_format", {}).get("type") == "json_object":
        return "response_format json_object is not supported with tools"
    # docs.cohere.com/reference/chat: roles in any order, but the last message is the user's or a tool's
    # (its error: "the last message must be from a user or a tool"); no content is empty.
    if body["messages"][-1]["role"] not in ("user", "tool"):
        return "the last message must be the user's or a tool's"
    for tool in (entry["function"] for entry in body.get("tools", ())):
        if fault := tool_problem(tool["name"], tool["parameters"]):
            return f"invalid tool: {fault}"
    sees = "vision" in body["model"]
    return _transcript_problem(body["messages"], sees=sees)


def _transcript_problem(messages: Sequence[Mapping[str, Any]], *, sees: bool) -> str:
    pending: list[str] = []
    for number, message in enumerate(messages):
        if message.get("role") not in _ROLES:
            return f"messages[{number}]: unknown role"
        if fault := _content_problem(message, sees=sees):
            return f"messages[{number}]: {fault}"
        if message["role"] == "tool":
            if message.get("tool_call_id") not in pending:
                return f"messages[{number}]: tool_call_id has no call"
            pending.remove(message["tool_call_id"])
            continue
        if pending:
            return f"messages[{number}]: comes before the results of {', '.join(pending)}"
        calls = message.get("tool_calls", ())
        if not all(TOOL_NAME.fullmatch(call["function"]["name"]) for call in calls):
            return f"messages[{number}]: tool names are of letters, digits, _ and -"
        pending = [call["id"] for call in calls]
    return f"no results for {', '.join(pending)}" if pending else ""


def _content_problem(message: Mapping[str, Any], *, sees: bool) -> str:
    content, calls = message.get("content"), message.get("tool_calls")
    if "tool_plan" in message and not calls:
        return "tool_plan without tool_calls"
    if not content:
        return "" if calls and message["role"] == "assistant" else "content must not be empty"
    kinds = {"text"} if isinstance(content, str) else {part["type"] for part in content}
    if kinds - {"text", "image_url"}:
        return "unknown content"
    if "image_url" in kinds and (not sees or message["role"] != "user"):
        return "this model does not support images"
    return "" if _text(content).strip() or "image_url" in kinds else "content must not be blank"


def _text(content: str | Sequence[Mapping[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part["type"] == "text")


class CohereDialect:
    """Cohere's chat."""

    path = "/cohere"
    chat_routes = ("/v2/chat",)
    models_route = "/v1/models"
    content_type = "text/event-stream"
    troubles = {
        "too_long": Refusal(400, "too many tokens: size limit exceeded by 11326 tokens."),
        "filtered": Refusal(400, "blocked by our content policy"),
        "no_model": Refusal(404, "model 'x' not found, make sure the correct model ID was used"),
        "overloaded": Refusal(503, "service unavailable"),
        "no_key": Refusal(498, "invalid token"),
    }

    @property
    def trouble(self) -> bytes:
        """An end that is none."""
        return _event({"type": "message-end", "delta": {"finish_reason": "ERROR", "error": "overloaded"}})

    def key(self, headers: Mapping[str, str]) -> str:
        """The bearer token."""
        return shown_key(headers)

    def problem(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> str:
        """What is wrong with a request."""
        return problem(body)

    def asked(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> Asked:
        """The request in the terms of scripts."""
        return asked(path, headers, body)

    def streams(self, asked: Asked) -> bool:
        """Whether ``stream`` is set."""
        return bool(asked.body.get("stream"))

    def wire(self, asked: Asked, reply: Reply) -> CohereWire:
        """Events of blocks and calls."""
        return CohereWire()

    def whole(self, asked: Asked, reply: Reply) -> dict[str, Any]:
        """A message."""
        uses = [move for move in reply.moves if isinstance(move, Use)]
        calls = [
            {"id": use.id, "type": "function", "function": {"name": use.name, "arguments": use.arguments}}
            for use in uses
        ]
        content = [{"type": "text", "text": said_by(reply, Say)}]
        return {
            "id": "fake",
            "message": {"role": "assistant", "content": content, "tool_calls": calls},
            "finish_reason": _STOPS[reply.stop],
            "usage": usage(reply.tokens),
        }

    def error(self, refusal: Refusal) -> dict[str, Any]:
        """An error."""
        return {"id": "fake", "message": refusal.message}

    def listed(self, names: Sequence[str]) -> dict[str, Any]:
        """The list of models."""
        return {
            "models": [{"name": name, "endpoints": ["chat"], "context_length": 128000.0} for name in names]
        }

    def event(self, kind: str, payload: bytes) -> bytes:
        """A server-sent event."""
        return sse(kind, payload)

    def saying(self, literal: bytes) -> bytes:
        """Events of a text."""
        return saying(CohereWire(), literal)


def _event(event: dict[str, Any]) -> bytes:
    return b"event: " + event["type"].encode() + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"
