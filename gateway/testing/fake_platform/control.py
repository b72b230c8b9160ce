"""The web page of a fake platform, and the control interface that the page and programs use.

::

    GET  /                             the page
    GET  /_fake/state?after=N&most=M   the state, once its version exceeds N; of each chat the last M messages
    GET  /_fake/transcript?most=M      {calls, problems}: the last M calls of the bot, and the rules it broke
    POST /_fake/{action} {...}         -> {result}: do what a user of the platform can do

An action takes JSON with the names of its parameters. Identifiers in results are strings, because numbers of
64 bits lose digits in a browser.
"""

from __future__ import annotations

import mimetypes
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from gateway.testing.fake_platform.calls import Refusal
from gateway.testing.fake_platform.server import FakeServer, as_json

_SHARED = Path(__file__).with_name("page")
_POLL_SECONDS = 25.0
_MOST_MESSAGES = 200
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
}

Action = Callable[..., object]


class Control:
    """The page in ``folder``, if the platform has one, and the control interface.

    ``state`` returns the state with at most so many messages of each chat. ``argument`` converts an argument
    of an action from JSON; it raises ValueError.
    """

    def __init__(
        self,
        fake: FakeServer,
        folder: Path | None,
        state: Callable[[int], Mapping[str, Any]],
        actions: Iterable[Action],
        argument: Callable[[str, Any], Any] = lambda _name, value: value,
    ) -> None:
        self._fake = fake
        self._folder = folder
        self._shown = state
        self._actions = {action.__name__: action for action in actions}
        self._argument = argument

    def add_to(self, app: web.Application) -> None:
        """Add the routes to the application of the platform."""
        app.router.add_get("/", self.page)
        app.router.add_get("/_fake/page/{name}", self.page)
        app.router.add_get("/_fake/state", self._state)
        app.router.add_get("/_fake/transcript", self._transcript)
        app.router.add_post("/_fake/{action}", self._act)

    async def page(self, request: web.Request) -> web.StreamResponse:
        """Serve a file of the page."""
        name = request.match_info.get("name", "index.html")
        # From memory: the kernel's sendfile hangs under load.
        files = {} if self._folder is None else _files(_SHARED) | _files(self._folder)
        if name not in files:
            raise web.HTTPNotFound
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        return web.Response(body=files[name], content_type=kind, charset="utf-8", headers=_HEADERS)

    async def _state(self, request: web.Request) -> web.StreamResponse:
        after = int(request.query.get("after", "-1"))
        most = int(request.query.get("most", _MOST_MESSAGES))
        version = await self._fake.changes.after(after, _POLL_SECONDS)
        transcript = self._fake.transcript
        facts = {"version": version, "calls": len(transcript.calls), "problems": transcript.problems}
        return as_json({**facts, **self._shown(most)}, headers=_HEADERS)

    async def _transcript(self, request: web.Request) -> web.StreamResponse:
        transcript = self._fake.transcript
        calls = transcript.calls[-int(request.query.get("most", len(transcript.calls))) :]
        return as_json({"calls": calls, "problems": transcript.problems}, headers=_HEADERS)

    async def _act(self, request: web.Request) -> web.StreamResponse:
        # A page of another origin cannot send this content type without the browser asking first.
        if request.content_type != "application/json":
            raise web.HTTPUnsupportedMediaType
        action = self._actions.get(request.match_info["action"])
        if action is None:
            raise web.HTTPNotFound
        try:
            given = msgspec.json.decode(await request.read() or b"{}", type=dict[str, Any])
            result = action(**{name: self._argument(name, value) for name, value in given.items()})
        except (LookupError, TypeError, ValueError, Refusal) as error:
            return as_json({"error": str(error)}, 400, _HEADERS)
        if isinstance(result, int) and not isinstance(result, bool):
            result = str(result)
        return as_json({"result": result if isinstance(result, str | bool) else None}, headers=_HEADERS)


@cache
def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
