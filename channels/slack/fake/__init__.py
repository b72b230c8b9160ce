"""A fake Slack, to develop and test apps against: ``FakeSlack``, or ``serve`` to run it alone."""

from channels.slack.fake.people import Said
from channels.slack.fake.server import FakeSlack, serve
from channels.slack.fake.state import App, Delivery, Grant, Room, Switches, User

__all__ = ["App", "Delivery", "FakeSlack", "Grant", "Room", "Said", "Switches", "User", "serve"]
