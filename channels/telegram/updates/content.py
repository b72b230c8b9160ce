"""Text and files of a message. Pure.

Marks that carry meaning are kept as Markdown: the targets of links, and code. Content that is neither text
nor a file, such as a place or a poll, becomes text in brackets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from channels.telegram.updates.objects import Chat, Content, Entity, File, User, read
from channels.telegram.updates.received import Attached
from channels.telegram.updates.rich import code, fenced, rich_files, rich_text

VOICE = "[voice message]"
_MARKS = ("text_link", "code", "pre")


def text_of(content: Content) -> str:
    """Return the text or caption of a message, and its other content as text."""
    text, other = marked(*content.written), described(content)
    return f"{text}\n{other}" if text and other else text or other


def marked(text: str, entities: Sequence[Entity]) -> str:
    """Return a text with its links and code as Markdown. Offsets that are impossible are ignored."""
    if not entities:
        return text
    marks = sorted((one for one in entities if one.type in _MARKS), key=lambda one: one.offset)
    if not marks:
        return text
    units = text.encode("utf-16-le", "surrogatepass")
    pieces: list[str] = []
    done = 0
    for mark in marks:
        start, stop = 2 * mark.offset, 2 * (mark.offset + mark.length)
        if start < done or stop <= start or stop > len(units):
            continue
        pieces.append(units[done:start].decode("utf-16-le", "replace"))
        pieces.append(_as_markdown(mark, units[start:stop].decode("utf-16-le", "replace"), pieces))
        done = stop
        if mark.type == "pre" and done < len(units) and units[done : done + 2] != b"\n\0":
            pieces.append("\n")
    return "".join((*pieces, units[done:].decode("utf-16-le", "replace")))


def _as_markdown(mark: Entity, label: str, before: Sequence[str]) -> str:
    if mark.type == "pre":
        lead = "\n" if any(before) and not "".join(before[-2:]).endswith("\n") else ""
        return f"{lead}{fenced(label, mark.language)}"
    if mark.type == "code":
        return code(label)
    return label if mark.url.rstrip("/") in ("", label.rstrip("/")) else f"{label} ({mark.url})"


class _Location(Struct, frozen=True):
    latitude: float
    longitude: float
    live_period: int | None = None

    def __str__(self) -> str:
        return f"{self.latitude:.10g}, {self.longitude:.10g}"


class _Venue(Struct, frozen=True):
    location: _Location
    title: str = ""
    address: str = ""


class _Contact(Struct, frozen=True):
    phone_number: str
    first_name: str = ""
    last_name: str = ""


class _Option(Struct, frozen=True):
    text: str
    persistent_id: str = ""


class _Poll(Struct, frozen=True):
    question: str
    options: tuple[_Option, ...] = ()
    description: str = ""


class _Dice(Struct, frozen=True):
    emoji: str
    value: int


class _Task(Struct, frozen=True):
    text: str
    id: int = 0
    completion_date: int = 0
    completed_by_user: object = None
    completed_by_chat: object = None

    @property
    def is_done(self) -> bool:
        """Return whether the task was completed."""
        return bool(self.completion_date or self.completed_by_user or self.completed_by_chat)


class _Checklist(Struct, frozen=True):
    title: str
    tasks: tuple[_Task, ...] = ()


class _Sticker(Struct, frozen=True):
    emoji: str = ""


class _Story(Struct, frozen=True):
    chat: Chat


class _Paid(Struct, frozen=True):
    type: str = ""
    photo: tuple[File, ...] = ()
    video: File | None = None
    live_photo: object = None


class _PaidMedia(Struct, frozen=True):
    star_count: int = 0
    paid_media: tuple[_Paid, ...] = ()


class _LivePhoto(Struct, frozen=True):
    photo: tuple[File, ...] = ()


class _Titled(Struct, frozen=True):
    """A game or an invoice."""

    title: str
    description: str = ""


class _Giveaway(Struct, frozen=True):
    winner_count: int
    prize_description: str = ""
    winners: tuple[User, ...] = ()


def described(content: Content) -> str:
    """Return content that is neither text nor a file as text; empty if there is none."""
    if content.rich_message is not None:
        return rich_text(content.rich_message) or "[rich message]"
    if content.venue is not None:  # A venue comes with its location, too.
        found = read(content.venue, _Venue)
        return _bracketed("venue", found and f"{_joined(found.title, found.address)}; {found.location}")
    if content.location is not None:
        found = read(content.location, _Location)
        return _bracketed(
            "live location" if found and found.live_period else "location", found and str(found)
        )
    if content.contact is not None:
        found = read(content.contact, _Contact)
        name = found and " ".join(filter(None, (found.first_name, found.last_name)))
        return _bracketed("contact", found and _joined(name or "", found.phone_number))
    if content.poll is not None:
        found = read(content.poll, _Poll)
        title = found and _joined(found.question, found.description)
        return _listed("poll", title, [] if found is None else [one.text for one in found.options])
    if content.checklist is not None:
        found = read(content.checklist, _Checklist)
        tasks = [] if found is None else [f"[{'x' if t.is_done else ' '}] {t.text}" for t in found.tasks]
        return _listed("checklist", found and found.title, tasks)
    return _described_play(content)


def _described_play(content: Content) -> str:
    """Return the text of the kinds that carry little more than a name."""
    if content.dice is not None:
        found = read(content.dice, _Dice)
        return _bracketed("dice", found and f"{found.emoji} {found.value}")
    if content.sticker is not None:
        found = read(content.sticker, _Sticker)
        return _bracketed("sticker", found and found.emoji)
    if content.story is not None:
        return story_text(content.story) or "[story]"
    if content.paid_media is not None:
        found = read(content.paid_media, _PaidMedia)
        return _bracketed("paid media", found and f"{found.star_count} stars")
    if content.giveaway is not None or content.giveaway_winners is not None:
        found = read(content.giveaway or content.giveaway_winners, _Giveaway)
        names = "" if found is None else ", ".join(winner.name for winner in found.winners)
        label = "giveaway" if content.giveaway is not None else "giveaway winners"
        return _bracketed(
            label, found and _joined(f"{found.winner_count} winners", found.prize_description, names)
        )
    for label, raw in (("game", content.game), ("invoice", content.invoice)):
        if raw is not None:
            found = read(raw, _Titled)
            return _bracketed(label, found and _joined(found.title, found.description))
    return ""


def story_text(raw: object) -> str:
    """Return a story as text, because bots cannot read stories; empty if its author is unknown."""
    found = read(raw, _Story)
    chat = found and found.chat
    name = "" if chat is None else " ".join((chat.title or chat.first_name or chat.username).split())
    return f"[story of {name}]" if name else ""


def chosen_text(content: Content, task: object, option: object) -> str:
    """Return the task of a checklist or the option of a poll that a message replies to, by its id."""
    checklist, poll = read(content.checklist, _Checklist), read(content.poll, _Poll)
    if task is not None and checklist is not None:
        return next((one.text for one in checklist.tasks if one.id == task), "")
    if option is not None and poll is not None:
        return next((one.text for one in poll.options if one.persistent_id == option), "")
    return ""


def _bracketed(label: str, detail: str | Literal[False] | None) -> str:
    detail = " ".join((detail or "").split())
    return f"[{label}: {detail}]" if detail else f"[{label}]"


def _listed(label: str, title: str | None, items: Iterable[str]) -> str:
    return "\n".join((_bracketed(label, title), *(f"- {' '.join(item.split())}" for item in items)))


def _joined(*texts: str) -> str:
    return ", ".join(filter(None, texts))


def files_of(content: Content, quote: int | None = None) -> Iterable[Attached]:
    """Return the files of a message; ``quote`` is the index of the quote that they belong to."""
    yield from _own_files(content, quote)
    for kind, sizes in rich_files(content.rich_message) if content.rich_message is not None else ():
        if kind == "photo":
            yield _picture(sizes, quote)
        else:
            yield Attached("file", sizes[0], sizes[0].mime_type, sizes[0].file_name, quote)
    paid = read(content.paid_media, _PaidMedia)
    for one in paid.paid_media if paid is not None else ():
        live = read(one.live_photo, _LivePhoto)
        if sizes := one.photo or (live.photo if live is not None else ()):
            yield _picture(sizes, quote)
        if one.video is not None:
            yield Attached("file", one.video, one.video.mime_type, one.video.file_name or "video.mp4", quote)


def _own_files(content: Content, quote: int | None) -> Iterable[Attached]:
    live = read(content.live_photo, _LivePhoto)
    if sizes := content.photo or (live.photo if live is not None else ()):
        yield _picture(sizes, quote)
    if content.voice is not None:
        mime = content.voice.mime_type or "audio/ogg"
        yield Attached("voice", content.voice, mime, "voice.ogg", quote)
    # An animation comes as a document, too.
    for name, file in (
        ("", content.animation or content.document),
        ("audio", content.audio),
        ("video.mp4", content.video),
        ("video-note.mp4", content.video_note),
    ):
        if file is not None:
            yield Attached("file", file, file.mime_type, file.file_name or name, quote)


def _picture(sizes: Sequence[File], quote: int | None) -> Attached:
    best = max(sizes, key=lambda size: (size.width or 0) * (size.height or 0))
    return Attached("picture", best, "image/jpeg", "photo.jpg", quote)


_SERVICE = re.compile(
    r"(new_chat|left_chat|delete_chat|chat_owner|group_chat|supergroup_chat|channel_chat|community_chat)_.+|"
    r"(migrate|forum_topic|general_forum_topic|video_chat|poll_option|managed_bot)_.+|message_auto_delete.+|"
    r"giveaway_(created|completed)|suggested_post_(?!info).+|checklist_tasks_.+|\w+_message_price_changed|"
    r"(successful|refunded)_payment|pinned_message|(users|chat)_shared|(unique_)?gift|gift_upgrade_sent|"
    r"connected_website|write_access_allowed|passport_data|proximity_alert_triggered|boost_added|"
    r"chat_background_set|web_app_data"
)
"""Fields of messages that the platform writes about a chat."""
_ABOUT = re.compile(
    r"message_id|date|chat|message_thread_id|direct_messages_topic|from|sender_.+|guest_.+|via_bot|"
    r"business_connection_id|forward_.+|is_.+|has_.+|reply_.+|external_reply|quote|edit_date|media_group_id|"
    r"author_signature|paid_star_count|text|entities|link_preview_options|suggested_post_info|effect_id|"
    r"caption|caption_entities|show_caption_above_media|receiver_user|ephemeral_message_id"
)
"""Fields of every message."""


def unreadable_kind(raw: Mapping[str, object]) -> str | None:
    """Return the kind of a message without text and files that the channel can read; None for a message that
    the platform wrote about the chat."""
    fields = sorted(name for name, value in raw.items() if value is not None)
    if any(map(_SERVICE.fullmatch, fields)):
        return None
    return next((name for name in fields if not _ABOUT.fullmatch(name)), "unknown kind")
