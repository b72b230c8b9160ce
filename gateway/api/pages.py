"""Requests below ``/plugins/NAME``, which a plugin reads and answers itself, byte by byte.

In: requests of anyone who reaches the gateway, without its token and without cookies. Out: answers, whose
headers the server adds a strict policy to. ``extensions`` and ``server`` use these types, and plugins that
have such routes: those in their own process, and webhooks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct


class RawRequest(Struct, frozen=True):
    """A request below the path of a plugin. ``path`` follows that; names of headers are in lower case.

    ``user`` is the holder of the token, "" if the routes are public.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    user: str


class RawResponse(Struct, frozen=True):
    """An answer, with the headers that it may have."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@runtime_checkable
class AnswersHttp(Protocol):
    """A plugin that answers requests under ``/plugins/NAME``."""

    @property
    def name(self) -> str:
        """The name of the plugin."""
        ...

    @property
    def pages(self) -> Sequence[tuple[str, str]]:
        """Method and path of each route; none without the grant."""
        ...

    @property
    def is_public(self) -> bool:
        """Return whether requests need no token."""
        ...

    def is_ready(self) -> bool:
        """Return whether the plugin can answer now."""
        ...

    async def answer_http(self, request: RawRequest) -> RawResponse:
        """Answer a request. Raises TrunklineError."""
        ...
