"""What is known of the messages that exist: the newest of each row of numbers, and the bot's own."""

from __future__ import annotations

from collections import OrderedDict

from channels.telegram.parse import room_of

_REMEMBERED = 10_000


class Known:
    """The messages that a process has heard of."""

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}
        self._own: OrderedDict[tuple[str, int], None] = OrderedDict()

    def note(self, chat: str, number: int) -> None:
        """A message with this number exists."""
        row = room_of(chat)
        self._newest[row] = max(number, self._newest.get(row, 0))

    def newest(self, chat: str) -> int:
        """The newest number in a room's row; 0 if none is known."""
        return self._newest.get(room_of(chat), 0)

    def remember(self, chat: str, number: int) -> int:
        """The bot wrote this one, and it is known what it is."""
        self.note(chat, number)
        self._own[chat, number] = None
        while len(self._own) > _REMEMBERED:
            self._own.popitem(last=False)
        return number

    def is_own(self, chat: str, number: int) -> bool:
        """Whether it is known what this one is."""
        return (chat, number) in self._own
