"""What the platform answers instead of a result."""

from __future__ import annotations


class Refused(Exception):
    """An answer with ``ok: false``. ``mistake`` says which rule was broken, where a correct client breaks
    none.

    ``parameters`` are the platform's hints: ``retry_after`` (seconds), ``migrate_to_chat_id``.
    """

    far = True
    """Whether the call came as far as the room. What the server of the Bot API finds out by itself does not:
    it looks a message up before it asks for it to be edited."""

    def __init__(
        self, description: str, code: int = 400, *, mistake: str | None = None, **parameters: int
    ) -> None:
        super().__init__(description)
        self.description = description
        self.code = code
        self.mistake = mistake
        self.parameters = parameters


class NotReached(Refused):
    """The call did not come as far as the room."""

    far = False


def bad(text: str) -> Refused:
    """The request is well formed, but what it asks for is not to be had."""
    return Refused(f"Bad Request: {text}")


def mistaken(text: str, rule: str | None = None) -> Refused:
    """The request breaks a rule that the client could have known; ``rule`` names it where ``text`` does
    not."""
    return Refused(f"Bad Request: {text}", mistake=rule or text)


def forbidden(text: str) -> Refused:
    """The bot may not."""
    return Refused(f"Forbidden: {text}", 403)
