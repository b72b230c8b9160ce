"""Files of received messages and of answers."""

from __future__ import annotations

import base64
import binascii
import itertools
import mimetypes
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from channels.discord.parse import VOICE_FLAG, Attachment
from gateway import FilePart, ImagePart, Part
from gateway.channel import Audio, Recording, recording_of

MAX_FILES = 10
MAX_FILE_BYTES = 10 * 1024 * 1024
MAX_MESSAGE_BYTES = 24 * 1024 * 1024
"""Limits of a sent message: number of files, bytes of one file, bytes of all its files."""
_CDN_HOSTS = frozenset({"cdn.discordapp.com", "media.discordapp.net"})
_UNSAFE = re.compile(r"[^\w.\-]+")
_MAX_POINTS, _POINTS_PER_SECOND = 256, 10
"""Points in the waveform of a voice message."""
_DEVICES = frozenset({"con", "prn", "aux", "nul", *(f"{d}{n}" for d in ("com", "lpt") for n in range(10))})


class Upload(Struct, frozen=True):
    """File to send. ``description`` is the alternative text of an image.

    ``recording`` is set if the file can be sent as a voice message.
    """

    name: str
    data: bytes
    mime_type: str = "application/octet-stream"
    description: str | None = None
    recording: Recording | None = None


def safe_name(name: str, otherwise: str = "file") -> str:
    """Return a file name without directories, special characters and device names of Windows."""
    last = PurePosixPath(name.replace("\\", "/").replace("\0", "")).name
    tidy = _UNSAFE.sub("_", last).strip("._-")[-100:]
    if not tidy or tidy.partition(".")[0].lower() in _DEVICES:
        return f"{otherwise}_{tidy}".rstrip("_")
    return tidy


def form_of(body: Mapping[str, Any], uploads: Sequence[Upload]) -> list[dict[str, Any]]:
    """Return the fields of a multipart form with a JSON body and files."""
    is_voice = bool(body.get("flags", 0) & VOICE_FLAG)
    described = [
        {"id": index, "filename": upload.name}
        | ({} if upload.description is None else {"description": upload.description[:1024]})
        | (_waveform(upload.recording) if is_voice else {})
        for index, upload in enumerate(uploads)
    ]
    whole = {**body, "attachments": described}
    fields: list[dict[str, Any]] = [
        {
            "name": "payload_json",
            "value": msgspec.json.encode(whole).decode(),
            "content_type": "application/json",
        }
    ]
    for index, upload in enumerate(uploads):
        fields.append(
            {
                "name": f"files[{index}]",
                "value": upload.data,
                "filename": upload.name,
                "content_type": upload.mime_type,
            }
        )
    return fields


def upload_of(part: ImagePart | FilePart) -> Upload | None:
    """Convert a part to a file to send; None if it has no valid content."""
    if isinstance(part, FilePart):
        if part.content is None:
            return None
        return Upload(
            safe_name(part.path), part.content.encode(errors="replace"), "text/plain; charset=utf-8"
        )
    return decoded(part.data, part.mime_type, part.alt_text or "image", part.alt_text)


def decoded(data: str, mime_type: str, name: str, description: str | None = None) -> Upload | None:
    """Convert base64 data to a file to send; None if it is invalid. The extension follows the media type."""
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
    kind, tidy = mime_type.partition(";")[0], safe_name(name, "image")
    if mimetypes.guess_type(tidy)[0] != kind:
        tidy = tidy[:60] + (mimetypes.guess_extension(kind) or "")
    recording = recording_of(raw) if kind.startswith("audio/") else None
    return Upload(tidy, raw, mime_type, description, recording)


def may_download(url: str, api_base_url: str) -> bool:
    """Return whether a file may be downloaded: only from Discord's file hosts or from the host of the API."""
    parts = urlsplit(url)
    return (parts.scheme == "https" and parts.hostname in _CDN_HOSTS) or (
        parts.hostname is not None
        and (parts.scheme, parts.netloc) == (urlsplit(api_base_url).scheme, urlsplit(api_base_url).netloc)
    )


async def received(
    attachment: Attachment, data: bytes, read_file: Callable[..., Awaitable[Part]]
) -> Part | Audio:
    """Convert a received file to a part with ``Host.read_file``, or to audio if it is a voice message."""
    kind = (attachment.content_type or "").partition(";")[0].strip().lower()
    if attachment.is_voice:
        encoded = base64.b64encode(data).decode()
        return Audio(url=f"data:{kind or 'audio/ogg'};base64,{encoded}", mime_type=kind or "audio/ogg")
    name = safe_name(attachment.filename)
    return await read_file(name, kind, data, width=attachment.width, height=attachment.height)


def grouped(uploads: Iterable[Upload]) -> list[tuple[Upload, ...]]:
    """Divide files among messages, in order, within the limits of a message."""
    groups: list[list[Upload]] = []
    size = 0
    for upload in uploads:
        if not groups or len(groups[-1]) == MAX_FILES or size + len(upload.data) > MAX_MESSAGE_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(upload)
        size += len(upload.data)
    return [tuple(group) for group in groups]


def _waveform(recording: Recording | None) -> dict[str, Any]:
    """Return the duration and the waveform of a voice message.

    The recording is not decoded: the size of its encoded frames represents their loudness.
    """
    if recording is None:
        return {}
    sizes = recording.sizes
    points = min(_MAX_POINTS, len(sizes), max(1, int(recording.seconds * _POINTS_PER_SECOND)))
    edges = [len(sizes) * point // points for point in range(points + 1)]
    heights = [max(sizes[start:end]) for start, end in itertools.pairwise(edges)]
    tallest = max(heights) or 1
    drawn = base64.b64encode(bytes(255 * height // tallest for height in heights)).decode()
    return {"duration_secs": round(recording.seconds, 3), "waveform": drawn}
