"""Fake Slack to develop and test apps against: ``FakeSlack``, or ``serve`` to run it alone.

In: calls of a bot, and what users of the fake do. Out: responses and events as the platform sends them.
Tests and the contract trials of channels import it; the channel does not.
"""

from channels.slack.fake.people import ShownMessage
from channels.slack.fake.server import FakeSlack, serve
from channels.slack.fake.state import App, Chat, Delivery, Grant, Switches, User

__all__ = ["App", "Chat", "Delivery", "FakeSlack", "Grant", "ShownMessage", "Switches", "User", "serve"]
