"""What a fake model server speaks: one vendor's protocol, seen from the server's side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from gateway.testing.script import Asked, Refusal, Reply, Say, Think


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


def shown_key(headers: Mapping[str, str]) -> str:
    """The key in whichever of the usual headers it stands."""
    for name in ("x-api-key", "api-key", "x-goog-api-key"):
        if name in headers:
            return headers[name]
    return headers.get("authorization", "").removeprefix("Bearer ")


def said_by(reply: Reply, kind: type[Say] | type[Think]) -> str:
    """All the text of an answer, or of its reasoning."""
    return "".join(move.text for move in reply.moves if isinstance(move, kind))
