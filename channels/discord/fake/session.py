"""A session: what one bot has been told, so that it can be told again after a connection broke."""

from __future__ import annotations

from typing import Any, Protocol

from msgspec import Struct

from channels.discord.fake.guild_views import on_shard


class Told(Struct, frozen=True):
    """One event as it was told. ``seq`` is its number within the session."""

    seq: int
    name: str
    data: dict[str, Any]

    def payload(self) -> dict[str, Any]:
        """As it goes over the gateway."""
        return {"t": self.name, "s": self.seq, "op": 0, "d": self.data}


class Reader(Protocol):
    """A connection that a session is read on."""

    def send(self, payload: object) -> None: ...


class Session:
    """Keeps all events ``told`` since a login. ``left`` is when its connection went; None while it stands."""

    def __init__(self, key: str, intents: int, shard: tuple[int, int]) -> None:
        self.id = key
        self.intents = intents
        self.shard = shard
        self.reader: Reader | None = None
        self.left: float | None = None
        self.expired = False
        self.told: list[Told] = []

    @property
    def seq(self) -> int:
        """The number of the last event."""
        return len(self.told)

    def concerns(self, guild: int | None) -> bool:
        """Whether what happens in a guild, or in none, is told here."""
        return on_shard(guild, self.shard)

    def tell(self, name: str, data: dict[str, Any]) -> None:
        """One more event."""
        told = Told(self.seq + 1, name, data)
        self.told.append(told)
        if self.reader is not None:
            self.reader.send(told.payload())

    def replay(self, reader: Reader, seq: int) -> None:
        """Read on another connection, from behind a number."""
        self.reader, self.left = reader, None
        for told in self.told[seq:]:
            reader.send(told.payload())
        self.tell("RESUMED", {"_trace": ["fake"]})
