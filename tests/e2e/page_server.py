"""A small gateway that plays scripts to the web page: the corner cases a real one shows only by luck.

It speaks the websocket protocol and serves the page under the real content security policy. A script is
an async generator of frames for one message; the server adds ``session`` and ``seq``, renders blocks and
keeps a log, so that resuming works as it does for real.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import WSCloseCode, web

from channels.websocket.render import render_html
from gateway.contract.deltas import DeltaWriter
from gateway.server.guard import SECURITY_HEADERS
from gateway.server.pages import SHARED
from gateway.server.pages.blocks import BlockRenderer

PAGE = Path(__file__).parents[2] / "channels" / "websocket" / "page"
FOLDERS = {"page": PAGE, "shared": SHARED}
"""The folders of the page's files, by the first part of their address."""
Frame = dict[str, Any]
Script = Callable[["Turn"], AsyncIterator[Frame]]


class Turn:
    """What a script gets: the message it answers, a writer for its deltas, and when to go on.

    ``go`` is set by the test, or by the user stopping the answer; then ``cancelled`` is true.
    """

    def __init__(self, server: PageServer, message: Frame, session: str, answer_id: str) -> None:
        self.server = server
        self.message = message
        self.session = session
        self.answer_id = answer_id
        self.write = DeltaWriter(answer_id)
        self.approved: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.go = asyncio.Event()
        self.over = asyncio.Event()
        self.cancelled = False

    def stop(self) -> None:
        """Let the script end as soon as it can."""
        self.cancelled = not self.go.is_set()
        self.go.set()
        if not self.approved.done():
            self.approved.set_result("deny")


class PageServer:
    """The server of a test: ``script`` says how it answers; ``received`` is all that pages sent."""

    def __init__(self, script: Script, token: str | None = None) -> None:
        self.script = script
        self.token = token
        self.received: list[Frame] = []
        self.logs: dict[str, list[Frame]] = {}
        self.titles: dict[str, str] = {}
        self.pinned: set[str] = set()
        self.seen: dict[str, Frame] = {}
        self.turns: dict[str, Turn] = {}
        self.ignore_messages = False
        self.ignore_pings = False
        self.swallow_acks = 0
        self.uploads: dict[str, Frame] = {}
        """The files that pages uploaded, by id; each with ``name``, ``mime_type`` and ``data``."""
        self.uploading = asyncio.Event()
        """Cleared by a test to hold uploads after their bytes arrived."""
        self.uploading.set()
        self.sockets: dict[web.WebSocketResponse, set[str]] = {}
        self.port = 0
        self._tasks: asyncio.TaskGroup

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    @asynccontextmanager
    async def running(self, port: int = 0) -> AsyncIterator[PageServer]:
        """Listen until the block is left; ``port`` 0 takes a free one."""
        app = web.Application(client_max_size=20_000_000)
        app.router.add_get("/", self._index)
        app.router.add_get("/{folder:page|shared}/{name}", self._file)
        app.router.add_get("/ws", self._socket)
        app.router.add_get("/api/sessions", self._sessions)
        app.router.add_get("/api/sessions/{id}", self._session)
        app.router.add_get("/api/sessions/{id}/branches", self._branches)
        app.router.add_post("/api/sessions/{id}/approvals/{approval}", self._approve)
        app.router.add_post("/api/files", self._upload)
        app.router.add_delete("/api/files/{id}", self._remove_upload)
        app.router.add_post("/api/browser", self._remember)
        app.router.add_delete("/api/browser", self._forget)
        app.router.add_delete("/api/sessions/{id}", self._delete)
        app.on_response_prepare.append(_add_policy)
        runner = web.AppRunner(app, shutdown_timeout=1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        self.port = runner.addresses[0][1]
        try:
            async with asyncio.TaskGroup() as self._tasks:
                yield self
                await self.drop_sockets()
                for turn in self.turns.values():
                    turn.stop()
        finally:
            await runner.cleanup()

    async def drop_sockets(self) -> None:
        """Cut every connection, as a lost network would."""
        for socket in list(self.sockets):
            await socket.close(code=WSCloseCode.GOING_AWAY)

    async def emit(self, session: str, frame: Frame) -> None:
        """Log a session event and send it to the listeners."""
        log = self.logs.setdefault(session, [])
        frame = frame | {"session": session, "seq": log[-1]["seq"] + 1 if log else 1}
        log.append(frame)
        await self._send(session, frame)

    def squeeze(self, session: str) -> None:
        """Keep of the running answer what a real session keeps: its start and its text, under one number."""
        turn, log = self.turns[session], self.logs[session]
        mine = [frame for frame in log if frame.get("message_id") == turn.answer_id]
        start = next(frame for frame in mine if frame["type"] == "turn_start")
        pieces = [frame for frame in mine if frame["type"] == "text_delta"]
        text = pieces[-1] | {"content": "".join(frame["content"] for frame in pieces)}
        head = [frame for frame in log if frame not in mine]
        self.logs[session] = head + [frame | {"seq": len(log)} for frame in (start, text)]

    async def _send(self, session: str, frame: Frame) -> None:
        for socket, subscribed in list(self.sockets.items()):
            if session in subscribed and not socket.closed:
                await socket.send_json(frame)

    async def _play(self, turn: Turn, said: Frame, before: asyncio.Event | None) -> None:
        """Answer a message, once the answer before it is over."""
        if before is not None:
            await before.wait()
        await self.emit(turn.session, said)
        reply_to = said["message"]["id"]
        session, answer_id = turn.session, turn.answer_id
        await self.emit(session, {"type": "session", "status": "running"})
        await self.emit(
            session, {"type": "turn_start", "message_id": answer_id, "reply_to": reply_to, "attempt": 1}
        )
        renderers: dict[int, BlockRenderer] = {}
        async for frame in self.script(turn):
            await self.emit(session, frame)
            if frame["type"] == "text_delta":
                renderer = renderers.setdefault(frame["part_index"], BlockRenderer())
                await self._emit_blocks(
                    session, answer_id, frame["part_index"], renderer.feed(frame["content"])
                )
            if frame["type"] == "complete":
                for index, renderer in renderers.items():
                    await self._emit_blocks(session, answer_id, index, renderer.finish())
        usage = {"input_tokens": 12, "output_tokens": 34, "cost": 0.0123}
        await self.emit(session, {"type": "session", "status": "idle", "usage": usage})
        turn.over.set()

    async def _emit_blocks(self, session: str, answer_id: str, part: int, blocks: Iterable[Any]) -> None:
        for block in filter(None, blocks):  # None is where others may have their turn
            place = {"message_id": answer_id, "part_index": part, "block_index": block.index}
            await self.emit(session, {"type": "block", **place, "html": block.html, "upto": block.upto})

    async def _socket(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=["trunkline.v1.html"])
        await socket.prepare(request)
        if not self._knows(request):
            await socket.close(code=4001, message=b"token")
            return socket
        self.sockets[socket] = set()
        try:
            await socket.send_json(READY | {"signed_in": self.token is not None})
            async for message in socket:
                await self._received(socket, json.loads(message.data))
        finally:
            del self.sockets[socket]
        return socket

    async def _received(self, socket: web.WebSocketResponse, frame: Frame) -> None:
        self.received.append(frame)
        match frame["type"]:
            case "message" if not self.ignore_messages:
                await self._accept(socket, frame)
            case "resume":
                await self._resume(socket, frame)
            case "abort":
                self.turns[frame["session"]].stop()
            case "approval":
                self.turns[frame["session"]].approved.set_result(frame["decision"])
            case "ping" if not self.ignore_pings:
                await socket.send_json({"type": "pong"})

    async def _resume(self, socket: web.WebSocketResponse, frame: Frame) -> None:
        session, log = frame["session"], self.logs.get(frame["session"], [])
        if not log:
            missing = {"error_name": "NotFoundError", "message": "no such session", "retryable": False}
            await socket.send_json({"type": "error", **missing, "session": session})
            return
        for event in log:
            if event["seq"] > frame["after"]:
                await socket.send_json(event)
        self.sockets[socket].add(session)
        await socket.send_json({"type": "replayed", "session": session, "seq": len(log)})

    async def _accept(self, socket: web.WebSocketResponse, frame: Frame) -> None:
        key, session = frame["client_msg_id"], frame["session"]
        self.sockets[socket].add(session)
        if frame["text"].startswith("refuse"):
            refusal = {
                "type": "error",
                "error_name": "OverloadedError",
                "message": "the queue is full",
                "retryable": False,
            }
            await socket.send_json(refusal | {"client_msg_id": key})
            return
        if key in self.seen:
            await socket.send_json(self.seen[key] | {"duplicate": True})
            return
        ack = {
            "type": "ack",
            "client_msg_id": key,
            "message_id": f"m-{key}",
            "answer_id": f"a-{key}",
            "session": session,
            "seq": 1,
        }
        self.seen[key] = ack
        self.titles.setdefault(session, frame["text"][:60])
        self.swallow_acks -= 1
        if self.swallow_acks < 0:
            await socket.send_json(ack)
        earlier = self.turns.get(session)
        turn = self.turns[session] = Turn(self, frame, session, ack["answer_id"])
        said = self._user_message(ack, frame)
        self._tasks.create_task(self._play(turn, said, earlier.over if earlier else None))

    async def _index(self, request: web.Request) -> web.FileResponse:
        return web.FileResponse(PAGE / "index.html")

    async def _file(self, request: web.Request) -> web.FileResponse:
        path = FOLDERS[request.match_info["folder"]] / request.match_info["name"]
        if not path.is_file():
            raise web.HTTPNotFound
        return web.FileResponse(path)

    async def _sessions(self, request: web.Request) -> web.Response:
        if not self._knows(request):
            raise web.HTTPUnauthorized
        pinned = request.query.get("pinned")
        shown = [s for s in self.titles if pinned in (None, str(s in self.pinned).lower())]
        return web.json_response({"sessions": [self._info(session) for session in shown], "next": None})

    async def _session(self, request: web.Request) -> web.Response:
        if request.match_info["id"] not in self.titles:
            raise web.HTTPNotFound
        return web.json_response(self._info(request.match_info["id"]))

    async def _approve(self, request: web.Request) -> web.Response:
        decision = (await request.json())["decision"]
        self.received.append({"type": "approval", "decision": decision})
        self.turns[request.match_info["id"]].approved.set_result(decision)
        return web.json_response({"approval_id": request.match_info["approval"], "decision": decision})

    async def _upload(self, request: web.Request) -> web.Response:
        data = await request.read()
        await self.uploading.wait()
        name = request.query["name"]
        if name.startswith("refuse"):
            refusal = {"error_name": "PartValidationError", "message": "this kind of file cannot be read"}
            return web.json_response(refusal | {"retryable": False}, status=400)
        upload = f"{len(self.uploads):032x}"
        kind = request.headers.get("Content-Type", "")
        self.uploads[upload] = {**request.query, "mime_type": kind, "data": data}
        return web.json_response({"id": upload}, status=201)

    async def _remove_upload(self, request: web.Request) -> web.Response:
        del self.uploads[request.match_info["id"]]
        return web.Response(status=204)

    def _user_message(self, ack: Frame, frame: Frame) -> Frame:
        text = [{"type": "text", "content": frame["text"]}] if frame["text"] else []
        files = [_part(self.uploads[upload]) for upload in frame.get("uploads", [])]
        message = {
            "id": ack["message_id"],
            "session_id": ack["session"],
            "role": "user",
            "parts": [*text, *frame.get("parts", []), *files],
            "created_at": 0,
        }
        return {"type": "message", "message": message}

    async def _branches(self, _request: web.Request) -> web.Response:
        return web.json_response({"branches": []})

    def _info(self, session: str) -> Frame:
        place = list(self.titles).index(session)
        known = {"title": self.titles[session], "updated_at": place, "model": READY["model"]}
        return {"id": session, "channel": "websocket", "messages": 2, "status": "idle", "usage": {}, **known}

    async def _remember(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            raise web.HTTPUnauthorized
        answer = web.Response(status=204)
        answer.set_cookie("seen", "yes", httponly=True, samesite="Strict")
        return answer

    async def _forget(self, _request: web.Request) -> web.Response:
        answer = web.Response(status=204)
        answer.del_cookie("seen")
        return answer

    def _knows(self, request: web.Request) -> bool:
        return self.token is None or "seen" in request.cookies

    async def _delete(self, request: web.Request) -> web.Response:
        turn = self.turns.get(request.match_info["id"])
        if turn is not None and not turn.over.is_set():
            raise web.HTTPConflict
        self.titles.pop(request.match_info["id"], None)
        return web.Response(status=204)


READY = {
    "type": "ready",
    "protocol": 1,
    "user": "local",
    "model": "demo/small",
    "version": "0.1.0",
    "commands": [
        {"name": "help", "description": "What I can do"},
        {"name": "new", "description": "Start over"},
        {"name": "stop", "description": "Stop the answer"},
    ],
}


def stored(turn: Turn, parts: list[Frame], **metadata: Any) -> Frame:
    """The frame of a finished answer, as the log keeps it."""
    message = {"id": turn.answer_id, "session_id": turn.session, "role": "assistant", "parts": parts}
    html = [
        [index, render_html(part["content"])] for index, part in enumerate(parts) if part["type"] == "text"
    ]
    return {"type": "message", "message": message | {"created_at": 0, "metadata": metadata}, "html": html}


def _part(upload: Frame) -> Frame:
    if not upload["mime_type"].startswith("image/"):
        return {"type": "file", "path": upload["name"]}
    data = base64.b64encode(upload["data"]).decode()
    return {"type": "image", "data": data, "mime_type": upload["mime_type"], "alt_text": upload["name"]}


async def _add_policy(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(SECURITY_HEADERS)
