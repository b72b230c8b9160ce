"""The present state of the gateway, for its operator: a snapshot, and a stream of its changes.

In: the parts of the running gateway, looked at once a second, and its counters. Out: ``/api/now`` and
``/api/now/events``. All of it is in memory, and starts empty with the process. Imported by the server alone.
"""

from gateway.server.now.observer import Observer
from gateway.server.now.shapes import NowSnapshot
from gateway.server.now.streams import NowRoutes, Reader, ReaderOf, owner_as_reader

__all__ = ["NowRoutes", "NowSnapshot", "Observer", "Reader", "ReaderOf", "owner_as_reader"]
