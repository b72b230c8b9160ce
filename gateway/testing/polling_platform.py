"""A fake chat platform on a real socket, with chats, long polling with a cursor, and ``/send``.

Like real platforms it keeps updates until a later poll confirms them, and sends the same message twice if
asked twice. By script or by chance it refuses a call, answers with an error before or after applying it, or
applies it without an answer.

    POST /say {chat, user, text} -> {id}              a user sends a message
    POST /delete {chat, id}                           a user deletes their message
    GET  /deletions -> {"chat:id": seconds}           when each deletion was confirmed, in monotonic seconds
    GET  /updates?after=N&wait=MS -> {updates: [...]}  updates of users; confirms all updates up to N
    POST /send {chat, text, reply_to, nonce} -> {id}  the bot sends a message
    POST /edit {chat, id, text} -> {}                 the bot edits one of its messages
    POST /remove {chat, id} -> {}                     the bot deletes one of its messages
    POST /typing {chat} -> {}                         the bot shows that it writes
    GET  /find?chat=C&nonce=N -> {id: n | null}       the bot's message with a nonce
    GET  /history?chat=C&before=N&limit=M -> {messages: [message...]}  messages before one, oldest first
    GET  /rooms -> {chat: [message...]}               all messages

As a program, ``python -m gateway.testing.polling_platform --port 0 --faults 0.1`` prints its address.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import msgspec
from aiohttp import web
from msgspec import Struct
from msgspec.structs import replace

from gateway.testing.fake_platform import Fault, FaultScript

_RETRY_AFTER = 0.15
_LONGEST_POLL = 25_000


class PlatformMessage(Struct, frozen=True):
    """A message on the platform. ``nonce`` is set by the bot; users' messages have none.

    With ``deletes`` or ``edits`` it is an update: the message with that id was deleted or edited.
    """

    id: int
    chat: str
    user: str
    text: str
    reply_to: int | None = None
    nonce: str | None = None
    deletes: int | None = None
    edits: int | None = None


class MalformedUpdate(Struct, frozen=True):
    """An update that no client can parse."""

    id: int
    chat: None = None
    text: int = 0
    deletes: None = None


class PollingPlatform:
    """The platform. ``faults`` is the share of ``/send`` calls that fail by chance; ``then`` sets faults of
    the next calls.

    Chats in ``closed`` refuse the bot. ``impatient`` counts calls during a wait that the platform asked for.
    ``on_applied`` is called when a message of the bot is stored, before the response; ``on_deleted`` when a
    deletion is confirmed. ``deletions`` are the times of that, in monotonic seconds. ``typing`` are the chats
    in which the bot has shown that it writes. A message of the bot has at most ``longest`` characters.
    """

    def __init__(
        self,
        *,
        faults: float = 0,
        repeats: float = 0,
        seed: int = 0,
        port: int = 0,
        longest: int = 1_000_000,
        on_applied: Callable[[], None] | None = None,
        on_deleted: Callable[[], None] = lambda: None,
    ) -> None:
        self.deletions: dict[str, float] = {}
        self.rooms: dict[str, list[PlatformMessage]] = {}
        self.closed: set[str] = set()
        self.sends = 0
        self.impatient = 0
        self.url = ""
        self.typing: list[str] = []
        self._longest = longest
        self._reversed = False
        self._faults = FaultScript(faults, repeats=repeats, seed=seed)
        self._port = port
        self._on_applied = on_applied
        self._on_deleted = on_deleted
        self._updates: list[PlatformMessage | MalformedUpdate] = []
        self._wait_until: dict[str, float] = {}
        self._last_id = 0
        self._new_update = asyncio.Event()
        self._runner: web.AppRunner | None = None

    def then(self, *faults: Fault) -> None:
        """Set the faults of the next ``/send`` calls."""
        self._faults.then(*faults)

    def say(self, chat: str, text: str, user: str = "ada") -> int:
        """Send a message of a user. Return its id."""
        said = self._placed(chat, user, text)
        self._push(said)
        return said.id

    def delete(self, chat: str, message: int) -> None:
        """Delete a message of a user."""
        self.rooms[chat] = [said for said in self.rooms[chat] if said.id != message]
        self._push(PlatformMessage(self._next_id(), chat, "", "", deletes=message))

    def edit(self, chat: str, message: int, text: str) -> None:
        """Edit a message of a user."""
        room = self.rooms[chat]
        at = next(number for number, said in enumerate(room) if said.id == message)
        room[at] = replace(room[at], text=text)
        self._push(PlatformMessage(self._next_id(), chat, room[at].user, text, edits=message))

    def malformed(self) -> None:
        """Send an update that cannot be parsed."""
        self._push(MalformedUpdate(self._next_id()))

    def repeat(self) -> None:
        """Send each update twice from now on."""
        self._faults.repeats = 1

    def reorder(self) -> None:
        """Reverse the next batch of updates."""
        self._reversed = True

    def answers(self, chat: str) -> list[str]:
        """Return the texts of the bot in a chat."""
        return [said.text for said in self.rooms.get(chat, ()) if said.nonce is not None]

    async def __aenter__(self) -> PollingPlatform:
        app = web.Application()
        app.router.add_post("/say", self._say)
        app.router.add_post("/delete", self._delete)
        app.router.add_get("/deletions", self._deletions)
        app.router.add_get("/updates", self._poll)
        app.router.add_post("/send", self._send)
        app.router.add_post("/edit", self._edit)
        app.router.add_post("/remove", self._remove)
        app.router.add_post("/typing", self._type)
        app.router.add_get("/find", self._find)
        app.router.add_get("/history", self._history)
        app.router.add_get("/rooms", self._rooms)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _say(self, request: web.Request) -> web.Response:
        given = await _json(request)
        return web.json_response({"id": self.say(given["chat"], given["text"], given["user"])})

    async def _delete(self, request: web.Request) -> web.Response:
        given = await _json(request)
        self.delete(given["chat"], int(given["id"]))
        return web.json_response({})

    async def _deletions(self, _request: web.Request) -> web.Response:
        return _answer(self.deletions)

    async def _poll(self, request: web.Request) -> web.Response:
        after = int(request.query.get("after", "0"))
        for said in self._updates:
            if said.id <= after and said.deletes is not None:
                self.deletions[f"{said.chat}:{said.deletes}"] = time.monotonic()
                self._on_deleted()
        self._updates = [said for said in self._updates if said.id > after]
        if not self._updates:
            self._new_update.clear()
            wait = min(_LONGEST_POLL, int(request.query.get("wait", "0")))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait / 1000):
                    await self._new_update.wait()
        given = [said for said in self._updates for _ in range(2 if self._faults.is_repeated() else 1)]
        if self._reversed:
            self._reversed = False
            given.reverse()
        return _answer({"updates": given})

    async def _send(self, request: web.Request) -> web.Response:
        given = await _json(request)
        chat: str = given["chat"]
        self.sends += 1
        now = asyncio.get_running_loop().time()
        if now < self._wait_until.get(chat, 0):
            self.impatient += 1
        if chat in self.closed:
            return _answer({"error": "the bot may not write in this chat"}, 403)
        if len(given["text"]) > self._longest:
            return _answer({"error": "the text is too long"}, 400)
        fault = self._faults.of()
        if fault == "slow_down":
            self._wait_until[chat] = now + _RETRY_AFTER
            return _answer({"error": "slow down", "retry_after": _RETRY_AFTER}, 429)
        if fault in ("fail_before", "drop_before"):
            return self._fail(request, fault)
        said = self._placed(chat, "bot", given["text"], given.get("reply_to"), given["nonce"])
        if self._on_applied is not None:
            self._on_applied()
        if fault != "none":
            return self._fail(request, fault)
        return _answer({"id": said.id})

    def _fail(self, request: web.Request, fault: Fault) -> web.Response:
        if fault.startswith("drop") and request.transport is not None:
            request.transport.abort()
        return _answer({"error": "bad gateway"}, 502)

    async def _edit(self, request: web.Request) -> web.Response:
        given = await _json(request)
        room = self.rooms[given["chat"]]
        for at, said in enumerate(room):
            if said.id == given["id"] and said.nonce is not None:
                room[at] = replace(said, text=given["text"])
                return _answer({})
        return _answer({"error": "there is no such message"}, 404)

    async def _remove(self, request: web.Request) -> web.Response:
        given = await _json(request)
        self.rooms[given["chat"]] = [said for said in self.rooms[given["chat"]] if said.id != given["id"]]
        return _answer({})

    async def _type(self, request: web.Request) -> web.Response:
        self.typing.append((await _json(request))["chat"])
        return _answer({})

    async def _history(self, request: web.Request) -> web.Response:
        room = self.rooms.get(request.query["chat"], ())
        earlier = [said for said in room if said.id < int(request.query["before"])]
        return _answer({"messages": earlier[-int(request.query["limit"]) :]})

    async def _find(self, request: web.Request) -> web.Response:
        room = self.rooms.get(request.query["chat"], ())
        nonce = request.query["nonce"]
        return _answer({"id": next((said.id for said in room if said.nonce == nonce), None)})

    async def _rooms(self, _request: web.Request) -> web.Response:
        return _answer(self.rooms)

    def _placed(
        self, chat: str, user: str, text: str, reply_to: int | None = None, nonce: str | None = None
    ) -> PlatformMessage:
        said = PlatformMessage(self._next_id(), chat, user, text, reply_to, nonce)
        self.rooms.setdefault(chat, []).append(said)
        return said

    def _push(self, update: PlatformMessage | MalformedUpdate) -> None:
        self._updates.append(update)
        self._new_update.set()

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id


async def _json(request: web.Request) -> Mapping[str, Any]:
    return msgspec.json.decode(await request.read(), type=dict[str, Any])


def _answer(content: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), status=status, content_type="application/json")


async def serve(
    argv: Sequence[str] | None = None,
    on_applied: Callable[[], None] | None = None,
    on_deleted: Callable[[], None] = lambda: None,
) -> None:
    """Run until cancelled. The first line of the output is the address."""
    parser = argparse.ArgumentParser(description="A fake chat platform with long polling.")
    parser.add_argument("--port", type=int, default=0, help="port; 0 takes any free port (default: 0)")
    parser.add_argument(
        "--faults", type=float, default=0, help="share of sends that fail, 0 to 1 (default: 0)"
    )
    parser.add_argument(
        "--repeats", type=float, default=0, help="share of updates delivered twice, 0 to 1 (default: 0)"
    )
    parser.add_argument("--seed", type=int, default=0, help="selects the sends that fail (default: 0)")
    given = parser.parse_args(argv)
    async with PollingPlatform(**vars(given), on_applied=on_applied, on_deleted=on_deleted) as platform:
        sys.stdout.write(f"{platform.url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve())
