"""Changes of files: recorded by tools, read by session and answer, shown by clients."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect
from sqlalchemy import func, select
from typer.testing import CliRunner

from gateway.cli import app as trunkline
from gateway.contract.messages import Message, ToolResultPart
from gateway.conversations.changes import MOST_CHANGES, MOST_CHARACTERS, ChangeSummary
from gateway.events import BusEvent, FileModified
from gateway.store import schema as t
from gateway.testing.chat import Chat, chatting
from gateway.testing.fake_models.script import Reply, Say, Use
from gateway.testing.served import serving
from tests.e2e.page_browser import answers, chat, say

pytestmark = pytest.mark.slow

SECRET = "sk-0123456789abcdef0123456789"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


def enabled(root: Path, *plugins: str, **settings: Any) -> dict[str, Any]:
    return {"plugins": {"enabled": ["files", *plugins], "files": {"roots": [str(root)]}}, **settings}


def use(name: str, **arguments: Any) -> Reply:
    return Reply((Use(name, json.dumps(arguments)),), "tools")


async def change(chat: Chat, *calls: Reply) -> Message:
    """The answer to a message whose turn makes these calls."""
    chat.model.then(*calls, Reply((Say("Done."),)))
    return await chat.say("go")


async def changes_of(chat: Chat, answer: str | None = None) -> ChangeSummary:
    return await chat.host.changes.read("s", answer)


async def count(chat: Chat) -> int:
    query = select(func.count()).select_from(t.file_change)
    return await chat.gateway.parts.store.read(lambda c: c.execute(query).scalar_one())


async def test_the_changes_of_a_session_are_summed_up_by_file_also_after_a_restart(
    tmp_path: Path, root: Path
) -> None:
    async with chatting(tmp_path / "data", **enabled(root)) as chat:
        first = await change(chat, use("write", path="a", content="one\ntwo\n"))
        second = await change(
            chat, use("edit", path="a", old="two", new="2"), use("write", path="b\nc", content="x\n")
        )
    async with chatting(tmp_path / "data", **enabled(root)) as chat:
        summary = await changes_of(chat)
        assert (summary.files, summary.added, summary.removed) == (2, 3, 0)
        one, other = summary.changes
        assert (one.path, one.before, one.after, one.note) == (f"{root}/a", None, "one\n2\n", "")
        assert one.answers == (first.id, second.id)
        assert one.diff == f"--- /dev/null\n+++ {root}/a\n@@ -0,0 +1,2 @@\n+one\n+2"
        assert (other.path, other.after) == (f"{root}/b\nc", "x\n")
        only = await changes_of(chat, second.id)
        assert [(each.before, each.after) for each in only.changes] == [
            ("one\ntwo\n", "one\n2\n"),
            (None, "x\n"),
        ]
        assert (only.added, only.removed) == (2, 1)
        counted = [
            part.metadata.changed_files
            for part in second.parts
            if isinstance(part, ToolResultPart) and part.metadata
        ]
        assert counted == [1, 1]


async def test_a_file_that_is_as_before_does_not_count(tmp_path: Path, root: Path) -> None:
    async with chatting(tmp_path / "data", **enabled(root)) as chat:
        delete = use("patch", patch="*** Begin Patch\n*** Delete File: a\n*** End Patch")
        await change(chat, use("write", path="a", content="x"), delete)
        assert await changes_of(chat) == ChangeSummary(0, 0, 0, ())


async def test_a_refused_change_is_not_recorded(tmp_path: Path, root: Path) -> None:
    (root / "a").write_text("x")
    (root / "a").chmod(0o444)
    async with chatting(tmp_path / "data", **enabled(root)) as chat:
        await change(chat, use("read", path="a"), use("edit", path="a", old="x", new="y"))
        await chat.gateway.parts.store.write()
        assert await count(chat) == 0


async def test_long_contents_are_cut_and_others_are_named(tmp_path: Path, root: Path) -> None:
    async with chatting(tmp_path / "data", **enabled(root)) as chat:
        await change(chat, use("write", path="a", content="a line\n" * 10_000))
        await change(chat, use("edit", path="a", old="a line\n" * 10_000, new="b\n"))
        [one] = (await changes_of(chat)).changes
        assert (one.before, one.after, one.added, one.removed) == (None, "b\n", 10_001, 10_000)
        assert one.note == f"only the first {MOST_CHARACTERS:,} characters are kept"
        assert len(one.diff) < MOST_CHARACTERS + 100


async def test_configured_secrets_are_masked(tmp_path: Path, root: Path) -> None:
    seen: list[BusEvent] = []
    settings = enabled(root, providers={"openai": {"api_key": SECRET}})
    async with chatting(tmp_path / "data", **settings) as chat:
        chat.gateway.events.subscribe(FileModified, seen.append)
        (root / "a").write_text(f"key = {SECRET}\n")
        await change(chat, use("read", path="a"), use("edit", path="a", old="key", new="token"))
        assert (root / "a").read_text() == f"token = {SECRET}\n"
        summary = await changes_of(chat)
        assert summary.files == len(seen) == 1
        assert SECRET not in repr((summary, seen))


async def test_changes_of_batched_calls_belong_to_the_answer(tmp_path: Path, root: Path) -> None:
    async with chatting(tmp_path / "data", **enabled(root, "batch")) as chat:
        calls = [{"tool": "write", "arguments": {"path": name, "content": name}} for name in ("a", "b")]
        answer = await change(chat, use("batch", calls=calls))
        [result] = [part for part in answer.parts if isinstance(part, ToolResultPart)]
        assert result.metadata is not None
        assert result.metadata.changed_files == 2
        assert (await changes_of(chat, answer.id)).files == 2


async def test_changes_are_deleted_with_their_session(tmp_path: Path, root: Path) -> None:
    async with chatting(tmp_path / "data", **enabled(root)) as chat:
        await change(chat, use("write", path="a", content="x"))
        assert await count(chat) == 1
        await chat.gateway.parts.sessions.delete("s")
        assert await count(chat) == 0


async def test_the_newest_changes_of_a_session_are_kept(tmp_path: Path, root: Path) -> None:
    async with chatting(tmp_path / "data", **enabled(root)) as chat:
        await change(chat, use("write", path="a", content="0"))
        # One row stands for the oldest of more than fit.
        copies = [
            {"id": f"{n:08}", "session": "s", "answer": "x", "path": f"/{n}", "added": 0, "removed": 0,
             "before": None, "after": "x", "diff": "", "note": "", "at": 1,
             "seq": n - MOST_CHANGES}
            for n in range(MOST_CHANGES)
        ]  # fmt: skip
        with chat.gateway.parts.store.engine.begin() as connection:
            connection.execute(t.file_change.insert(), copies)
        await change(chat, use("edit", path="a", old="0", new="1"))
        assert await count(chat) == MOST_CHANGES
        paths = [one.path for one in (await changes_of(chat)).changes]
        assert "/0" not in paths
        assert "/2" in paths


async def test_a_cancelled_call_leaves_a_record_exactly_if_it_changed_the_file(
    tmp_path: Path, root: Path
) -> None:
    async with chatting(tmp_path / "data", **enabled(root)) as chat:
        chat.model.then(use("write", path="a", content="x"))
        answer = await chat.accept("go")
        watcher = await chat.watch()
        await watcher.until(lambda frame: type(frame).__name__ == "ToolResultStart")
        await chat.host.abort("s")
        await chat.answer(answer)
        await chat.gateway.parts.store.write()
        assert await count(chat) == (root / "a").exists()


async def test_rest_serves_the_changes_and_the_command_prints_them(tmp_path: Path, root: Path) -> None:
    data = tmp_path / "data"
    async with serving(data, **enabled(root)) as served:
        served.models.then(use("write", path="a.py", content="x\ny\n"), Reply((Say("Done."),)))
        _, accepted = await served.ask("POST", "/api/sessions/s/messages", json={"text": "go"})
        await served.idle("s")
        status, found = await served.ask("GET", "/api/sessions/s/changes")
        assert (status, found["files"], found["added"], found["removed"]) == (200, 1, 2, 0)
        [one] = found["changes"]
        assert (one["before"], one["after"]) == (None, "x\ny\n")
        assert one["answers"] == [accepted["answer_id"]]
        path = "/api/sessions/s/changes"
        assert await served.ask("GET", path, params={"answer": accepted["answer_id"]}) == (200, found)
        _, none = await served.ask("GET", path, params={"answer": "other"})
        assert none == {"files": 0, "added": 0, "removed": 0, "changes": []}
        assert (await served.ask("GET", "/api/sessions/unknown/changes"))[0] == 404
    config = tmp_path / "t.toml"
    config.write_text(f'data_dir = "{data}"\n')

    def show(*more: str) -> str:
        result = CliRunner().invoke(trunkline, ["sessions", "show", "s", "--config", str(config), *more])
        assert result.exit_code == 0, result.output
        return result.stdout

    table = await asyncio.to_thread(show)
    assert [line.split() for line in table.splitlines()[-2:]] == [
        ["file", "+", "\N{MINUS SIGN}"],
        [f"{root}/a.py", "2", "0"],
    ]
    assert json.loads(await asyncio.to_thread(show, "--json"))["changes"] == found


async def test_the_page_shows_the_changes_of_a_turn_folded(
    browser: Browser, tmp_path: Path, root: Path
) -> None:
    (root / "<b>.py").write_text("one\n")
    async with serving(tmp_path / "data", **enabled(root)) as served, chat(browser, served.url) as page:
        served.models.then(
            use("read", path="<b>.py"),
            use("edit", path="<b>.py", old="one", new="1"),
            use("write", path="new", content="x\n"),
            Reply((Say("Done."),)),
        )
        await say(page, "go")
        for _ in range(2):  # as it happens, and from history
            folded = answers(page).locator(".changes")
            await expect(folded.locator("> summary")).to_have_text("2 files changed+2 \N{MINUS SIGN}1")
            diff = folded.get_by_label(f"Diff of {root}/<b>.py")
            await expect(diff).to_be_hidden()
            await folded.locator("> summary").click()
            await folded.locator(".tool-hint").first.click()
            await expect(diff.locator(".gd")).to_have_text(["--- " + f"{root}/<b>.py\n", "-one\n"])
            await expect(diff.locator(".gi").last).to_have_text("+1\n")
            await page.reload()
        served.models.then(Reply((Say("Nothing."),)))
        await say(page, "again")
        await expect(answers(page).nth(1)).to_have_attribute("data-status", "done")
        await expect(answers(page).nth(1).locator(".changes")).to_have_count(0)
