"""What a fake model server speaks: one vendor's protocol, seen from the server's side."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, cast, runtime_checkable

from gateway.testing.fake_models.script import Asked, Refusal, Reply, Say, Think


class Wire(Protocol):
    """Writes one streamed answer. Made afresh for each."""

    def begin(self) -> bytes:
        """What comes before the first move."""
        ...

    def events(self, move: Any) -> Iterable[bytes]:
        """The events of a Say, Think, Use or UseTogether."""
        ...

    def end(self, reply: Reply) -> bytes:
        """Why the model stopped, what it took, and the end."""
        ...


class Dialect(Protocol):
    """A protocol at ``path`` of a fake server. Routes are aiohttp's, below that path.

    ``troubles`` are refusals in the vendor's own words: ``too_long``, ``filtered``, ``no_model`` and
    ``overloaded``; ``trouble`` is an event that tells of a failure in the middle of a stream.
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
    def troubles(self) -> Mapping[str, Refusal]: ...
    @property
    def trouble(self) -> bytes: ...

    def key(self, headers: Mapping[str, str]) -> str:
        """The key that a request shows."""
        ...

    def problem(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> str:
        """What the real service would refuse about a request, in words; empty if nothing."""
        ...

    def asked(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> Asked:
        """The request in the terms of scripts."""
        ...

    def streams(self, asked: Asked) -> bool:
        """Whether a stream was asked for."""
        ...

    def wire(self, asked: Asked, reply: Reply) -> Wire:
        """What writes the answer as a stream."""
        ...

    def whole(self, asked: Asked, reply: Reply) -> Any:
        """The answer as one JSON value."""
        ...

    def error(self, refusal: Refusal) -> Any:
        """The body of a refusal, as a JSON value."""
        ...

    def listed(self, names: Sequence[str]) -> Any:
        """The list of models, as a JSON value."""
        ...

    def event(self, kind: str, payload: bytes) -> bytes:
        """An event of any kind, with any bytes in it."""
        ...

    def saying(self, literal: bytes) -> bytes:
        """An event whose text is this JSON, whatever it is."""
        ...


@runtime_checkable
class PublicList(Protocol):
    """A dialect whose service lists its models for everybody; only elsewhere does it want a right key."""

    @property
    def key_path(self) -> str:
        """The whole path of that; empty if the list needs a key after all."""
        ...


TOOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


def tool_problem(name: str, schema: Any) -> str:
    """What services refuse about a tool: its name, a root that is no plain object, lists of anything."""
    if not TOOL_NAME.fullmatch(name):
        return f"tool name {name!r} must match {TOOL_NAME.pattern}"
    if not schema:
        return ""
    if schema.get("type") != "object" or not isinstance(schema.get("properties"), dict):
        return f"Invalid schema for function {name!r}: schema must be of type object, with properties"
    if wrong := sorted({"anyOf", "oneOf", "allOf", "enum", "not"} & set(schema)):
        return f"Invalid schema for function {name!r}: no {wrong[0]} at the top level"
    if set(schema.get("required", ())) - set(schema["properties"]):
        return f"Invalid schema for function {name!r}: what is required is no property"
    return f"Invalid schema for function {name!r}: array schema missing items" if _lacks_items(schema) else ""


def _lacks_items(schema: Any) -> bool:
    if isinstance(schema, list):
        return any(map(_lacks_items, cast("list[Any]", schema)))
    if not isinstance(schema, dict):
        return False
    table = cast("dict[str, Any]", schema)
    return (table.get("type") == "array" and "items" not in table) or any(map(_lacks_items, table.values()))


def shown_key(headers: Mapping[str, str]) -> str:
    """The key in whichever of the usual headers it stands."""
    for name in ("x-api-key", "api-key", "x-goog-api-key"):
        if name in headers:
            return headers[name]
    return headers.get("authorization", "").removeprefix("Bearer ")


def sse(kind: str, payload: bytes) -> bytes:
    """A server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), payload)


def saying(wire: Wire, literal: bytes) -> bytes:
    """The events of a text, with any JSON in the place of the text."""
    return b"".join(wire.events(Say("?#?"))).replace(b'"?#?"', literal)


def said_by(reply: Reply, kind: type[Say] | type[Think]) -> str:
    """All the text of an answer, or of its reasoning."""
    return "".join(move.text for move in reply.moves if isinstance(move, kind))
