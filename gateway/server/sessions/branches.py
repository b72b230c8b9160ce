"""Versions of conversations over REST: edit, ask again, list, switch and export."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Literal
from urllib.parse import quote

from aiohttp import web
from msgspec import UNSET, Meta, Struct, UnsetType

from gateway.contract.client_message import ClientMessage, ClientMsgId
from gateway.contract.errors import InvalidStateError, NotFoundError, OverloadedError
from gateway.conversations import Branch, as_json_lines, as_markdown
from gateway.host import Host
from gateway.server.routes import Call, Nothing, Route
from gateway.server.sessions.routes import (
    CHANNEL,
    AcceptedMessage,
    IdempotencyHeaders,
    MessagePath,
    SessionPath,
    accepted,
    existing,
    key_of,
)


class ExportQuery(Struct, frozen=True):
    """The format of an export, and whether it has the versions that are not shown."""

    format: Literal["markdown", "json"] = "markdown"
    branch: Annotated[Literal["shown", "all"], Meta(description="The shown version, or all versions")] = (
        "shown"
    )


class EditedMessage(Struct, frozen=True, forbid_unknown_fields=True):
    """The new text of a message. Its files are kept."""

    text: str
    client_msg_id: ClientMsgId | UnsetType = UNSET


class ShownVersion(Struct, frozen=True, forbid_unknown_fields=True):
    """The version to show, by the id of its first message."""

    message_id: Annotated[str, Meta(min_length=1, max_length=64)]


class BranchList(Struct, frozen=True):
    """The places at which a session has several versions, in the order of the conversation."""

    branches: tuple[Branch, ...]


class BranchRoutes:
    """The routes of versions, and the export, which can contain them."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def routes(self) -> list[Route]:
        one, errors = "/api/sessions/{id}", (NotFoundError, InvalidStateError)
        message = f"{one}/messages/{{message_id}}"
        return [
            Route(
                "POST",
                f"{message}/edit",
                "editMessage",
                "Send another message in its place; what followed it is kept as a version.",
                self._edit,
                success=202,
                errors=(*errors, OverloadedError),
            ),
            Route(
                "POST",
                f"{message}/regenerate",
                "regenerateAnswer",
                "Ask for another answer in its place; the old one is kept as a version.",
                self._regenerate,
                success=202,
                errors=(*errors, OverloadedError),
            ),
            Route(
                "GET",
                f"{one}/branches",
                "listBranches",
                "List the versions of a session.",
                self._branches,
                errors=errors[:1],
            ),
            Route(
                "PUT",
                f"{one}/branch",
                "switchBranch",
                "Show another version of a session.",
                self._switch,
                errors=errors,
            ),
            Route(
                "GET",
                f"{one}/export",
                "exportSession",
                "Download a session with those of its tasks as Markdown, or as JSON with all data.",
                self._export,
                media="text/markdown",
                errors=errors[:1],
            ),
        ]

    async def _export(self, call: Call[SessionPath, ExportQuery, Nothing, None]) -> web.Response:
        session = await existing(self._host, call.path.id)
        found = await self._host.sessions.read(session.id)
        messages = [message for _, message in found]
        hidden = await self._host.branches.read_hidden(session) if call.query.branch == "all" else None
        every = [*messages, *(message for version in hidden or () for message in version.messages)]
        children = await self._host.sessions.child_sessions(session, every)
        if call.query.format == "json":
            changes = await self._host.changes.read(session.id)
            pieces = as_json_lines(session.row, messages, changes, children, hidden)
            kind, end = "application/json", "json"
        else:
            pieces = as_markdown(session.row, messages, children, hidden or ())
            kind, end = "text/markdown", "md"
        # In a thread: a conversation may have thousands of messages.
        body = await asyncio.to_thread(lambda: "".join(pieces).encode())
        name = re.sub(r"[^\w-]+", "-", session.row.title or session.id).strip("-")[:60] or "conversation"
        disposition = f"attachment; filename*=UTF-8''{quote(name)}.{end}"
        headers = {"Content-Disposition": disposition, "Cache-Control": "no-store"}
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)

    async def _edit(
        self, call: Call[MessagePath, Nothing, IdempotencyHeaders, EditedMessage]
    ) -> AcceptedMessage:
        session, body = await existing(self._host, call.path.id), call.body
        client_msg_id = key_of(body.client_msg_id, call.headers.key)
        new = ClientMessage(client_msg_id, body.text.replace("\0", "\ufffd"))
        inbound = new.inbound(CHANNEL, session.id, call.user)
        edit = self._host.branches.edit
        return accepted(client_msg_id, await edit(session, CHANNEL, call.path.message_id, inbound))

    async def _regenerate(
        self, call: Call[MessagePath, Nothing, IdempotencyHeaders, None]
    ) -> AcceptedMessage:
        session = await existing(self._host, call.path.id)
        client_msg_id = key_of(UNSET, call.headers.key)
        inbound = ClientMessage(client_msg_id, "").inbound(CHANNEL, session.id, call.user)
        again = self._host.branches.regenerate
        return accepted(client_msg_id, await again(session, CHANNEL, call.path.message_id, inbound))

    async def _branches(self, call: Call[SessionPath, Nothing, Nothing, None]) -> BranchList:
        return BranchList(await self._host.branches.list(await existing(self._host, call.path.id)))

    async def _switch(self, call: Call[SessionPath, Nothing, Nothing, ShownVersion]) -> BranchList:
        session = await existing(self._host, call.path.id)
        await self._host.branches.switch(session, call.body.message_id)
        return BranchList(await self._host.branches.list(session))
