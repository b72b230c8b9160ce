"""A Slack without Slack: workspaces with people in them on this machine, and everything an app talks to.

In tests::

    async with FakeSlack() as fake:
        fake.say("general", "hello @trunkline")
        ...  # an app with base_url = fake.api_url, fake.app_token and fake.bot_token answers
        await fake.until(lambda: fake.answers("general") == ["Hello"])
        fake.transcript.check()
"""

from __future__ import annotations

from channels.slack.fake.clock import Clock
from channels.slack.fake.delivery import Delivery
from channels.slack.fake.reading import Said
from channels.slack.fake.server import FakeSlack
from channels.slack.fake.serving import serve
from channels.slack.fake.state import App, Switches
from channels.slack.fake.workspace import Grant, Room, User

__all__ = ["App", "Clock", "Delivery", "FakeSlack", "Grant", "Room", "Said", "Switches", "User", "serve"]
