"""The HTTP server: REST API, API for OpenAI clients, health checks, metrics, and the routes of channels.

In: requests. Out: responses and streams of server-sent events. Imported by the CLI and by tests.
"""

from gateway.server.app import Server, make_app

__all__ = ["Server", "make_app"]
