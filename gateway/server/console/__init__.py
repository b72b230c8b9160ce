"""The operator's console: its page at ``/console``.

In: requests of browsers. Out: the page, its modules, and the modules it shares with the chat page.
Imported by the server.
"""

from gateway.server.console.pages import ConsolePages

__all__ = ["ConsolePages"]
