"""Uploads: files that clients of the gateway's server send ahead of the message that refers to them.

The content is stored as the message will have it, so the transaction that accepts the message can remove the
upload: a crash keeps either the upload or the message with its content. What no message uses expires.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import msgspec
from msgspec import Struct
from sqlalchemy import func, select

from gateway.contract.channel import Audio
from gateway.contract.errors import InvalidRequestError, NotFoundError, OverloadedError
from gateway.contract.messages import Part, now_ms
from gateway.store import Op, Store
from gateway.store import schema as t
from gateway.store.retention import FORGET_UPLOAD
from gateway.store.writes import OwnStatement, Write

_DAY_MS = 86_400_000
_KEPT_DAYS = 7
_MOST_UNUSED_BYTES = 200_000_000
"""Most bytes of all uploads that no message uses, those that are arriving included."""
_MOST_MESSAGE_BYTES = 40_000_000
"""Most bytes of the uploads of one message, which is stored as one row."""

_PUT = Write("insert", 3, t.upload, "id owner body size expires_at")
_DROP_EXPIRED = OwnStatement(2, t.upload, "DELETE FROM upload WHERE expires_at <= ?1")


class Content(Struct, frozen=True):
    """The content of an upload: a part of a message, or a voice message."""

    part: Part | None = None
    audio: Audio | None = None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Content).decode


class Uploads:
    """The uploads that no message uses yet. ``clock`` returns milliseconds."""

    def __init__(self, store: Store, clock: Callable[[], int] = now_ms) -> None:
        self._store = store
        self._clock = clock
        self._arriving = 0

    @contextmanager
    def arriving(self, size: int) -> Generator[None]:
        """Count an upload of ``size`` bytes while it arrives."""
        self._arriving += size
        try:
            yield
        finally:
            self._arriving -= size

    async def check_room(self) -> None:
        """Raise OverloadedError if the uploads that are stored or arriving have too many bytes."""
        u, now = t.upload.c, self._clock()
        query = select(func.coalesce(func.sum(u.size), 0)).where(u.expires_at > now)
        stored: int = await self._store.read(lambda c: c.execute(query).scalar_one())
        if stored + self._arriving > _MOST_UNUSED_BYTES:
            raise OverloadedError(
                f"the uploads that no message uses have {_MOST_UNUSED_BYTES} bytes; "
                "send or remove some, then upload the file again"
            )

    async def put(self, owner: str, content: Content, size: int) -> tuple[str, int]:
        """Store an upload. Returns, once it is durable, its id and the time (ms) when it expires."""
        upload, now = secrets.token_hex(16), self._clock()
        expires = now + _KEPT_DAYS * _DAY_MS
        row = (upload, owner, _encode(content).decode(), size, expires)
        await self._store.write((_DROP_EXPIRED, (now,)), (_PUT, row))
        return upload, expires

    async def read(self, owner: str, ids: Sequence[str]) -> list[Content] | None:
        """Return the contents of a user's uploads, in order; None if one of them is not there.

        Raises InvalidRequestError if they are too many bytes for one message.
        """
        u, now = t.upload.c, self._clock()
        query = select(u.id, u.body, u.size).where(u.owner == owner, u.expires_at > now, u.id.in_(ids))
        rows = await self._store.read(lambda c: {row.id: row for row in c.execute(query)})
        if rows.keys() != set(ids):
            return None
        if sum(row.size for row in rows.values()) > _MOST_MESSAGE_BYTES:
            raise InvalidRequestError(
                f"uploads: they have more than {_MOST_MESSAGE_BYTES} bytes; send them in several messages"
            )
        return [_decode(rows[upload].body) for upload in ids]

    def use(self, ids: Sequence[str]) -> list[Op]:
        """Return the writes that remove uploads, for the transaction that accepts their message."""
        return [(FORGET_UPLOAD, (upload,)) for upload in ids]

    async def remove(self, owner: str, upload: str) -> None:
        """Remove an upload of a user. Raises NotFoundError."""
        u = t.upload.c
        query = select(u.id).where(u.owner == owner, u.id == upload)
        if await self._store.read(lambda c: c.execute(query).first()) is None:
            raise NotFoundError(f"no upload {upload!r}; a message used it, or it expired")
        await self._store.write(*self.use((upload,)))
