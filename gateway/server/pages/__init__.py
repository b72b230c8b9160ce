"""Web pages: files served from memory, what their texts are rendered by, and the modules that pages share.

In: a folder. Out: responses with its files. Imported by the server and, through their door, by channels.
"""

from gateway.server.pages.files import NAME, SHARED, PageFiles

__all__ = ["NAME", "SHARED", "PageFiles"]
