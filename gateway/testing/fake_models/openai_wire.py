"""The server's side of OpenAI's chat completions, with strict checks of requests.

Compatible services differ by ``Quirks``; ``vendors.py`` has those of each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import msgspec
from msgspec import Struct

from gateway.testing.fake_models.dialect import (
    IMAGE_TYPES,
    TOOL_NAME,
    key_in,
    sse,
    text_event,
    text_in,
    tool_problem,
)
from gateway.testing.fake_models.script import (
    Count,
    ModelRequest,
    Refusal,
    Reply,
    Say,
    Think,
    Use,
    UseTogether,
)

_encode = msgspec.json.encode
_RESPONSES_FIELDS = frozenset(
    {"model", "input", "stream", "store", "include", "tools", "tool_choice", "temperature", "top_p"}
    | {"max_output_tokens", "text", "reasoning"}
)
SIGNATURE = "c2lnbmVk"
_KEEPS_REASONING = re.compile(r"deepseek-v4")
"""Models that refuse calls without their reasoning (api-docs.deepseek.com/guides/thinking_mode)."""
_STOPS = {"end": "stop", "length": "length", "tools": "tool_calls", "filter": "content_filter"}
_SAMPLING = (
    "temperature",
    "top_p",
    "seed",
    "random_seed",
    "max_tokens",
    "max_completion_tokens",
    "stop",
    "response_format",
    "reasoning_effort",
)
_FIELDS = frozenset({"model", "messages", "stream", "stream_options", "tools", "tool_choice", *_SAMPLING})
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
_MAX_ID_CHARS = 40
_REASONS = re.compile(r"(^|/)(o\d|gpt-5(-mini|-nano)?(-\d{4}|$)|gpt-(5\.[6-9]|[6-9]))")
_UNREASONED_TOOLS = re.compile(r"(^|/)gpt-(5\.[6-9]|[6-9])")


class Quirks(Struct, frozen=True):
    """The differences between a compatible service and OpenAI.

    ``unsupported`` are parameters that it refuses; ``id_pattern`` is the form of tool call ids;
    ``details`` sends signed details of the reasoning, too, as OpenRouter does.
    ``separate_reasoning`` counts reasoning (one token per piece) beside the output; ``headers`` are required.
    ``accepts_prefill`` accepts a conversation that ends with the assistant; ``requires_alternation`` requires
    that user and assistant alternate, as the chat templates of many open models do.
    """

    unsupported: frozenset[str] = frozenset()
    reasoning: Literal["reasoning_content", "reasoning", "reasoning_text", "content"] = "reasoning_content"
    details: bool = False
    usage: Literal["asked", "last", "x_groq"] = "asked"
    errors: Literal["error", "flat", "words", "detail"] = "error"
    id_pattern: str = ""
    user_after_tool: bool = True
    requires_result_names: bool = False
    separate_reasoning: bool = False
    accepts_prefill: bool = False
    requires_alternation: bool = False
    headers: tuple[str, ...] = ()
    bearer: bool = True
    stops: Mapping[str, str] = {}


OPENAI = Quirks(accepts_prefill=True)
"""OpenAI accepts any order of roles (platform.openai.com/docs/api-reference/chat/create)."""


class OpenAIWire:
    """The writer of one answer's stream."""

    def __init__(self, model: str, *, include_usage: bool, quirks: Quirks = OPENAI) -> None:
        self._model = model
        self._include_usage = include_usage
        self._quirks = quirks
        self._calls = 0

    def begin(self) -> bytes:
        """Return the first chunk: a role without text."""
        return self._choice({"role": "assistant", "content": ""})

    def events(self, move: Say | Think | Use | UseTogether | Count) -> Iterator[bytes]:
        """Yield the chunks of one move."""
        match move:
            case Say():
                yield self._choice({"content": move.text})
            case Think():
                yield self._choice(self._reasoning(move.text))
            case Use():
                yield from self._tool_calls((move,))
            case UseTogether():
                yield from self._tool_calls(move.calls)
            case Count():
                yield self._chunk([], usage=usage(Reply(tokens=move.tokens)))

    def end(self, reply: Reply) -> bytes:
        """Return the stop reason, the usage if requested, and the end marker."""
        stop = {**_STOPS, **self._quirks.stops}[reply.stop]
        tokens = usage(reply, self._quirks)
        if self._quirks.usage == "last":
            last = self._choice({}, stop, usage=tokens)
        elif self._quirks.usage == "x_groq":
            last = self._choice({}, stop, x_groq={"id": "req_fake", "usage": tokens})
        else:
            last = self._choice({}, stop)
            if self._include_usage:
                last += self._chunk([], usage=tokens)
        return last + b"data: [DONE]\n\n"

    def _reasoning(self, text: str) -> dict[str, Any]:
        if self._quirks.reasoning == "content":
            thinking = [{"type": "text", "text": text}]
            return {"content": [{"type": "thinking", "thinking": thinking, "closed": False}]}
        if self._quirks.details:
            signed = {"type": "reasoning.text", "text": text, "format": "anthropic-claude-v1", "index": 0}
            return {"reasoning": text, "reasoning_details": [{**signed, "signature": SIGNATURE}]}
        opaque = {"reasoning_opaque": SIGNATURE} if self._quirks.reasoning == "reasoning_text" else {}
        return {self._quirks.reasoning: text, **opaque}

    def _tool_calls(self, calls: Sequence[Use]) -> Iterator[bytes]:
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

    def _choice(self, delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return self._chunk([choice], **more)

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        chunk: dict[str, Any] = {
            "id": "chatcmpl-fake",
            "object": "chat.completion.chunk",
            "created": 1700000000,
            "model": self._model,
            "system_fingerprint": None,
            "choices": choices,
        }
        if self._include_usage:
            chunk["usage"] = None
        return b"data: " + _encode(chunk | more) + b"\n\n"


def sse_of(value: Mapping[str, Any]) -> bytes:
    """Return a server-sent event with a JSON object, named by its type."""
    kind = value.get("type")
    head = f"event: {kind}\n".encode() if kind else b""
    return head + b"data: " + _encode(value) + b"\n\n"


class ResponsesWire:
    """The writer of one answer in the Responses protocol.

    Without ``reasons`` it sends no reasoning, and calls whole.
    """

    def __init__(self, *, reasons: bool = False) -> None:
        self._reasons = reasons
        self._items: list[dict[str, Any]] = []
        self._text = ""
        self._thought = ""

    def begin(self) -> bytes:
        """Return the start of a response."""
        return sse_of({"type": "response.created", "response": {"id": "resp_1"}})

    def events(self, move: Say | Think | Use | UseTogether | Count) -> Iterator[bytes]:
        """Yield deltas of text and of the summary of reasoning, or whole calls."""
        if not isinstance(move, Think):
            yield from self._end_thought()
        match move:
            case Say():
                if not self._text:
                    item: dict[str, Any] = {"type": "message", "role": "assistant", "id": "msg_1"}
                    item["content"] = []
                    yield sse_of({"type": "response.output_item.added", "output_index": 0, "item": item})
                self._text += move.text
                fields = {"item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": move.text}
                yield sse_of({"type": "response.output_text.delta", **fields})
            case Use():
                call = {"type": "function_call", "id": f"fc_{move.id}", "call_id": move.id, "name": move.name}
                if self._reasons:
                    place = {"output_index": len(self._items)}
                    item = {**call, "arguments": ""}
                    yield sse_of({"type": "response.output_item.added", **place, "item": item})
                    for fragment in move.fragments():
                        delta = {"type": "response.function_call_arguments.delta", "delta": fragment}
                        yield sse_of({**delta, **place})
                yield self._item({**call, "arguments": move.arguments})
            case UseTogether():
                for call in move.calls:
                    yield from self.events(call)
            case Think() if self._reasons:
                self._thought += move.text
                fields = {"output_index": len(self._items), "summary_index": 0, "delta": move.text}
                yield sse_of({"type": "response.reasoning_summary_text.delta", **fields})
            case _:
                pass

    def end(self, reply: Reply) -> bytes:
        """Return the whole message, the tokens and the end."""
        events = b"".join(self._end_thought())
        if self._text:
            content: list[Any] = [{"type": "output_text", "text": self._text, "annotations": []}]
            events += self._item({"type": "message", "role": "assistant", "id": "msg_1", "content": content})
        usage = {
            "input_tokens": reply.tokens.input,
            "input_tokens_details": {"cached_tokens": reply.tokens.cached},
            "output_tokens": reply.tokens.output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.tokens.input + reply.tokens.output,
        }
        why = {"length": "max_output_tokens", "filter": "content_filter"}.get(reply.stop)
        status = "incomplete" if why else "completed"
        response = {"id": "resp_1", "status": status, "output": self._items, "usage": usage}
        details = {"incomplete_details": {"reason": why}} if why else {}
        return events + sse_of({"type": f"response.{status}", "response": {**response, **details}})

    def _end_thought(self) -> Iterator[bytes]:
        thought, self._thought = self._thought, ""
        if thought:
            fields = {"summary": [{"type": "summary_text", "text": thought}], "encrypted_content": SIGNATURE}
            yield self._item({"type": "reasoning", "id": "rs_1", **fields})

    def _item(self, item: dict[str, Any]) -> bytes:
        self._items.append(item)
        index = len(self._items) - 1
        return sse_of({"type": "response.output_item.done", "output_index": index, "item": item})


def usage(reply: Reply, quirks: Quirks = OPENAI) -> dict[str, Any]:
    """Return the usage object."""
    tokens = reply.tokens
    reasoning = sum(isinstance(move, Think) for move in reply.moves) if quirks.separate_reasoning else 0
    return {
        "prompt_tokens": tokens.input,
        "completion_tokens": tokens.output - reasoning,
        "total_tokens": tokens.input + tokens.output,
        "prompt_tokens_details": {"cached_tokens": tokens.cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def answer_body(reply: Reply, model: str) -> dict[str, Any]:
    """Return the answer to a request without a stream."""
    calls = [use for move in reply.moves for use in _calls_of(move)]
    message: dict[str, Any] = {"role": "assistant", "content": text_in(reply, Say) or None}
    if reasoning := text_in(reply, Think):
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
        "usage": usage(reply),
    }


def error(refusal: Refusal, shape: str = "error") -> dict[str, Any]:
    """Return an error body."""
    kind = "invalid_request_error" if refusal.status < 500 else "server_error"
    inner = {"message": refusal.message, "type": kind, "param": None, "code": refusal.code or None}
    if shape == "words":
        return {"code": refusal.code, "error": refusal.message}
    if shape == "detail":
        return {"detail": {"error": refusal.message}}
    return {"object": "error", **inner} if shape == "flat" else {"error": inner}


def model_list(names: Sequence[str]) -> dict[str, Any]:
    """Return the list of models."""
    listed = [{"id": name, "object": "model", "created": 1700000000, "owned_by": "fake"} for name in names]
    return {"object": "list", "data": listed}


def parse_request(path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> ModelRequest:
    """Return the request in the terms of scripts."""
    user_text, results = "", list[str]()
    for message in body["messages"]:
        if message["role"] == "user":
            user_text, results = _text(message["content"]), []
        elif message["role"] == "tool":
            results.append(message["content"])
    tools = tuple(tool["function"]["name"] for tool in body.get("tools", ()))
    return ModelRequest(path, headers, body, user_text, tuple(results), tools)


def problem(body: Mapping[str, Any], quirks: Quirks = OPENAI) -> str:
    """Return the problem with a request, or an empty string."""
    if unknown := sorted(set(body) - (_FIELDS - quirks.unsupported)):
        return f"unknown fields: {', '.join(unknown)}"
    if not isinstance(body.get("model"), str) or not body["model"]:
        return "model is missing"
    if fault := _parameter_problem(body, quirks):
        return fault
    if "stream_options" in body and not body.get("stream"):
        return "stream_options is only allowed with stream"
    if not body.get("messages"):
        return "messages is empty"
    offered = (tool["function"] for tool in body.get("tools", ()))
    if faults := [fault for tool in offered if (fault := tool_problem(tool["name"], tool["parameters"]))]:
        return faults[0]
    if _KEEPS_REASONING.search(body["model"]) and any(
        "tool_calls" in message and not (message.get("reasoning_content") or message.get("reasoning"))
        for message in body["messages"]
    ):
        return "The `reasoning_content` in the thinking mode must be passed back to the API."
    return _transcript_problem(body["messages"]) or _quirk_problem(body["messages"], quirks)


def responses_problem(body: Mapping[str, Any]) -> str:
    """Return the problem with a request in the Responses protocol, or an empty string."""
    if unknown := sorted(set(body) - _RESPONSES_FIELDS):
        return f"Unknown parameter: '{unknown[0]}'."
    if body.get("store") is not False or "reasoning.encrypted_content" not in body.get("include", ()):
        return "the fake requires store false, and the encrypted reasoning"
    for tool in body.get("tools", ()):
        if fault := tool_problem(tool["name"], tool["parameters"]):
            return fault
    calls: set[str] = set()
    results: set[str] = set()
    for item in body.get("input") or ():
        match item.get("type", "message"):
            case "reasoning" if item.get("encrypted_content") != SIGNATURE:
                return f"The encrypted content for item {item.get('id')} could not be verified."
            case "function_call":
                calls.add(item["call_id"])
            case "function_call_output":
                results.add(item["call_id"])
            case _:
                pass
    return "" if calls == results else f"No tool output found for function call {min(calls ^ results)}."


def parse_responses_request(path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> ModelRequest:
    """Return a request in the Responses protocol in the terms of scripts."""
    text, results = "", list[str]()
    for item in body["input"]:
        if item.get("role") == "user":
            content = item["content"]
            blocks: Sequence[Any] = () if isinstance(content, str) else content
            text = content if isinstance(content, str) else "".join(b.get("text", "") for b in blocks)
            results = []
        elif item.get("type") == "function_call_output":
            results.append(str(item["output"]))
    tools = tuple(tool["name"] for tool in body.get("tools", ()) if "name" in tool)
    return ModelRequest(path, headers, body, text, tuple(results), tools)


def _parameter_problem(body: Mapping[str, Any], quirks: Quirks) -> str:
    reasons = _REASONS.search(body["model"])
    if "random_seed" in body and "seed" not in quirks.unsupported:
        return "unknown fields: random_seed"
    if "tool_choice" in body and not body.get("tools"):
        return "tool_choice is only allowed with tools"
    unreasoned = body.get("reasoning_effort") == "none"
    if body.get("tools") and _UNREASONED_TOOLS.search(body["model"]) and not unreasoned:
        return "Function tools with reasoning_effort are not supported; set reasoning_effort to 'none'."
    if reasons and (refused := sorted({"stop", "top_p"} & set(body))):
        return f"Unsupported parameter: '{refused[0]}' is not supported with this model."
    if reasons and body.get("temperature", 1) != 1:
        return "Unsupported value: 'temperature' does not support this with this model, only the default (1)."
    return ""


def _quirk_problem(messages: Sequence[Mapping[str, Any]], quirks: Quirks) -> str:
    if any(_is_empty(message) for message in messages) and quirks is not OPENAI:
        return "Assistant message must have either content or tool_calls, but not none."
    if messages[-1]["role"] == "assistant" and not quirks.accepts_prefill:
        return "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant"
    if quirks.requires_alternation and (fault := _alternation_problem(messages)):
        return fault
    before = ""
    for message in messages:
        role = message["role"]
        if role == "user" and before == "tool" and not quirks.user_after_tool:
            return "Unexpected role 'user' after role 'tool'"
        if role == "tool" and quirks.requires_result_names and not message.get("name"):
            return "a tool message must name the tool"
        ids = [call["id"] for call in message.get("tool_calls", ())]
        if wrong := [
            call_id for call_id in ids if quirks.id_pattern and not re.fullmatch(quirks.id_pattern, call_id)
        ]:
            return f"Tool call id was {wrong[0]} but must match {quirks.id_pattern}"
        before = role
    return ""


def _is_empty(message: Mapping[str, Any]) -> bool:
    return message["role"] in ("user", "assistant") and not (message["content"] or message.get("tool_calls"))


def _alternation_problem(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the error of chat templates in which the user begins and no role comes twice in a row."""
    roles = [message["role"] for message in messages]
    roles = roles[roles[:1] == ["system"] :]
    if roles[:1] == ["user"] and all(one != two or one == "tool" for one, two in pairwise(roles)):
        return ""
    return "Conversation roles must alternate user/assistant/user/assistant/..."


def _transcript_problem(messages: Sequence[Mapping[str, Any]]) -> str:
    """Check that a tool message follows for every call, before any other message."""
    pending: list[str] = []
    for number, message in enumerate(messages):
        role = message.get("role")
        if role not in _ROLES:
            return f"messages[{number}] has an unknown role"
        if role == "tool":
            if message.get("tool_call_id") not in pending:
                return f"messages[{number}] has no matching tool call"
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
        if len(call["id"]) > _MAX_ID_CHARS or not TOOL_NAME.fullmatch(call["function"]["name"]):
            return f"tool call {call['id']!r} of {call['function']['name']!r}: id too long or name invalid"
        try:
            msgspec.json.decode(call["function"]["arguments"], type=dict[str, Any])
        except msgspec.DecodeError:
            return "arguments are not a JSON object"
    if isinstance(content, str):
        return ""
    if content is None:
        return "" if calls else "content is missing"
    for part in content:
        if part.get("type") == "image_url":
            if part["image_url"]["url"].partition(";")[0].removeprefix("data:") not in IMAGE_TYPES:
                return "only data URLs of common image types are supported"
        elif part.get("type") not in ("text", "thinking"):
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


_OVERLOADED = b'data: {"error":{"message":"overloaded","type":"server_error","code":503}}\n\n'
_REFUSALS = {
    "too_long": Refusal(
        400, "This model's maximum context length is 8192 tokens", code="context_length_exceeded"
    ),
    "filtered": Refusal(400, "The prompt was flagged", code="content_filter"),
    "no_model": Refusal(404, "The model `x` does not exist", code="model_not_found"),
    "overloaded": Refusal(503, "The server is overloaded"),
}


class OpenAIDialect:
    """Chat completions at a path, with the quirks and the error responses of a service."""

    content_type = "text/event-stream; charset=utf-8"
    models_route = "/models"
    key_path = ""
    stream_error = _OVERLOADED

    def __init__(
        self,
        path: str = "/v1",
        quirks: Quirks = OPENAI,
        refusals: Mapping[str, Refusal] | None = None,
        chat_routes: Sequence[str] = ("/chat/completions", "/responses"),
    ) -> None:
        self.path = path
        self.chat_routes = chat_routes
        self.refusals = {**_REFUSALS, **(refusals or {})}
        self._quirks = quirks

    def key(self, headers: Mapping[str, str]) -> str:
        """Return the bearer token, or the key in its own header."""
        return key_in(headers) if self._quirks.bearer else headers.get("api-key", "")

    def problem(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> str:
        """Return the problem with a request, or an empty string. The path may name a deployment."""
        if path.endswith("/responses"):
            return responses_problem(body)
        missing = [name for name in self._quirks.headers if name not in headers]
        return f"missing {missing[0]} header" if missing else problem(body, self._quirks)

    def parse(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> ModelRequest:
        """Return the request in the terms of scripts."""
        if path.endswith("/responses"):
            return parse_responses_request(path, headers, body)
        return parse_request(path, headers, body)

    def streams(self, request: ModelRequest) -> bool:
        """Return whether the request is for a stream."""
        return bool(request.body.get("stream"))

    def wire(self, request: ModelRequest, reply: Reply) -> OpenAIWire | ResponsesWire:
        """Return the writer of a streamed answer."""
        if request.path.endswith("/responses"):
            return ResponsesWire(reasons=True)
        include_usage: bool = request.body.get("stream_options", {}).get("include_usage", False)
        return OpenAIWire(request.body["model"], include_usage=include_usage, quirks=self._quirks)

    def answer_body(self, request: ModelRequest, reply: Reply) -> dict[str, Any]:
        """Return the answer as one JSON value."""
        return answer_body(reply, request.body["model"])

    def error(self, refusal: Refusal) -> dict[str, Any]:
        """Return an error body in the shape of the service."""
        return error(refusal, self._quirks.errors)

    def model_list(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the list of models."""
        return model_list(names)

    def event(self, kind: str, payload: bytes) -> bytes:
        """Return a server-sent event."""
        return sse(kind, payload)

    def text_event(self, literal: bytes) -> bytes:
        """Return an event with any JSON in place of its text."""
        return text_event(OpenAIWire("fake-small", include_usage=False, quirks=self._quirks), literal)


class ResponsesDialect(OpenAIDialect):
    """OpenAI's Responses protocol, for a provider that uses no other."""

    def wire(self, request: ModelRequest, reply: Reply) -> ResponsesWire:
        """Return the writer of a streamed answer."""
        return ResponsesWire(reasons=True)

    def text_event(self, literal: bytes) -> bytes:
        """Return an event with any JSON in place of its text."""
        return text_event(ResponsesWire(), literal)
