"""Resources of servers: the tool that lists and reads them, and their contents as output.

Like ``session``, this is imported with the first connection.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mcp_types as types
from mcp import Client, MCPError

from gateway.contract.errors import ToolError
from gateway.contract.messages import Attachment
from gateway.contract.tool import ToolOutput
from gateway.files import picture_type
from gateway.mcp.definitions import visible
from gateway.provider_http import IMAGE_TYPES

MOST_RESOURCES = 1_000
"""Resources and templates of one server that are listed."""
MOST_SHOWN = 100
"""Lines of one answer of a list."""
MOST_CHARACTERS = 50_000
"""Characters of one answer; ``offset`` gets the others."""
_MOST_PAGES = 50
_UNKNOWN = "application/octet-stream"
_LONGEST_LINE = 500
_SPACE = re.compile(r"\s+")


async def has_resources(client: Client) -> bool:
    """Return whether the server has any: many say that they can have some, and have none."""
    if client.server_capabilities.resources is None:
        return False
    try:
        if (await client.list_resources(cache_mode="bypass")).resources:
            return True
        return bool((await client.list_resource_templates(cache_mode="bypass")).resource_templates)
    except MCPError as error:
        if error.code == types.CONNECTION_CLOSED:
            raise
        return False  # it refuses one of the lists


async def use_resources(client: Client, arguments: Mapping[str, Any]) -> ToolOutput:
    """Read the resource ``uri``, or list all of them, from ``offset`` on. Raises ToolError."""
    uri, offset = arguments.get("uri") or "", arguments.get("offset") or 0
    if not isinstance(uri, str):
        raise ToolError("uri must be a text, as in the list")
    if not isinstance(offset, int) or offset < 0:
        raise ToolError("offset must be a number from 0")
    if not uri:
        lines = await _lines(client)
        shown = lines[offset : offset + MOST_SHOWN]
        text = _with_rest("\n".join(shown), offset + len(shown), len(lines), "resources")
        return ToolOutput(text if lines else "[there are no resources]")
    texts: list[str] = []
    attachments: list[Attachment] = []
    for each in (await client.read_resource(uri, cache_mode="bypass")).contents:
        add_contents(each, texts, attachments)
    whole = "\n".join(texts)
    text = whole[offset : offset + MOST_CHARACTERS]
    text = _with_rest(text, offset + len(text), len(whole), "characters")
    return ToolOutput(
        text or ("[see the attachment]" if attachments else "[empty]"), attachments=tuple(attachments)
    )


def add_contents(
    found: types.TextResourceContents | types.BlobResourceContents,
    texts: list[str],
    attachments: list[Attachment],
) -> None:
    """Add the contents of a resource to what an answer has."""
    if isinstance(found, types.TextResourceContents):
        texts.append(f"{found.uri}:\n{found.text}")
    else:
        add_file(found.mime_type or _UNKNOWN, found.blob, texts, attachments, found.uri.rpartition("/")[2])


def add_file(
    mime_type: str, data: str, texts: list[str], attachments: list[Attachment], name: str = ""
) -> None:
    """Add a file, with the type of its content if that is a picture, or a text if it is not base64.

    A broken picture would end the conversation: model providers refuse every request with it.
    """
    data = data.partition(";base64,")[2] if data.startswith("data:") else data
    try:
        kind = picture_type(base64.b64decode(data, validate=True))
    except ValueError:
        texts.append("[a file is left out: its data is not base64]")
        return
    known = _UNKNOWN if mime_type in IMAGE_TYPES else mime_type
    attachments.append(Attachment(kind or known, data, name))


async def _lines(client: Client) -> list[str]:
    """Return a line for each resource and for each template of an address."""

    async def pages(fetch: Callable[..., Any], of: Callable[[Any], Sequence[Any]]) -> list[Any]:
        found: list[Any] = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            page = await fetch(cursor=cursor, cache_mode="bypass")
            found += of(page)
            cursor = page.next_cursor
            if cursor is None or len(found) >= MOST_RESOURCES:
                break
        return found[:MOST_RESOURCES]

    lines = [
        _line(each, each.uri) for each in await pages(client.list_resources, lambda page: page.resources)
    ]
    try:
        templates = await pages(client.list_resource_templates, lambda page: page.resource_templates)
    except MCPError:
        templates = []  # not each server has that list
    lines += [_line(each, f"{each.uri_template} (fill in the names in braces)") for each in templates]
    return lines[:MOST_RESOURCES]


def _line(found: types.Resource | types.ResourceTemplate, uri: str) -> str:
    about = [found.title or found.name, found.mime_type or "", found.description or ""]
    text = f"{uri} - {', '.join(filter(None, about))}"
    return visible(_SPACE.sub(" ", text))[:_LONGEST_LINE]


def _with_rest(text: str, end: int, size: int, what: str) -> str:
    if end >= size:
        return text
    return f"{text}\n[{size - end:,} more {what}; continue at offset {end}]"
