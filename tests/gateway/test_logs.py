"""Logs: for people or for machines, in lines of a bounded length, on standard error."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.logs import log_files

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CODE = """
import logging
from pathlib import Path
import structlog
from gateway.logs import set_up_logs
from gateway.settings import LogSettings

folder = {folder!r}
settings = LogSettings(level={level!r}, format={format!r}, file_bytes={size})
set_up_logs(settings, Path(folder) if folder else None, {node!r})
log = structlog.get_logger("trunkline")
log.debug("quiet")
log.info("hello", session="s", text="x" * 20_000)
try:
    1 / 0
except ZeroDivisionError:
    log.exception("it failed")
logging.getLogger("library").warning("of a library")
logging.getLogger("library").info("chatter of a library")
"""


def logged(
    level: str = "info", form: str = "json", folder: str = "", size: int = 10_000, node: str | None = None
) -> str:
    """What a process writes to standard error."""
    code = CODE.format(level=level, format=form, folder=folder, size=size, node=node)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == ""
    return done.stderr


@pytest.mark.parametrize("form", ["json", "auto"])
def test_machines_get_a_json_object_a_line(form: str) -> None:
    hello, failed, foreign = logged(form=form).splitlines()
    line = json.loads(hello)
    assert (line["event"], line["level"], line["session"]) == ("hello", "info", "s")
    assert line["timestamp"].endswith("Z")
    assert line["text"].endswith("… (20000 characters)")
    assert len(line["text"]) < 9_000
    assert "ZeroDivisionError" in json.loads(failed)["exception"]
    assert json.loads(foreign)["logger"] == "library"


def test_people_get_words() -> None:
    text = logged(form="console")
    assert text.splitlines()[-1] == "library: of a library"
    assert "hello" in text
    assert "session" in text
    assert "{" not in text.splitlines()[0]


def test_a_text_cannot_steer_the_terminal_or_forge_a_line() -> None:
    code = """
import logging
import structlog
from gateway.logs import set_up_logs
from gateway.settings import LogSettings

set_up_logs(LogSettings(format="console"))
text = "a\\x1b[2J\\nforged: \\x9b\\u202eb"
log = structlog.get_logger("trunkline")
log.info(text, reason=text)
try:
    raise ValueError(text)
except ValueError:
    log.exception("it failed")
    logging.getLogger("library").exception(text)
logging.getLogger("library").warning(text)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    # The colors are the renderer's own.
    plain = re.sub("\x1b\\[[0-9;]*m", "", done.stderr)
    assert plain.replace("\n", "").isprintable()
    assert len([line for line in plain.splitlines() if line.startswith("forged: ")]) == 2, (
        "in tracebacks alone"
    )
    assert r"a\x1b[2J\nforged: \x9b\u202eb" in plain


@pytest.mark.parametrize(("level", "events"), [("debug", 4), ("warning", 2)])
def test_only_what_is_severe_enough_is_logged(level: str, events: int) -> None:
    assert len([line for line in logged(level).splitlines() if line.startswith("{")]) == events


def test_all_of_it_is_kept_as_json_in_files_of_a_bounded_size(tmp_path: Path) -> None:
    for _ in range(7):
        logged(form="console", folder=str(tmp_path))
    *older, newest = log_files(tmp_path)
    assert [path.exists() for path in older] == [True] * 4
    assert sorted(path.name for path in newest.parent.iterdir()) == sorted(p.name for p in (*older, newest))
    lines = [json.loads(line) for path in (*older, newest) for line in path.read_text().splitlines()]
    assert {line["event"] for line in lines} == {"hello", "it failed", "of a library"}
    assert all({"timestamp", "level"} <= line.keys() for line in lines)
    assert {path.stat().st_mode & 0o777 for path in newest.parent.iterdir()} == {0o600}
    assert newest.parent.stat().st_mode & 0o777 == 0o700


def test_a_directory_that_cannot_be_written_costs_the_file_and_is_reported_once() -> None:
    lines = [json.loads(line) for line in logged(folder="/proc/nowhere").splitlines()]
    [report] = [line for line in lines if "cannot write the log file" in line["event"]]
    assert (report["file"], report["level"]) == ("/proc/nowhere/trunkline.jsonl", "error")
    assert len(lines) == 4


def test_a_full_disk_is_reported_once(tmp_path: Path) -> None:
    log_files(tmp_path)[-1].symlink_to("/dev/full")
    lines = [json.loads(line) for line in logged(folder=str(tmp_path)).splitlines()]
    [report] = [line for line in lines if "cannot write the log file" in line["event"]]
    assert "No space left on device" in report["reason"]
    assert len(lines) == 4


def test_a_file_that_another_program_moved_is_made_again(tmp_path: Path) -> None:
    code = CODE.format(level="info", format="json", folder=str(tmp_path), size=100_000, node=None)
    current = log_files(tmp_path)[-1]
    moved = f"{code}\nPath({str(current)!r}).rename({str(tmp_path / 'moved')!r})\nlog.info('after')"
    subprocess.run([sys.executable, "-c", moved], cwd=ROOT, capture_output=True, check=True)
    assert [json.loads(line)["event"] for line in current.read_text().splitlines()] == ["after"]
    assert len((tmp_path / "moved").read_text().splitlines()) == 3


def test_logging_to_a_closed_pipe_does_not_fail() -> None:
    code = CODE.format(level="info", format="json", folder="", size=10_000, node=None)
    code = f"import os\nreader, writer = os.pipe()\nos.close(reader)\nos.dup2(writer, 2)\n{code}\nprint('on')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    assert done.stdout == "on\n"


def test_each_line_of_a_node_has_its_name(tmp_path: Path) -> None:
    said = [json.loads(line) for line in logged(folder=str(tmp_path), node="node-1").splitlines()]
    kept = [
        json.loads(line)
        for path in log_files(tmp_path)
        if path.exists()
        for line in path.read_text().splitlines()
    ]
    assert [line["node"] for line in (*said, *kept)] == ["node-1"] * (3 + len(kept))
    assert "of a library" in [line["event"] for line in kept]
