"""The files of the console, and those that all pages share. They contain no data and need no token."""

from __future__ import annotations

from pathlib import Path

from aiohttp import web

from gateway.server.pages import NAME, SHARED, PageFiles

_PAGE = Path(__file__).parent / "page"
_ROOT = "/console/page/"
_SCREEN = "/console/{rest:(?s:.*)}"
"""Address of a screen. The page reads it, so that every address of the console has the same document."""


class ConsolePages:
    """Routes of the console's page. Data come from ``/api/``, where each request is authenticated."""

    def __init__(self) -> None:
        # Two folders, because the chat page has the second one too.
        self._files = PageFiles(_PAGE, _ROOT)
        self._shared = PageFiles(SHARED)

    def bind(self) -> list[web.AbstractRouteDef]:
        """Return the routes."""
        return [
            web.get("/console", self._index),
            web.get(f"{_ROOT}{NAME}", self._file),
            web.get(_SCREEN, self._index),
            web.get(f"/shared/{NAME}", self._shared_file),
        ]

    async def _index(self, request: web.Request) -> web.StreamResponse:
        return await self._files.respond(request, "index.html")

    async def _file(self, request: web.Request) -> web.StreamResponse:
        return await self._files.respond(request, request.match_info["name"])

    async def _shared_file(self, request: web.Request) -> web.StreamResponse:
        return await self._shared.respond(request, request.match_info["name"])
