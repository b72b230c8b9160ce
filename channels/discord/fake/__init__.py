"""A fake Discord, to develop and test bots against: ``FakeDiscord``, or ``serve`` to run it alone."""

from channels.discord.fake.alone import serve
from channels.discord.fake.figures import Figures, relaxed
from channels.discord.fake.nouns import Channel, Interaction, Message, User
from channels.discord.fake.server import FakeDiscord

__all__ = ["Channel", "FakeDiscord", "Figures", "Interaction", "Message", "User", "relaxed", "serve"]
