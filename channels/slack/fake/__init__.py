"""A fake Slack on a real socket: workspaces with people in them, and everything an app talks to."""

from channels.slack.fake.delivery import Delivery
from channels.slack.fake.reading import Said
from channels.slack.fake.server import FakeSlack
from channels.slack.fake.state import App

__all__ = ["App", "Delivery", "FakeSlack", "Said"]
