"""The page of the fake Slack, and what its control interface can do."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from channels.slack.fake import files
from channels.slack.fake.people import said
from channels.slack.fake.state import Json, Room, Workspace
from gateway.testing.fake_platform import Control

if TYPE_CHECKING:
    from channels.slack.fake.server import FakeSlack


class SlackControl(Control):
    """The control interface. Who is sent to ``/?redir=`` gets the sign-in page."""

    def __init__(self, fake: FakeSlack) -> None:
        def open(chat: str, team: str | None = None) -> str:
            return fake.room(chat, team).id

        def say(chat: str, text: str, files: Mapping[str, str] | None = None, **given: Any) -> str:
            pairs = (files or {}).items()
            stored = [(name, base64.b64decode(data, validate=True)) for name, data in pairs]
            return fake.say(chat, text, files=stored, **given)

        def press(**given: Any) -> str:
            return fake.press(**given).envelope

        def is_acknowledged(envelope: str) -> bool:
            return fake.state.envelopes[envelope].acknowledged

        acts = (say, fake.edit, fake.delete, fake.react, press, fake.command, fake.stop, is_acknowledged)
        super().__init__(
            fake,
            Path(__file__).with_name("page"),
            lambda _most: _teams(fake),
            (*acts, fake.lose_sockets, open),
        )

    async def page(self, request: web.Request) -> web.StreamResponse:
        """Serve a file of the page, or the sign-in page."""
        return files.sign_in() if "redir" in request.query else await super().page(request)


def _teams(fake: FakeSlack) -> Json:
    teams = [_team(fake, team) for team in fake.state.teams.values()]
    failure = fake.notices[-1][1] if fake.notices else None
    return {"teams": teams, "failures": len(fake.notices), "failure": failure}


def _team(fake: FakeSlack, team: Workspace) -> Json:
    rooms = [_room(fake, team, room) for room in team.rooms.values()]
    names = {user.id: user.name for user in team.users.values()}
    persons = [user.name for user in team.users.values() if not user.is_bot]
    bot = team.bot.name if team.bot else None
    return {"id": team.id, "name": team.name, "bot": bot, "users": persons, "names": names, "rooms": rooms}


def _room(fake: FakeSlack, team: Workspace, room: Room) -> Json:
    members = [team.users[one].name for one in sorted(room.members) if one in team.users]
    shown = [msgspec.to_builtins(said(fake.state, room, message)) for message in room.messages.values()]
    hidden = [
        {**msgspec.to_builtins(said(fake.state, room, one)), "only_for": team.users[user].name}
        for user, ones in room.hidden.items()
        for one in ones
    ]
    status = {
        root: text
        for (where, root), (text, until) in fake.state.statuses.items()
        if where == room.id and fake.clock.now() < until
    }
    sessions = {
        root: {"status": session.status, "title": session.title}
        for (where, root), session in fake.state.sessions.items()
        if where == room.id
    }
    return {
        "id": room.id,
        "name": room.name,
        "kind": room.kind,
        "members": members,
        "messages": sorted([*shown, *hidden], key=lambda one: one["ts"]),
        "status": status,
        "sessions": sessions,
    }
