"""A Telegram without Telegram: the Bot API on this machine, with people who write to the bot.

In tests::

    async with FakeTelegram() as fake:
        chat = fake.private("Ada")
        fake.say(chat, "Hi")
        ...  # a bot with base_url = fake.base_url and token = fake.token answers
        assert fake.answers(chat) == ["Hello"]
        fake.transcript.check()
"""

from __future__ import annotations

from channels.telegram.fake.clock import Clock
from channels.telegram.fake.limits import Figures, Rate
from channels.telegram.fake.rooms import Chat, Draft, Message, Person
from channels.telegram.fake.schema import problems
from channels.telegram.fake.server import TOKEN, FakeTelegram
from channels.telegram.fake.serving import serve

__all__ = [
    "TOKEN",
    "Chat",
    "Clock",
    "Draft",
    "FakeTelegram",
    "Figures",
    "Message",
    "Person",
    "Rate",
    "problems",
    "serve",
]
