"""Files: the upload in three steps, what is known about them, and getting them."""

from __future__ import annotations

import mimetypes
import uuid
from typing import Any, cast

from aiohttp import web

from channels.slack.fake.calls import Asked, RefusalError, objects
from channels.slack.fake.chats import place
from channels.slack.fake.delivery import emit
from channels.slack.fake.messages import new_message, plain_text
from channels.slack.fake.state import Grant, Json, Room, State, StoredFile, User

LARGEST_UPLOAD = 1 << 30
_LOGIN = "<!DOCTYPE html><html><head><title>Slack</title></head><body>Sign in to your workspace</body></html>"


def get_upload_url(asked: Asked) -> Json:
    """``files.getUploadURLExternal``: the first step."""
    user = asked.team.users[asked.grant.user]
    file = new_file(asked.state, user, asked["filename"], asked["length"])
    return {"file_id": file.id, "upload_url": f"{asked.state.url}/upload/v1/{file.ticket}"}


def complete_upload(asked: Asked) -> Json:
    """``files.completeUploadExternal``: the third step. The message that shows the files comes by itself."""
    files = [_uploaded(asked, one) for one in objects(asked["files"], "files")]
    names = [name for name in (asked.get("channel_id"), *asked.get("channels", "").split(",")) if name]
    for name in names:
        asked.arguments["channel"] = name
        share(asked, asked.room(), files)
    return {"files": [{"id": file.id, "title": file.title} for file in files]}


def share(asked: Asked, room: Room, files: list[StoredFile]) -> None:
    """A message of the app that shows files."""
    for file in files:
        file.shared = True
    text = plain_text(asked, asked.get("initial_comment", ""))
    said: Json = {"text": text, "subtype": "file_share", "upload": True}
    message = new_message(asked, room, said, asked.get("thread_ts"))
    for file in files:
        file.shares[room.id] = message["ts"]
    message["files"] = [described(asked.state, file) for file in files]
    place(asked.state, room, message)
    announce(asked.state, room, files)


def announce(state: State, room: Room, files: list[StoredFile]) -> None:
    """Tell the app that files were shared where it is."""
    team = state.teams[room.team]
    for file in files:
        event = {"type": "file_shared", "channel_id": room.id, "file_id": file.id, "user_id": file.user}
        if team.sees(room):
            emit(state, team, {**event, "file": {"id": file.id}, "event_ts": state.stamps.next()})


def file_info(asked: Asked) -> Json:
    """``files.info``."""
    return {
        "file": described(asked.state, _known(asked)),
        "comments": [],
        "response_metadata": {"next_cursor": ""},
    }


def delete_file(asked: Asked) -> Json:
    """``files.delete``."""
    file = _known(asked)
    if file.user != asked.grant.user:
        raise RefusalError("cant_delete_file")
    file.deleted = True
    return {}


def new_file(state: State, user: User, name: str, size: int) -> StoredFile:
    """A file that has yet to be uploaded."""
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


def described(state: State, file: StoredFile) -> Json:
    """A file as the platform describes it."""
    kind = file.name.rpartition(".")[2].lower() or "binary"
    address = f"{state.url}/files-pri/{file.team}-{file.id}"
    shares: Json = {room: [{"ts": ts, "channel_name": ""}] for room, ts in file.shares.items()}
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


async def take(state: State, request: web.Request) -> tuple[web.Response, str | None]:
    """The second step: the content. Answers in plain text; the problem is the second of the pair."""
    ticket = request.match_info["ticket"]
    file = next((one for one in state.files.values() if one.ticket == ticket), None)
    if file is None or file.content is not None:
        return web.Response(status=404, text="not found"), "an upload address that is not valid (any more)"
    content = await _content(request)
    if len(content) != file.size:
        problem = f"{len(content)} bytes instead of the {file.size} announced"
        return web.Response(status=400, text="size mismatch"), problem
    file.content = content
    return web.Response(text=f"OK - {len(content)}"), None


def give(state: State, request: web.Request) -> tuple[web.StreamResponse, str | None]:
    """A file's content, for who has a token; anybody else is sent to the sign-in page, with status 200."""
    file = state.files.get(request.match_info["file"].rpartition("-")[2])
    token = request.headers.get("Authorization", "").removeprefix("Bearer ")
    grant = state.tokens.get(token)
    if file is None or file.content is None or file.deleted:
        return web.Response(status=404, text="not found"), None
    if not _may_read(grant, file):
        return web.Response(status=302, headers={"Location": f"{state.url}/?redir={request.path}"}), (
            "a file is asked for without a token that may read it"
        )
    return web.Response(body=file.content, content_type=file.mimetype), None


def sign_in() -> web.Response:
    """The page that those get who are not signed in."""
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


def _uploaded(asked: Asked, told: Json) -> StoredFile:
    file = asked.state.files.get(str(told.get("id")))
    if file is None or file.team != asked.team.id or file.user != asked.grant.user:
        raise RefusalError("file_not_found")
    if file.content is None or file.shared:
        raise RefusalError("file_not_found", "the file is not uploaded, or was completed before")
    if isinstance(told.get("title"), str):
        file.title = told["title"]
    return file


def _known(asked: Asked) -> StoredFile:
    file = asked.state.files.get(asked["file"])
    if file is None or file.team != asked.team.id:
        raise RefusalError("file_not_found")
    if file.deleted:
        raise RefusalError("file_deleted")
    return file
