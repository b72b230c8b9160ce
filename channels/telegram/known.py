"""Known messages: the newest id of each id sequence, and the bot's own messages."""

from __future__ import annotations

from collections import OrderedDict

from channels.telegram.parse import room_of

_REMEMBERED = 10_000


class Known:
    """Message ids that this process has seen."""

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}
        self._own: OrderedDict[tuple[str, int], None] = OrderedDict()

    def note(self, chat: str, number: int) -> None:
        """Record that a message with this id exists."""
        row = room_of(chat)
        self._newest[row] = max(number, self._newest.get(row, 0))

    def newest(self, chat: str) -> int:
        """Return the newest id in a chat's id sequence; 0 if none is known."""
        return self._newest.get(room_of(chat), 0)

    def remember(self, chat: str, number: int) -> int:
        """Record that the bot wrote this message and that its content is known."""
        self.note(chat, number)
        self._own[chat, number] = None
        while len(self._own) > _REMEMBERED:
            self._own.popitem(last=False)
        return number

    def is_own(self, chat: str, number: int) -> bool:
        """Return whether this is a message of the bot with known content."""
        return (chat, number) in self._own
