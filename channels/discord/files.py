"""Files on their way out and in."""

from __future__ import annotations

import base64
import binascii
import itertools
import mimetypes
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from channels.discord.wire import VOICE_FLAG, Attachment
from gateway import Audio, FilePart, ImagePart, Part, Recording, recording_of

MOST_FILES = 10
"""Files that a message can have."""
MOST_FILE_BYTES = 10 * 1024 * 1024
MOST_BYTES = 24 * 1024 * 1024
_CDN_HOSTS = frozenset({"cdn.discordapp.com", "media.discordapp.net"})
_UNSAFE = re.compile(r"[^\w.\-]+")
_TEXTUAL = ("text/", "application/json", "application/xml", "application/javascript", "application/toml")
_POINTS, _POINTS_A_SECOND = 256, 10
"""How finely a voice message is drawn, at most."""
_DEVICES = frozenset({"con", "prn", "aux", "nul", *(f"{d}{n}" for d in ("com", "lpt") for n in range(10))})


class Upload(Struct, frozen=True):
    """A file to be sent: its name, what it holds, and in words what can be seen on it.

    What is known of a ``recording`` is said where it is sent as a voice message.
    """

    name: str
    data: bytes
    mime_type: str = "application/octet-stream"
    description: str | None = None
    recording: Recording | None = None


def safe_name(name: str, otherwise: str = "file") -> str:
    """A file name without anything that a file system or a person could take for something else."""
    last = PurePosixPath(name.replace("\\", "/").replace("\0", "")).name
    tidy = _UNSAFE.sub("_", last).strip("._-")[-100:]
    if not tidy or tidy.partition(".")[0].lower() in _DEVICES:
        return f"{otherwise}_{tidy}".rstrip("_")
    return tidy


def form_of(body: Mapping[str, Any], uploads: Sequence[Upload]) -> list[dict[str, Any]]:
    """A body with files, as fields of a form."""
    spoken = bool(body.get("flags", 0) & VOICE_FLAG)
    described = [
        {"id": index, "filename": upload.name}
        | ({} if upload.description is None else {"description": upload.description[:1024]})
        | (_drawn(upload.recording) if spoken else {})
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
    """A part as a file to be sent; None when there is nothing in it that could be."""
    if isinstance(part, FilePart):
        if part.content is None:
            return None
        return Upload(
            safe_name(part.path), part.content.encode(errors="replace"), "text/plain; charset=utf-8"
        )
    return decoded(part.data, part.mime_type, part.alt_text or "image", part.alt_text)


def decoded(data: str, mime_type: str, name: str, description: str | None = None) -> Upload | None:
    """What stands in base64, as a file to be sent; None when it is no base64."""
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
    kind, tidy = mime_type.partition(";")[0], safe_name(name, "image")
    if mimetypes.guess_type(tidy)[0] != kind:
        tidy = tidy[:60] + (mimetypes.guess_extension(kind) or "")
    recording = recording_of(raw) if kind.startswith("audio/") else None
    return Upload(tidy, raw, mime_type, description, recording)


def is_ours(url: str, api_base_url: str) -> bool:
    """Whether a file may be loaded from an address: from Discord's own hosts, or the API's."""
    parts = urlsplit(url)
    return (parts.scheme == "https" and parts.hostname in _CDN_HOSTS) or (
        parts.hostname is not None
        and (parts.scheme, parts.netloc) == (urlsplit(api_base_url).scheme, urlsplit(api_base_url).netloc)
    )


def received(attachment: Attachment, data: bytes) -> Part | Audio:
    """A file that somebody sent."""
    kind = (attachment.content_type or "").partition(";")[0].strip().lower()
    name = safe_name(attachment.filename)
    encoded = base64.b64encode(data).decode()
    if attachment.is_voice:
        return Audio(url=f"data:{kind or 'audio/ogg'};base64,{encoded}", mime_type=kind or "audio/ogg")
    if kind.startswith("image/") and kind != "image/svg+xml":
        return ImagePart(encoded, kind, name, attachment.width, attachment.height)
    if kind.startswith(_TEXTUAL) or _is_text(data):
        return FilePart(name, data.decode("utf-8", errors="replace").replace("\0", ""))
    return FilePart(name)


def grouped(uploads: Iterable[Upload]) -> list[tuple[Upload, ...]]:
    """Files in as few messages as can hold them."""
    groups: list[list[Upload]] = []
    size = 0
    for upload in uploads:
        if not groups or len(groups[-1]) == MOST_FILES or size + len(upload.data) > MOST_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(upload)
        size += len(upload.data)
    return [tuple(group) for group in groups]


def _drawn(recording: Recording | None) -> dict[str, Any]:
    """How long a voice message is, and what is drawn for it: how much each moment took to encode."""
    if recording is None:
        return {}
    sizes = recording.sizes
    points = min(_POINTS, len(sizes), max(1, int(recording.seconds * _POINTS_A_SECOND)))
    edges = [len(sizes) * point // points for point in range(points + 1)]
    heights = [max(sizes[start:end]) for start, end in itertools.pairwise(edges)]
    tallest = max(heights) or 1
    drawn = base64.b64encode(bytes(255 * height // tallest for height in heights)).decode()
    return {"duration_secs": round(recording.seconds, 3), "waveform": drawn}


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in data
