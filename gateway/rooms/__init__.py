"""Rooms with several people: the content that a model gets besides a message's own text.

Comes in: messages that are not for the bot, the history of threads, and stored messages with their origin.
Goes out: context for the next message that is answered, and messages with an envelope. Imported by the
pipeline and ``app``.
"""
