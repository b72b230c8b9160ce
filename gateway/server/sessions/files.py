"""Files over REST: uploaded ahead of the message that refers to them."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from aiohttp import web
from msgspec import UNSET, Meta, Struct, UnsetType

from gateway.contract.client_message import UploadId
from gateway.contract.errors import InvalidRequestError, NotFoundError, OverloadedError, PartValidationError
from gateway.contract.messages import ImagePart
from gateway.host import Host
from gateway.server.errors import SlowRequestError, TooLargeError
from gateway.server.routes import Call, Nothing, Route
from gateway.tables.uploads import Content

_SECONDS = 600.0
"""Time limit of an upload, and of a pause in it."""
_PAUSE_SECONDS = 30.0


class FilePath(Struct, frozen=True):
    """An uploaded file."""

    file_id: Annotated[UploadId, Meta(description="The upload's id")]


_Edge = Annotated[int, Meta(ge=1, le=65_535, description="Of a picture, in pixels")]


class FileQuery(Struct, frozen=True):
    """The name of a file, and the size of a picture."""

    name: Annotated[str, Meta(min_length=1, max_length=255, description="The file's name")]
    width: _Edge | UnsetType = UNSET
    height: _Edge | UnsetType = UNSET


class UploadedFile(Struct, frozen=True):
    """A durably stored file. A message of the same user can name ``id`` in its ``uploads``, once.

    ``size`` is in bytes; an upload that no message uses until ``expires_at`` (ms) is removed.
    """

    id: str
    name: str
    kind: Literal["image", "file", "audio"]
    size: int
    expires_at: int


class FileRoutes:
    """The routes under ``/api/files``."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route(
                "POST",
                "/api/files",
                "uploadFile",
                "Upload a file, the body, for a message; returns once it is durable.",
                self._upload,
                success=201,
                takes="application/octet-stream",
                errors=(PartValidationError, OverloadedError),
            ),
            Route(
                "DELETE",
                "/api/files/{file_id}",
                "removeFile",
                "Remove an uploaded file that no message uses.",
                self._remove,
                errors=(NotFoundError,),
            ),
        ]

    async def _upload(self, call: Call[Nothing, FileQuery, Nothing, None]) -> UploadedFile:
        request, most = call.request, self._host.limits.upload_bytes
        announced = request.content_length
        if announced is not None and announced > most:
            raise _too_large(most)
        with self._host.uploads.arriving(most if announced is None else announced):
            await self._host.uploads.check_room()
            data = await _receive(request, most)
            kind = request.content_type if "Content-Type" in request.headers else ""
            query = call.query
            content, upload, expires = await self._host.upload(
                call.user,
                query.name,
                kind,
                data,
                width=query.width if isinstance(query.width, int) else None,
                height=query.height if isinstance(query.height, int) else None,
            )
        return UploadedFile(upload, call.query.name, _kind(content), len(data), expires)

    async def _remove(self, call: Call[FilePath, Nothing, Nothing, None]) -> None:
        await self._host.uploads.remove(call.user, call.path.file_id)


def _kind(content: Content) -> Literal["image", "file", "audio"]:
    if content.audio is not None:
        return "audio"
    return "image" if isinstance(content.part, ImagePart) else "file"


async def _receive(request: web.Request, most: int) -> bytes:
    """Return the body of a request, which aiohttp itself would limit to that of JSON."""
    received, loop = bytearray(), asyncio.get_running_loop()
    ends = loop.time() + _SECONDS
    try:
        async with asyncio.timeout(_PAUSE_SECONDS) as pause:
            async for piece in request.content.iter_any():
                pause.reschedule(min(loop.time() + _PAUSE_SECONDS, ends))
                received += piece
                if len(received) > most:
                    raise _too_large(most)
    except TimeoutError:
        raise SlowRequestError(
            f"the file did not arrive within {_SECONDS:.0f} seconds, or paused for {_PAUSE_SECONDS:.0f}"
        ) from None
    except web.RequestPayloadError as error:
        raise InvalidRequestError(f"the body cannot be read: {type(error).__name__}") from None
    return bytes(received)


def _too_large(most: int) -> TooLargeError:
    return TooLargeError(f"the file has more than limits.upload_bytes = {most} bytes; upload a smaller one")
