"""The gateway's own web server."""

from gateway.server.app import Server, make_app

__all__ = ["Server", "make_app"]
