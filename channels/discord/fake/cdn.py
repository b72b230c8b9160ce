"""Serves the files on messages. A link carries its own end, and a signature."""

from __future__ import annotations

import hmac

from aiohttp import web

from channels.discord.fake.views import Views
from channels.discord.fake.world import World


class Cdn:
    """Serves ``/cdn/attachments/…``. ``served`` are the files that were fetched, by id."""

    def __init__(self, world: World, views: Views) -> None:
        self.served: list[int] = []
        self._world = world
        self._views = views

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """One file, if the link to it is whole and not too old."""
        found = self._world.files.get(int(request.match_info["attachment"]))
        if found is None or not self._valid(request):
            return web.Response(status=404, text="This content is no longer available.")
        _, attachment = found
        self.served.append(attachment.id)
        return web.Response(
            body=attachment.data,
            headers={"Content-Type": attachment.content_type, "Content-Disposition": "attachment"},
        )

    def _valid(self, request: web.Request) -> bool:
        expires, issued = request.query.get("ex", ""), request.query.get("is", "")
        expected = self._views.signature(int(request.match_info["attachment"]), expires, issued)
        if not hmac.compare_digest(expected, request.query.get("hm", "")):
            return False
        return int(expires, 16) >= self._world.clock.now()
