"""Messages of the fake: components, mentions, files, drafts, and the calls about messages."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import itertools
import mimetypes
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from aiohttp import web
from msgspec import Struct
from msgspec.structs import replace

from channels.discord.fake.calls import (
    EMPTY_MESSAGE,
    MISSING_PERMISSIONS,
    NO_HISTORY_FOR_REPLY,
    NO_VOICE,
    NOT_IN_DM,
    NOT_YOUR_MESSAGE,
    OLD_EDITS,
    TOO_LARGE,
    TOO_OLD_TO_DELETE,
    VOICE_EDITED,
    VOICE_NOT_ALONE,
    VOICE_UNKNOWN,
    VOICE_WITH_MORE,
    Access,
    Answer,
    ApiCall,
    ApiError,
    Handler,
    Upload,
    invalid,
    unmodelled,
)
from channels.discord.fake.chats import Chats
from channels.discord.fake.limits import Figures
from channels.discord.fake.payloads import Views
from channels.discord.fake.state import (
    COMPONENTS_V2,
    EPHEMERAL,
    REPLY,
    SUPPRESS_EMBEDS,
    SUPPRESS_NOTIFICATIONS,
    VOICE_MESSAGE,
    Attachment,
    Channel,
    Json,
    Mentions,
    Message,
    Reference,
    World,
    made,
)
from gateway.testing.fake_platform import Window

ROW, BUTTON = 1, 2
SELECTS: Final = (3, 5, 6, 7, 8)
LINK, PREMIUM = 5, 6
_MEDIA: Final = (11, 12, 13)
_FILLED_IN: Final[Mapping[int, Json]] = {
    **{kind: {"min_values": 1, "max_values": 1} for kind in SELECTS},
    14: {"divider": True, "spacing": 1},
    17: {"accent_color": None, "spoiler": False},
}
"""Defaults that Discord adds to a component."""
_MOST_ROWS, _MOST_COMPONENTS = 5, 40


def check(components: Sequence[Json], *, second_version: bool) -> tuple[Json, ...]:
    """Return the components as Discord stores them, each with an id. Raises ApiError."""
    if not second_version:
        _check_rows(components)
    everything = list(walk(components))
    if len(everything) > _MOST_COMPONENTS:
        raise invalid(
            "components",
            "COMPONENT_MAX_TOTAL_COMPONENTS_EXCEEDED",
            f"The total number of components cannot exceed {_MOST_COMPONENTS}",
        )
    _check_ids(everything)
    for path, component in everything:
        if component["type"] in _MEDIA:
            raise unmodelled("components with media")
        if component["type"] == BUTTON:
            _check_button(path, component)
    numbers = itertools.count(1)
    return tuple(_numbered(component, numbers) for component in components)


def walk(components: Sequence[Json], path: str = "components") -> Iterator[tuple[str, Json]]:
    """Yield every component with its dotted path, nested ones included."""
    for index, component in enumerate(components):
        at = f"{path}.{index}"
        yield at, component
        yield from walk(component.get("components") or (), f"{at}.components")
        if component.get("accessory"):
            yield f"{at}.accessory", component["accessory"]


def find(components: Sequence[Json], custom_id: str) -> Json:
    """Return the component that a user can use. Raises LookupError."""
    for _, component in walk(components):
        if component.get("custom_id") == custom_id and not component.get("disabled"):
            return component
    raise LookupError(f"nothing to press with custom_id {custom_id!r}")


def _check_rows(components: Sequence[Json]) -> None:
    if len(components) > _MOST_ROWS:
        raise invalid("components", "BASE_TYPE_BAD_LENGTH", "Must be between 1 and 5 in length.")
    for index, row in enumerate(components):
        if row["type"] != ROW:
            message = 'Value of field "type" must be one of (1,).'
            raise invalid(f"components.{index}.type", "UNION_TYPE_CHOICES", message)
        inside = row["components"]
        if len(inside) > 1 and any(component["type"] in SELECTS for component in inside):
            message = "The specified component exceeds the maximum width"
            raise invalid(f"components.{index}.components", "COMPONENT_LAYOUT_WIDTH_EXCEEDED", message)


def _check_ids(everything: Sequence[tuple[str, Json]]) -> None:
    seen: set[str] = set()
    for path, component in everything:
        name = component.get("custom_id")
        if name is not None and name in seen:
            message = "Component custom id cannot be duplicated"
            raise invalid(f"{path}.custom_id", "COMPONENT_CUSTOM_ID_DUPLICATED", message)
        seen.add(name or "")


def _check_button(path: str, button: Mapping[str, Any]) -> None:
    link = button["style"] == LINK
    if link and not button.get("url"):
        raise invalid(f"{path}.url", "BASE_TYPE_REQUIRED", "This field is required")
    if link and button.get("custom_id"):
        message = "A custom id and url cannot both be specified"
        raise invalid(path, "BUTTON_COMPONENT_CUSTOM_ID_URL_MUTUALLY_EXCLUSIVE", message)
    if button["style"] < LINK and not button.get("custom_id"):
        message = "A custom id required"
        raise invalid(f"{path}.custom_id", "BUTTON_COMPONENT_CUSTOM_ID_REQUIRED", message)
    if button["style"] != PREMIUM and not (button.get("label") or button.get("emoji")):
        raise invalid(path, "BUTTON_COMPONENT_INVALID_EMOJI_OR_LABEL", "A label or an emoji is required")


def _numbered(component: Json, numbers: Iterator[int]) -> Json:
    kept = {**_FILLED_IN.get(component["type"], {})}
    kept |= {key: value for key, value in component.items() if value is not None}
    kept["id"] = kept.get("id") or next(numbers)
    if "components" in kept:
        kept["components"] = [_numbered(inner, numbers) for inner in kept["components"]]
    if "accessory" in kept:
        kept["accessory"] = _numbered(kept["accessory"], numbers)
    return kept


_USER: Final = re.compile(r"<@!?(\d+)>")
_ROLE: Final = re.compile(r"<@&(\d+)>")
_EVERYONE: Final = re.compile(r"@(everyone|here)")
_TEXT_DISPLAY: Final = 10


def mentioned(text: str) -> Mentions:
    """Return everything that a text mentions."""
    return Mentions(
        tuple(dict.fromkeys(int(user) for user in _USER.findall(text))),
        tuple(dict.fromkeys(int(role) for role in _ROLE.findall(text))),
        _EVERYONE.search(text) is not None,
    )


def pinged(text: str, allowed: Mapping[str, Any] | None) -> Mentions:
    """Return the mentions that ping: all without ``allowed_mentions``, else those that it allows."""
    found = mentioned(text)
    if allowed is None:
        return found
    parse: Sequence[str] = allowed.get("parse") or ()
    users = [int(user) for user in allowed.get("users") or ()]
    roles = [int(role) for role in allowed.get("roles") or ()]
    return Mentions(
        tuple(user for user in found.users if "users" in parse or user in users),
        tuple(role for role in found.roles if "roles" in parse or role in roles),
        found.everyone and "everyone" in parse,
    )


def check_allowed(allowed: Mapping[str, Any] | None) -> None:
    """Raise ApiError if ``allowed_mentions`` contradicts itself."""
    for kind in ("users", "roles"):
        given = (allowed or {}).get(kind)
        if given and kind in ((allowed or {}).get("parse") or ()):
            message = f'parse:["{kind}"] and {kind}: [ids...] are mutually exclusive.'
            raise invalid("allowed_mentions", "MESSAGE_ALLOWED_MENTIONS_PARSE_EXCLUSIVE", message)


def replied_user_pinged(allowed: Mapping[str, Any] | None) -> bool:
    """Return whether a reply pings the author of the original message."""
    return True if allowed is None else bool(allowed.get("replied_user"))


def shown_text(content: str, components: Sequence[Json]) -> str:
    """Return the text in which mentions count: the content, and that of text components."""
    return "\n".join([content, *_texts(components)])


def _texts(components: Sequence[Json]) -> Iterator[str]:
    for component in components:
        if component.get("type") == _TEXT_DISPLAY:
            yield component.get("content", "")
        yield from _texts(component.get("components") or ())


_UNTIDY: Final = re.compile(r"[^\w.\-]+", re.ASCII)
_PNG: Final = b"\x89PNG\r\n\x1a\n"


def attached(key: int, filename: str, data: bytes, description: str | None = None) -> Attachment:
    """Return the attachment of a file, with a tidied name."""
    name = filename.rsplit("/", 1)[-1]
    tidy = _UNTIDY.sub("_", name).lstrip(".") or "unknown"
    width, height = _size(data)
    return Attachment(
        id=key,
        filename=tidy,
        data=data,
        content_type=_kind(name),
        title=None if tidy == name else name.rsplit(".", 1)[0],
        description=description,
        width=width,
        height=height,
    )


def _kind(name: str) -> str:
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return f"{kind}; charset=utf-8" if kind.startswith("text/") else kind


def _size(data: bytes) -> tuple[int | None, int | None]:
    """Return width and height of a PNG or GIF; None for other files."""
    if data.startswith(_PNG) and len(data) >= 24:
        return struct.unpack(">II", data[16:24])
    if data[:6] in (b"GIF87a", b"GIF89a") and len(data) >= 10:
        return struct.unpack("<HH", data[6:10])
    return None, None


class Cdn:
    """HTTP handler of ``/cdn/attachments/…``. ``served`` are the ids of the downloaded files.

    Downloads wait while ``open`` is not set.
    """

    def __init__(self, world: World, views: Views) -> None:
        self.served: list[int] = []
        self.open = asyncio.Event()
        self.open.set()
        self._world = world
        self._views = views

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Serve a file, if the signature of the link is right and not expired."""
        await self.open.wait()
        found = self._world.files.get(int(request.match_info["attachment"]))
        if found is None or not self._valid(request):
            return web.Response(status=404, text="This content is no longer available.")
        _, attachment = found
        self.served.append(attachment.id)
        return web.Response(
            body=attachment.data,
            headers={"Content-Type": attachment.content_type, "Content-Disposition": "attachment"},
        )

    def _valid(self, request: web.Request) -> bool:
        expires, issued = request.query.get("ex", ""), request.query.get("is", "")
        expected = self._views.signature(int(request.match_info["attachment"]), expires, issued)
        if not hmac.compare_digest(expected, request.query.get("hm", "")):
            return False
        return int(expires, 16) >= self._world.clock.now()


_SETTABLE: Final = SUPPRESS_EMBEDS | SUPPRESS_NOTIFICATIONS | VOICE_MESSAGE | COMPONENTS_V2
_MOST_DRAWN: Final = 256
_EMBED_TEXT: Final = 6000
_ANSWERABLE: Final = (0, 19, 20, 21, 23)

Body = Mapping[str, Any]


class Draft(Struct, frozen=True, kw_only=True):
    """Validated content of a new or edited message. ``problem`` names the users that it would ping."""

    content: str
    embeds: tuple[Json, ...]
    components: tuple[Json, ...]
    attachments: tuple[Attachment, ...]
    flags: int
    mentions: Mentions
    problem: str | None


class Drafts:
    """Conversion of a call's body to a draft. The methods raise ApiError."""

    def __init__(self, world: World, figures: Figures) -> None:
        self._world = world
        self._figures = figures

    def new(
        self, body: Body, uploads: Sequence[Upload], channel: Channel, *, interaction: bool = False
    ) -> Draft:
        """Return the draft of a new message. A response to an interaction may be ephemeral."""
        for name in ("poll", "sticker_ids", "shared_client_theme"):
            if body.get(name):
                raise unmodelled(name)
        flags = int(body.get("flags") or 0) & (_SETTABLE | (EPHEMERAL if interaction else 0))
        draft = self._made(body, uploads, channel, flags, ())
        if flags & VOICE_MESSAGE:
            self._check_voice(draft, channel)
        return draft

    def edit(self, body: Body, uploads: Sequence[Upload], old: Message) -> Draft:
        """Return the draft of an edited message. Fields that the body does not have keep their value."""
        if old.flags & VOICE_MESSAGE:
            raise ApiError(VOICE_EDITED)
        given = int(body["flags"] or 0) if "flags" in body else old.flags
        flags = (old.flags & ~SUPPRESS_EMBEDS) | (given & (SUPPRESS_EMBEDS | COMPONENTS_V2))
        if body.get("attachments") is not None:
            ids = {int(attachment["id"]) for attachment in body["attachments"]}
            kept = tuple(attachment for attachment in old.attachments if attachment.id in ids)
        else:
            kept = old.attachments
        whole = {
            "content": old.content,
            "embeds": list(old.embeds),
            "components": list(old.components),
            **body,
        }
        draft = self._made(whole, uploads, self._world.channels[old.channel], flags, kept)
        if "content" in body or draft.flags & COMPONENTS_V2:
            return draft
        # Without a new text the mentions stay.
        return replace(draft, mentions=old.mentions, problem=None)

    def reference(self, body: Body, channel: Channel) -> Message | None:
        """Return the message that is replied to; None if there is none or a deleted one is allowed."""
        given = body.get("message_reference")
        if not given:
            return None
        if given.get("type"):
            raise unmodelled("forwarded messages")
        if not self._world.may(channel, "READ_MESSAGE_HISTORY"):
            raise ApiError(NO_HISTORY_FOR_REPLY)
        found = self._world.messages[channel.id].get(int(given["message_id"]))
        if found is None or found.ephemeral or int(given.get("channel_id") or channel.id) != channel.id:
            if given.get("fail_if_not_exists") is False:
                return None
            error = invalid("message_reference", "REPLIES_UNKNOWN_MESSAGE", "Unknown message")
            error.problem = None  # not the bot's fault: a user may have deleted it
            raise error
        if found.kind not in _ANSWERABLE:
            message = "Cannot reply to a system message"
            raise invalid("message_reference", "REPLIES_CANNOT_REPLY_TO_SYSTEM_MESSAGE", message)
        return found

    def replied(self, draft: Draft, body: Body, other: Message | None) -> dict[str, Any]:
        """Return the fields of a message that replies to another one."""
        if other is None:
            return {"mentions": draft.mentions}
        users = draft.mentions.users
        if replied_user_pinged(body.get("allowed_mentions")) and other.author not in users:
            users = (*users, other.author)
        return {
            "kind": REPLY,
            "reference": Reference(other.id, other.channel, self._world.channels[other.channel].guild),
            "mentions": Mentions(users, draft.mentions.roles, draft.mentions.everyone),
        }

    def _made(
        self,
        body: Body,
        uploads: Sequence[Upload],
        channel: Channel,
        flags: int,
        kept: tuple[Attachment, ...],
    ) -> Draft:
        content: str = (body.get("content") or "").strip()
        embeds = tuple(_embed(embed) for embed in body.get("embeds") or ())
        _check_embeds(embeds)
        second = bool(flags & COMPONENTS_V2)
        if second and (content or embeds):
            code = "MESSAGE_CANNOT_USE_LEGACY_FIELDS_WITH_COMPONENTS_V2"
            name = "content" if content else "embeds"
            message = f"The '{name}' field cannot be used when using MessageFlags.IS_COMPONENTS_V2"
            raise invalid(name, code, message)
        shown = check(body.get("components") or (), second_version=second)
        attachments = (*kept, *self._attachments(body, uploads))
        if not (content or embeds or attachments or (second and shown)):
            raise ApiError(EMPTY_MESSAGE)
        if attachments and not self._world.may(channel, "ATTACH_FILES"):
            raise ApiError(MISSING_PERMISSIONS)
        if not self._world.may(channel, "EMBED_LINKS"):
            embeds = ()
        allowed = body.get("allowed_mentions")
        check_allowed(allowed)
        pings = self._known(pinged(shown_text(content, shown), allowed), channel)
        return Draft(
            content=content,
            embeds=embeds,
            components=shown,
            attachments=attachments,
            flags=flags,
            mentions=pings,
            problem=_pings(pings),
        )

    def _attachments(self, body: Body, uploads: Sequence[Upload]) -> Sequence[Attachment]:
        if any(len(upload.data) > self._figures.file_bytes for upload in uploads):
            raise ApiError(TOO_LARGE)
        if len(uploads) > 10:
            raise invalid("files", "BASE_TYPE_MAX_LENGTH", "Must be 10 or fewer in length.")
        described = {int(attachment["id"]): attachment for attachment in body.get("attachments") or ()}
        made: list[Attachment] = []
        for upload in uploads:
            about = described.get(upload.index, {})
            name = about.get("filename") or upload.filename
            key = self._world.ids.new()
            file = attached(key, name, upload.data, about.get("description"))
            made.append(
                replace(file, duration_secs=about.get("duration_secs"), waveform=about.get("waveform"))
            )
        return made

    def _check_voice(self, draft: Draft, channel: Channel) -> None:
        if not self._world.may(channel, "SEND_VOICE_MESSAGES"):
            raise ApiError(NO_VOICE)
        if draft.content or draft.embeds or draft.components:
            raise ApiError(VOICE_WITH_MORE)
        kinds = [attachment.content_type.partition("/")[0] for attachment in draft.attachments]
        if kinds != ["audio"]:
            raise ApiError(VOICE_NOT_ALONE)
        (file,) = draft.attachments
        if not file.duration_secs or not 1 <= len(_drawn(file)) <= _MOST_DRAWN:
            raise ApiError(VOICE_UNKNOWN)

    def _known(self, found: Mentions, channel: Channel) -> Mentions:
        roles = () if channel.guild is None else self._world.guilds[channel.guild].roles
        everyone = found.everyone and channel.guild is not None
        return Mentions(
            tuple(user for user in found.users if user in self._world.users),
            tuple(role.id for role in roles if role.id in found.roles),
            everyone and self._world.may(channel, "MENTION_EVERYONE"),
        )


def _drawn(file: Attachment) -> bytes:
    try:
        return base64.b64decode(file.waveform or "", validate=True)
    except binascii.Error:
        return b""


def _embed(embed: Json) -> Json:
    return {"type": "rich", **{key: value for key, value in embed.items() if value is not None}}


def _check_embeds(embeds: Sequence[Json]) -> None:
    total = 0
    for embed in embeds:
        none: Json = {}
        texts: list[str | None] = [embed.get("title"), embed.get("description")]
        texts += [(embed.get("footer") or none).get("text"), (embed.get("author") or none).get("name")]
        for field in embed.get("fields") or ():
            texts += [field.get("name"), field.get("value")]
        total += sum(len(text.strip()) for text in texts if text)
    if total > _EMBED_TEXT:
        message = f"Embed size exceeds maximum size of {_EMBED_TEXT}"
        raise invalid("embeds", "MAX_EMBED_SIZE_EXCEEDED", message)


def _pings(pinged: Mentions) -> str | None:
    if not pinged:
        return None
    said = [f"<@{user}>" for user in pinged.users] + [f"<@&{role}>" for role in pinged.roles]
    said += ["@everyone"] if pinged.everyone else []
    return f"it pings {', '.join(said)}: allowed_mentions does not forbid it"


_CHANNEL = "/channels/{channel_id}"
_MESSAGE = "/channels/{channel_id}/messages/{message_id}"
_HOUR, _FORTNIGHT = 3600.0, 14 * 86_400.0


class MessageRoutes:
    """Handlers of the calls about messages.

    ``reads``: the application may read the content of messages that do not concern the bot.
    """

    def __init__(
        self, world: World, chats: Chats, views: Views, drafts: Drafts, figures: Figures, *, reads: bool
    ) -> None:
        self._world = world
        self._chats = chats
        self._views = views
        self._drafts = drafts
        self._figures = figures
        self._reads = reads
        self._access = Access(world)
        self._nonces: dict[str, tuple[float, int, int]] = {}
        self._old_edits: dict[int, Window] = {}

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers of these calls, by name."""
        return {
            f"GET {_CHANNEL}/messages": self._list,
            f"POST {_CHANNEL}/messages": self._create,
            f"POST {_CHANNEL}/messages/bulk-delete": self._delete_many,
            f"GET {_MESSAGE}": self._get,
            f"PATCH {_MESSAGE}": self._edit,
            f"DELETE {_MESSAGE}": self._delete,
        }

    def _list(self, call: ApiCall) -> Answer:
        channel = self._access.channel(call)
        query = {name: int(value) for name, value in call.query.items()}
        limit = query.pop("limit", 50)
        if len(query) > 1:
            message = "Only one of before, after and around may be given"
            raise invalid("query", "MUTUALLY_EXCLUSIVE", message)
        if not self._world.may(channel, "READ_MESSAGE_HISTORY"):
            return Answer(200, [])
        history = [message for message in self._world.history(channel.id) if not message.ephemeral]
        found = _window(history, query, limit)
        return Answer(200, [self._view(message) for message in reversed(found)])

    def _get(self, call: ApiCall) -> Answer:
        channel = self._access.channel(call)
        self._access.demand(channel, "READ_MESSAGE_HISTORY")
        return Answer(200, self._view(self._access.message(call, channel)))

    def _create(self, call: ApiCall) -> Answer:
        channel = self._access.channel(call)
        self._access.demand_write(channel)
        body: Mapping[str, Any] = call.body or {}
        nonce = body.get("nonce")
        if body.get("enforce_nonce") and (standing := self._standing(nonce)) is not None:
            return Answer(200, self._view(standing))
        other = self._drafts.reference(body, channel)
        draft = self._drafts.new(body, call.files, channel)
        now = self._world.clock.now()
        message = Message(
            id=self._world.ids.new(),
            channel=channel.id,
            author=self._world.bot.id,
            at=now,
            content=draft.content,
            flags=draft.flags,
            nonce=nonce,
            tts=bool(body.get("tts")),
            embeds=draft.embeds,
            components=draft.components,
            attachments=draft.attachments,
        )
        message = self._chats.post(replace(message, **self._drafts.replied(draft, body, other)))
        if nonce is not None:
            self._nonces[str(nonce)] = (now, channel.id, message.id)
        answer = self._view(message)
        return Answer(200, answer if nonce is None else {**answer, "nonce": nonce}, draft.problem)

    def _standing(self, nonce: object) -> Message | None:
        """Return the message that the bot sent with this nonce in the last few minutes."""
        at, channel, message = self._nonces.get(str(nonce), (0.0, 0, 0))
        if nonce is None or at + self._figures.nonces < self._world.clock.now():
            return None
        return self._world.messages.get(channel, {}).get(message)

    def _edit(self, call: ApiCall) -> Answer:
        channel = self._access.channel(call)
        message = self._access.message(call, channel)
        if message.author != self._world.bot.id:
            raise ApiError(NOT_YOUR_MESSAGE)
        self._access.demand_active(channel)
        draft = self._drafts.edit(call.body or {}, call.files, message)
        self._count_old(message)
        message = self._chats.change(
            replace(
                message,
                content=draft.content,
                embeds=draft.embeds,
                components=draft.components,
                attachments=draft.attachments,
                flags=draft.flags,
                mentions=draft.mentions,
            )
        )
        return Answer(200, self._view(message), draft.problem)

    def _count_old(self, message: Message) -> None:
        """Limit how often messages older than an hour are edited. Raises ApiError."""
        if not self._figures.limits or self._world.clock.now() - message.at < _HOUR:
            return
        window = Window(self._world.clock, self._figures.old_edits, self._figures.old_edits_window)
        window = self._old_edits.setdefault(message.channel, window)
        if (wait := window.wait()) > 0:
            raise ApiError(OLD_EDITS, None, {"retry_after": round(wait, 3), "global": False})
        window.count()

    def _delete(self, call: ApiCall) -> Answer:
        channel = self._access.channel(call)
        message = self._access.message(call, channel)
        if message.author != self._world.bot.id:
            self._demand_moderation(channel)
        self._chats.remove(message)
        return Answer()

    def _delete_many(self, call: ApiCall) -> Answer:
        channel = self._access.channel(call)
        self._demand_moderation(channel)
        ids = [int(key) for key in call.body["messages"]]
        if any(made(key) < self._world.clock.now() - _FORTNIGHT for key in ids):
            raise ApiError(TOO_OLD_TO_DELETE)
        chat = self._world.messages[channel.id]
        found = [chat[key] for key in ids if key in chat]
        if found:
            self._chats.remove(*found, bulk=True)
        return Answer()

    def _demand_moderation(self, channel: Channel) -> None:
        if channel.guild is None:
            raise ApiError(NOT_IN_DM)
        self._access.demand(channel, "MANAGE_MESSAGES")

    def _view(self, message: Message) -> dict[str, Any]:
        return self._views.message(message, redacted=not self._reads)


def _window(history: Sequence[Message], query: Mapping[str, int], limit: int) -> Sequence[Message]:
    """Return a part of a history, oldest first: around, before or after an id, or the newest messages."""
    if "after" in query:
        return [message for message in history if message.id > query["after"]][:limit]
    if "around" in query:
        key = query["around"]
        before = [message for message in history if message.id < key][-(limit // 2) :]
        rest = [message for message in history if message.id >= key]
        return [*before, *rest[: limit - len(before)]][:limit] if limit > 1 else rest[:1]
    before_key = query.get("before")
    return [message for message in history if before_key is None or message.id < before_key][-limit:]
