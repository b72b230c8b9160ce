"""Files: their upload in three steps, their description, and their download."""

from __future__ import annotations

import mimetypes
import uuid
from typing import Any, cast

from aiohttp import web

from channels.slack.fake.calls import Call, RefusalError, objects
from channels.slack.fake.chats import place
from channels.slack.fake.delivery import emit
from channels.slack.fake.messages import check_text, new_message
from channels.slack.fake.state import Chat, Grant, Json, State, StoredFile, User

LARGEST_UPLOAD = 1 << 30
_LOGIN = "<!DOCTYPE html><html><head><title>Slack</title></head><body>Sign in to your workspace</body></html>"


def get_upload_url(call: Call) -> Json:
    """``files.getUploadURLExternal``: first step of an upload."""
    user = call.team.users[call.grant.user]
    file = new_file(call.state, user, call["filename"], call["length"])
    return {"file_id": file.id, "upload_url": f"{call.state.url}/upload/v1/{file.ticket}"}


def complete_upload(call: Call) -> Json:
    """``files.completeUploadExternal``: third step of an upload, which posts the message with the files."""
    files = [_uploaded(call, one) for one in objects(call["files"], "files")]
    names = [name for name in (call.get("channel_id"), *call.get("channels", "").split(",")) if name]
    for name in names:
        call.arguments["channel"] = name
        share(call, call.chat(), files)
    return {"files": [{"id": file.id, "title": file.title} for file in files]}


def share(call: Call, chat: Chat, files: list[StoredFile]) -> None:
    """Post a message of the app that shows files."""
    for file in files:
        file.shared = True
    text = check_text(call, call.get("initial_comment", ""))
    said: Json = {"text": text, "subtype": "file_share", "upload": True}
    message = new_message(call, chat, said, call.get("thread_ts"))
    for file in files:
        file.shares[chat.id] = message["ts"]
    message["files"] = [file_object(call.state, file) for file in files]
    place(call.state, chat, message)
    emit_shared(call.state, chat, files)


def emit_shared(state: State, chat: Chat, files: list[StoredFile]) -> None:
    """Send an event for each shared file, if the app is in the chat."""
    team = state.teams[chat.team]
    for file in files:
        event = {"type": "file_shared", "channel_id": chat.id, "file_id": file.id, "user_id": file.user}
        if team.has_app_in(chat):
            emit(state, team, {**event, "file": {"id": file.id}, "event_ts": state.stamps.next()})


def file_info(call: Call) -> Json:
    """``files.info``."""
    return {
        "file": file_object(call.state, _file_of(call)),
        "comments": [],
        "response_metadata": {"next_cursor": ""},
    }


def delete_file(call: Call) -> Json:
    """``files.delete``."""
    file = _file_of(call)
    if file.user != call.grant.user:
        raise RefusalError("cant_delete_file")
    file.deleted = True
    return {}


def new_file(state: State, user: User, name: str, size: int) -> StoredFile:
    """Register a file whose content is not uploaded yet."""
    file = StoredFile(
        id=state.names.next("F"),
        team=user.team,
        user=user.id,
        name=name,
        title=name,
        mimetype=mimetypes.guess_type(name)[0] or "application/octet-stream",
        created=state.stamps.seconds(),
        size=size,
        ticket=uuid.uuid4().hex,
    )
    state.files[file.id] = file
    return file


def file_row(state: State, file: StoredFile) -> Json:
    """Return a file as an object of a user's message."""
    if not state.switches.shared:
        return file_object(state, file)
    unknown: Json = {"created": 0, "timestamp": 0, "user": ""}
    return {"id": file.id, "mode": "file_access", "file_access": "check_file_info", **unknown}


def file_object(state: State, file: StoredFile) -> Json:
    """Return a file as an object of the Web API."""
    kind = file.name.rpartition(".")[2].lower() or "binary"
    address = f"{state.url}/files-pri/{file.team}-{file.id}"
    shares: Json = {chat: [{"ts": ts, "channel_name": ""}] for chat, ts in file.shares.items()}
    return {
        "id": file.id,
        "created": file.created,
        "timestamp": file.created,
        "name": file.name,
        "title": file.title,
        "mimetype": file.mimetype,
        "filetype": kind,
        "pretty_type": kind.upper(),
        "user": file.user,
        "user_team": file.team,
        "editable": False,
        "size": file.size,
        "mode": "hosted",
        "is_external": False,
        "external_type": "",
        "is_public": True,
        "public_url_shared": False,
        "display_as_bot": False,
        "username": "",
        "url_private": f"{address}/{file.name}",
        "url_private_download": f"{address}/download/{file.name}",
        "permalink": f"{state.url}/files/{file.user}/{file.id}",
        "channels": list(file.shares),
        "groups": [],
        "ims": [],
        "shares": {"public": shares} if shares else {},
        "has_rich_preview": False,
        "file_access": "visible",
        **({"subtype": "slack_audio", "transcription": {"status": "processing"}} if file.spoken else {}),
    }


async def receive_content(state: State, request: web.Request) -> tuple[web.Response, str | None]:
    """Receive the content, the second step of an upload. Returns the answer and the problem to record."""
    ticket = request.match_info["ticket"]
    file = next((one for one in state.files.values() if one.ticket == ticket), None)
    if file is None or file.content is not None:
        return web.Response(status=404, text="not found"), "invalid or used upload URL"
    content = await _content(request)
    if len(content) != file.size:
        problem = f"{len(content)} bytes instead of the {file.size} announced"
        return web.Response(status=400, text="size mismatch"), problem
    file.content = content
    return web.Response(text=f"OK - {len(content)}"), None


def serve_content(state: State, request: web.Request) -> tuple[web.StreamResponse, str | None]:
    """Serve a file to a token that may read it; redirect others to the sign-in page, as Slack does."""
    file = state.files.get(request.match_info["file"].rpartition("-")[2])
    token = request.headers.get("Authorization", "").removeprefix("Bearer ")
    grant = state.tokens.get(token)
    if file is None or file.content is None or file.deleted:
        return web.Response(status=404, text="not found"), None
    if not _may_read(grant, file):
        return web.Response(status=302, headers={"Location": f"{state.url}/?redir={request.path}"}), (
            "a file was requested without a token that may read it"
        )
    return web.Response(body=file.content, content_type=file.mimetype), None


def sign_in() -> web.Response:
    """Return the sign-in page."""
    return web.Response(text=_LOGIN, content_type="text/html")


def _may_read(grant: Grant | None, file: StoredFile) -> bool:
    return (
        grant is not None
        and grant.revoked is None
        and grant.team == file.team
        and "files:read" in grant.scopes
    )


async def _content(request: web.Request) -> bytes:
    if not request.content_type.startswith("multipart/"):
        return await request.read()
    async for part in await request.multipart():
        if hasattr(part, "filename"):
            return bytes(await cast(Any, part).read())
    return b""


def _uploaded(call: Call, completed: Json) -> StoredFile:
    file = call.state.files.get(str(completed.get("id")))
    if file is None or file.team != call.team.id or file.user != call.grant.user:
        raise RefusalError("file_not_found")
    if file.content is None or file.shared:
        raise RefusalError("file_not_found", "the file is not uploaded, or already shared")
    if isinstance(completed.get("title"), str):
        file.title = completed["title"]
    return file


def _file_of(call: Call) -> StoredFile:
    file = call.state.files.get(call["file"])
    if file is None or file.team != call.team.id:
        raise RefusalError("file_not_found")
    if file.deleted:
        raise RefusalError("file_deleted")
    return file
