"""Sessions: conversations with their log, the running turn, and the feeds of readers.

Accepted messages and deltas come in; numbered frames go out to readers, and messages to the store. The
access, models, delivery and pipeline packages and everything above them import it; it imports the store and
the contract.
"""

from gateway.session.session import Session
from gateway.session.sessions import OwnedSessions, Sessions
from gateway.session.turn import RunOverrides, Turn, calling, clamp_usage, running

__all__ = [
    "OwnedSessions",
    "RunOverrides",
    "Session",
    "Sessions",
    "Turn",
    "calling",
    "clamp_usage",
    "running",
]
