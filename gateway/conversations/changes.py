"""Changes of files: what the tools of a session changed, recorded before it happens, summed up, and reverted.

Contents are kept up to 16,000 characters and without the gateway's secrets, for the newest 1,000 changes of a
session. They are deleted with the session.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import structlog
from msgspec import Struct, structs
from sqlalchemy import Connection, RowMapping, select

from gateway.contract.messages import ToolCallPart, new_id, now_ms
from gateway.contract.services import EventService
from gateway.contract.tool import Changing, FileChange, Watching, text_of, unified_diff
from gateway.events.types import FileDeleted, FileModified
from gateway.files import SnapshotError, Snapshots, State, Watch, put_state, read_state
from gateway.session import Turn, calling
from gateway.store import Store
from gateway.store import schema as t
from gateway.store.steps import make_key
from gateway.store.writes import Op, OwnStatement, Row, Write

log = structlog.get_logger("trunkline.changes")

MOST_CHARACTERS = 16_000
"""Characters that are kept of a content, and of a diff."""
MOST_CHANGES = 1_000
"""Changes that are kept of a session."""

_MOST_COMPARED_BYTES = 2_000_000
_CUT = f"only the first {MOST_CHARACTERS:,} characters are kept"
_COLUMNS = (
    "id session answer path added removed before after diff note at root mode new_mode blob new_blob "
    "unkept seq"
)

# A turn may end after its session was deleted; its changes then belong to no session.
_PUT = OwnStatement(
    38,
    t.file_change,
    f"INSERT INTO file_change ({_COLUMNS.replace(' ', ', ')}) SELECT CAST(?1 AS TEXT), CAST(?2 AS TEXT), "  # noqa: S608
    "CAST(?3 AS TEXT), CAST(?4 AS TEXT), CAST(?5 AS INTEGER), CAST(?6 AS INTEGER), CAST(?7 AS TEXT), "
    "CAST(?8 AS TEXT), CAST(?9 AS TEXT), CAST(?10 AS TEXT), CAST(?11 AS BIGINT), "
    "CAST(?12 AS TEXT), CAST(?13 AS INTEGER), CAST(?14 AS INTEGER), CAST(?15 AS TEXT), CAST(?16 AS TEXT), "
    "CAST(?17 AS TEXT), (SELECT COALESCE(MAX(seq), 0) + 1 FROM file_change WHERE session = CAST(?2 AS TEXT)) "
    "WHERE EXISTS (SELECT 1 FROM sessions WHERE id = CAST(?2 AS TEXT))",
)
_TRIM = OwnStatement(
    39,
    t.file_change,
    "DELETE FROM file_change WHERE session = ?1 AND seq <= "  # noqa: S608
    f"(SELECT seq FROM file_change WHERE session = ?1 ORDER BY seq DESC LIMIT 1 OFFSET {MOST_CHANGES})",
)
_DROP = Write("delete", 37, t.file_change, "id")
_SET_STATE = Write("update", 36, t.file_change, "id state")
_INTEND = OwnStatement(
    36, t.file_change, "UPDATE file_change SET state = ?1 WHERE state = ?2 AND session = ?3 AND answer = ?4"
)


class ChangedFile(Struct, frozen=True):
    """Change of a file by a session or one of its turns, from its first change to its last.

    ``before`` and ``after`` are null if there was no file; ``note`` says if they are not complete.
    ``answers`` are the ids of the answers whose turns changed it.
    """

    path: str
    added: int
    removed: int
    before: str | None
    after: str | None
    diff: str
    note: str
    answers: tuple[str, ...]


class ChangeSummary(Struct, frozen=True):
    """Changes of files by tools: totals, and each file by its path."""

    files: int
    added: int
    removed: int
    changes: tuple[ChangedFile, ...]


class Reverted(Struct, frozen=True):
    """The result of reverting or restoring: the files that are as wanted, and the others with the reason."""

    done: tuple[str, ...]
    refused: Mapping[str, str]


class ChangeLog:
    """Records, reads, reverts and restores changes of files. Folders of ``closed`` are never watched."""

    def __init__(self, store: Store, snapshots: Snapshots, closed: Path, events: EventService) -> None:
        self._events = events
        self._store = store
        self._snapshots = snapshots
        self._closed = closed
        self._lock = asyncio.Lock()

    def changing(self, turn: Turn) -> Changing:
        """Return the function with which the tools of a turn record their changes."""

        @asynccontextmanager
        async def changing(changes: Sequence[FileChange]) -> AsyncGenerator[Callable[[], None]]:
            rows = await asyncio.to_thread(self._rows, turn, changes)
            done = False

            def made() -> None:
                nonlocal done
                done = True

            # Recorded first: of a change that a crash cuts off, the record is too much, never too little.
            await self._store.write(*((_PUT, row) for row in rows), (_TRIM, (turn.root.session.id,)))
            try:
                yield made
            finally:
                if done:
                    _report(turn, changes, rows)
                else:
                    self._store.submit([(_DROP, (row[0],)) for row in rows])

        return changing

    def watching(self, turn: Turn) -> Watching:
        """Return the function with which the tools of a turn record what programs change in folders."""

        @asynccontextmanager
        async def watching(roots: Sequence[Path]) -> AsyncGenerator[None]:
            try:
                watch = await asyncio.to_thread(Watch, roots, self._closed)
            except SnapshotError as error:
                log.info("changes of a command are not recorded", session=turn.session.id, reason=str(error))
                yield
                return
            try:
                yield
            finally:
                found = await asyncio.to_thread(watch.changes)
                changes = [_watched(roots, *each) for each in found]
                if changes:
                    async with self.changing(turn)(changes) as made:
                        made()

        return watching

    async def read(self, session: str, answer: str | None = None) -> ChangeSummary:
        """Return what a session changed, or one of its answers."""
        return await self._store.read(lambda c: read_changes(c, session, answer))

    def intend(self, session: str, answers: Collection[str], *, back: bool) -> list[Op]:
        """Return the writes of the intent to revert or restore; that, or ``resume``, follows."""
        states = ("reverting", "") if back else ("restoring", "reverted")
        return [(_INTEND, (*states, session, answer)) for answer in answers]

    async def revert(self, session: str, answers: Collection[str]) -> Reverted:
        """Give the files that these answers changed the contents that they had before.

        A file that another program changed since is not changed. A process that ends meanwhile goes on
        with ``resume``; repeating a call is harmless.
        """
        return await self._move(session, answers, "", "reverting", "reverted")

    async def restore(self, session: str, answers: Collection[str]) -> Reverted:
        """Make changes that were reverted once more; see ``revert``."""
        return await self._move(session, answers, "reverted", "restoring", "")

    async def resume(self) -> None:
        """Finish what a killed process had begun, and delete contents of sessions that do not exist."""
        f = t.file_change.c
        begun = select(f.session, f.answer, f.state).where(f.state.in_(("reverting", "restoring")))
        for session, answer, state in await self._store.read(lambda c: c.execute(begun.distinct()).all()):
            await (self.revert if state == "reverting" else self.restore)(session, [answer])
        known = await self._store.read(lambda c: c.execute(select(f.session).distinct()).scalars().all())
        await asyncio.to_thread(self._snapshots.sweep, known)

    async def forget(self, session: str) -> None:
        """Delete the contents of a session."""
        await asyncio.to_thread(self._snapshots.forget, session)

    async def _move(
        self, session: str, answers: Collection[str], known: str, begun: str, ended: str
    ) -> Reverted:
        f = t.file_change.c
        query = select(t.file_change).where(
            f.session == session, f.answer.in_(answers), f.state.in_((known, begun))
        )
        async with self._lock:
            rows = await self._store.read(lambda c: c.execute(query.order_by(f.seq)).mappings().all())
            by_path: dict[str, list[RowMapping]] = {}
            for row in rows:
                by_path.setdefault(row["path"], []).append(row)
            # The intent first, so that the next process finishes what this one began.
            await self._store.write(*((_SET_STATE, (row["id"], begun)) for row in rows))
            refused: dict[str, str] = {}
            for path, changes in by_path.items():
                try:
                    event = await asyncio.to_thread(self._put, changes, begun == "reverting")
                except SnapshotError as error:
                    refused[path] = str(error)
                    continue
                if event is not None:
                    by = "undo" if begun == "reverting" else "redo"
                    self._events.emit(event(session, path, changes[-1]["answer"], by=by))
            states = ((row["id"], known if row["path"] in refused else ended) for row in rows)
            await self._store.write(*((_SET_STATE, state) for state in states))
        return Reverted(tuple(sorted(by_path.keys() - refused)), refused)

    def _put(
        self, changes: Sequence[RowMapping], back: bool
    ) -> type[FileModified] | type[FileDeleted] | None:
        """Give a file its content before its first change, or after its last. Return what happened to it.

        Raises SnapshotError.
        """
        first, last = changes[0], changes[-1]
        for row in changes:
            if row["unkept"]:
                raise SnapshotError(row["unkept"])
        if any(one["new_blob"] != other["blob"] for one, other in pairwise(changes)):
            raise SnapshotError("it was changed in between")
        old, new = (first["blob"], first["mode"]), (last["new_blob"], last["new_mode"])
        (wanted, mode), (expected, _) = (old, new) if back else (new, old)
        found = read_state(first["path"])
        now = "" if found is None else found.blob
        if now == wanted:
            return None
        if now != expected:
            raise SnapshotError("it was changed since")
        data = self._snapshots.load(first["session"], wanted) if wanted else b""
        put_state(first["root"], first["path"], State(data, mode) if wanted else None)
        return FileModified if wanted else FileDeleted

    def _rows(self, turn: Turn, changes: Sequence[FileChange]) -> list[Row]:
        kept, unkept = changes[:MOST_CHANGES], ""
        contents = {_blob(data): data for one in kept for data in (one.before, one.after) if data is not None}
        try:
            self._snapshots.store(turn.root.session.id, list(contents.values()))
        except SnapshotError as error:
            unkept = f"its contents could not be kept: {error}"
        return [_row(turn, change, unkept) for change in kept]


def read_changes(connection: Connection, session: str, answer: str | None = None) -> ChangeSummary:
    """Read what a session changed, or one of its answers."""
    f = t.file_change.c
    query = select(t.file_change).where(f.session == session, f.state == "").order_by(f.seq)
    if answer is not None:
        query = query.where(f.answer == answer)
    found: dict[str, list[ChangedFile]] = {}
    for row in connection.execute(query):
        one = ChangedFile(
            row.path, row.added, row.removed, row.before, row.after, row.diff, row.note, (row.answer,)
        )
        found.setdefault(row.path, []).append(one)
    merged = [_merged(found[path]) for path in sorted(found)]
    changes = tuple(one for one in merged if one.note or one.before != one.after)
    added, removed = sum(one.added for one in changes), sum(one.removed for one in changes)
    return ChangeSummary(len(changes), added, removed, changes)


def _merged(changes: Sequence[ChangedFile]) -> ChangedFile:
    """Return the changes of one file as one."""
    first, last = changes[0], changes[-1]
    if len(changes) == 1:
        return first
    answers = tuple(dict.fromkeys(answer for one in changes for answer in one.answers))
    note = "; ".join(dict.fromkeys(one.note for one in changes if one.note))
    if note:
        added, removed = sum(one.added for one in changes), sum(one.removed for one in changes)
        text = "\n".join(one.diff for one in changes)
    else:
        names = ("/dev/null" if text is None else first.path for text in (first.before, last.after))
        diff = unified_diff(first.before or "", last.after or "", *names)
        added, removed, text = diff.added, diff.removed, diff.text
    return ChangedFile(first.path, added, removed, first.before, last.after, _cut(text), note, answers)


def _row(turn: Turn, change: FileChange, unkept: str) -> Row:
    redact = turn.session.redactor.redact_text
    # Comparing takes time and memory, and a diff of megabytes is of no use.
    small = len(change.before or b"") + len(change.after or b"") <= _MOST_COMPARED_BYTES
    diff = structs.replace(change, name="").diff() if small else None
    texts = [None if data is None else redact(text_of(data)) for data in (change.before, change.after)]
    is_cut = any(text is not None and len(text) > MOST_CHARACTERS for text in texts)
    before, after = (None if text is None else _cut(text) for text in texts)
    note = "; ".join(filter(None, (_CUT if is_cut else "", "" if small else "too large to compare")))
    counts = (diff.added, diff.removed) if diff is not None else (0, 0)
    text = _cut(redact(diff.text)) if diff is not None else ""
    base = (new_id(), turn.root.session.id, turn.answer_id, change.path, *counts, before, after, text, note)
    kept = (change.root, change.mode, change.new_mode, _blob(change.before), _blob(change.after), unkept)
    return *base, now_ms(), *kept


def _blob(data: bytes | None) -> str:
    return "" if data is None else State(data, None).blob


def _watched(roots: Sequence[Path], path: str, before: State | None, after: State | None) -> FileChange:
    root = max((str(root) for root in roots if Path(path).is_relative_to(root)), key=len)
    (old, mode), (new, new_mode) = ((s.data, s.mode) if s else (None, None) for s in (before, after))
    return FileChange(path, old, new, root=root, mode=mode, new_mode=new_mode)


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}\n[cut here]"


def _report(turn: Turn, changes: Sequence[FileChange], rows: Sequence[Row]) -> None:
    turn.changed_files[calling.get()] += [change.path for change in changes]
    diffs = {row[3]: str(row[8]) for row in rows}
    by = _running_tool(turn)
    for change in changes:
        event = FileDeleted if change.after is None else FileModified
        diff = diffs.get(change.path, "")
        turn.session.events.emit(event(turn.root.session.id, change.path, turn.answer_id, diff, by))


def _running_tool(turn: Turn) -> str:
    """Return the name of the tool whose call runs in this task; "" for one that another tool calls."""
    key = calling.get()
    parts = (part for _, part in turn.assembler.parts_from(0) if isinstance(part, ToolCallPart))
    return next((p.tool_name for p in parts if make_key(turn.entry.id, p.tool_call_id) == key), "")
