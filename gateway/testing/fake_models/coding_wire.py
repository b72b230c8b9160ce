"""The protocols between coding programs and their model services, as lenient dialects of the fake server.

The programs send more fields than the gateway's providers, so their requests are not checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from gateway.testing.fake_models.anthropic_wire import AnthropicDialect
from gateway.testing.fake_models.dialect import key_in, sse, text_in
from gateway.testing.fake_models.openai_wire import OpenAIDialect, ResponsesWire
from gateway.testing.fake_models.script import ModelRequest, Refusal, Reply, Say, Think, Use


def _event(value: Mapping[str, Any]) -> bytes:
    kind = value.get("type")
    head = f"event: {kind}\n".encode() if kind else b""
    return head + b"data: " + msgspec.json.encode(value) + b"\n\n"


def _texts(content: Any, kinds: Sequence[str] = ("text", "input_text", "output_text")) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(block["text"] for block in content or () if block.get("type", "text") in kinds)


class ClaudeCodeDialect(AnthropicDialect):
    """Anthropic's messages API for Claude Code."""

    path = "/claude"

    def problem(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> str:
        """Return an empty string: requests are not checked."""
        return ""

    def parse(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> ModelRequest:
        """Return the user's last message, and the tool results after it."""
        text, results = "", list[str]()
        for message in body["messages"]:
            if message["role"] != "user":
                continue
            blocks: Sequence[Any] = message["content"] if isinstance(message["content"], list) else []
            if new_text := _texts(message["content"]):
                text, results = new_text, []
            results += [_texts(b.get("content")) for b in blocks if b.get("type") == "tool_result"]
        return ModelRequest(path, headers, body, text, tuple(results))


class OpenCodeDialect(OpenAIDialect):
    """Chat completions for OpenCode."""

    def __init__(self) -> None:
        super().__init__("/opencode/v1")

    def problem(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> str:
        """Return an empty string: requests are not checked."""
        return ""


class LenientDialect:
    """The common parts of the dialects for Codex and Gemini CLI."""

    content_type = "text/event-stream"
    models_route = "/models"
    stream_error = b""
    refusals: Mapping[str, Refusal] = {}

    def key(self, headers: Mapping[str, str]) -> str:
        """Return the API key of a request."""
        return key_in(headers)

    def problem(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> str:
        """Return an empty string: requests are not checked."""
        return ""

    def error(self, refusal: Refusal) -> Any:
        """Return an error body."""
        return {"error": {"code": refusal.status, "message": refusal.message}}

    def model_list(self, names: Sequence[str]) -> Any:
        """Return the list of models."""
        return {"models": [{"name": name} for name in names]}

    def event(self, kind: str, payload: bytes) -> bytes:
        """Return a server-sent event."""
        return sse(kind, payload)

    def text_event(self, literal: bytes) -> bytes:
        """Return an event that no vendor sends; no check with programs needs one."""
        return sse("text", literal)


class CodexDialect(LenientDialect):
    """The Responses API for Codex."""

    path = "/codex/v1"
    chat_routes = ("/responses",)
    socket_route = "/responses"

    def parse(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> ModelRequest:
        """Return the user's last message, and the tool results after it."""
        text, results = "", list[str]()
        for item in body["input"]:
            if item.get("role") == "user":
                text, results = _texts(item["content"]), []
            elif item.get("type") == "function_call_output":
                results.append(str(item["output"]))
        return ModelRequest(path, headers, body, text, tuple(results))

    def streams(self, request: ModelRequest) -> bool:
        """Return True: Codex always requests a stream."""
        return True

    def wire(self, request: ModelRequest, reply: Reply) -> ResponsesWire:
        """Return the writer of a streamed answer."""
        return ResponsesWire()

    def answer_body(self, request: ModelRequest, reply: Reply) -> Any:
        """Return an empty object, as Codex always requests a stream."""
        return {}


class GeminiWire:
    """The writer of one answer in the generateContent protocol."""

    def begin(self) -> bytes:
        """Return nothing: the stream begins with the first piece."""
        return b""

    def events(self, move: Say | Think | Use) -> Iterator[bytes]:
        """Yield a candidate with one part."""
        if part := _part(move):
            yield _event({"candidates": [{"content": {"role": "model", "parts": [part]}, "index": 0}]})

    def end(self, reply: Reply) -> bytes:
        """Return the end and the tokens."""
        return _event(_final_response([], reply))


def _part(move: object) -> dict[str, Any] | None:
    match move:
        case Say():
            return {"text": move.text}
        case Use():
            return {"functionCall": {"name": move.name, "args": msgspec.json.decode(move.arguments)}}
        case _:
            return None


def _final_response(parts: list[dict[str, Any]], reply: Reply) -> dict[str, Any]:
    usage = {
        "promptTokenCount": reply.tokens.input,
        "candidatesTokenCount": reply.tokens.output,
        "totalTokenCount": reply.tokens.input + reply.tokens.output,
    }
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}
    return {"candidates": [candidate], "usageMetadata": usage}


class GeminiCliDialect(LenientDialect):
    """generateContent for Gemini CLI, including its small requests beside the conversation."""

    path = "/gemini"
    chat_routes = ("/v1beta/models/{call:.+}",)

    def parse(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> ModelRequest:
        """Return the user's last message, and the tool results after it."""
        text, results = "", list[str]()
        for content in body.get("contents", ()):
            if content["role"] != "user":
                continue
            for part in content["parts"]:
                if "text" in part:
                    text, results = part["text"], []
                elif "functionResponse" in part:
                    results.append(str(part["functionResponse"].get("response")))
        return ModelRequest(path, headers, body, text, tuple(results))

    def streams(self, request: ModelRequest) -> bool:
        """Return whether the path is that of a stream."""
        return "streamGenerateContent" in request.path

    def wire(self, request: ModelRequest, reply: Reply) -> GeminiWire:
        """Return the writer of a streamed answer."""
        return GeminiWire()

    def answer_body(self, request: ModelRequest, reply: Reply) -> Any:
        """Return the answer as one JSON value."""
        parts = [part for move in reply.moves if (part := _part(move))]
        return _final_response(parts or [{"text": text_in(reply, Say)}], reply)


DIALECTS = (ClaudeCodeDialect(), OpenCodeDialect(), CodexDialect(), GeminiCliDialect())
