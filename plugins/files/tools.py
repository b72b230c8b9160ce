"""The tools: read, write, edit, multi_edit, patch, list, glob and grep.

Their blocking work runs in threads, a few at once. A change that has begun is finished even if the call is
cancelled, so that it is always reported.
"""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from gateway import AskFirst, Attachment, DisplayHints, Tool, ToolContext, ToolError, ToolOutput, tool_from
from gateway.api import ResultMetadata
from plugins.files import patches
from plugins.files.changes import Change, Changes, stamp_of, summary
from plugins.files.content import (
    Content,
    ReadLog,
    Stamp,
    Text,
    as_text,
    find_file,
    image_type,
    numbered,
    read_file,
)
from plugins.files.edits import replace
from plugins.files.places import Place, Places
from plugins.files.search import (
    MOST_RESULTS,
    Walk,
    compile_pattern,
    glob_filter,
    grep,
    list_folder,
    visible,
)
from plugins.files.settings import FilesSettings

T = TypeVar("T")

_AT_ONCE = 4
"""Most operations at once: the threads are shared with the rest of the gateway."""
_MOST_IMAGE_BYTES = 5_000_000
_MOST_PATCH_CHARACTERS = 1_000_000
_MOST_EDITS = 100
_MOST_PATCHED = 50_000_000
"""Most bytes of all files of a patch together, because they are in memory at once."""

FilePath = Annotated[str, Field(description="File, relative to the first root or absolute")]
FolderPath = Annotated[str, Field(description="Folder, relative to the first root or absolute")]


class Edit(BaseModel):
    """One replacement of ``multi_edit``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    old: str
    new: str
    all: bool = False


_EDITS: Mapping[str, Any] = {
    "type": "array",
    "minItems": 1,
    "maxItems": _MOST_EDITS,
    "description": "Replacements, made in this order; each one sees the result of those before it",
    "items": {
        "type": "object",
        "properties": {
            "old": {"type": "string"},
            "new": {"type": "string"},
            "all": {"type": "boolean", "default": False, "description": "Replace every occurrence"},
        },
        "required": ["old", "new"],
        "additionalProperties": False,
    },
}
"""Written out, because some providers accept no references inside of a schema."""


class FileTools:
    """The tools on the files of the roots."""

    def __init__(self, settings: FilesSettings, places: Places) -> None:
        self._settings = settings
        self._places = places
        self._reads = ReadLog()
        self._changes = Changes(settings.max_bytes)
        self._slots = asyncio.Semaphore(_AT_ONCE)

    def tools(self) -> Sequence[Tool]:
        """Make the tools that the settings offer."""
        reading = [
            self._tool(self.read, "reading a file", "file-read"),
            self._tool(self.list, "listing a folder", folder=True),
            self._tool(self.glob, "finding files", folder=True),
            self._tool(self.grep, "searching files", folder=True),
        ]
        if not self._settings.writable:
            return reading
        return [
            *reading,
            *(self._tool(each, kind="diff") for each in (self.write, self.edit, self.multi_edit)),
            tool_from(
                self.patch,
                display=DisplayHints(kind="diff"),
                match_key=self._patched_path,
                match_kind="path",
                asks=self._ask_about_patch,
            ),
        ]

    def _tool(
        self, function: Any, verb: str | None = None, kind: Any = None, *, folder: bool = False
    ) -> Tool:
        def asks(arguments: Mapping[str, Any], role: str) -> AskFirst | None:
            path = arguments.get("path", ".")
            if not isinstance(path, str):
                return None  # the call fails with wrong arguments
            return self._ask_about(self._places.find(path), role, folder=folder)

        return tool_from(
            function,
            display=DisplayHints(verb=verb, kind=kind, fields={"path": "path"}),
            match_key=self._path,
            match_kind="path",
            idempotent=kind != "diff",
            read_only=kind != "diff",
            asks=asks,
        )

    async def read(
        self,
        path: FilePath,
        context: ToolContext,
        offset: Annotated[int, Field(ge=1, description="First line")] = 1,
        limit: Annotated[int, Field(ge=1, le=2_000, description="Number of lines")] = 2_000,
    ) -> ToolOutput:
        """Read a text file, with line numbers, or look at a picture (PNG, JPEG, GIF, WebP)."""
        place = self._places.find(path)

        def show(_stopped: threading.Event) -> tuple[ToolOutput, Stamp | None]:
            content = read_file(place, self._settings.max_bytes)
            if kind := image_type(content.data):
                return _picture(place, content.data, kind), None
            shown = numbered(as_text(place, content.data).text, offset, limit)
            return ToolOutput(shown, metadata=ResultMetadata(bytes_read=len(content.data))), content.stamp

        output, stamp = await self._run(show)
        if stamp is not None:
            self._reads.note(context.session, place, stamp)
        return output

    async def list(self, path: FolderPath = ".") -> ToolOutput:
        """List a folder: folders end with /, files have their size, links show where they lead."""
        place = self._places.find(path)
        lines = await self._run(lambda _: list_folder(place, self._places))
        return ToolOutput("\n".join(lines) or "(the folder is empty)")

    async def glob(
        self,
        pattern: Annotated[str, Field(description="Such as *.py, src/**/*.{js,ts}")],
        path: FolderPath = ".",
    ) -> ToolOutput:
        """Find files below a folder by name. Folders such as .git and node_modules are left out."""
        place, wanted = self._places.find(path), glob_filter(pattern)

        def find(stopped: threading.Event) -> list[str]:
            walk = Walk(self._places, stopped.is_set)
            found: list[str] = []
            for entry in walk.files(place):
                if wanted(entry.place.parts[len(place.parts) :]):
                    if len(found) >= MOST_RESULTS:
                        walk.note = f"only the first {MOST_RESULTS} files are shown"
                        break
                    found.append(visible(entry.place.shown))
            return [*found, *([f"({walk.note})"] if walk.note else ())]

        return ToolOutput("\n".join(await self._run(find)) or "(no file matches)")

    async def grep(
        self,
        pattern: Annotated[str, Field(description="Regular expression of RE2, searched in each line")],
        path: Annotated[str, Field(description="Folder or file")] = ".",
        glob: Annotated[str, Field(description="Search only files that match, such as *.py")] = "**",
        ignore_case: bool = False,
        limit: Annotated[int, Field(ge=1, le=MOST_RESULTS, description="Most lines")] = 200,
    ) -> ToolOutput:
        """Find lines in the text files below a folder; RE2 has no look-around and no back-references."""
        place, wanted = self._places.find(path), glob_filter(glob)

        def is_left_out(file: Place) -> bool:
            if file.path == place.path:
                return False  # the file itself was asked for, and a user about it if need be
            return not wanted(file.parts[len(place.parts) :]) or self._settings.is_secret(file.path)

        def search(stopped: threading.Event) -> list[str]:
            compiled = compile_pattern(pattern, ignore_case=ignore_case)
            walk = Walk(self._places, stopped.is_set)
            found = grep(walk.files(place), compiled, self._settings.max_bytes, limit, is_left_out)
            return [*found, *([f"({walk.note})"] if walk.note else ())]

        return ToolOutput("\n".join(await self._run(search)) or "(no line matches)")

    async def write(
        self,
        path: FilePath,
        content: Annotated[str, Field(description="Whole content")],
        context: ToolContext,
    ) -> ToolOutput:
        """Write a whole file. A file that exists must have been read before."""
        place = self._places.find(path)

        def make() -> tuple[Change, ...]:
            before = self._known(context.session, place)
            text = Text("") if before is None else _text_or_plain(place, before)
            return (Change(place, before, text.encode(content)),)

        return await self._change(context, make)

    async def edit(
        self,
        path: FilePath,
        old: Annotated[str, Field(description="Text to replace; it must occur once, unless all is true")],
        new: Annotated[str, Field(description="Text to put there")],
        context: ToolContext,
        all: Annotated[bool, Field(description="Replace every occurrence")] = False,
    ) -> ToolOutput:
        """Replace a text in a file that was read before. Lines may differ in white space if unambiguous."""
        return await self.multi_edit(path, (Edit(old=old, new=new, all=all),), context)

    async def multi_edit(
        self,
        path: FilePath,
        edits: Annotated[
            tuple[Edit, ...], WithJsonSchema(dict(_EDITS)), Field(min_length=1, max_length=_MOST_EDITS)
        ],
        context: ToolContext,
    ) -> ToolOutput:
        """Make several replacements in a file that was read before: all of them, or none."""
        place = self._places.find(path)

        def make() -> tuple[Change, ...]:
            before = self._known(context.session, place)
            if before is None:
                raise ToolError(f"{place.shown} does not exist; use write")
            old = as_text(place, before.data)
            text = old.text
            for number, each in enumerate(edits, 1):
                try:
                    text = replace(text, each.old, each.new, every=each.all)
                except ToolError as error:
                    which = f"edit {number} of {len(edits)}: " if len(edits) > 1 else ""
                    raise ToolError(f"{place.shown}: {which}{error}; nothing was changed") from None
            return (Change(place, before, old.encode(text)),)

        return await self._change(context, make)

    async def patch(
        self,
        patch: Annotated[str, Field(description="Unified diff, or *** Begin Patch … *** End Patch")],
        context: ToolContext,
    ) -> ToolOutput:
        """Apply a patch to files that were read before: the whole patch, or nothing of it."""

        def make() -> tuple[Change, ...]:
            found: dict[str, Change] = {}
            for part in patches.parse(patch):
                for change in self._changes_of(context.session, part):
                    if change.place.path in found:
                        raise ToolError(f"the patch changes {change.place.shown} twice; nothing was changed")
                    found[change.place.path] = change
                    if sum(len(each.before.data) for each in found.values() if each.before) > _MOST_PATCHED:
                        raise ToolError(f"a patch may change files of {_MOST_PATCHED} bytes together")
            return tuple(found.values())

        if len(patch) > _MOST_PATCH_CHARACTERS:
            raise ToolError(f"a patch may have at most {_MOST_PATCH_CHARACTERS} characters")
        return await self._change(context, make)

    def _changes_of(self, session: str, part: patches.FilePatch) -> Sequence[Change]:
        """Return the changes of one file of a patch; a file that moves has two."""
        old = None if part.old is None else self._inside(part.old)
        new = None if part.new is None else self._inside(part.new)
        if old is None:
            assert new is not None, "a part names a file"
            if find_file(new, self._settings.max_bytes) is not None:
                raise ToolError(f"{new.shown} exists already; nothing was changed")
            return (Change(new, None, patches.apply(part, "").encode()),)
        before = self._known(session, old)
        if before is None:
            raise ToolError(f"{old.shown} does not exist; nothing was changed")
        if new is None:
            return (Change(old, before, None),)
        text = as_text(old, before.data)
        try:
            after = text.encode(patches.apply(part, text.text))
        except ToolError as error:
            raise ToolError(f"{error}\nnothing was changed") from None
        if new.path == old.path:
            return (Change(old, before, after),)
        return (Change(old, before, None), Change(new, None, after, before.mode))

    def _known(self, session: str, place: Place) -> Content | None:
        """Return the content of a file that the session has read; None if there is no file."""
        content = find_file(place, self._settings.max_bytes)
        if content is not None:
            self._reads.check(session, place, content)
        return content

    async def _change(self, context: ToolContext, make: Callable[[], Sequence[Change]]) -> ToolOutput:
        def prepare(_stopped: threading.Event) -> tuple[Sequence[Change], str, str]:
            changes = [each for each in make() if each.before is None or each.before.data != each.after]
            if not changes:
                raise ToolError("the content would stay the same; nothing was changed")
            return changes, *summary(changes)

        def change(stopped: threading.Event) -> None:
            self._changes.apply(changes, stopped.is_set)
            loop.call_soon_threadsafe(made)
            for each in changes:
                content = None if each.after is None else stamp_of(each.place, self._settings.max_bytes)
                if content is None or content.data != each.after:
                    self._reads.forget(context.session, each.place)
                else:
                    self._reads.note(context.session, each.place, content.stamp)

        loop = asyncio.get_running_loop()
        changes, shown, size = await self._run(prepare)
        async with context.changing([each.record for each in changes]) as made:
            await self._run(change)
        names = ", ".join(visible(each.place.shown) for each in changes[:3])
        more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
        return ToolOutput(f"Changed {names}{more} ({size})\n{shown}", title=f"changed {names}{more} ({size})")

    async def _run(self, work: Callable[[threading.Event], T]) -> T:
        """Run blocking work in a thread. A cancelled call asks it to stop, and waits until it has."""
        stopped = threading.Event()
        async with self._slots:
            running = asyncio.get_running_loop().run_in_executor(None, work, stopped)
            # Read here, because otherwise the error of a cancelled call is never retrieved.
            running.add_done_callback(lambda done: done.cancelled() or done.exception())
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                stopped.set()
                await asyncio.wait([running])
                raise

    def _path(self, arguments: Mapping[str, Any]) -> str | None:
        try:
            return self._places.find(arguments.get("path", ".")).shown
        except (ToolError, TypeError, AttributeError):
            return None  # the call fails with wrong arguments

    def _patched_path(self, arguments: Mapping[str, Any]) -> str | None:
        """Return the path of a patch for one file. A patch for several has no single text to compare."""
        try:
            [path] = patches.paths_of(arguments.get("patch", ""))
            return self._inside(path).shown
        except (ToolError, TypeError, ValueError, AttributeError):
            return None

    def _ask_about(self, place: Place, role: str, *, folder: bool) -> AskFirst | None:
        """Return the question about a path outside the roots, or about a file that may hold secrets."""
        # On one line: the question must not contain lines that the model made up.
        name, secret = visible(place.shown), self._settings.is_secret(place.path)
        if not place.outside:
            return (
                AskFirst(f"{name} may contain secrets, or is run or trusted by other programs.")
                if secret
                else None
            )
        allowed = self._settings.outside
        if allowed == "deny" or (allowed == "admins" and role != "admin"):
            who = "" if allowed == "deny" else "; only admins may allow it"
            raise ToolError(f"{name} is outside the folders of the plugin{who}")
        within = place.path if folder else place.folder
        reason = f"{name} is outside the folders of the plugin."
        if secret:
            return AskFirst(f"{reason} It may contain secrets, or is run or trusted by other programs.")
        return AskFirst(f"{reason} Always allows this tool in {visible(within)}.", f"{within.rstrip('/')}/*")

    def _ask_about_patch(self, arguments: Mapping[str, Any], role: str) -> AskFirst | None:
        patch = arguments.get("patch")
        if not isinstance(patch, str):
            return None  # the call fails with wrong arguments
        places = [self._inside(path) for path in patches.paths_of(patch)]
        secret = [visible(place.shown) for place in places if self._settings.is_secret(place.path)]
        return (
            AskFirst(f"{', '.join(secret)} may contain secrets, or is run or trusted by other programs.")
            if secret
            else None
        )

    def _inside(self, path: str) -> Place:
        """Return the place of a path in a patch. Raises ToolError for one outside the roots."""
        place = self._places.find(path)
        if place.outside:
            raise ToolError(
                f"the patch leaves the folders of the plugin with {path[:200]!r}; nothing was changed"
            )
        return place


def _picture(place: Place, data: bytes, kind: str) -> ToolOutput:
    if len(data) > _MOST_IMAGE_BYTES:
        raise ToolError(f"{place.shown} is a picture of more than {_MOST_IMAGE_BYTES} bytes")
    attachment = Attachment(kind, base64.b64encode(data).decode(), visible(place.parts[-1]))
    metadata = ResultMetadata(bytes_read=len(data))
    return ToolOutput(f"({kind}, {len(data)} bytes)", attachments=(attachment,), metadata=metadata)


def _text_or_plain(place: Place, content: Content) -> Text:
    """Return the line ends and the byte order mark of a file; a binary file has none."""
    try:
        return as_text(place, content.data)
    except ToolError:
        return Text("")
