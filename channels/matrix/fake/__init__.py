"""Fake homeserver to develop and test the Matrix channel against: ``FakeMatrix``, or ``serve``.

In: calls of a bot, and what users of the fake do. Out: responses and events as the platform sends them.
Tests and the contract trials of channels import it; the channel does not.
"""

from channels.matrix.fake.server import FakeMatrix, serve
from channels.matrix.fake.state import Room

__all__ = ["FakeMatrix", "Room", "serve"]
