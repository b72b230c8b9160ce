"""Fake homeserver to develop and test the Matrix channel against: ``FakeMatrix``, or ``serve``."""

from channels.matrix.fake.server import FakeMatrix, serve
from channels.matrix.fake.state import Room

__all__ = ["FakeMatrix", "Room", "serve"]
