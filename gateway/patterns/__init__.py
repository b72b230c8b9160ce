"""Patterns of permissions: which calls of a tool a rule or an "always" covers, by the kind of its match key.

In: a kind (text, path, command or URL), a pattern and the key of a call. Out: the action that the pattern
decides, the text that an "always" stores, and whether a stored one covers a later call. It knows no tool and
no store. Permissions and the broker of confined plugins import it.
"""

from gateway.patterns.commands import granted_pattern
from gateway.patterns.kinds import check, decide, find, granted, offer

__all__ = ["check", "decide", "find", "granted", "granted_pattern", "offer"]
