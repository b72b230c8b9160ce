"""The server's side of a vendor's protocol, as a fake model server needs it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, cast, runtime_checkable

from gateway.testing.fake_models.script import ModelRequest, Refusal, Reply, Say, Think


class Wire(Protocol):
    """The writer of one streamed answer."""

    def begin(self) -> bytes:
        """Return the bytes before the first move."""
        ...

    def events(self, move: Any) -> Iterable[bytes]:
        """Return the events of a Say, Think, Use, UseTogether or Count."""
        ...

    def end(self, reply: Reply) -> bytes:
        """Return the stop reason, the usage and the end."""
        ...


class Dialect(Protocol):
    """A protocol at ``path`` of a fake server. Routes are aiohttp's, below that path.

    ``refusals`` are the vendor's own error responses: ``too_long``, ``filtered``, ``no_model`` and
    ``overloaded``; ``stream_error`` is an error event in the middle of a stream.
    """

    @property
    def path(self) -> str: ...
    @property
    def chat_routes(self) -> Sequence[str]: ...
    @property
    def models_route(self) -> str: ...
    @property
    def content_type(self) -> str: ...
    @property
    def refusals(self) -> Mapping[str, Refusal]: ...
    @property
    def stream_error(self) -> bytes: ...

    def key(self, headers: Mapping[str, str]) -> str:
        """Return the API key of a request."""
        ...

    def problem(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> str:
        """Return the problem for which the real service would refuse a request, or an empty string."""
        ...

    def parse(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> ModelRequest:
        """Return the request in the terms of scripts."""
        ...

    def streams(self, request: ModelRequest) -> bool:
        """Return whether the request is for a stream."""
        ...

    def wire(self, request: ModelRequest, reply: Reply) -> Wire:
        """Return the writer of a streamed answer."""
        ...

    def answer_body(self, request: ModelRequest, reply: Reply) -> Any:
        """Return the answer as one JSON value."""
        ...

    def error(self, refusal: Refusal) -> Any:
        """Return the body of a refusal, as a JSON value."""
        ...

    def model_list(self, names: Sequence[str]) -> Any:
        """Return the list of models, as a JSON value."""
        ...

    def event(self, kind: str, payload: bytes) -> bytes:
        """Return an event of any kind, with any bytes in it."""
        ...

    def text_event(self, literal: bytes) -> bytes:
        """Return an event with any JSON in place of its text."""
        ...


@runtime_checkable
class PublicList(Protocol):
    """A dialect with a public list of models; only another path checks the key."""

    @property
    def key_path(self) -> str:
        """The whole path that checks the key; empty if the list of models checks it after all."""
        ...


@runtime_checkable
class TriesSocket(Protocol):
    """A dialect whose program tries a WebSocket first. The fake server has none, and says so."""

    @property
    def socket_route(self) -> str:
        """The route of the WebSocket, which is refused with 426: the program uses HTTP then, at once."""
        ...


TOOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


def tool_problem(name: str, schema: Any) -> str:
    """Return the problem with a tool: its name, a root that is not an object, an array without items."""
    if not TOOL_NAME.fullmatch(name):
        return f"tool name {name!r} must match {TOOL_NAME.pattern}"
    if not schema:
        return ""
    if schema.get("type") != "object" or not isinstance(schema.get("properties"), dict):
        return f"Invalid schema for function {name!r}: schema must be of type object, with properties"
    if wrong := sorted({"anyOf", "oneOf", "allOf", "enum", "not"} & set(schema)):
        return f"Invalid schema for function {name!r}: no {wrong[0]} at the top level"
    if set(schema.get("required", ())) - set(schema["properties"]):
        return f"Invalid schema for function {name!r}: what is required is not a property"
    return f"Invalid schema for function {name!r}: array schema missing items" if _lacks_items(schema) else ""


def _lacks_items(schema: Any) -> bool:
    if isinstance(schema, list):
        return any(map(_lacks_items, cast("list[Any]", schema)))
    if not isinstance(schema, dict):
        return False
    table = cast("dict[str, Any]", schema)
    return (table.get("type") == "array" and "items" not in table) or any(map(_lacks_items, table.values()))


def key_in(headers: Mapping[str, str]) -> str:
    """Return the key in any of the usual headers."""
    for name in ("x-api-key", "api-key", "x-goog-api-key"):
        if name in headers:
            return headers[name]
    return headers.get("authorization", "").removeprefix("Bearer ")


def sse(kind: str, payload: bytes) -> bytes:
    """Return a server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), payload)


def text_event(wire: Wire, literal: bytes) -> bytes:
    """Return the events of a text, with any JSON in place of the text."""
    return b"".join(wire.events(Say("?#?"))).replace(b'"?#?"', literal)


def text_in(reply: Reply, kind: type[Say] | type[Think]) -> str:
    """Return all text of an answer, or of its reasoning."""
    return "".join(move.text for move in reply.moves if isinstance(move, kind))
