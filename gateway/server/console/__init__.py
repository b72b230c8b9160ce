"""The operator's console: its page at ``/console``, and the login there.

In: requests of browsers. Out: the page, its modules, and the modules it shares with the chat page; who is
signed in, and in which role; changes of the settings file. Imported by the server.
"""

from gateway.server.console.pages import ConsolePages
from gateway.server.console.sessions import ConsoleSessions

__all__ = ["ConsolePages", "ConsoleSessions"]
