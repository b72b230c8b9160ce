"""Files of the web pages: served from memory, and the modules that the chat page and the console share.

In: a folder. Out: responses with its files. Imported by the server and, through their door, by channels.
"""

from gateway.server.pages.files import SHARED, PageFiles

__all__ = ["SHARED", "PageFiles"]
