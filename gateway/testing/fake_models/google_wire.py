"""The server's side of Gemini's ``generateContent``, with strict checks of requests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from gateway.testing.fake_models.dialect import TOOL_NAME, key_in, sse, text_event, tool_problem
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

SIGNATURE = "c2lnbmVk"
"""The signature of the first call of an answer."""
UNSIGNED = "skip_thought_signature_validator"
_SIGNED = re.compile(r"gemini-(?![12]\b)")

_STOPS = {"end": "STOP", "length": "MAX_TOKENS", "tools": "STOP", "filter": "SAFETY"}
_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_FIELDS = frozenset(
    {"contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "safetySettings"}
)
_GENERATION = frozenset(
    {
        "temperature",
        "topP",
        "seed",
        "maxOutputTokens",
        "stopSequences",
        "responseMimeType",
        "responseJsonSchema",
        "thinkingConfig",
        "candidateCount",
    }
)
_DECLARATION_FIELDS = frozenset({"name", "description", "parametersJsonSchema", "parameters_json_schema"})
"""The service accepts either spelling; Google's own library uses both."""
_PART_FIELDS = ("text", "inlineData", "functionCall", "functionResponse")


class GoogleWire:
    """The writer of one answer's stream: a response for each piece, with the tokens so far."""

    def __init__(self, reply: Reply) -> None:
        self._tokens = tokens(reply)
        self._calls = 0

    def begin(self) -> bytes:
        """Return nothing: the stream begins with the first piece."""
        return b""

    def events(self, move: Say | Think | Use | UseTogether | Count) -> Iterator[bytes]:
        """Yield the response of one move."""
        match move:
            case Say():
                yield self._response([{"text": move.text}])
            case Think():
                yield self._response([{"text": move.text, "thought": True}])
            case Use():
                yield self._response([self._call(move)])
            case UseTogether():
                yield self._response([self._call(call) for call in move.calls])
            case Count():
                yield self._response([], used=tokens(Reply(tokens=move.tokens)))

    def end(self, reply: Reply) -> bytes:
        """Return the stop reason and all tokens."""
        stop = _STOPS[reply.stop]
        parts = [] if reply.stop == "filter" else [{"text": ""}]
        return self._response(parts, {"finishReason": stop}, self._tokens)

    def _call(self, call: Use) -> dict[str, Any]:
        self._calls += 1
        return call_part(call, signed=self._calls == 1)

    def _response(
        self, parts: list[dict[str, Any]], more: Mapping[str, Any] | None = None, used: Any = None
    ) -> bytes:
        candidate = {"content": {"parts": parts, "role": "model"}, "index": 0, **(more or {})}
        usage = used or {"promptTokenCount": self._tokens["promptTokenCount"]}
        response = {
            "candidates": [candidate],
            "usageMetadata": usage,
            "modelVersion": "fake",
            "responseId": "r",
        }
        return b"data: " + msgspec.json.encode(response) + b"\r\n\r\n"


def call_part(call: Use, *, signed: bool) -> dict[str, Any]:
    """Return a call, always in one piece, the first of an answer signed. Invalid JSON is sent as a string."""
    try:
        arguments = msgspec.json.decode(call.arguments)
    except msgspec.DecodeError:
        arguments = call.arguments
    part = {"functionCall": {"id": call.id, "name": call.name, "args": arguments}}
    return {**part, "thoughtSignature": SIGNATURE} if signed else part


def tokens(reply: Reply) -> dict[str, int]:
    """Return the usage; each piece of reasoning counts as one token."""
    reasoning = sum(isinstance(move, Think) for move in reply.moves)
    return {
        "promptTokenCount": reply.tokens.input,
        "candidatesTokenCount": reply.tokens.output - reasoning,
        "thoughtsTokenCount": reasoning,
        "cachedContentTokenCount": reply.tokens.cached,
        "totalTokenCount": reply.tokens.input + reply.tokens.output,
    }


def parse_request(path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> ModelRequest:
    """Return the request in the terms of scripts."""
    user_text, results = "", list[str]()
    for content in body["contents"]:
        if content["role"] != "user":
            continue
        answers = [part["functionResponse"] for part in content["parts"] if "functionResponse" in part]
        results += [next(iter(answer["response"].values())) for answer in answers]
        if text := "".join(part["text"] for part in content["parts"] if "text" in part):
            user_text, results = text, []
    declared = [tool for entry in body.get("tools", ()) for tool in entry["functionDeclarations"]]
    return ModelRequest(
        path, headers, body, user_text, tuple(results), tuple(tool["name"] for tool in declared)
    )


_PICTURES = frozenset({"image/png", "image/jpeg", "image/webp", "image/heic", "image/heif"})


def problem(body: Mapping[str, Any], *, ids: bool = True, signed: bool = False) -> str:
    """Return the problem with a request, or an empty string.

    ``ids``: the calls have ids; ``signed``: the model requires the signatures of its calls.
    """
    generation = body.get("generationConfig", {})
    if unknown := sorted((set(body) - _FIELDS) | (set(generation) - _GENERATION)):
        return f'Invalid JSON payload received. Unknown name "{unknown[0]}"'
    if body.get("tools") and "responseMimeType" in generation:
        return "Function calling with a response mime type is unsupported"
    if not body.get("contents"):
        return "contents is not specified"
    for declared in (tool for entry in body.get("tools", ()) for tool in entry["functionDeclarations"]):
        if set(declared) - _DECLARATION_FIELDS:
            return "unknown name in a function declaration"
        if fault := tool_problem(declared["name"], _schema_of(declared)):
            return fault
    if signed and (fault := _signature_problem(body["contents"])):
        return fault
    return _turns_problem(body["contents"], ids=ids)


def _signature_problem(contents: Sequence[Mapping[str, Any]]) -> str:
    """Check the first call of each step since the user's last message."""
    # ai.google.dev/gemini-api/docs/thought-signatures: earlier turns and parallel calls are not checked.
    current: list[Mapping[str, Any]] = []
    for content in contents:
        spoke = any("functionResponse" not in part for part in content.get("parts") or ())
        current = [] if content.get("role") == "user" and spoke else [*current, content]
    for content in current:
        call = next((part for part in content["parts"] if "functionCall" in part), None)
        if call is not None and call.get("thoughtSignature") not in (SIGNATURE, UNSIGNED):
            name = call["functionCall"]["name"]
            return (
                f"Function call is missing a thought_signature in functionCall parts. Function call `{name}`"
            )
    return ""


def _schema_of(declared: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the JSON schema of a tool, empty for a schema in Google's own format, which is not checked."""
    given = declared.get("parametersJsonSchema")
    return {"properties": {}, **given} if given else {}


def _turns_problem(contents: Sequence[Mapping[str, Any]], *, ids: bool) -> str:
    """Check that roles alternate, that calls follow the user or a result, and that results follow calls."""
    if contents[0].get("role") != "user":
        return "contents: the first one must be from the user"
    # Reported errors of the Gemini API and of Vertex (ai.google.dev/gemini-api/docs/text-generation says only
    # that contents are turns): older models refuse what newer ones take.
    roles = [content.get("role") for content in contents]
    if any(one == two for one, two in pairwise(roles)):
        return "Please ensure that multiturn requests alternate between user and model."
    if roles[-1] != "user":
        return "Please ensure that multiturn requests ends with a user role or a function response."
    pending: list[tuple[str, ...]] = []
    before = ""
    for number, content in enumerate(contents):
        role, parts = content.get("role"), content.get("parts") or ()
        if fault := _parts_problem(role, parts):
            return f"contents[{number}]: {fault}"
        used = [part[kind] for part in parts for kind in _PART_FIELDS[2:] if kind in part]
        # Vertex refuses the ids, also those of its own calls (github.com/vercel/ai/issues/15664).
        if not ids and any("id" in each for each in used):
            return (
                f'Invalid JSON payload received. Unknown name "id" at contents[{number}]: Cannot find field.'
            )
        answers = [_identity(part["functionResponse"]) for part in parts if "functionResponse" in part]
        if answers != pending:
            return f"contents[{number}]: function responses do not match the calls before them"
        pending = [_identity(part["functionCall"]) for part in parts if "functionCall" in part]
        if pending and before != "user":
            return f"contents[{number}]: a function call turn must come after a user turn"
        before = role
    return "function calls without responses" if pending else ""


def _identity(part: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(part[name] for name in ("id", "name") if name in part)


def _parts_problem(role: Any, parts: Sequence[Mapping[str, Any]]) -> str:
    if role not in ("user", "model") or not parts:
        return "unknown role or no parts"
    for part in parts:
        kinds = [kind for kind in _PART_FIELDS if kind in part]
        if len(kinds) != 1 or not part[kinds[0]]:
            return "required oneof field 'data' must have one initialized field"
        if "inlineData" in part and part["inlineData"]["mimeType"] not in _PICTURES:
            return f"Unsupported MIME type: {part['inlineData']['mimeType']}"
        if "functionCall" in part and not TOOL_NAME.fullmatch(part["functionCall"]["name"]):
            return "Invalid function name. Must start with a letter or an underscore."
        if (kinds[0] == "functionCall") != (role == "model") and kinds[0] in _PART_FIELDS[2:]:
            return f"{kinds[0]} is not allowed in a {role} turn"
    return ""


class GoogleDialect:
    """Gemini's protocol, at the paths of its own API or of Google Cloud."""

    content_type = "text/event-stream"
    stream_error = (
        b'data: {"error":{"code":503,"message":"The model is overloaded.","status":"UNAVAILABLE"}}\r\n\r\n'
    )
    refusals = {
        "too_long": Refusal(
            400, "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."
        ),
        "filtered": Refusal(400, "The request violates the content policy"),
        "no_model": Refusal(404, "models/x is not found for API version v1beta"),
        "overloaded": Refusal(503, "The model is overloaded. Please try again later."),
        "no_key": Refusal(400, "API key not valid. Please pass a valid API key."),
    }

    def __init__(self, path: str, models_path: str, models_route: str) -> None:
        self.path = path
        model = f"{models_path}/{{model}}"
        self.chat_routes = (f"{model}:streamGenerateContent", f"{model}:generateContent")
        self.models_route = models_route
        self._cloud = "projects" in models_path

    def key(self, headers: Mapping[str, str]) -> str:
        """Return the key in its own header, or the bearer token."""
        return key_in(headers)

    def problem(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> str:
        """Return the problem with a request, or an empty string."""
        signed = _SIGNED.search(path) is not None
        return problem(body, ids=not self._cloud, signed=signed)

    def parse(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> ModelRequest:
        """Return the request in the terms of scripts."""
        return parse_request(path, headers, body)

    def streams(self, request: ModelRequest) -> bool:
        """Return whether the path is that of a stream."""
        return request.path.endswith(":streamGenerateContent")

    def wire(self, request: ModelRequest, reply: Reply) -> GoogleWire:
        """Return the writer of a streamed answer."""
        return GoogleWire(reply)

    def answer_body(self, request: ModelRequest, reply: Reply) -> dict[str, Any]:
        """Return the answer as one JSON value."""
        parts: list[dict[str, Any]] = []
        for move in reply.moves:
            match move:
                case Say():
                    parts.append({"text": move.text})
                case Think():
                    parts.append({"text": move.text, "thought": True})
                case Use():
                    parts.append(call_part(move, signed=True))
                case UseTogether():
                    parts += [call_part(call, signed=not at) for at, call in enumerate(move.calls)]
                case _:
                    pass
        content = {"parts": parts, "role": "model"}
        candidate = {"content": content, "finishReason": _STOPS[reply.stop], "index": 0}
        return {"candidates": [candidate], "usageMetadata": tokens(reply)}

    def error(self, refusal: Refusal) -> dict[str, Any]:
        """Return an error body."""
        status = refusal.code or _STATUS.get(refusal.status, "UNKNOWN")
        return {"error": {"code": refusal.status, "message": refusal.message, "status": status}}

    def model_list(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the list of models, with one that cannot chat."""
        if self._cloud:
            return {"publisherModels": [{"name": f"publishers/google/models/{name}"} for name in names]}
        listed = [_model(name, "generateContent") for name in names]
        return {"models": [*listed, _model("fake-embedding", "embedContent")]}

    def event(self, kind: str, payload: bytes) -> bytes:
        """Return a server-sent event."""
        return sse(kind, payload)

    def text_event(self, literal: bytes) -> bytes:
        """Return an event with any JSON in place of its text."""
        return text_event(GoogleWire(Reply()), literal)


def _model(name: str, method: str) -> dict[str, Any]:
    return {
        "name": f"models/{name}",
        "displayName": name.title(),
        "inputTokenLimit": 1000,
        "outputTokenLimit": 100,
        "supportedGenerationMethods": [method],
    }


GOOGLE = GoogleDialect("/google", "/v1beta/models", "/v1beta/models")
VERTEX = GoogleDialect(
    "/vertex",
    "/v1beta1/projects/{project}/locations/{region}/publishers/google/models",
    "/v1beta1/publishers/google/models",
)
