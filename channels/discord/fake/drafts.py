"""What the bot writes, on its way to becoming a message: checked, and in the form that the platform keeps."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from channels.discord.fake import components, files, mentions
from channels.discord.fake.calls import Upload
from channels.discord.fake.errors import (
    EMPTY_MESSAGE,
    MISSING_PERMISSIONS,
    NO_HISTORY_FOR_REPLY,
    NO_VOICE,
    TOO_LARGE,
    VOICE_EDITED,
    VOICE_NOT_ALONE,
    VOICE_UNKNOWN,
    VOICE_WITH_MORE,
    ApiError,
    invalid,
    unmodelled,
)
from channels.discord.fake.figures import Figures
from channels.discord.fake.nouns import (
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
)
from channels.discord.fake.world import World

_SETTABLE: Final = SUPPRESS_EMBEDS | SUPPRESS_NOTIFICATIONS | VOICE_MESSAGE | COMPONENTS_V2
_MOST_DRAWN: Final = 256
_EMBED_TEXT: Final = 6000
_ANSWERABLE: Final = (0, 19, 20, 21, 23)

Body = Mapping[str, Any]


class Draft(Struct, frozen=True, kw_only=True):
    """The content of a message to be. ``problem`` names people that it would ping."""

    content: str
    embeds: tuple[Json, ...]
    components: tuple[Json, ...]
    attachments: tuple[Attachment, ...]
    flags: int
    mentions: Mentions
    problem: str | None


class Drafts:
    """Makes drafts of bodies that have the right shape. Everything raises ApiError."""

    def __init__(self, world: World, figures: Figures) -> None:
        self._world = world
        self._figures = figures

    def new(
        self, body: Body, uploads: Sequence[Upload], channel: Channel, *, interaction: bool = False
    ) -> Draft:
        """A new message. An answer to an interaction may be ephemeral."""
        for name in ("poll", "sticker_ids", "shared_client_theme"):
            if body.get(name):
                raise unmodelled(name)
        flags = int(body.get("flags") or 0) & (_SETTABLE | (EPHEMERAL if interaction else 0))
        draft = self._made(body, uploads, channel, flags, ())
        if flags & VOICE_MESSAGE:
            self._check_voice(draft, channel)
        return draft

    def edit(self, body: Body, uploads: Sequence[Upload], old: Message) -> Draft:
        """A message's new form. What the body does not name stays as it is."""
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
        # Only a new text is searched for mentions again.
        return replace(draft, mentions=old.mentions, problem=None)

    def reference(self, body: Body, channel: Channel) -> Message | None:
        """The message that a new one answers. One that is gone is an error, unless the body allows it."""
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
            error.problem = None  # a person may have deleted it
            raise error
        if found.kind not in _ANSWERABLE:
            message = "Cannot reply to a system message"
            raise invalid("message_reference", "REPLIES_CANNOT_REPLY_TO_SYSTEM_MESSAGE", message)
        return found

    def replied(self, draft: Draft, body: Body, other: Message | None) -> dict[str, Any]:
        """What a draft adds to a message when it answers another one."""
        if other is None:
            return {"mentions": draft.mentions}
        users = draft.mentions.users
        if mentions.replied_user_pinged(body.get("allowed_mentions")) and other.author not in users:
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
        shown = components.check(body.get("components") or (), second_version=second)
        attachments = (*kept, *self._attachments(body, uploads))
        if not (content or embeds or attachments or (second and shown)):
            raise ApiError(EMPTY_MESSAGE)
        if attachments and not self._world.may(channel, "ATTACH_FILES"):
            raise ApiError(MISSING_PERMISSIONS)
        if not self._world.may(channel, "EMBED_LINKS"):
            embeds = ()
        allowed = body.get("allowed_mentions")
        mentions.check_allowed(allowed)
        pinged = self._known(mentions.pinged(mentions.shown_text(content, shown), allowed), channel)
        return Draft(
            content=content,
            embeds=embeds,
            components=shown,
            attachments=attachments,
            flags=flags,
            mentions=pinged,
            problem=_pings(pinged),
        )

    def _attachments(self, body: Body, uploads: Sequence[Upload]) -> Sequence[Attachment]:
        if any(len(upload.data) > self._figures.file_bytes for upload in uploads):
            raise ApiError(TOO_LARGE)
        if len(uploads) > 10:
            raise invalid("files", "BASE_TYPE_MAX_LENGTH", "Must be 10 or fewer in length.")
        told = {int(attachment["id"]): attachment for attachment in body.get("attachments") or ()}
        made: list[Attachment] = []
        for upload in uploads:
            about = told.get(upload.index, {})
            name = about.get("filename") or upload.filename
            key = self._world.ids.new()
            file = files.attached(key, name, upload.data, about.get("description"))
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
