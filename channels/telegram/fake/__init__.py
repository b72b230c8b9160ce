"""Fake Telegram server for the development and tests of bots: ``FakeTelegram``, or ``serve`` to run it
alone.

In: calls of a bot, and what users of the fake do. Out: responses and events as the platform sends them.
Tests and the contract trials of channels import it; the channel does not.
"""

from channels.telegram.fake.calls import problems
from channels.telegram.fake.limits import Figures, Rate
from channels.telegram.fake.server import TOKEN, FakeTelegram, serve
from channels.telegram.fake.state import Chat, Draft, Message, Person

__all__ = [
    "TOKEN",
    "Chat",
    "Draft",
    "FakeTelegram",
    "Figures",
    "Message",
    "Person",
    "Rate",
    "problems",
    "serve",
]
