"""Calls of the Web API: arguments checked against ``schema.json``, and the errors that answer them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, cast

from msgspec import Struct, field

from channels.slack.fake.state import SCOPE_FAMILY, Chat, Grant, Json, State, Workspace
from gateway.testing.fake_platform import Finding, Refusal, Schemas


class RefusalError(Refusal):
    """Answer with ``ok: false``. ``more`` holds its other fields.

    Without ``problem``, it is a normal answer (such as ``channel_not_found``) and not a mistake of the app.
    """

    def __init__(self, error: str, problem: str | None = None, **more: Any) -> None:
        super().__init__(error, problem)
        self.error = error
        self.more = more


def invalid(message: str, error: str = "invalid_arguments") -> RefusalError:
    """Return the refusal of an argument, with Slack's message about it."""
    text = f"[ERROR] {message}"
    return RefusalError(error, message, response_metadata={"messages": [text]})


def objects(value: object, name: str) -> list[Json]:
    """Return an argument that must be a non-empty list of objects. Raises RefusalError."""
    if not isinstance(value, list) or not value:
        raise invalid(f"must provide an array [json-pointer:/{name}]")
    for number, one in enumerate(cast(list[object], value)):
        if not isinstance(one, dict):
            raise invalid(f"must provide an object [json-pointer:/{name}/{number}]")
    return cast(list[Json], value)


class Call(Struct, kw_only=True):
    """Authorized call. ``notes`` collects mistakes that do not refuse it; ``warnings`` go to the app."""

    state: State
    method: str
    arguments: Json
    grant: Grant
    notes: list[str] = field(default_factory=list[str])
    warnings: list[str] = field(default_factory=list[str])

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def get(self, name: str, otherwise: Any = None) -> Any:
        """Return an argument, or ``otherwise`` if it is not given."""
        return self.arguments.get(name, otherwise)

    @property
    def team(self) -> Workspace:
        """Workspace of the token."""
        return self.state.teams[self.grant.team]

    def chat(self, name: str = "channel", *, inside: bool = True) -> Chat:
        """Return the chat that an argument names by id or ``#name``. ``inside`` requires membership.

        Raises RefusalError ``channel_not_found``, also for private chats without membership, or
        ``not_in_channel``.
        """
        chat = self.team.chat_named(str(self.arguments.get(name, "")))
        if chat is None or (chat.kind != "channel" and self.grant.user not in chat.members):
            raise RefusalError("channel_not_found")
        if inside and self.grant.user not in chat.members:
            raise RefusalError("not_in_channel")
        return chat

    def need(self, chat: Chat, act: str) -> None:
        """Raise RefusalError ``missing_scope`` unless the token has the chat kind's scope, such as
        ``im:history``.
        """
        self.need_scope(f"{SCOPE_FAMILY[chat.kind]}:{act}")

    def need_scope(self, *any_of: str) -> None:
        """Raise RefusalError ``missing_scope`` unless the token has one of these scopes."""
        if not self.grant.scopes.intersection(any_of):
            provided = ",".join(sorted(self.grant.scopes))
            raise RefusalError("missing_scope", needed=",".join(any_of), provided=provided)

    def own(self, chat: Chat, ts: str, *, otherwise: str) -> Json:
        """Return a message of the caller. Raises RefusalError ``message_not_found`` or ``otherwise``."""
        message = chat.messages.get(ts)
        if message is None or message.get("subtype") == "tombstone":
            raise RefusalError("message_not_found")
        if message.get("user") != self.grant.user:
            raise RefusalError(otherwise, "the message has another author")
        return message


UNDOCUMENTED = frozenset({"client_msg_id", "team_id"})
"""Arguments that official clients send although they are not documented."""

_BAD_JSON = {
    "blocks": "invalid_blocks_format",
    "chunks": "invalid_chunks",
    "metadata": "invalid_metadata_format",
    "attachments": "invalid_attachments",
}
_TRUE, _FALSE = (1, "1", "true", "True"), (0, "0", "false", "False", "")
_KINDS = {"string": "a string", "boolean": "a boolean", "array": "an array"}


class Method(Struct, frozen=True):
    """Method of the Web API. Tier 5 has its own rate limit; ``json`` is whether it accepts a JSON body."""

    tier: int
    json: bool
    scopes: tuple[str, ...]
    errors: frozenset[str]


@cache
def schemas() -> Schemas:
    """Return the published schemas of the methods."""
    return Schemas.beside(__file__)


@cache
def methods() -> Mapping[str, Method]:
    """Return all methods by name."""
    return {
        name: Method(facts["tier"], facts["json"], tuple(facts["scopes"]), frozenset(facts["errors"]))
        for name, facts in schemas().at("methods").items()
    }


def arguments(name: str, given: Mapping[str, Any], notes: list[str]) -> Json:
    """Return the arguments of a call, converted to the types of its method.

    Unknown arguments are ignored, as by Slack, and added to ``notes``. Raises RefusalError.
    """
    schema = schemas().at("methods", name, "arguments")
    known = schema["properties"]
    notes += [f"unknown argument {key}" for key in given if key not in known and key not in UNDOCUMENTED]
    missing = [key for key in schema.get("required", ()) if given.get(key) is None]
    if missing:
        raise invalid(f"missing required field: {missing[0]}")
    return values(name, given)


def values(name: str, given: Mapping[str, Any]) -> Json:
    """Return the known arguments of a method, converted to its types. Raises RefusalError."""
    known = schemas().at("methods", name, "arguments", "properties")
    found: Json = {}
    for key, value in given.items():
        if key in known and value is not None:
            found[key] = _value(key, known[key].get("type"), value)
            place = ("methods", name, "arguments", "properties", key)
            for finding in schemas().check(found[key], *place):
                raise invalid(f"{_words(finding)} [json-pointer:/{key}]")
    return found


def _value(name: str, kind: str | None, value: object) -> object:
    """Convert an argument from a form or JSON to its type; return it unchanged if it does not fit."""
    match kind:
        case None | "array":
            return _parsed(name, value)
        case "boolean" if not isinstance(value, bool) and value in _TRUE:
            return True
        case "boolean" if not isinstance(value, bool) and value in _FALSE:
            return False
        case "integer" | "number" if isinstance(value, str):
            try:
                return int(value)
            except ValueError:
                return value
        case _:
            return value


def _parsed(name: str, value: object) -> object:
    if not isinstance(value, str) or (name == "file_ids" and not value.startswith("[")):
        return value
    try:
        return json.loads(value)
    except ValueError:
        error = _BAD_JSON.get(name, "invalid_arguments")
        raise RefusalError(error, f"{name} is not JSON") from None


def _words(found: Finding) -> str:
    """Return a finding in Slack's words."""
    schema = found.schema
    match found.keyword:
        case "type" if not found.at:
            return f"must provide {_KINDS.get(schema['type'], 'a number')}"
        case "enum":
            return f"must be one of: {', '.join(schema['enum'])}"
        case "minLength":
            return f"must be more than {schema['minLength'] - 1} characters"
        case "minItems" | "maxItems":
            return f"no more than {schema['maxItems']} items allowed"
        case "minimum":
            return f"must be at least {schema['minimum']}"
        case "maximum":
            return f"must be at most {schema['maximum']}"
        case _:
            return f"must be less than {schema['maxLength'] + 1} characters"
