"""Full texts of tool outputs that were too long for the conversation, and the tool that reads them.

The model and the log get head and tail of such an output. Its full text is kept for some days as a file with
a random name, in a folder of its session: the text of another session cannot be named.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import structlog
from pydantic import Field

from gateway.contract.errors import ToolError
from gateway.contract.messages import DisplayHints, sound
from gateway.contract.plugin import Plugin
from gateway.contract.tool import Tool, ToolContext, tool_from

log = structlog.get_logger("trunkline.tools")

MOST_LINES = 2_000
"""Most lines of an output in the conversation."""
READ_OUTPUT = "read_output"
"""The tool that reads a full text."""

_KEPT_DAYS = 7
_DAY_SECONDS = 86_400
_SWEEP_SECONDS = 3_600.0
_MOST_KEPT_BYTES = 16_000_000
"""Most bytes of one kept text: a tool may return any amount, and the disk is shared."""
_PAGE_CHARACTERS = 20_000
_PAGE_LINES = 1_900
_HEADER_BYTES = 200
_NAME = re.compile(r"[0-9a-f]{32}")


class ToolOutputs:
    """The full texts, in ``folder``. An output longer than ``most_bytes`` or 2,000 lines is cut."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.exist = False
        """True once a text is kept, or one of an earlier process was found."""
        self._folder = folder

    async def shorten(self, text: str, session: str, redact: Callable[[str], str]) -> str:
        """Return a tool's output for the conversation; keep the full text of one that is cut.

        ``redact`` masks the secrets in a text before it is stored.
        """
        # A code point takes at most four bytes, so that most texts are not encoded only to be measured.
        if len(text) * 4 <= self.most_bytes and text.count("\n") < MOST_LINES:
            return text
        whole = sound(text)
        if len(whole.encode()) <= self.most_bytes and whole.count("\n") < MOST_LINES:
            return text
        whole = redact(whole)
        try:
            name = await asyncio.to_thread(self._keep, session, whole)
            self.exist = True
        except OSError as error:
            log.warning("a full tool output could not be kept", session=session, reason=str(error))
            name = ""
        return _cut(whole, self.most_bytes, name)

    async def read(self, session: str, name: str, offset: int, limit: int) -> str:
        """Return a page of a kept text of a session, by characters. Raises ToolError."""
        if not _NAME.fullmatch(name):
            raise ToolError(f"{name[:100]!r} is not the id of an output; use the id in the cut output")
        try:
            text = await asyncio.to_thread((self._of(session) / name).read_text, encoding="utf-8")
        except FileNotFoundError:
            raise ToolError(
                f"there is no output {name} in this conversation; outputs are kept for {_KEPT_DAYS} days"
            ) from None
        page = "\n".join(text[offset : offset + limit].split("\n")[:_PAGE_LINES])
        most = max(self.most_bytes - _HEADER_BYTES, self.most_bytes // 2)
        page = page.encode()[:most].decode(errors="ignore")
        end = offset + len(page)
        if end >= len(text):
            return f"[characters {offset} to {end} of {len(text)}; this is the end]\n{page}"
        return f"[characters {offset} to {end} of {len(text)}; continue at offset {end}]\n{page}"

    async def forget(self, session: str) -> None:
        """Delete the kept texts of a session."""
        await asyncio.to_thread(shutil.rmtree, self._of(session), ignore_errors=True)

    async def run(self) -> None:
        """Delete old texts now and then once an hour, until cancelled."""
        while True:
            if await asyncio.to_thread(self.sweep, time.time()):
                self.exist = True
            await asyncio.sleep(_SWEEP_SECONDS)

    def sweep(self, now: float) -> bool:
        """Delete texts older than seven days at ``now`` (seconds). Return whether some remain."""
        remain = False
        for folder in _entries(self._folder):
            for path in _entries(folder):
                try:
                    if path.stat().st_mtime < now - _KEPT_DAYS * _DAY_SECONDS:
                        path.unlink()
                except OSError as error:
                    log.warning("an old tool output cannot be deleted", path=str(path), reason=str(error))
            try:
                folder.rmdir()
            except OSError:
                remain = True
        return remain

    def _of(self, session: str) -> Path:
        return self._folder / hashlib.sha256(session.encode(errors="replace")).hexdigest()[:32]

    def _keep(self, session: str, text: str) -> str:
        """Store a text durably, before a message that names it is committed. Return its random name."""
        name, folder = secrets.token_hex(16), self._of(session)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / name
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(text.encode()[:_MOST_KEPT_BYTES].decode(errors="ignore").encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            path.unlink(missing_ok=True)
            raise
        return name


class OutputReader(Plugin):
    """The tool that reads kept outputs."""

    # The name of the tool: a permission may then name it before it is offered.
    name = READ_OUTPUT

    def __init__(self, outputs: ToolOutputs) -> None:
        self._outputs = outputs
        self._tools = (
            tool_from(
                self.read_output,
                display=DisplayHints(verb="reading an output", fields={"id": "id"}),
                idempotent=True,
                read_only=True,
            ),
        )

    def tools(self) -> Sequence[Tool]:
        """Return the tool, once there is an output to read; until then models need not know it."""
        return self._tools if self._outputs.exist else ()

    async def read_output(
        self,
        context: ToolContext,
        id: Annotated[str, Field(description="The id in the output that was cut")],
        offset: Annotated[int, Field(ge=0, description="Characters to skip")] = 0,
        limit: Annotated[int, Field(ge=1, le=_PAGE_CHARACTERS, description="Characters to read")] = (
            _PAGE_CHARACTERS
        ),
    ) -> str:
        """Read the full text of a tool output that was cut, page by page."""
        return await self._outputs.read(context.session, id, offset, limit)


def _cut(text: str, most_bytes: int, name: str) -> str:
    """Return head and tail of a text, and between them a line that says how to read the rest."""
    lines, half = text.split("\n"), most_bytes // 2
    head, tail = text, text
    if len(lines) > MOST_LINES:
        head, tail = "\n".join(lines[: MOST_LINES // 2]), "\n".join(lines[-MOST_LINES // 2 :])
    head = head.encode()[:half].decode(errors="ignore")
    tail = tail.encode()[-half:].decode(errors="ignore")
    left = len(text) - len(head) - len(tail)
    rest = f"read it with {READ_OUTPUT}, id {name}, offset {len(head)}" if name else "it could not be kept"
    return f"{head}\n[output cut here: {left} of {len(text)} characters are left out; {rest}]\n{tail}"


def _entries(folder: Path) -> Iterator[Path]:
    try:
        yield from sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
