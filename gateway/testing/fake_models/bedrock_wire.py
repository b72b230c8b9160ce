"""The server's side of Amazon Bedrock's Converse API, with strict checks of requests and binary events."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from gateway.testing.fake_models.dialect import TOOL_NAME, key_in, text_in, tool_problem
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

SIGNATURE = "c2lnbmVk"
"""The signature of all reasoning."""

_STOPS = {"end": "end_turn", "length": "max_tokens", "tools": "tool_use", "filter": "guardrail_intervened"}
_FIELDS = frozenset({"messages", "system", "inferenceConfig", "toolConfig", "additionalModelRequestFields"})
_INFERENCE = frozenset({"maxTokens", "temperature", "topP", "stopSequences"})
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SIGNED = re.compile(r"AWS4-HMAC-SHA256 Credential=([^/]+)/")


class BedrockWire:
    """The writer of one answer's stream: content blocks that start, grow and stop, one after the other."""

    def __init__(self) -> None:
        self._index = -1
        self._open = ""

    def begin(self) -> bytes:
        """Return the start of the message."""
        return frame("messageStart", {"role": "assistant"})

    def events(self, move: Say | Think | Use | UseTogether | Count) -> Iterator[bytes]:
        """Yield the events of one move. Only blocks with calls have a start event."""
        match move:
            case Say():
                yield from self._enter("text")
                yield self._delta({"text": move.text})
            case Think():
                yield from self._enter("reasoning")
                yield self._delta({"reasoningContent": {"text": move.text}})
            case Use():
                yield from self._use(move)
            case UseTogether():
                for call in move.calls:
                    yield from self._use(call)
            case Count():
                return  # the usage is in the last event

    def end(self, reply: Reply) -> bytes:
        """Return the stop reason and the tokens."""
        stop = frame("messageStop", {"stopReason": _STOPS[reply.stop]})
        metadata = {"usage": usage(reply.tokens), "metrics": {"latencyMs": 1}}
        return b"".join(self._leave()) + stop + frame("metadata", metadata)

    def _use(self, call: Use) -> Iterator[bytes]:
        yield from self._leave()
        yield from self._enter("call")
        start = {"toolUse": {"toolUseId": call.id, "name": call.name}}
        yield frame("contentBlockStart", {"start": start, "contentBlockIndex": self._index})
        for fragment in call.fragments():
            yield self._delta({"toolUse": {"input": fragment}})

    def _enter(self, kind: str) -> Iterator[bytes]:
        if self._open != kind:
            yield from self._leave()
            self._open = kind
            self._index += 1

    def _leave(self) -> Iterator[bytes]:
        if self._open == "reasoning":
            yield self._delta({"reasoningContent": {"signature": SIGNATURE}})
        if self._open:
            yield frame("contentBlockStop", {"contentBlockIndex": self._index})
            self._open = ""

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return frame("contentBlockDelta", {"delta": delta, "contentBlockIndex": self._index})


def frame(kind: str, body: Mapping[str, Any], *, exception: bool = False) -> bytes:
    """Return a binary event with a JSON object."""
    return framed(kind, msgspec.json.encode(body), exception=exception)


def framed(kind: str, payload: bytes, *, exception: bool = False) -> bytes:
    """Return a binary event: lengths, their checksum, headers, the payload, and a checksum of everything."""
    type_header = ":exception-type" if exception else ":event-type"
    headers = b"".join(
        _header(name, value)
        for name, value in (
            (":message-type", "exception" if exception else "event"),
            (type_header, kind),
            (":content-type", "application/json"),
        )
    )
    prelude = struct.pack("!II", 16 + len(headers) + len(payload), len(headers))
    message = prelude + struct.pack("!I", zlib.crc32(prelude)) + headers + payload
    return message + struct.pack("!I", zlib.crc32(message))


def _header(name: str, value: str) -> bytes:
    string_type = 7
    return (
        struct.pack("!B", len(name))
        + name.encode()
        + struct.pack("!BH", string_type, len(value))
        + value.encode()
    )


def usage(tokens: Tokens) -> dict[str, int]:
    """Return the usage, with cached tokens in their own count."""
    return {
        "inputTokens": tokens.input - tokens.cached,
        "outputTokens": tokens.output,
        "totalTokens": tokens.input + tokens.output,
        "cacheReadInputTokens": tokens.cached,
        "cacheWriteInputTokens": 0,
    }


def parse_request(path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> ModelRequest:
    """Return the request in the terms of scripts."""
    user_text, results = "", list[str]()
    for message in body["messages"]:
        if message["role"] != "user":
            continue
        answers = [block["toolResult"] for block in message["content"] if "toolResult" in block]
        results += [answer["content"][0]["text"] for answer in answers]
        if text := "".join(block["text"] for block in message["content"] if "text" in block):
            user_text, results = text, []
    offered = body.get("toolConfig", {}).get("tools", ())
    return ModelRequest(
        path, headers, body, user_text, tuple(results), tuple(t["toolSpec"]["name"] for t in offered)
    )


def problem(body: Mapping[str, Any]) -> str:
    """Return the problem with a request, or an empty string."""
    inference = body.get("inferenceConfig", {})
    if unknown := sorted((set(body) - _FIELDS) | (set(inference) - _INFERENCE)):
        return f"unexpected field {unknown[0]}"
    messages = body.get("messages") or ()
    # docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html and its ValidationExceptions:
    # the user begins and ends, both sides take turns, no content and no text is empty.
    if not messages or messages[0]["role"] != "user":
        return "A conversation must start with a user message."
    roles = [message["role"] for message in messages]
    if any(one == two for one, two in pairwise(roles)):
        return "A conversation must alternate between user and assistant roles."
    if roles[-1] != "user":
        return "The last turn in a conversation must be a user message."
    if not all(message["content"] for message in messages):
        return "The content field in the Message object is empty."
    blocks = [block for message in messages for block in message["content"]]
    if any("toolUse" in block for block in blocks) and "toolConfig" not in body:
        return "The toolConfig field must be defined when using toolUse and toolResult content blocks."
    specs = [tool["toolSpec"] for tool in body.get("toolConfig", {}).get("tools", ())]
    faults = [fault for spec in specs if (fault := tool_problem(spec["name"], spec["inputSchema"]["json"]))]
    return (faults[0] if faults else "") or _blocks_problem(blocks) or _turns_problem(messages)


def _blocks_problem(blocks: Sequence[Mapping[str, Any]]) -> str:
    for block in blocks:
        kinds = {"text", "image", "toolUse", "toolResult", "cachePoint", "reasoningContent"}
        if len(block) != 1 or set(block) - kinds:
            return "unknown content block"
        thought = block.get("reasoningContent", {}).get("reasoningText", {"signature": SIGNATURE})
        if thought.get("signature") != SIGNATURE:
            return "The signature of the reasoning content is invalid."
        texts = [block, *block.get("toolResult", {}).get("content", ())]
        if any("text" in part and not part["text"].strip() for part in texts):
            return "The text field in the ContentBlock object is blank."
        for name in ("toolUse", "toolResult"):
            if name in block and not _ID.fullmatch(block[name]["toolUseId"]):
                return f"{name}.toolUseId must match [a-zA-Z0-9_-]+"
        if "toolUse" in block and not TOOL_NAME.fullmatch(block["toolUse"]["name"]):
            return f"toolUse.name must match {TOOL_NAME.pattern}"
    return ""


def _turns_problem(messages: Sequence[Mapping[str, Any]]) -> str:
    pending: list[str] = []
    for message in messages:
        result_ids = [b["toolResult"]["toolUseId"] for b in message["content"] if "toolResult" in b]
        if sorted(result_ids) != sorted(pending):
            return "Expected toolResult blocks for exactly the toolUse blocks of the previous turn."
        pending = [b["toolUse"]["toolUseId"] for b in message["content"] if "toolUse" in b]
    return ""


class BedrockDialect:
    """The Converse API, and the list of models."""

    path = "/bedrock"
    chat_routes = ("/model/{model}/converse-stream", "/model/{model}/converse")
    models_route = "/foundation-models"
    content_type = "application/vnd.amazon.eventstream"
    stream_error = frame("serviceUnavailableException", {"message": "try again"}, exception=True)
    refusals = {
        "too_long": Refusal(400, "Input is too long for requested model."),
        "filtered": Refusal(400, "The request was blocked by our content policy"),
        "no_model": Refusal(
            404, "Could not resolve the foundation model from the provided model identifier."
        ),
        "overloaded": Refusal(503, "Bedrock is unable to process your request."),
    }

    def key(self, headers: Mapping[str, str]) -> str:
        """Return the bearer token, or the access key id of the signature."""
        signed = _SIGNED.match(headers.get("authorization", ""))
        return signed[1] if signed else key_in(headers)

    def problem(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> str:
        """Return the problem with a request, or an empty string."""
        return problem(body)

    def parse(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> ModelRequest:
        """Return the request in the terms of scripts."""
        return parse_request(path, headers, body)

    def streams(self, request: ModelRequest) -> bool:
        """Return whether the path is that of a stream."""
        return request.path.endswith("/converse-stream")

    def wire(self, request: ModelRequest, reply: Reply) -> BedrockWire:
        """Return the writer of a streamed answer."""
        return BedrockWire()

    def answer_body(self, request: ModelRequest, reply: Reply) -> dict[str, Any]:
        """Return the answer as one JSON value, without calls."""
        message = {"role": "assistant", "content": [{"text": text_in(reply, Say)}]}
        return {
            "output": {"message": message},
            "stopReason": _STOPS[reply.stop],
            "usage": usage(reply.tokens),
            "metrics": {"latencyMs": 1},
        }

    def error(self, refusal: Refusal) -> dict[str, Any]:
        """Return an error body."""
        return {"message": refusal.message}

    def model_list(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the list of models, with one that does not stream."""
        listed = [_model(name, streams=True) for name in names]
        return {"modelSummaries": [*listed, _model("fake-batch", streams=False)]}

    def event(self, kind: str, payload: bytes) -> bytes:
        """Return a binary event."""
        return framed(kind, payload)

    def text_event(self, literal: bytes) -> bytes:
        """Return a piece of text with any JSON in its place."""
        return framed("contentBlockDelta", b'{"delta":{"text":%b},"contentBlockIndex":0}' % literal)


def _model(name: str, *, streams: bool) -> dict[str, Any]:
    return {"modelId": name, "modelName": name.title(), "responseStreamingSupported": streams}
