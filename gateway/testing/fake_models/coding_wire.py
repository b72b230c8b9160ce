"""What the coding programs speak to their model services, as lenient dialects of the fake model server.

The programs send more than our own providers ever would, so nothing they send is refused here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from gateway.testing.fake_models.anthropic_wire import AnthropicDialect
from gateway.testing.fake_models.dialect import said_by, shown_key, sse
from gateway.testing.fake_models.openai_wire import OpenAIDialect
from gateway.testing.fake_models.script import Asked, Refusal, Reply, Say, Think, Use


def _event(value: Mapping[str, Any]) -> bytes:
    kind = value.get("type")
    head = f"event: {kind}\n".encode() if kind else b""
    return head + b"data: " + msgspec.json.encode(value) + b"\n\n"


def _texts(content: Any, kinds: Sequence[str] = ("text", "input_text", "output_text")) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(block["text"] for block in content or () if block.get("type", "text") in kinds)


class ForClaude(AnthropicDialect):
    """Anthropic's messages, as Claude Code asks for them."""

    path = "/claude"

    def problem(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> str:
        """Nothing is refused."""
        return ""

    def asked(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> Asked:
        """The last words, and the results of tools behind them."""
        text, results = "", list[str]()
        for message in body["messages"]:
            if message["role"] != "user":
                continue
            blocks: Sequence[Any] = message["content"] if isinstance(message["content"], list) else []
            if said := _texts(message["content"]):
                text, results = said, []
            results += [_texts(b.get("content")) for b in blocks if b.get("type") == "tool_result"]
        return Asked(path, headers, body, text, tuple(results))


class ForOpenCode(OpenAIDialect):
    """Chat completions, as OpenCode asks for them."""

    def __init__(self) -> None:
        super().__init__("/opencode/v1")

    def problem(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> str:
        """Nothing is refused."""
        return ""


class ResponsesWire:
    """One answer of the Responses protocol."""

    def __init__(self) -> None:
        self._items: list[dict[str, Any]] = []
        self._text = ""

    def begin(self) -> bytes:
        """A response begins."""
        return _event({"type": "response.created", "response": {"id": "resp_1"}})

    def events(self, move: Say | Think | Use) -> Iterator[bytes]:
        """Deltas of a message, or a whole call."""
        match move:
            case Say():
                if not self._text:
                    item: dict[str, Any] = {"type": "message", "role": "assistant", "id": "msg_1"}
                    item["content"] = []
                    yield _event({"type": "response.output_item.added", "output_index": 0, "item": item})
                self._text += move.text
                told = {"item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": move.text}
                yield _event({"type": "response.output_text.delta", **told})
            case Use():
                item = {
                    "type": "function_call",
                    "id": f"fc_{move.id}",
                    "call_id": move.id,
                    "name": move.name,
                    "arguments": move.arguments,
                }
                self._items.append(item)
                yield _event({"type": "response.output_item.done", "output_index": 0, "item": item})
            case _:
                pass

    def end(self, reply: Reply) -> bytes:
        """The whole message, the tokens, and the end."""
        events = b""
        if self._text:
            content: list[Any] = [{"type": "output_text", "text": self._text, "annotations": []}]
            item: dict[str, Any] = {"type": "message", "role": "assistant", "id": "msg_1", "content": content}
            self._items.insert(0, item)
            events = _event({"type": "response.output_item.done", "output_index": 0, "item": item})
        usage = {
            "input_tokens": reply.tokens.input,
            "input_tokens_details": {"cached_tokens": reply.tokens.cached},
            "output_tokens": reply.tokens.output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.tokens.input + reply.tokens.output,
        }
        response = {"id": "resp_1", "status": "completed", "output": self._items, "usage": usage}
        return events + _event({"type": "response.completed", "response": response})


class Lenient:
    """What the two dialects below have in common."""

    content_type = "text/event-stream"
    models_route = "/models"
    trouble = b""
    troubles: Mapping[str, Refusal] = {}

    def key(self, headers: Mapping[str, str]) -> str:
        """Whatever is shown."""
        return shown_key(headers)

    def problem(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> str:
        """Nothing is refused."""
        return ""

    def error(self, refusal: Refusal) -> Any:
        """An error."""
        return {"error": {"code": refusal.status, "message": refusal.message}}

    def listed(self, names: Sequence[str]) -> Any:
        """Models."""
        return {"models": [{"name": name} for name in names]}

    def event(self, kind: str, payload: bytes) -> bytes:
        """A server-sent event."""
        return sse(kind, payload)

    def saying(self, literal: bytes) -> bytes:
        """An event of no vendor: the programs are not sent such texts."""
        return sse("text", literal)


class ForCodex(Lenient):
    """Responses, as Codex asks for them."""

    path = "/codex/v1"
    chat_routes = ("/responses",)

    def asked(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> Asked:
        """The last words, and the results of tools behind them."""
        text, results = "", list[str]()
        for item in body["input"]:
            if item.get("role") == "user":
                text, results = _texts(item["content"]), []
            elif item.get("type") == "function_call_output":
                results.append(str(item["output"]))
        return Asked(path, headers, body, text, tuple(results))

    def streams(self, asked: Asked) -> bool:
        """Always."""
        return True

    def wire(self, asked: Asked, reply: Reply) -> ResponsesWire:
        """Events of items."""
        return ResponsesWire()

    def whole(self, asked: Asked, reply: Reply) -> Any:
        """Never asked for."""
        return {}


class GeminiWire:
    """One answer of the generateContent protocol."""

    def begin(self) -> bytes:
        """Nothing comes first."""
        return b""

    def events(self, move: Say | Think | Use) -> Iterator[bytes]:
        """A candidate with one more part."""
        if part := _part(move):
            yield _event({"candidates": [{"content": {"role": "model", "parts": [part]}, "index": 0}]})

    def end(self, reply: Reply) -> bytes:
        """The end and the tokens."""
        return _event(_ended([], reply))


def _part(move: object) -> dict[str, Any] | None:
    match move:
        case Say():
            return {"text": move.text}
        case Use():
            return {"functionCall": {"name": move.name, "args": msgspec.json.decode(move.arguments)}}
        case _:
            return None


def _ended(parts: list[dict[str, Any]], reply: Reply) -> dict[str, Any]:
    usage = {
        "promptTokenCount": reply.tokens.input,
        "candidatesTokenCount": reply.tokens.output,
        "totalTokenCount": reply.tokens.input + reply.tokens.output,
    }
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}
    return {"candidates": [candidate], "usageMetadata": usage}


class ForGemini(Lenient):
    """generateContent, as Gemini's program asks for it; small questions it asks beside are answered too."""

    path = "/gemini"
    chat_routes = ("/v1beta/models/{call:.+}",)

    def asked(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> Asked:
        """The last words, and the results of tools behind them."""
        text, results = "", list[str]()
        for content in body.get("contents", ()):
            if content["role"] != "user":
                continue
            for part in content["parts"]:
                if "text" in part:
                    text, results = part["text"], []
                elif "functionResponse" in part:
                    results.append(str(part["functionResponse"].get("response")))
        return Asked(path, headers, body, text, tuple(results))

    def streams(self, asked: Asked) -> bool:
        """By the address."""
        return "streamGenerateContent" in asked.path

    def wire(self, asked: Asked, reply: Reply) -> GeminiWire:
        """Candidates."""
        return GeminiWire()

    def whole(self, asked: Asked, reply: Reply) -> Any:
        """One candidate."""
        parts = [part for move in reply.moves if (part := _part(move))]
        return _ended(parts or [{"text": said_by(reply, Say)}], reply)


DIALECTS = (ForClaude(), ForOpenCode(), ForCodex(), ForGemini())
