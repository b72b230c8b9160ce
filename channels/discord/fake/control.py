"""A page to act on the platform by hand, and the same for programs: ``/_fake/…``.

GET  /_fake/state?after=N&most=M -> {version, bot, people, rooms, commands, bots, problems}  when it is newer,
                             of each room the last M messages
POST /_fake/{action} {…} -> {result}      whatever people can do, by the names of its parameters
GET  /_fake/transcript -> [{method, arguments, status, fault, problem}, …]
"""

from __future__ import annotations

import base64
import binascii
import mimetypes
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
from aiohttp import web

from channels.discord.fake.errors import ApiError
from channels.discord.fake.nouns import Channel, Message
from channels.discord.fake.views import Views
from channels.discord.fake.world import World
from gateway.testing.transcript import Transcript

_FILES: Final = Path(__file__).parent / "page"
_IDS: Final = ("key", "reply_to", "at")
_LONGEST_WAIT: Final = 25.0
_SHOWN: Final = 200
_HEADERS: Final = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
}

Action = Callable[..., Any]


class Control:
    """Serves the page and what it asks for. ``actions`` are what can be done, by name."""

    def __init__(
        self, world: World, views: Views, transcript: Transcript, actions: Mapping[str, Action]
    ) -> None:
        self.bots: Callable[[], int] = int
        self.typing: Callable[[Channel], bool] = bool
        self._world = world
        self._views = views
        self._transcript = transcript
        self._actions = actions

    def routes(self) -> Sequence[web.RouteDef]:
        """The routes of the page and its control."""
        return [
            web.get("/", self._index),
            web.get("/_fake/page/{name}", self._file),
            web.get("/_fake/state", self._state),
            web.get("/_fake/transcript", self._calls),
            web.post("/_fake/{action}", self._act),
        ]

    async def _index(self, _request: web.Request) -> web.StreamResponse:
        return _page("index.html")

    async def _file(self, request: web.Request) -> web.StreamResponse:
        return _page(request.match_info["name"])

    async def _state(self, request: web.Request) -> web.StreamResponse:
        after, most = int(request.query.get("after", "-1")), int(request.query.get("most", _SHOWN))
        version = await self._world.changes.after(after, _LONGEST_WAIT)
        return _json(
            {
                "version": version,
                "bot": self._views.user(self._world.bot),
                "people": [self._views.user(user) for user in self._world.users.values()],
                "rooms": [self._room(channel, most) for channel in self._world.channels.values()],
                "commands": [
                    {"kind": command.kind, **command.body} for command in self._world.commands.values()
                ],
                "bots": self.bots(),
                "problems": self._transcript.problems,
            }
        )

    async def _calls(self, _request: web.Request) -> web.StreamResponse:
        keys = ("method", "arguments", "status", "fault", "problem")
        return _json([{key: getattr(call, key) for key in keys} for call in self._transcript.calls])

    async def _act(self, request: web.Request) -> web.StreamResponse:
        # A page of another origin cannot send this type without being asked first.
        if request.content_type != "application/json":
            raise web.HTTPUnsupportedMediaType
        action = self._actions.get(request.match_info["action"])
        if action is None:
            raise web.HTTPNotFound
        try:
            given = msgspec.json.decode(await request.read() or b"{}", type=dict[str, Any])
            result = action(**{name: _argument(name, value) for name, value in given.items()})
        except (LookupError, TypeError, ValueError, ApiError, msgspec.DecodeError) as error:
            return _json({"error": str(error)}, 400)
        return _json({"result": str(result) if isinstance(result, int) else result})

    def _room(self, channel: Channel, most: int) -> dict[str, Any]:
        messages = self._world.history(channel.id)[-most:]
        person = self._world.users.get(channel.recipient or 0)
        return {
            **self._views.channel(channel),
            "title": f"@{person.name}" if person is not None else channel.name,
            "bot_types": self.typing(channel),
            "messages": [self._message(message) for message in messages],
        }

    def _message(self, message: Message) -> dict[str, Any]:
        reader = self._world.users.get(message.reader or 0)
        return {
            **self._views.message(message),
            "versions": message.versions,
            "reader": None if reader is None else reader.name,
        }


def _page(name: str) -> web.Response:
    """A file of the page, from memory: the kernel's own way of sending files hangs under load."""
    found = _files().get(name)
    if found is None:
        raise web.HTTPNotFound
    content, kind = found
    return web.Response(body=content, content_type=kind, headers=_HEADERS)


@cache
def _files() -> Mapping[str, tuple[bytes, str]]:
    return {
        path.name: (path.read_bytes(), mimetypes.guess_type(path.name)[0] or "application/octet-stream")
        for path in _FILES.iterdir()
        if path.is_file()
    }


def _argument(name: str, value: Any) -> Any:
    if name in _IDS and value is not None:
        return int(value)
    if name == "attach" and value is not None:
        try:
            return {file: base64.b64decode(data, validate=True) for file, data in value.items()}
        except binascii.Error as error:
            raise ValueError("a file is not base64") from error
    return value


def _json(content: object, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(content), status=status, content_type="application/json", headers=_HEADERS
    )
