"""A call of the Web API as its method sees it, and the refusals that answer it."""

from __future__ import annotations

from typing import Any, cast

from msgspec import Struct, field

from channels.slack.fake.state import SCOPE_FAMILY, Grant, Json, Room, State, Workspace
from gateway.testing.fake_platform import Refusal


class RefusalError(Refusal):
    """An answer with ``ok: false``; ``more`` are its further fields.

    A thing that does not exist (``channel_not_found``) is an answer, not a broken rule.
    """

    def __init__(self, error: str, problem: str | None = None, **more: Any) -> None:
        super().__init__(error, problem)
        self.error = error
        self.more = more


def invalid(message: str, error: str = "invalid_arguments") -> RefusalError:
    """The refusal of an argument, with the message that names it."""
    told = f"[ERROR] {message}"
    return RefusalError(error, message, response_metadata={"messages": [told]})


def objects(value: object, name: str) -> list[Json]:
    """An argument that is a list of objects, with at least one. Raises RefusalError."""
    if not isinstance(value, list) or not value:
        raise invalid(f"must provide an array [json-pointer:/{name}]")
    for number, one in enumerate(cast(list[object], value)):
        if not isinstance(one, dict):
            raise invalid(f"must provide an object [json-pointer:/{name}/{number}]")
    return cast(list[Json], value)


class Asked(Struct, kw_only=True):
    """A call. ``notes`` collects what was wrong although it is answered; ``warnings`` go to the app."""

    state: State
    method: str
    arguments: Json
    grant: Grant
    notes: list[str] = field(default_factory=list[str])
    warnings: list[str] = field(default_factory=list[str])

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def get(self, name: str, otherwise: Any = None) -> Any:
        """An argument, if it was given."""
        return self.arguments.get(name, otherwise)

    @property
    def team(self) -> Workspace:
        """The workspace that the token is for."""
        return self.state.teams[self.grant.team]

    def room(self, name: str = "channel", *, inside: bool = True) -> Room:
        """The room that an argument names, by id or ``#name``. ``inside``: the caller has to be in it.

        Raises RefusalError ``channel_not_found`` or ``not_in_channel``; a private room's existence is no
        stranger's business.
        """
        room = self.team.named(str(self.arguments.get(name, "")))
        if room is None or (room.kind != "channel" and self.grant.user not in room.members):
            raise RefusalError("channel_not_found")
        if inside and self.grant.user not in room.members:
            raise RefusalError("not_in_channel")
        return room

    def need(self, room: Room, act: str) -> None:
        """Raises RefusalError ``missing_scope`` without this kind of room's scope, as ``im:history``."""
        self.need_scope(f"{SCOPE_FAMILY[room.kind]}:{act}")

    def need_scope(self, *any_of: str) -> None:
        """Raises RefusalError ``missing_scope`` without any of these scopes."""
        if not self.grant.scopes.intersection(any_of):
            provided = ",".join(sorted(self.grant.scopes))
            raise RefusalError("missing_scope", needed=",".join(any_of), provided=provided)

    def own(self, room: Room, ts: str, *, otherwise: str) -> Json:
        """A message of the caller. Raises RefusalError ``message_not_found`` or ``otherwise``."""
        message = room.messages.get(ts)
        if message is None or message.get("subtype") == "tombstone":
            raise RefusalError("message_not_found")
        if message.get("user") != self.grant.user:
            raise RefusalError(otherwise, "the message is another's")
        return message
