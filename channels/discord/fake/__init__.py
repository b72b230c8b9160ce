"""A fake Discord, to develop and test bots against: ``FakeDiscord``, or ``serve`` to run it alone."""

from channels.discord.fake.limits import Figures, relaxed
from channels.discord.fake.server import FakeDiscord, serve
from channels.discord.fake.state import Channel, Interaction, Message, User

__all__ = ["Channel", "FakeDiscord", "Figures", "Interaction", "Message", "User", "relaxed", "serve"]
