"""The server's side of OpenAI's chat completions: strict about requests, true to form in answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from gateway.testing.script import Asked, Reply, Say, Think, Tokens, Use, UseTogether

_encode = msgspec.json.encode
_STOPS = {"end": "stop", "length": "length", "tools": "tool_calls", "filter": "content_filter"}
_SAMPLING = ("temperature", "max_tokens", "max_completion_tokens", "stop", "response_format")
_FIELDS = frozenset({"model", "messages", "stream", "stream_options", "tools", "tool_choice", *_SAMPLING})
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


class OpenAIWire:
    """Writes one answer's stream."""

    def __init__(self, model: str, *, include_usage: bool) -> None:
        self._model = model
        self._include_usage = include_usage
        self._calls = 0

    def begin(self) -> bytes:
        """The first chunk: a role and no text."""
        return self._choice({"role": "assistant", "content": ""})

    def events(self, move: Say | Think | Use | UseTogether) -> Iterator[bytes]:
        """The chunks for one move."""
        match move:
            case Say():
                yield self._choice({"content": move.text})
            case Think():
                yield self._choice({"reasoning_content": move.text})
            case Use():
                yield from self._uses((move,))
            case UseTogether():
                yield from self._uses(move.calls)

    def end(self, reply: Reply) -> bytes:
        """The stop reason, the usage if it was asked for, and the end mark."""
        last = self._choice({}, _STOPS[reply.stop])
        if self._include_usage:
            last += self._chunk([], usage(reply.tokens))
        return last + b"data: [DONE]\n\n"

    def _uses(self, calls: Sequence[Use]) -> Iterator[bytes]:
        first, self._calls = self._calls, self._calls + len(calls)
        for number, call in enumerate(calls, first):
            function = {"name": call.name, "arguments": ""}
            yield self._call({"index": number, "id": call.id, "type": "function", "function": function})
        left = [(number, call.fragments()) for number, call in enumerate(calls, first)]
        while any(fragments for _, fragments in left):
            for number, fragments in left:
                if fragments:
                    yield self._call({"index": number, "function": {"arguments": fragments.pop(0)}})

    def _call(self, call: dict[str, Any]) -> bytes:
        return self._choice({"tool_calls": [call]})

    def _choice(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        return self._chunk([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}])

    def _chunk(self, choices: list[dict[str, Any]], tokens: dict[str, Any] | None = None) -> bytes:
        chunk: dict[str, Any] = {
            "id": "chatcmpl-fake",
            "object": "chat.completion.chunk",
            "created": 1700000000,
            "model": self._model,
            "system_fingerprint": None,
            "choices": choices,
        }
        if self._include_usage:
            chunk["usage"] = tokens
        return b"data: " + _encode(chunk) + b"\n\n"


def usage(tokens: Tokens) -> dict[str, Any]:
    """The usage object."""
    return {
        "prompt_tokens": tokens.input,
        "completion_tokens": tokens.output,
        "total_tokens": tokens.input + tokens.output,
        "prompt_tokens_details": {"cached_tokens": tokens.cached},
    }


def whole(reply: Reply, model: str) -> dict[str, Any]:
    """The answer to a request that did not ask for a stream."""
    calls = [use for move in reply.moves for use in _calls_of(move)]
    message: dict[str, Any] = {"role": "assistant", "content": _joined(reply, Say) or None}
    if reasoning := _joined(reply, Think):
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {"id": use.id, "type": "function", "function": {"name": use.name, "arguments": use.arguments}}
            for use in calls
        ]
    return {
        "id": "chatcmpl-fake",
        "object": "chat.completion",
        "created": 1700000000,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": _STOPS[reply.stop]}],
        "usage": usage(reply.tokens),
    }


def error(message: str, code: str, status: int) -> dict[str, Any]:
    """An error body."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": code or None}}


def models(names: Sequence[str]) -> dict[str, Any]:
    """The list of models."""
    listed = [{"id": name, "object": "model", "created": 1700000000, "owned_by": "fake"} for name in names]
    return {"object": "list", "data": listed}


def asked(path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> Asked:
    """The request in the terms of scripts."""
    user_text, results = "", list[str]()
    for message in body["messages"]:
        if message["role"] == "user":
            user_text, results = _text(message["content"]), []
        elif message["role"] == "tool":
            results.append(message["content"])
    tools = tuple(tool["function"]["name"] for tool in body.get("tools", ()))
    return Asked(path, headers, body, user_text, tuple(results), tools)


def problem(body: Mapping[str, Any]) -> str:
    """What is wrong with a request, in words; empty if nothing is."""
    if unknown := sorted(set(body) - _FIELDS):
        return f"unknown fields: {', '.join(unknown)}"
    if not isinstance(body.get("model"), str) or not body["model"]:
        return "model is missing"
    if "stream_options" in body and not body.get("stream"):
        return "stream_options is only allowed with stream"
    if not body.get("messages"):
        return "messages is empty"
    return _transcript_problem(body["messages"])


def _transcript_problem(messages: Sequence[Mapping[str, Any]]) -> str:
    """Every call must be answered by a tool message before anything else is said, and no other be there."""
    pending: list[str] = []
    for number, message in enumerate(messages):
        role = message.get("role")
        if role not in _ROLES:
            return f"messages[{number}] has no known role"
        if role == "tool":
            if message.get("tool_call_id") not in pending:
                return f"messages[{number}] answers no tool call"
            pending.remove(message["tool_call_id"])
            continue
        if pending:
            return f"messages[{number}] comes before the results of {', '.join(pending)}"
        if fault := _content_problem(message):
            return f"messages[{number}]: {fault}"
        pending = [call["id"] for call in message.get("tool_calls", ())]
    return f"no results for {', '.join(pending)}" if pending else ""


def _content_problem(message: Mapping[str, Any]) -> str:
    content, calls = message.get("content"), message.get("tool_calls", ())
    for call in calls:
        try:
            msgspec.json.decode(call["function"]["arguments"], type=dict[str, Any])
        except msgspec.DecodeError:
            return "arguments are no JSON object"
    if isinstance(content, str):
        return ""
    if content is None:
        return "" if calls else "content is missing"
    for part in content:
        if part.get("type") == "image_url":
            if not part["image_url"]["url"].startswith("data:image/"):
                return "only data URLs are understood"
        elif part.get("type") != "text":
            return f"unknown content part {part.get('type')!r}"
    return ""


def _text(content: str | Sequence[Mapping[str, Any]] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part["text"] for part in content if part["type"] == "text")


def _calls_of(move: object) -> tuple[Use, ...]:
    if isinstance(move, Use):
        return (move,)
    return move.calls if isinstance(move, UseTogether) else ()


def _joined(reply: Reply, kind: type[Say] | type[Think]) -> str:
    return "".join(move.text for move in reply.moves if isinstance(move, kind))
