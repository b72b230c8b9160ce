"""A fake Discord, to develop and test bots against: ``FakeDiscord``, or ``serve`` to run it alone.

In: calls of a bot, and what users of the fake do. Out: responses and events as the platform sends them.
Tests and the contract trials of channels import it; the channel does not.
"""

from channels.discord.fake.limits import Figures, relaxed
from channels.discord.fake.server import FakeDiscord, serve
from channels.discord.fake.state import Channel, Interaction, Message, User

__all__ = ["Channel", "FakeDiscord", "Figures", "Interaction", "Message", "User", "relaxed", "serve"]
