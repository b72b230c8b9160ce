"""Fake Slack to develop and test apps against: ``FakeSlack``, or ``serve`` to run it alone."""

from channels.slack.fake.people import ShownMessage
from channels.slack.fake.server import FakeSlack, serve
from channels.slack.fake.state import App, Chat, Delivery, Grant, Switches, User

__all__ = ["App", "Chat", "Delivery", "FakeSlack", "Grant", "ShownMessage", "Switches", "User", "serve"]
