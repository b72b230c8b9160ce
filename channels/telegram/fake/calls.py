"""A call of the bot: read from a form, JSON, a multipart body or the query; and the refusal of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import web
from msgspec import Struct

from gateway.testing.fake_platform import Refusal


class Refused(Refusal):
    """An answer with ``ok: false``.

    ``parameters`` are the platform's hints: ``retry_after`` (seconds), ``migrate_to_chat_id``.
    """

    is_counted = True
    """The call counts against the rate limits of its chat."""

    def __init__(
        self, description: str, code: int = 400, problem: str | None = None, **parameters: int
    ) -> None:
        super().__init__(description, problem)
        self.description = description
        self.code = code
        self.parameters = parameters


class NotReached(Refused):
    """A refusal by the server of the Bot API, before the call reaches the chat and its rate limits.

    That server looks a message up before it asks for it to be edited.
    """

    is_counted = False


def bad(text: str) -> Refused:
    """Return the refusal of a well-formed request for something that does not exist or is not allowed."""
    return Refused(f"Bad Request: {text}")


def mistaken(text: str, rule: str | None = None) -> Refused:
    """Return the refusal of a request that breaks a rule; ``rule`` names it where ``text`` does not."""
    return Refused(f"Bad Request: {text}", problem=rule or text)


def forbidden(text: str) -> Refused:
    """Return the refusal of something that the bot may not do."""
    return Refused(f"Forbidden: {text}", 403)


MOST_BYTES = 50 * 1024 * 1024
"""The most that a bot may upload in one request."""


class Upload(Struct, frozen=True):
    """A file in a request. ``name`` is what the client calls it."""

    name: str
    data: bytes
    mime: str


class Request(Struct, frozen=True):
    """A call whose arguments have the types of its method.

    ``remarks`` are rules that it breaks although the platform accepts it, such as an unknown parameter.
    """

    method: str
    arguments: Mapping[str, Any]
    uploads: Mapping[str, Upload] = {}
    remarks: tuple[str, ...] = ()

    def get(self, name: str, otherwise: Any = None) -> Any:
        """Return an argument, or ``otherwise`` if it is not given."""
        return self.arguments.get(name, otherwise)

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]


async def read(request: web.Request) -> tuple[dict[str, str], dict[str, Upload]]:
    """Return the arguments of an HTTP request as text, and its files. Raises Refused."""
    texts = dict(request.query)
    uploads: dict[str, Upload] = {}
    try:
        if request.content_type == "application/json":
            return texts | from_json(await request.read()), uploads
        for name, value in (await request.post()).items():
            if isinstance(value, web.FileField):
                uploads[name] = Upload(value.filename, value.file.read(), value.content_type)
            else:
                texts[name] = value if isinstance(value, str) else value.decode()
    except web.HTTPRequestEntityTooLarge:
        raise Refused("Request Entity Too Large", 413, problem="more than 50 MB in one request") from None
    if sum(len(upload.data) for upload in uploads.values()) > MOST_BYTES:
        raise Refused("Request Entity Too Large", 413, problem="more than 50 MB in one request")
    return texts, uploads


def from_json(body: bytes) -> dict[str, str]:
    """Return the arguments of a JSON body as a form would hold them. Raises Refused."""
    try:
        given = msgspec.json.decode(body, type=dict[str, Any]) if body.strip() else {}
    except msgspec.DecodeError:
        raise mistaken("can't parse JSON object") from None
    return {name: _as_text(value) for name, value in given.items() if value is not None}


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()
