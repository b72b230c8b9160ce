"""The fake homeserver: the client-server API as far as the channel uses it, strict about its rules.

It knows faults of calls, 429 with a wait that it insists on, events twice, limited timelines, another access
token, and any event that a test injects. It has no page; programs write to the bot by ``POST /_fake/say``.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Unpack
from urllib.parse import unquote

from aiohttp import web

from channels.matrix.fake.state import BOT, SERVER, Room, State, complaint, relation
from gateway.testing.fake_platform import (
    Clock,
    Control,
    FakeServer,
    Fault,
    Patience,
    ServerOptions,
    announce,
    as_json,
    cut,
    options,
)

Json = dict[str, Any]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_RETRY_MS, _RETRY_JOIN_MS = 150, 1_500
_MOST_FILE = 1_000_000
_MOST_EVENTS = 100
_KEPT = ("msgtype", "filename", "url", "info")
"""Fields of a message that stay when its text is edited."""


class FakeMatrix(FakeServer, State):
    """A homeserver with the bot, Ada, Ben, a direct chat of Ada with the bot, and a room."""

    def __init__(self, **options: Unpack[ServerOptions]) -> None:
        FakeServer.__init__(self, Clock(), options)
        State.__init__(self)
        self.token = "token-1"  # noqa: S105 - of the fake
        self.refused_joins = 0
        self.slow_joins = False
        self.proxy_bytes = 100_000_000
        """Largest upload that a proxy before the homeserver accepts."""
        self.timeline = _MOST_EVENTS
        """Most events of a room in an answer to ``/sync``."""
        self.broken: set[str] = set()
        self.typing: list[str] = []
        self.receipts: list[str] = []
        self.left: list[tuple[str, str]] = []
        self._patience = Patience(self.clock, grace=0.05)
        self._transactions: dict[tuple[str, str, str], str] = {}
        ada, ben = f"@ada:{SERVER}", f"@ben:{SERVER}"
        self.direct = self.create(ada, direct=True)
        self.room = self.create(ada, name="Team")
        self.join(self.room, ben)

    def changed(self) -> None:
        """Wake the clients that wait."""
        self.changes.bump()

    def say(self, text: str, *, user: str = "ada", room: Room | None = None, **content: Any) -> str:
        """Write a message of a user. Return its event id."""
        made = {"msgtype": "m.text", "body": text, **content}
        return str((room or self.direct).put("m.room.message", f"@{user}:{SERVER}", made)["event_id"])

    def edit(self, event: str, text: str, *, user: str = "ada", room: Room | None = None) -> str:
        """Edit a message."""
        related = {"rel_type": "m.replace", "event_id": event}
        found = (room or self.direct).find(event)
        before: Json = {"msgtype": "m.text", **(found["content"] if found else {})}
        new = {**{key: before[key] for key in _KEPT if key in before}, "body": text}
        return self.say(f"* {text}", user=user, room=room, **{"m.new_content": new, "m.relates_to": related})

    def react(self, event: str, key: str, *, user: str = "ada", room: Room | None = None) -> str:
        """React to an event. Return the id of the reaction."""
        related = {"rel_type": "m.annotation", "event_id": event, "key": key}
        content = {"m.relates_to": related}
        return str((room or self.direct).put("m.reaction", f"@{user}:{SERVER}", content)["event_id"])

    def remove(self, event: str, *, user: str = "ada", room: Room | None = None) -> str:
        """Delete a message as a user. Return the id of the redaction."""
        return str((room or self.direct).redact(event, f"@{user}:{SERVER}")["event_id"])

    def open(self, user: str, name: str = "") -> str:
        """Create a room as a user and invite the bot: a direct chat if it has no name. Return its id."""
        return self.create(f"@{user}:{SERVER}", direct=not name, name=name).id

    def keep(self, mime_type: str, data: bytes) -> str:
        """Store a file. Return its URI."""
        name = f"file{next(self.ids)}"
        self.files[name] = (mime_type, data)
        return f"mxc://{SERVER}/{name}"

    async def start(self, stack: AsyncExitStack) -> None:
        """Start nothing else."""

    def routes(self) -> web.Application:
        """Return the application that serves the API."""
        app = web.Application(client_max_size=4 * _MOST_FILE)
        actions = (self.say, self.edit, self.remove, self.react, self.open, self.keep)
        Control(self, None, self._shown, actions, self._argument).add_to(app)
        v3, room = "/_matrix/client/v3", "/_matrix/client/v3/rooms/{room}"
        routes: Sequence[tuple[str, str, Handler]] = (
            ("GET", f"{v3}/account/whoami", self._whoami),
            ("GET", f"{v3}/profile/{{user}}/displayname", self._profile),
            ("GET", f"{v3}/sync", self._sync),
            ("GET", f"{v3}/user/{{user}}/account_data/{{type}}", self._get_data),
            ("PUT", f"{v3}/user/{{user}}/account_data/{{type}}", self._put_data),
            ("GET", f"{v3}/user/{{user}}/rooms/{{room}}/account_data/{{type}}", self._get_data),
            ("PUT", f"{v3}/user/{{user}}/rooms/{{room}}/account_data/{{type}}", self._put_data),
            ("POST", f"{room}/join", self._join),
            ("POST", f"{v3}/join/{{room}}", self._join),
            ("POST", f"{room}/leave", self._leave),
            ("GET", f"{room}/members", self._members),
            ("GET", f"{room}/messages", self._messages),
            ("GET", f"{room}/event/{{event}}", self._event),
            ("GET", f"{room}/context/{{event}}", self._context),
            ("GET", f"{room}/state/{{type}}", self._state_event),
            ("GET", f"{room}/state/{{type}}/{{key}}", self._state_event),
            ("PUT", f"{room}/send/{{type}}/{{txn}}", self._send),
            ("PUT", f"{room}/redact/{{event}}/{{txn}}", self._redact),
            ("PUT", f"{room}/typing/{{user}}", self._typing),
            ("POST", f"{room}/receipt/{{kind}}/{{event}}", self._receipt),
            ("GET", "/_matrix/client/v1/rooms/{room}/relations/{event}/{rel}", self._relations),
            ("GET", "/_matrix/client/v1/media/config", self._media_config),
            ("GET", "/_matrix/client/v1/media/download/{server}/{name}", self._download),
            ("POST", "/_matrix/media/v3/upload", self._upload),
        )
        for method, path, handler in routes:
            app.router.add_route(method, path, self._guarded(handler))
        return app

    def _shown(self, most: int) -> Json:
        rooms = [{"id": room.id, "messages": room.messages()[-most:]} for room in self.rooms.values()]
        return {"bot": BOT, "rooms": rooms}

    def _argument(self, name: str, value: Any) -> Any:
        if name == "data":
            return base64.b64decode(value, validate=True)
        return self.rooms[value] if name == "room" else value

    def _guarded(self, handler: Handler) -> Handler:
        async def call(request: web.Request) -> web.StreamResponse:
            if request.headers.get("Authorization") != f"Bearer {self.token}":
                return _error(401, "M_UNKNOWN_TOKEN", "unknown token")
            room = self._room(request) if "room" in request.match_info else None
            invited = (
                request.path.endswith(("/join", "/leave"))
                or "/join/" in request.path
                or "/account_data/" in request.path
            )
            if room is not None and room.membership(BOT) != "join" and not invited:
                return _error(403, "M_FORBIDDEN", "not in the room")
            if handler == self._send:  # it has faults of its own, and patience
                return await handler(request)
            fault = self.faults.of(handler.__name__.removeprefix("_"))
            if fault == "slow_down":
                answer = {"errcode": "M_LIMIT_EXCEEDED", "error": "slow down", "retry_after_ms": _RETRY_MS}
                return as_json(answer, 429)
            if fault in ("fail_before", "drop_before"):
                return _fail(request, fault)
            answer = await handler(request)
            return answer if fault == "none" else _fail(request, fault)

        return call

    def _room(self, request: web.Request) -> Room:
        found = self.rooms.get(unquote(request.match_info["room"]))
        if found is None:
            raise web.HTTPNotFound(text='{"errcode": "M_NOT_FOUND", "error": "no such room"}')
        return found

    async def _whoami(self, _request: web.Request) -> web.Response:
        return as_json({"user_id": BOT, "device_id": self.token})

    async def _profile(self, request: web.Request) -> web.Response:
        return as_json({"displayname": self.names[request.match_info["user"]]})

    async def _sync(self, request: web.Request) -> web.Response:
        since, version = request.query.get("since"), self.changes.version
        after = int(since.removeprefix("s")) if since else 0
        if self.position <= after:
            await self.changes.after(version, int(request.query.get("timeout", "0")) / 1000)
        wanted = json.loads(request.query["filter"])
        limit = min(self.timeline, wanted["room"]["timeline"]["limit"])
        joined = {
            r.id: self._joined(r, after, limit) for r in self.rooms.values() if r.membership(BOT) == "join"
        }
        invited = {r.id: _invited(r) for r in self.rooms.values() if _is_invited_after(r, after)}
        data = [
            {"type": kind, "content": content} for at, kind, content in self.account_changes if at > after
        ]
        rooms = {"join": {k: v for k, v in joined.items() if v["timeline"]["events"]}, "invite": invited}
        answer = {"next_batch": f"s{self.position}", "rooms": rooms, "account_data": {"events": data}}
        self.record("sync", dict(request.query))
        return as_json(answer)

    def _joined(self, room: Room, after: int, limit: int) -> Json:
        new = [(at, event) for at, event in room.stream if at > after]
        shown = new[-limit:]
        start = shown[0][0] - 1 if shown else after
        events = [event for _, event in shown for _ in range(2 if self.faults.is_repeated() else 1)]
        return {"timeline": {"events": events, "limited": len(new) > limit, "prev_batch": f"s{start}"}}

    async def _get_data(self, request: web.Request) -> web.Response:
        found = self.account_data.get((request.match_info.get("room", ""), request.match_info["type"]))
        return _error(404, "M_NOT_FOUND", "no such data") if found is None else as_json(found)

    async def _put_data(self, request: web.Request) -> web.Response:
        kind, content = request.match_info["type"], await request.json()
        self.account_data[request.match_info.get("room", ""), kind] = content
        if "room" not in request.match_info:
            self.account_changes.append((next(self.positions), kind, content))
        return as_json({})

    async def _join(self, request: web.Request) -> web.Response:
        room = self._room(request)
        if self.slow_joins:
            self.slow_joins = False
            self._patience.ask("join", _RETRY_JOIN_MS / 1000)
        if self._patience.left("join") > 0:
            answer = {"errcode": "M_LIMIT_EXCEEDED", "error": "slow down", "retry_after_ms": _RETRY_JOIN_MS}
            return as_json(answer, 429)
        if self.refused_joins:
            self.refused_joins -= 1
            return _error(502, "M_UNKNOWN", "no other server answers")
        if room.membership(BOT) not in ("invite", "join") and not room.public:
            return _error(403, "M_FORBIDDEN", "not invited")
        self.join(room, BOT)
        return as_json({"room_id": room.id})

    async def _leave(self, request: web.Request) -> web.Response:
        room, body = self._room(request), await request.json()
        room.put("m.room.member", BOT, {"membership": "leave", **body}, state_key=BOT)
        self.left.append((room.id, str(body.get("reason", ""))))
        return as_json({})

    async def _members(self, request: web.Request) -> web.Response:
        state = self._room(request).state
        return as_json({"chunk": [event for (kind, _), event in state.items() if kind == "m.room.member"]})

    async def _messages(self, request: web.Request) -> web.Response:
        room, query = self._room(request), request.query
        self.record("messages", dict(query))
        if not room.readable:
            return _error(403, "M_FORBIDDEN", "the history is not visible")
        start = int(query["from"].removeprefix("s")) if "from" in query else self.position
        end = int(query["to"].removeprefix("s")) if "to" in query else None
        forward = query["dir"] == "f"
        if forward:
            found = [one for one in room.stream if one[0] > start and (end is None or one[0] <= end)]
        else:
            found = [
                one for one in reversed(room.stream) if one[0] <= start and (end is None or one[0] > end)
            ]
        page = found[: int(query.get("limit", "10"))]
        answer: Json = {"start": f"s{start}", "chunk": [event for _, event in page]}
        if page:
            answer["end"] = f"s{page[-1][0] - (not forward)}"
        return as_json(answer)

    async def _event(self, request: web.Request) -> web.Response:
        if request.match_info["event"] in self.broken:
            return _error(500, "M_UNKNOWN", "internal error")
        found = self._room(request).find(request.match_info["event"])
        return _error(404, "M_NOT_FOUND", "no such event") if found is None else as_json(found)

    async def _context(self, request: web.Request) -> web.Response:
        stream = self._room(request).stream
        at = next(at for at, event in stream if event.get("event_id") == request.match_info["event"])
        return as_json({"start": f"s{at - 1}", "end": f"s{at}"})

    async def _state_event(self, request: web.Request) -> web.Response:
        key = request.match_info["type"], request.match_info.get("key", "")
        found = self._room(request).state.get(key)
        return _error(404, "M_NOT_FOUND", "no such state") if found is None else as_json(found["content"])

    async def _send(self, request: web.Request) -> web.StreamResponse:
        room, content = self._room(request), await request.json()
        edit = content.get("m.relates_to", {}).get("rel_type") == "m.replace"
        method = "edit" if edit else "send"
        key = (self.token, room.id, request.match_info["txn"])
        impatient = "the bot did not wait" if self._patience.is_impatient("send") else None
        waiting = self._patience.left("send") > 0
        fault: Fault = "none" if key in self._transactions else self.faults.of(method)
        fault = "slow_down" if waiting else fault
        self.record(method, content, complaint(content), impatient, fault=fault)
        if fault == "slow_down":
            if not waiting:
                self._patience.ask("send", _RETRY_MS / 1000)
            answer = {"errcode": "M_LIMIT_EXCEEDED", "error": "slow down", "retry_after_ms": _RETRY_MS}
            return as_json(answer, 429)
        if complaint(content) is not None:
            return _error(413, "M_TOO_LARGE", str(complaint(content)))
        if fault in ("fail_before", "drop_before"):
            return _fail(request, fault)
        if key not in self._transactions:
            event = room.put(request.match_info["type"], BOT, content)
            self._transactions[key] = event["event_id"]
            self.applied()
        return _fail(request, fault) if fault != "none" else as_json({"event_id": self._transactions[key]})

    async def _redact(self, request: web.Request) -> web.Response:
        room, event = self._room(request), request.match_info["event"]
        return as_json({"event_id": room.redact(event, BOT)["event_id"]})

    async def _typing(self, request: web.Request) -> web.Response:
        self.typing.append(self._room(request).id)
        return as_json({})

    async def _receipt(self, request: web.Request) -> web.Response:
        self.receipts.append(request.match_info["event"])
        return as_json({})

    async def _relations(self, request: web.Request) -> web.Response:
        room, root, rel = self._room(request), request.match_info["event"], request.match_info["rel"]
        limit = int(request.query.get("limit", "5"))
        found = [event for event in room.events if _relates(event, root, rel)]
        return as_json({"chunk": found[::-1][:limit]})

    async def _media_config(self, _request: web.Request) -> web.Response:
        return as_json({"m.upload.size": _MOST_FILE})

    async def _download(self, request: web.Request) -> web.Response:
        self.record("download", dict(request.match_info))
        found = self.files.get(request.match_info["name"])
        if found is None:
            return _error(404, "M_NOT_FOUND", "no such file")
        return web.Response(body=found[1], content_type=found[0])

    async def _upload(self, request: web.Request) -> web.Response:
        data = await request.read()
        if len(data) > self.proxy_bytes:
            return web.Response(status=413, text="<html>413 Request Entity Too Large</html>")
        problem = "the file is too large" if len(data) > _MOST_FILE else None
        self.record("upload", dict(request.query), problem)
        return as_json({"content_uri": self.keep(request.content_type, data)})


async def serve(argv: Sequence[str] | None = None, on_applied: Callable[[], None] | None = None) -> None:
    """Run until cancelled. Prints the address and the settings of the bot."""
    parser = options("A fake homeserver.", "matrix")
    parser.add_argument("--outage", type=float, default=0, help="seconds of each 12 in which histories fail")
    parser.add_argument("--timeline", type=int, default=_MOST_EVENTS, help="most events of a room in /sync")
    given = vars(parser.parse_args(argv))
    outage, timeline = given.pop("outage"), given.pop("timeline")
    async with FakeMatrix(**given, on_applied=on_applied) as fake:
        fake.timeline = timeline
        fake.fail_regularly("messages", outage, 12)
        settings, facts = {"homeserver": fake.url, "access_token": fake.token}, [f"access_token {fake.token}"]
        await announce(fake.url, "matrix", settings, facts)


def _is_invited_after(room: Room, after: int) -> bool:
    newest = max((at for at, e in room.stream if e is room.state.get(("m.room.member", BOT))), default=0)
    return room.membership(BOT) == "invite" and newest > after


def _invited(room: Room) -> Json:
    keep = ("type", "sender", "state_key", "content")
    events = [{key: event[key] for key in keep} for event in room.state.values()]
    return {"invite_state": {"events": events}}


def _relates(event: Json, root: str, rel: str) -> bool:
    related = relation(event)
    return (related.get("rel_type"), related.get("event_id")) == (rel, root)


def _fail(request: web.Request, fault: Fault) -> web.Response:
    if fault.startswith("drop"):
        cut(request)
    return _error(502, "M_UNKNOWN", "bad gateway")


def _error(status: int, code: str, reason: str) -> web.Response:
    return as_json({"errcode": code, "error": reason}, status)
