"""Sessions: conversations, their turns, and their log."""

from gateway.session.session import Session
from gateway.session.sessions import Sessions
from gateway.session.turn import Brief, Turn, plausible

__all__ = ["Brief", "Session", "Sessions", "Turn", "plausible"]
