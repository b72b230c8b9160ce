"""What an app wants a message to say: text, blocks, attachments, metadata, checked and ready to store."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, cast

from msgspec import Struct

from channels.slack.fake.asking import Asked, RefusalError, invalid
from channels.slack.fake.blocks import LONGEST_BLOCKS, LONGEST_MARKDOWN, Inspection
from channels.slack.fake.markup import pings, stored, stray
from channels.slack.fake.workspace import Json

LONGEST_TEXT = 40_000
"""Longer text is cut when it is posted."""
LONGEST_UPDATE = 4_000
MOST_ATTACHMENTS = 100
LARGEST_METADATA = 8_000
"""In bytes of JSON. Slack publishes no figure."""
_BARE_MENTION = re.compile(r"(?<!\w)@(here|channel|everyone)\b")


class Content(Struct, frozen=True, kw_only=True):
    """A message's content. None is what was not given; blocks carry their ids."""

    text: str | None
    blocks: list[Json] | None
    attachments: list[Json] | None
    metadata: Json | None

    def fields(self) -> Json:
        """The fields of the stored message that were given."""
        given: Json = {"text": self.text, "blocks": self.blocks, "attachments": self.attachments}
        given["metadata"] = self.metadata
        return {name: value for name, value in given.items() if value is not None}


def content(asked: Asked, *, longest: int = LONGEST_TEXT, needed: bool = True) -> Content:
    """Read and check a message's content. ``needed``: it has to say something.

    Raises RefusalError with the platform's name for what is wrong.
    """
    markdown = asked.get("markdown_text")
    text = asked.get("text")
    if markdown is not None and (text is not None or asked.get("blocks") is not None):
        raise RefusalError("markdown_text_conflict", "markdown_text goes with neither text nor blocks")
    blocks = checked_blocks(asked, asked.get("blocks"))
    attachments = _attachments(asked, asked.get("attachments"))
    if needed and not (text or markdown or blocks or attachments):
        raise RefusalError("no_text", "a message has to say something")
    if markdown is not None:
        limit_markdown(markdown)
        note_pings(asked, [markdown])
        return Content(
            text=markdown,
            blocks=[markdown_block(asked, markdown)],
            attachments=attachments,
            metadata=metadata(asked),
        )
    text = None if text is None else plain_text(asked, text, longest)
    return Content(text=text, blocks=blocks, attachments=attachments, metadata=metadata(asked))


def limit_markdown(markdown: str) -> None:
    """Raises RefusalError ``msg_too_long``."""
    if len(markdown) > LONGEST_MARKDOWN:
        raise RefusalError("msg_too_long", f"markdown_text has {len(markdown)} characters")


def markdown_block(asked: Asked, markdown: str) -> Json:
    """The block that shows Markdown."""
    return {"type": "markdown", "text": markdown, "block_id": asked.state.names.next("b")}


def note_pings(asked: Asked, texts: Iterable[str]) -> None:
    """Write down who would be notified by texts that ought to notify nobody."""
    for text in texts:
        for ping in pings(text, asked.state.switches.may_ping):
            asked.notes.append(f"unescaped mention {ping}")


def checked_blocks(asked: Asked, given: object, *, too_many: str = "invalid_blocks") -> list[Json] | None:
    """Blocks with their ids, or None. Raises RefusalError for what Block Kit does not allow."""
    if given is None:
        return None
    if not isinstance(given, list):
        raise RefusalError("invalid_blocks_format", "blocks are no list")
    blocks = cast(list[Json], given)
    found = Inspection(blocks)
    if found.errors:
        error = too_many if found.errors[0].endswith(":/blocks]") else "invalid_blocks"
        told = [f"[ERROR] {message}" for message in found.errors]
        problem = "; ".join(found.errors)
        raise RefusalError(error, problem, errors=found.errors, response_metadata={"messages": told})
    if found.size > LONGEST_BLOCKS or sum(map(len, found.markdown)) > LONGEST_MARKDOWN:
        raise RefusalError("msg_blocks_too_long", f"the blocks have {found.size} characters")
    note_pings(asked, (*found.mrkdwn, *found.markdown))
    asked.notes += [f"mention of {name} in rich text" for name in found.mentions if not _may(asked, name)]
    asked.notes += ["unescaped < in a block" for text in found.mrkdwn if stray(text)]
    return [{**block, "block_id": block.get("block_id") or asked.state.names.next("b")} for block in blocks]


def metadata(asked: Asked) -> Json | None:
    """Metadata, checked; None if none was given."""
    given = asked.get("metadata")
    if given is None:
        return None
    if not isinstance(given, dict):
        raise RefusalError("invalid_metadata_format", "metadata is no object")
    told = cast(Json, given)
    if told and not (isinstance(told.get("event_type"), str) and isinstance(told.get("event_payload"), dict)):
        raise RefusalError("invalid_metadata_schema", "metadata needs event_type and event_payload")
    if len(json.dumps(told)) > LARGEST_METADATA:
        raise RefusalError("metadata_too_large", "the metadata is too large")
    return told


def plain_text(asked: Asked, text: str, longest: int = LONGEST_TEXT) -> str:
    """A text as it is stored: cut or refused if it is too long, its pings noted."""
    if len(text) > longest:
        if longest != LONGEST_TEXT:
            raise RefusalError("msg_too_long", f"the text has {len(text)} characters")
        asked.warnings.append("message_truncated")
        asked.notes.append(f"the text has {len(text)} characters and is cut")
        text = text[:longest]
    note_pings(asked, [text])
    if stray(text):
        asked.notes.append("unescaped < in the text")
    if (asked.get("link_names") or asked.get("parse") == "full") and _BARE_MENTION.search(text):
        asked.notes.append("a bare mention that link_names or parse turns into a ping")
    return stored(text)


def _attachments(asked: Asked, given: Any) -> list[Json] | None:
    if given is None:
        return None
    if not isinstance(given, list):
        raise invalid("must provide an array [json-pointer:/attachments]", "invalid_attachments")
    attachments = cast(list[Json], given)
    if len(attachments) > MOST_ATTACHMENTS:
        raise RefusalError("too_many_attachments", f"{len(attachments)} attachments")
    note_pings(asked, _strings(attachments))
    return attachments


def _strings(value: object) -> Iterator[str]:
    """All texts in something, however deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        inside = cast(Json, value).values() if isinstance(value, dict) else cast(list[object], value)
        for one in inside:
            yield from _strings(one)


def _may(asked: Asked, name: str) -> bool:
    return name in asked.state.switches.may_ping
