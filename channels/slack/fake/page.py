"""The page at ``/`` and what it asks for under ``/_fake/``: rooms, what persons do, and the transcript."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web
from msgspec import Struct

from channels.slack.fake import files
from channels.slack.fake.reading import said
from channels.slack.fake.workspace import Json, Room, Workspace

if TYPE_CHECKING:
    from channels.slack.fake.server import FakeSlack

_FILES = Path(__file__).parent / "page"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_LONGEST_POLL = 25.0
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_LAST_CALLS = 200


class Act(Struct, frozen=True, kw_only=True):
    """What a person does on the page."""

    do: str
    chat: str = ""
    user: str = "ada"
    text: str = ""
    ts: str = ""
    thread: str | None = None
    option: str | None = None
    team: str | None = None


def add_routes(app: web.Application, fake: FakeSlack) -> None:
    """Serve the page and its control endpoints."""

    async def rooms(_request: web.Request) -> web.Response:
        return _answer(_rooms(fake))

    async def changes(request: web.Request) -> web.Response:
        after = int(request.query.get("after", "-1"))
        try:
            version = await fake.state.news(after, seconds=_LONGEST_POLL)
        except TimeoutError:
            version = fake.state.version
        return _answer({"version": version})

    async def act(request: web.Request) -> web.Response:
        if request.content_type != "application/json":  # a form of another page cannot send this
            return _answer({"error": "JSON, please"}, 415)
        try:
            done = _act(fake, msgspec.json.decode(await request.read(), type=Act))
        except (msgspec.DecodeError, LookupError, ValueError) as wrong:
            return _answer({"error": str(wrong)}, 400)
        return _answer({"ok": True, "ts": done if isinstance(done, str) else None})

    async def transcript(_request: web.Request) -> web.Response:
        calls = [msgspec.to_builtins(call) for call in fake.transcript.calls[-_LAST_CALLS:]]
        return _answer({"calls": calls, "problems": fake.transcript.problems})

    app.router.add_get("/_fake/rooms", rooms)
    app.router.add_get("/_fake/changes", changes)
    app.router.add_post("/_fake/act", act)
    app.router.add_get("/_fake/transcript", transcript)
    app.router.add_get("/_fake/page/{name}", _file)
    app.router.add_get("/", _front)


def _act(fake: FakeSlack, given: Act) -> object:
    acts: dict[str, Callable[[], object]] = {
        "say": lambda: fake.say(given.chat, given.text, given.user, thread=given.thread, team=given.team),
        "edit": lambda: fake.edit(given.chat, given.ts, given.text, given.user),
        "delete": lambda: fake.delete(given.chat, given.ts),
        "react": lambda: fake.react(given.chat, given.ts, given.text, given.user),
        "press": lambda: fake.press(given.chat, given.ts, given.text, given.user, option=given.option),
        "command": lambda: fake.command(given.chat, given.text, given.user),
        "stop": lambda: fake.stop(given.chat, given.ts, given.user),
        "lose_sockets": fake.lose_sockets,
        "open": lambda: fake.room(given.chat, given.team),
    }
    if given.do not in acts:
        raise ValueError(f"nobody can {given.do!r}")
    return acts[given.do]()


def _rooms(fake: FakeSlack) -> Json:
    teams = [_team(fake, team) for team in fake.state.teams.values()]
    failure = fake.notices[-1][1] if fake.notices else None
    return {
        "version": fake.state.version,
        "teams": teams,
        "failures": len(fake.notices),
        "failure": failure,
    }


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


async def _front(request: web.Request) -> web.Response:
    if "redir" in request.query:
        return files.sign_in()
    return await _served("index.html")


async def _file(request: web.Request) -> web.Response:
    return await _served(request.match_info["name"])


async def _served(name: str) -> web.Response:
    path = _FILES / name
    if path.parent != _FILES or path.suffix not in _TYPES or not path.is_file():
        return web.Response(status=404, text="not found")
    headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-store"}
    return web.Response(
        body=path.read_bytes(), content_type=_TYPES[path.suffix], charset="utf-8", headers=headers
    )


def _answer(content: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), status=status, content_type="application/json")
